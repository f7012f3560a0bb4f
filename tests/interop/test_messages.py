"""Bodies, properties and annotations arrive unchanged, through the official SDK.

pyamqp shows strings, symbols and binary alike as bytes when it reads; the tests compare with that.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp.utils import amqp_long_value
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from tests.interop.bus import take
from tests.interop.shells import both_clients

pytestmark = pytest.mark.req("B-03")


def through(bus, message):
    """Sends the message and returns it as received, for a comparison of the raw AMQP message."""
    bus.send(message)
    [received] = take(bus.receiver())
    return received


@both_clients
def test_every_property_of_a_message_comes_back(bus):
    given = {
        "message_id": "id",
        "correlation_id": "correlation",
        "content_type": "application/json",
        "subject": "a subject",
        "to": "somebody",
        "reply_to": "me",
        "session_id": "a session",
        "reply_to_session_id": "my session",
        "partition_key": "a session",
        "time_to_live": timedelta(minutes=10),
    }
    message = through(bus, ServiceBusMessage(b"body", **given))
    assert {name: getattr(message, name) for name in given} == given
    assert message.expires_at_utc == message.enqueued_time_utc + timedelta(minutes=10)


def test_application_properties_keep_their_types(bus):
    when = datetime(2026, 11, 15, 12, 30, 45, 123000, tzinfo=UTC)
    an_id = uuid.uuid4()
    given = {
        "text": "ünïcode ☃",
        "empty": "",
        "int": -5,
        "large": 2**31 - 1,
        "long": amqp_long_value(2**40),
        "true": True,
        "false": False,
        "float": 1.5,
        "uuid": an_id,
        "when": when,
        "none": None,
    }
    properties = through(
        bus, ServiceBusMessage("x", application_properties=given)
    ).application_properties
    assert properties == {
        b"text": "ünïcode ☃".encode(),
        b"empty": b"",
        b"int": -5,
        b"large": 2**31 - 1,
        b"long": 2**40,
        b"true": True,
        b"false": False,
        b"float": 1.5,
        b"uuid": an_id,
        b"when": int(when.timestamp() * 1000),
        b"none": None,
    }
    assert properties[b"true"] is True


def test_a_message_without_a_body_has_none(bus):
    message = through(bus, ServiceBusMessage(None))
    assert message.body_type == AmqpMessageBodyType.VALUE
    assert message.body is None


@both_clients
def test_all_sections_of_an_annotated_message_come_back(bus):
    an_id = uuid.uuid4()
    given = AmqpAnnotatedMessage(
        data_body=b"body",
        header=AmqpMessageHeader(priority=7, durable=True),
        properties=AmqpMessageProperties(
            message_id=an_id,
            user_id=b"user",
            to="to",
            subject="subject",
            reply_to="reply to",
            correlation_id=b"binary",
            content_type="text/plain",
            content_encoding="gzip",
            creation_time=1_700_000_000_000,
            group_id="group",
            group_sequence=3,
            reply_to_group_id="reply group",
        ),
        application_properties={"k": "v"},
        annotations={"x-custom": "kept", "x-number": 5},
        delivery_annotations={"x-delivery": "kept too"},
        footer={"x-foot": "note"},
    )
    raw = through(bus, given).raw_amqp_message
    assert (raw.header.priority, raw.header.durable) == (7, True)
    assert (raw.header.time_to_live, raw.header.delivery_count) == (None, 0)
    read = raw.properties
    assert (read.message_id, read.user_id, read.correlation_id) == (an_id, b"user", b"binary")
    assert (read.to, read.subject, read.reply_to) == (b"to", b"subject", b"reply to")
    assert (read.content_type, read.content_encoding) == (b"text/plain", b"gzip")
    assert (read.group_id, read.group_sequence) == (b"group", 3)
    assert (read.reply_to_group_id, read.creation_time) == (b"reply group", 1_700_000_000_000)
    assert raw.application_properties == {b"k": b"v"}
    assert (raw.annotations[b"x-custom"], raw.annotations[b"x-number"]) == (b"kept", 5)
    assert raw.delivery_annotations[b"x-delivery"] == b"kept too"
    assert raw.footer == {b"x-foot": b"note"}


def test_a_dead_letter_keeps_every_section_of_its_message(bus):
    given = AmqpAnnotatedMessage(
        sequence_body=[[1, "two"], [3]],
        header=AmqpMessageHeader(priority=7, durable=True),
        properties=AmqpMessageProperties(message_id=b"binary id", content_encoding="gzip"),
        application_properties={"k": "v", "DeadLetterReason": "an old one"},
        annotations={"x-custom": "kept"},
        footer={"x-foot": "note"},
    )
    bus.send(given)
    receiver = bus.receiver()
    [message] = take(receiver)
    receiver.dead_letter_message(message, reason="new", error_description="d")
    [dead] = take(bus.receiver(sub_queue="deadletter"))
    raw = dead.raw_amqp_message
    assert list(raw.body) == [[1, b"two"], [3]]
    assert raw.header.priority == 7
    assert raw.properties.message_id == b"binary id"
    assert raw.properties.content_encoding == b"gzip"
    assert raw.application_properties == {
        b"k": b"v",
        b"DeadLetterReason": b"new",
        b"DeadLetterErrorDescription": b"d",
    }
    assert raw.annotations[b"x-custom"] == b"kept"
    assert raw.footer == {b"x-foot": b"note"}


def test_the_services_own_annotations_cannot_be_forged(bus):
    forged = {
        "x-opt-sequence-number": 4711,
        "x-opt-enqueued-time": 1,
        "x-opt-locked-until": 1,
        "x-opt-message-state": 2,
        "x-opt-enqueue-sequence-number": 4711,
    }
    message = through(bus, AmqpAnnotatedMessage(data_body=b"x", annotations=forged))
    assert (message.sequence_number, message.enqueued_sequence_number) == (1, None)
    assert message.enqueued_time_utc.year >= 2026
    assert message.locked_until_utc > message.enqueued_time_utc
    assert message.state.name == "ACTIVE"


def test_a_received_message_can_be_sent_again(bus):
    bus.send("again", message_id="m", application_properties={"k": "v"}, subject="s")
    receiver = bus.receiver()
    [first] = take(receiver)
    bus.send(first)
    receiver.complete_message(first)
    [second] = take(receiver)
    assert (str(second), second.message_id, second.subject) == ("again", "m", "s")
    assert second.application_properties == {b"k": b"v"}
    assert second.sequence_number == 2
    assert second.delivery_count == 0


def test_a_body_that_is_itself_an_encoded_message_is_not_taken_for_a_batch(bus):
    bus.send("x")
    [inner] = bus.left()
    encoded = b"\x00\x53\x75\xa0\x01x"  # a data section: what a batch is made of
    assert str(inner) == "x"
    receiver = bus.receiver()
    take(receiver)
    bus.send(ServiceBusMessage(encoded, message_id="wrapped"))
    [message] = take(receiver)
    assert b"".join(message.body) == encoded
    assert message.message_id == "wrapped"


ALWAYS = {b"x-opt-enqueued-time", b"x-opt-sequence-number"}


def annotations(message):
    """The keys of the message annotations, and those of the delivery annotations."""
    raw = message.raw_amqp_message
    return set(raw.annotations), set(raw.delivery_annotations)


def test_a_message_has_the_annotations_that_azure_writes_and_no_others(bus):
    bus.send("plain", "again")
    bus.send("keyed", partition_key="p")
    receiver = bus.receiver()
    locked = take(receiver, 3)
    for message in locked:
        own = {b"x-opt-partition-key"} if str(message) == "keyed" else set()
        assert annotations(message) == (
            ALWAYS | {b"x-opt-locked-until"} | own,
            {b"x-opt-lock-token"},
        )
        assert message.raw_amqp_message.delivery_annotations == {
            b"x-opt-lock-token": message.lock_token
        }
    receiver.complete_message(locked[2])
    receiver.defer_message(locked[1])
    receiver.abandon_message(locked[0])

    [peeked] = receiver.peek_messages(1, sequence_number=1)
    [deferred] = receiver.receive_deferred_messages(locked[1].sequence_number)
    [deleted] = take(bus.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE))

    assert annotations(peeked) == annotations(deleted) == (ALWAYS, set())
    assert annotations(deferred)[0] == ALWAYS | {b"x-opt-locked-until", b"x-opt-message-state"}
