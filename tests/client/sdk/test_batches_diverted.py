"""A batch that is diverted by putting the envelope into the bytes that it has: what comes out is
what encoding each diverted message would give, and it comes home."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import given
from hypothesis import strategies as st

from pairbus.client.sdk import batches
from pairbus.client.sdk.batch import Batch
from pairbus.client.sdk.batches import EncodedOnce, Spliced
from pairbus.client.sdk.messages import diverted, diverted_all
from pairbus.syphon.restore import restore
from tests.client.sdk.drawn import bodies, headers, messages, notes, properties
from tests.client.sdk.test_batches import contents, filled
from tests.client.sdk.wire import encoded
from tests.syphon import originals
from tests.syphon.backlog import NOW_MS, delivered

ROOM = 1_000_000
letters = st.characters(exclude_categories=["C", "Z"], exclude_characters="/$?#")
paths = st.lists(st.text(letters, min_size=1, max_size=80), min_size=1, max_size=3).map("/".join)


@st.composite
def simple_messages(draw: Any) -> AmqpAnnotatedMessage:
    """Whose envelope is their path alone: without properties of their own, session, time to live
    and schedule, and with anything else."""
    header, fields = draw(st.none() | headers), draw(st.none() | properties)
    message = AmqpAnnotatedMessage(
        **draw(bodies),
        annotations=draw(st.none() | notes),
        delivery_annotations=draw(st.none() | notes),
        footer=draw(st.none() | notes),
        application_properties=draw(st.none() | st.just({})),
    )
    if header is not None:
        header.time_to_live = None
    if fields is not None:
        fields.group_id = None
    message.header, message.properties = header, fields
    return message


def batch_of(*added: Any) -> Batch:
    batch = Batch.of(ServiceBusMessageBatch(ROOM))
    filled(batch, list(added))
    return batch


@given(message=simple_messages(), path=paths)
def test_a_message_with_its_path_put_in_is_what_encoding_it_would_give(message, path):
    [twin] = diverted_all(batch_of(message), path)

    assert isinstance(twin, Spliced)
    assert twin.encoded == encoded(diverted(message, path))
    assert twin.encoded == encoded(twin)


@given(message=originals.messages(), path=paths)
def test_it_comes_home_to_the_byte(message, path):
    message.application_properties = None
    message.header.time_to_live = message.properties.group_id = None
    message.annotations.pop("x-opt-scheduled-enqueue-time", None)
    batch = batch_of(message)
    [twin] = diverted_all(batch, path)

    home = restore(delivered(twin.encoded), now_ms=NOW_MS)

    assert home.data == bytes(batch._message[5][0])
    assert home.path == path


@given(added=st.lists(messages() | simple_messages(), min_size=1, max_size=4), path=paths)
def test_whatever_the_batch_holds_its_diverted_messages_are_the_same(added, path):
    twins = diverted_all(batch_of(*added), path)

    assert [encoded(twin) for twin in twins] == [
        encoded(diverted(message, path)) for message in added
    ]
    for twin in twins:
        if isinstance(twin, Spliced):
            assert twin.encoded == encoded(twin)


@given(added=st.lists(simple_messages(), min_size=1, max_size=4), path=paths)
def test_a_backlogs_batch_holds_them_as_the_sdks_own_would(added, path):
    twins = diverted_all(batch_of(*added), path)

    ours = filled(EncodedOnce(ROOM), twins)
    theirs = filled(ServiceBusMessageBatch(ROOM), [diverted(one, path) for one in added])

    assert contents(ours) == contents(theirs)


@pytest.mark.parametrize(
    "more",
    [
        {"application_properties": {"number": 1}},
        {"session_id": "one"},
        {"session_id": ""},
        {"time_to_live": timedelta(hours=1)},
        {"scheduled_enqueue_time_utc": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
    ids=["properties", "session", "empty session", "time to live", "schedule"],
)
def test_what_takes_more_than_a_path_is_encoded_anew_beside_what_does_not(more):
    batch = batch_of(ServiceBusMessage(b"a"), ServiceBusMessage(b"b", **more))

    kinds = [type(twin) for twin in diverted_all(batch, "orders")]

    assert kinds == [Spliced, AmqpAnnotatedMessage]


def test_a_message_that_was_changed_afterwards_goes_as_it_was_added():
    message = ServiceBusMessage(b"x", message_id="first")
    batch = batch_of(message)
    before = encoded(diverted(message, "orders"))
    message.message_id = "second"

    [twin] = diverted_all(batch, "orders")

    assert encoded(twin) == before
    assert twin.encoded == before


def test_a_scheduled_call_is_encoded_anew():
    [twin] = diverted_all(batch_of(ServiceBusMessage(b"x")), "orders", datetime(2030, 1, 1))

    assert type(twin) is AmqpAnnotatedMessage


def test_where_the_limit_is_reached_is_told_in_the_sdks_words():
    twins = diverted_all(batch_of(*[ServiceBusMessage(b"x" * 300) for _ in range(3)]), "orders")
    limit = filled(EncodedOnce(ROOM), twins).size_in_bytes - 1
    refusals = []
    for batch in (ServiceBusMessageBatch(limit), EncodedOnce(limit)):
        with pytest.raises(MessageSizeExceededError) as caught:
            filled(batch, twins)
        refusals.append((str(caught.value), contents(batch)))

    assert refusals[0] == refusals[1]
    assert refusals[0][1][2] == 2


class Traced:
    """A batch that was filled while the SDK wrote traces holds properties that nobody gave."""

    def __init__(self, **_: Any) -> None:
        pass

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def to_header(self) -> dict[str, str]:
        return {"traceparent": "00-1-2-01"}

    def add_attribute(self, name: str, value: Any) -> None:
        pass


@pytest.mark.parametrize("is_over", [False, True])
def test_a_traced_batch_is_encoded_anew(is_over):
    settings.tracing_implementation.set_value(Traced)
    try:
        batch = batch_of(ServiceBusMessage(b"x"))
        if is_over:
            settings.tracing_implementation.unset_value()

        [twin] = diverted_all(batch, "orders")
    finally:
        settings.tracing_implementation.unset_value()

    assert type(twin) is AmqpAnnotatedMessage


def test_tracing_that_begins_after_the_batch_was_filled_is_not_missed():
    batch = batch_of(ServiceBusMessage(b"x"))
    settings.tracing_implementation.set_value(Traced)
    try:
        [twin] = diverted_all(batch, "orders")
        held = filled(EncodedOnce(ROOM), [twin])
    finally:
        settings.tracing_implementation.unset_value()

    assert b"00-1-2-01" in held._message[5][0]


def test_a_batch_of_somebody_elses_is_encoded_anew():
    """Its messages may have been changed since they were added, and nobody has kept them."""
    theirs = filled(ServiceBusMessageBatch(ROOM), [ServiceBusMessage(b"x")])

    [twin] = diverted_all(theirs, "orders")

    assert type(twin) is AmqpAnnotatedMessage


def test_an_sdk_without_its_encoder_encodes_anew(monkeypatch):
    batch = batch_of(ServiceBusMessage(b"x"))
    monkeypatch.setattr(batches, "encode_payload", None)

    [twin] = diverted_all(batch, "orders")

    assert type(twin) is AmqpAnnotatedMessage


@pytest.mark.parametrize("form", [0x45, 0xE0, 0x40])
def test_bytes_that_the_sdk_would_not_write_are_not_touched(form):
    batch = batch_of(ServiceBusMessage(b"x"))
    data = batch._message[5][0]
    assert data[:3] == b"\x00\x53\x73"
    data[3] = form

    [twin] = diverted_all(batch, "orders")

    assert type(twin) is AmqpAnnotatedMessage
