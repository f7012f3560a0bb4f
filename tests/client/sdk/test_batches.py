"""A batch whose messages are encoded once, beside the SDK's own: the same bytes, sizes and
refusals."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from azure.core.settings import settings
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio._transport._pyamqp_transport_async import PyamqpTransportAsync
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from hypothesis import assume, given
from hypothesis import strategies as st

from pairbus.client.sdk import batches
from pairbus.client.sdk.batches import EncodedOnce, new_batch
from tests.client.fakes import plain_client
from tests.client.sdk.drawn import messages

ROOM = 1_000_000


def contents(batch: ServiceBusMessageBatch) -> Any:
    """All that is sent of it, and all that it says of itself."""
    return (
        [None if part is None else [*part] for part in batch._message],
        batch.size_in_bytes,
        len(batch),
        [message.message_id for message in batch._messages],
    )


def filled(batch: ServiceBusMessageBatch, added: list[Any]) -> ServiceBusMessageBatch:
    for message in added:
        batch.add_message(message)
    return batch


class Span:
    """What a tracing library would put in the SDK's settings."""

    names: ClassVar[list[str]] = []

    def __init__(self, name: str, **_: Any) -> None:
        self.names.append(name)

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def to_header(self) -> dict[str, str]:
        return {"traceparent": "00-1-2-01", "tracestate": "pairbus=1"}

    def add_attribute(self, name: str, value: Any) -> None:
        pass


@pytest.fixture
def traced() -> Iterator[type[Span]]:
    settings.tracing_implementation.set_value(Span)
    Span.names = []
    yield Span
    settings.tracing_implementation.unset_value()


@given(added=st.lists(messages(), min_size=1, max_size=4))
def test_whatever_is_added_is_what_the_sdks_own_batch_would_hold(added):
    before = contents(filled(ServiceBusMessageBatch(ROOM), added))
    ours = contents(filled(EncodedOnce(ROOM), added))
    after = contents(filled(ServiceBusMessageBatch(ROOM), added))

    assume(before == after)  # a time to live is told as of this second, which may have ended
    assert ours == before


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"application_properties": {"number": 1, b"name": b"text"}},
        {"session_id": "one", "partition_key": "one"},
        {"time_to_live": timedelta(hours=1)},
    ],
    ids=["bare", "properties", "session", "time to live"],
)
@pytest.mark.parametrize("body", [b"", b"x", b"x" * 300, b"x" * 70_000, "text", None])
def test_the_sdks_messages_are_the_same_in_both(body, more):
    message = ServiceBusMessage(body, message_id="one", **more)
    theirs, ours = ServiceBusMessageBatch(ROOM), EncodedOnce(ROOM)
    theirs.add_message(message)
    ours.add_message(message)

    if "time_to_live" in more and contents(ours) != contents(theirs):
        theirs = filled(ServiceBusMessageBatch(ROOM), [message])  # the second was over
        ours = filled(EncodedOnce(ROOM), [message])
    assert contents(ours) == contents(theirs)


@pytest.mark.parametrize("room", [-1, 0, 1])
@pytest.mark.parametrize("body_bytes", [10, 300])
def test_one_byte_decides_in_both(body_bytes, room):
    message = ServiceBusMessage(b"x" * body_bytes)
    limit = filled(ServiceBusMessageBatch(ROOM), [message] * 3).size_in_bytes + room
    refusals = []
    for batch in (ServiceBusMessageBatch(limit), EncodedOnce(limit)):
        try:
            filled(batch, [message] * 3)
        except MessageSizeExceededError as error:
            refusals.append((str(error), contents(batch)))

    assert len(refusals) == (2 if room < 0 else 0)
    assert refusals[:1] == refusals[1:]


@pytest.mark.parametrize(
    "wrong", [7, object(), {"nobody": 1}, AmqpAnnotatedMessage(value_body={1})]
)
def test_what_is_no_message_is_refused_in_the_sdks_words(wrong):
    told = []
    for batch in (ServiceBusMessageBatch(ROOM), EncodedOnce(ROOM)):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            batch.add_message(wrong)
        told.append((caught.type, str(caught.value), contents(batch)))

    assert told[0] == told[1]


def test_each_message_is_encoded_once(monkeypatch):
    encoded = []
    encode = batches.encode_payload

    def counting(output: bytearray, message: Any) -> Any:
        encoded.append(message)
        return encode(output, message)

    monkeypatch.setattr(batches, "encode_payload", counting)
    monkeypatch.setattr("azure.servicebus._pyamqp.utils.encode_payload", counting)
    batch = EncodedOnce(ROOM)
    encoded.clear()  # of the empty batch's own size

    filled(batch, [ServiceBusMessage(b"x") for _ in range(3)])

    assert len(encoded) == 3


def test_a_traced_message_carries_its_trace(traced):
    def message() -> ServiceBusMessage:
        return ServiceBusMessage(b"x", message_id="one")

    theirs = filled(ServiceBusMessageBatch(ROOM), [message(), message()])
    ours = filled(EncodedOnce(ROOM), [message(), message()])

    assert contents(ours) == contents(theirs)
    assert b"00-1-2-01" in ours._message[5][0]
    assert traced.names == ["ServiceBus.message"] * 4


def test_a_batch_keeps_the_transport_of_its_sender_also_after_a_refusal():
    sender = plain_client().get_queue_sender("orders")
    batch = new_batch(sender, 100)

    with pytest.raises(MessageSizeExceededError):
        filled(batch, [ServiceBusMessage(b"x" * 100)])

    assert batch._amqp_transport is sender._amqp_transport
    assert EncodedOnce(ROOM, amqp_transport=PyamqpTransportAsync)._amqp_transport.KIND == "pyamqp"


def test_an_sdk_that_adds_what_was_not_measured_encodes_it_itself(monkeypatch):
    """As a later one might: nothing is kept that could be mistaken for it."""
    theirs = filled(ServiceBusMessageBatch(ROOM), [ServiceBusMessage(b"x", message_id="one")])
    measure = batches._Keeping.get_message_encoded_size

    def measure_a_copy(keeping: Any, message: Any) -> int:
        return measure(keeping, message._replace(data=[b"y"]))

    monkeypatch.setattr(batches._Keeping, "get_message_encoded_size", measure_a_copy)

    ours = filled(EncodedOnce(ROOM), [ServiceBusMessage(b"x", message_id="one")])

    assert contents(ours) == contents(theirs)


def test_an_sdk_without_its_encoder_does_all_by_itself(monkeypatch):
    monkeypatch.setattr(batches, "encode_payload", None)

    ours = filled(EncodedOnce(ROOM), [ServiceBusMessage(b"x", message_id="one")])

    theirs = filled(ServiceBusMessageBatch(ROOM), [ServiceBusMessage(b"x", message_id="one")])
    assert contents(ours) == contents(theirs)
