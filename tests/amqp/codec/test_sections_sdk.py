"""Messages as azure-servicebus writes them, and stamped messages as it reads them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.amqp.codec.batches import build_batch, split_batch
from pairbus.amqp.codec.sections import (
    CORRELATION_ID,
    SUBJECT,
    content_type,
    group_id,
    message_id,
    read_annotations,
    read_application_properties,
    read_property,
    slice_message,
)
from pairbus.amqp.codec.stamp import STAMPED_KEYS, with_application_properties, with_property
from pairbus.amqp.codec.types import Timestamp
from pairbus.amqp.codec.values import encode
from tests.amqp.codec.delivered import TOKEN, stamped


def encoded(message):
    annotated = getattr(message, "raw_amqp_message", message)
    outgoing = PyamqpTransport.to_outgoing_amqp_message(annotated)
    return bytes(encode_payload(bytearray(), outgoing))


def delivered(parts, **changes):
    """What the SDK decodes of the message when the broker delivers it."""
    return decode_payload(memoryview(stamped(parts, **changes)))


def test_a_full_message_is_read():
    when = datetime(2030, 1, 1, tzinfo=UTC)
    message = ServiceBusMessage(
        b"body",
        application_properties={"a": 1, "b": "two", "c": 1.5, "d": True},
        session_id="a session",
        message_id="an id",
        correlation_id="another",
        subject="a subject",
        content_type="text/plain",
        time_to_live=timedelta(seconds=60),
        scheduled_enqueue_time_utc=when,
        partition_key="a session",
    )

    parts = slice_message(encoded(message))

    assert parts.ttl_ms == 60_000
    assert message_id(parts) == "an id"
    assert read_property(parts.bare, parts.properties, CORRELATION_ID) == "another"
    assert group_id(parts) == "a session"
    assert read_property(parts.bare, parts.properties, SUBJECT) == "a subject"
    assert content_type(parts) == "text/plain"
    assert read_annotations(parts.annotations) == {
        "x-opt-partition-key": "a session",
        "x-opt-scheduled-enqueue-time": Timestamp(when.timestamp() * 1000),
    }
    assert read_application_properties(parts.bare, parts.application_properties) == {
        "a": 1,
        "b": "two",
        "c": 1.5,
        "d": True,
    }


BODIES = {
    "data": {"data_body": [b"one", b"two" * 200]},
    "a sequence": {"sequence_body": [["one", 2], [None]]},
    "a value": {"value_body": {"one": [1, 2, {"three": b"3"}]}},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_annotations_in_their_odd_place_and_every_body_come_through(body):
    message = AmqpAnnotatedMessage(
        **body,
        header={"priority": 7, "durable": True},
        footer={"checksum": 5},
        delivery_annotations={"hop": 1},
        annotations={"mine": "too"},
        properties={"message_id": UUID(int=5)},
    )
    sent = encoded(message)

    received = delivered(slice_message(sent))

    expected = decode_payload(memoryview(sent))
    assert received.header[:2] == (True, 7)
    assert received.delivery_annotations == {b"x-opt-lock-token": TOKEN, b"hop": 1}
    assert received.message_annotations[b"mine"] == b"too"
    assert received.properties == expected.properties
    assert (received.data, received.sequence, received.value, received.footer) == (
        expected.data,
        expected.sequence,
        expected.value,
        expected.footer,
    )


def test_the_stamp_reads_as_the_sdk_wants_it():
    received = delivered(slice_message(encoded(ServiceBusMessage(b"body"))))

    assert received.header == (None, None, None, None, 0)
    assert received.delivery_annotations == {b"x-opt-lock-token": TOKEN}
    assert received.message_annotations == {
        b"x-opt-sequence-number": 7,
        b"x-opt-enqueued-time": 1_700_000_000_000,
        b"x-opt-locked-until": 1_700_000_030_000,
    }
    assert received.message_annotations.keys() < STAMPED_KEYS
    assert received.data == [b"body"]


def test_a_message_without_a_body_comes_back_without_one():
    received = delivered(slice_message(encoded(ServiceBusMessage(None))))

    assert received.data is received.sequence is received.value is None


def test_a_dead_letter_shows_its_reason_and_a_new_expiry():
    parts = slice_message(encoded(ServiceBusMessage(b"body", application_properties={"a": 1})))
    reason = {"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"}
    changed = with_application_properties(parts.bare, parts.application_properties, reason)
    parts = slice_message(with_property(changed, parts.properties, 8, encode(Timestamp(5))))

    received = delivered(parts)

    assert received.application_properties == {
        b"a": 1,
        b"DeadLetterReason": b"r",
        b"DeadLetterErrorDescription": b"d",
    }
    assert received.properties.absolute_expiry_time == 5
    assert read_property(parts.bare, parts.properties, 8) == 5


def test_a_batch_of_the_sdk_splits_into_its_messages():
    messages = [ServiceBusMessage(b"x" * size, session_id="s") for size in (0, 10, 300)]
    batch = ServiceBusMessageBatch()
    for message in messages:
        batch.add_message(message)
    raw = bytes(encode_payload(bytearray(), batch._message))

    assert split_batch(raw) == [encoded(message) for message in messages]
    assert group_id(slice_message(raw)) == "s"


def test_a_batch_of_ours_is_read_by_the_sdk():
    raw = build_batch([b"one", b"two" * 100], message_id="an id", partition_key="a key")

    envelope = decode_payload(memoryview(raw))

    assert envelope.data == [b"one", b"two" * 100]
    assert envelope.properties.message_id == b"an id"
    assert envelope.message_annotations == {b"x-opt-partition-key": b"a key"}
