"""A batch that is made while its entity is failed over, and the messages of any batch."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.sdk import batches, private
from pairbus.client.sdk.batches import DivertedBatch, diverted_all, give_ids, messages_of
from pairbus.client.sdk.messages import diverted, id_of
from tests.client.lines import ctrl_c, run_and_interrupt

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def diverting(size_bytes: int = 10_000) -> DivertedBatch:
    return DivertedBatch.of(ServiceBusMessageBatch(size_bytes), "orders")


def test_it_is_made_as_the_sdk_makes_one() -> None:
    settings = {"net.peer.name": "contoso"}
    made = ServiceBusMessageBatch(777, tracing_attributes=settings)

    batch = DivertedBatch.of(made, "orders")

    assert (batch._amqp_transport, batch._tracing_attributes) == (made._amqp_transport, settings)
    assert isinstance(batch, ServiceBusMessageBatch)
    assert batch.max_size_in_bytes == 777
    assert len(batch) == 0


@pytest.mark.req("X-02")
def test_what_has_no_id_gets_one_when_it_is_added() -> None:
    batch = diverting()
    bare = AmqpAnnotatedMessage(data_body=b"a", properties=AmqpMessageProperties())

    batch.add_message(bare)
    batch.add_message({"body": b"b"})
    batch.add_message(ServiceBusMessage(b"c", message_id="mine"))

    ids = [id_of(message) for message in messages_of(give_ids(batch))]
    assert len(batch) == 3
    assert all(ids)
    assert ids[0] == id_of(bare)
    assert ids[2] == "mine"
    assert [id_of(message) for message in diverted_all(batch, "orders")] == ids
    assert all(id.encode() in encoded for id, encoded in zip(ids, contents(batch), strict=True))


@pytest.mark.parametrize("is_diverted", [False, True])
@pytest.mark.parametrize(
    "message",
    [
        ServiceBusMessage(b"x", session_id="s", subject="a", scheduled_enqueue_time_utc=NOON),
        # Forwarded after it was received: the SDK marks the type of these two when it encodes them.
        AmqpAnnotatedMessage(
            data_body=[b"a", b"b"],
            annotations={b"x-opt-enqueued-time": 1, b"x-opt-locked-until": 2, "own": {"a": 1}},
            footer={"f": 1},
            delivery_annotations={"d": 1},
        ),
        AmqpAnnotatedMessage(
            value_body={"a": [1]},
            header=AmqpMessageHeader(priority=3, durable=True),
            properties=AmqpMessageProperties(message_id=b"i", correlation_id="c", creation_time=5),
            application_properties={"n": {"TYPE": "LONG", "VALUE": 1}, b"b": b"text", "m": 2},
        ),
        AmqpAnnotatedMessage(value_body={b"a": 1, NOON: {b"b": b"c"}}),
        AmqpAnnotatedMessage(sequence_body=[[1, "b"]]),
        AmqpAnnotatedMessage(data_body=[]),
    ],
    ids=["schedule", "forwarded", "value", "keys", "sequence", "empty"],
)
def test_the_messages_of_a_batch_encode_to_the_same_bytes(message: Any, is_diverted: bool) -> None:
    plain, again = ServiceBusMessageBatch(9_000), ServiceBusMessageBatch(9_000)
    batch = diverting(9_000) if is_diverted else ServiceBusMessageBatch(9_000)
    give_ids(message)
    batch.add_message(message)
    plain.add_message(message)
    raw = getattr(message, "raw_amqp_message", message)
    raw.properties.subject = "changed later"  # it has an id, and so properties

    for each in messages_of(batch):
        again.add_message(each)

    assert contents(again) == contents(plain)


def test_what_does_not_fit_is_not_in_the_batch() -> None:
    batch = diverting(300)
    batch.add_message(ServiceBusMessage(b"a" * 20))

    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"b" * 300))

    assert len(batch) == 1
    assert len(messages_of(batch)) == 1


def test_what_is_no_message_is_refused_in_the_words_of_the_sdk() -> None:
    plain = ServiceBusMessageBatch(1000)
    with pytest.raises(TypeError) as expected:
        plain.add_message("text")  # type: ignore[arg-type]

    with pytest.raises(TypeError) as caught:
        diverting().add_message("text")  # type: ignore[arg-type]

    assert str(caught.value) == str(expected.value)


def contents(batch: ServiceBusMessageBatch) -> list[bytes]:
    """Each message of the batch as it is encoded."""
    return [bytes(message) for message in private.encoded_in(batch)]


def with_everything(name: str) -> ServiceBusMessage:
    return ServiceBusMessage(
        name,
        message_id=name,
        session_id="s",
        subject=name,
        time_to_live=timedelta(minutes=5),
        application_properties={"name": name},
    )


def test_the_copies_for_the_backlog_are_encoded_when_they_are_added() -> None:
    batch, expected = diverting(), ServiceBusMessageBatch(10_000)
    for name in ("a", "b"):
        batch.add_message(with_everything(name))
        expected.add_message(diverted(with_everything(name), "orders"))

    assert contents(batch) == contents(expected)
    assert len(batch) == 2


def test_it_becomes_a_plain_batch_of_the_messages_as_they_were_added() -> None:
    batch, expected = diverting(), ServiceBusMessageBatch(10_000)
    message = ServiceBusMessage("x", message_id="a", subject="a", session_id="s")
    for name in ("a", "b"):
        message.message_id = message.subject = name
        message.application_properties = {"name": name}
        batch.add_message(message)
        expected.add_message(message)
    message.subject = "later"

    batch.make_plain()

    assert contents(batch) == contents(expected)
    assert (len(batch), batch.size_in_bytes) == (2, expected.size_in_bytes)
    assert [each.properties.subject for each in diverted_all(batch, "orders")] == ["a", "b"]


@pytest.mark.req("X-02")
@pytest.mark.parametrize("is_diverted", [False, True])
def test_a_batch_that_a_ctrl_c_interrupts_has_all_its_messages(is_diverted: bool) -> None:
    """It gets ids, or becomes a plain one. The application may send it again afterwards."""
    for line in itertools.count(1):
        batch = diverting() if is_diverted else ServiceBusMessageBatch(10_000)
        for body in (b"1", b"2"):
            batch.add_message(AmqpAnnotatedMessage(data_body=body))
        as_added = contents(batch)
        change = batch.make_plain if isinstance(batch, DivertedBatch) else partial(give_ids, batch)

        try:
            is_interrupted = run_and_interrupt(change, batches, ctrl_c, before_line=line)
        except KeyboardInterrupt:
            is_interrupted = True

        assert [b"".join(each.body) for each in messages_of(batch)] == [b"1", b"2"]
        assert len(batch) == len(contents(batch)) == 2
        if isinstance(batch, DivertedBatch):
            assert (batch.path is None) == (contents(batch) != as_added)
        if not is_interrupted:
            break
    assert line > 3


def test_what_fits_only_without_its_envelope_is_still_added() -> None:
    plain = ServiceBusMessageBatch(10_000)
    for name in ("a", "b"):
        plain.add_message(with_everything(name))
    batch = diverting(plain.size_in_bytes)

    for name in ("a", "b"):
        batch.add_message(with_everything(name))

    assert batch.path is None
    assert contents(batch) == contents(plain)
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(with_everything("c"))
    assert len(batch) == 2


def test_what_cannot_be_encoded_is_refused_as_by_the_sdk_and_leaves_the_rest() -> None:
    wrong = ServiceBusMessage("x", application_properties={"thing": object()})  # type: ignore[dict-item]
    with pytest.raises(Exception) as expected:  # noqa: PT011
        ServiceBusMessageBatch(1000).add_message(wrong)
    batch = diverting()
    batch.add_message(with_everything("a"))

    with pytest.raises(type(expected.value)) as caught:
        batch.add_message(wrong)

    assert str(caught.value) == str(expected.value)
    assert [id_of(message) for message in messages_of(batch)] == ["a"]
