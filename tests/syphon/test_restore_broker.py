"""From a real backlog queue to the primary: the syphon's bytes compared with the application's.

The SDK sends every message twice, to the queue it is meant for and, diverted, to the backlog. What
was in the backlog is restored and sent home; then both copies lie in one queue, where they must not
be told apart.
"""

from __future__ import annotations

import struct
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.stamp import STAMPED_KEYS, without_keys
from pairbus.amqp.codec.types import UInt
from pairbus.amqp.codec.values import decode
from pairbus.broker import Broker, QueueDescription
from pairbus.client.sdk.messages import diverted
from pairbus.syphon.restore import restore
from tests.chaos.peers import (
    ACCEPTED,
    BEGIN,
    DISPOSITION,
    TRANSFER,
    Address,
    Peer,
    begin,
    credit,
    described,
    performative,
    transfer,
)

HOUR = timedelta(hours=1)
LONG_AGO = datetime(2001, 2, 3, tzinfo=UTC)
EXPIRY, GROUP_ID = 8, 10
BACKLOG = "contoso/x-servicebus-transfer/0"


@pytest.fixture(scope="module")
def broker():
    sessions = QueueDescription(name="sessions", requires_session=True)
    with Broker(queues=["orders", sessions, BACKLOG]) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        yield client


class Wire(Peer):
    """Whole messages, encoded; the peer locks what it reads."""

    def receive(self, count):
        self.send(credit(count))
        return [self._message() for _ in range(count)]

    def deliver(self, messages):
        for number, message in enumerate(messages):
            self.send(transfer(number, message))
            outcome = self.until(DISPOSITION).fields[4]
            assert int(outcome.descriptor) == ACCEPTED, outcome

    def complete(self, count):
        accepted = described(ACCEPTED)
        self.send(performative(DISPOSITION, True, UInt(0), UInt(count - 1), True, accepted))
        # Before it answers this, it has done that.
        self.send(begin(channel=1))
        self.until(BEGIN)

    def _message(self):
        while True:  # until the transfer; the socket has a time-out
            size, offset, _, _ = struct.unpack(">IBBH", self._take(8))
            body = self._take(size - 8)[offset * 4 - 8 :]
            if body:
                performative, end = decode(body)
                if int(performative.descriptor) == TRANSFER:
                    return body[end:]


def originals():
    yield ServiceBusMessage(None, message_id="nothing")
    yield ServiceBusMessage("short", session_id="a session", time_to_live=HOUR)
    yield ServiceBusMessage(
        b"x" * 50_000,
        message_id="large",
        session_id="a session",
        partition_key="a session",
        application_properties={"x-ms-path": "mine", "n": 1, "u": uuid.UUID(int=5)},
        time_to_live=HOUR,
        scheduled_enqueue_time_utc=LONG_AGO,
        content_type="text/plain",
    )
    bodies = {"data_body": [b"1", b"2"]}, {"sequence_body": [[1, None]]}, {"value_body": {"a": 1.5}}
    for number, body in enumerate(bodies):
        yield AmqpAnnotatedMessage(
            **body,
            header=AmqpMessageHeader(priority=3, durable=True),
            properties=AmqpMessageProperties(message_id=uuid.UUID(int=number), group_id="s"),
            annotations={"x-own": "note"},
            delivery_annotations={"x-hop": number},
            footer={"x-foot": "note"},
        )


def send(client, path, messages):
    with client.get_queue_sender(path) as sender:
        for message in messages:
            sender.send_messages(message)


def bring_home(broker, count):
    """Receive, restore and send, as the syphon does."""
    address = Address(broker.connection_string, broker.ca_file)
    with Wire(address) as backlog:
        waiting = backlog.attach(BACKLOG, receiver=True).receive(count)
        backlog.complete(count)
    now_ms = int(time.time() * 1000)
    restored = [restore(data, now_ms=now_ms) for data in waiting]
    [path] = {one.path for one in restored}
    with Wire(address) as home:
        home.attach(path).deliver([one.data for one in restored])
    return restored


def seen(data):
    """What a receiver gets, without what differs between any two messages of a queue."""
    parts = slice_message(data)
    start, end = parts.properties
    fields = decode(parts.bare[start:end])[0].value
    return (
        (parts.durable, parts.priority, parts.ttl_ms),
        without_keys(parts.annotations, STAMPED_KEYS),
        without_keys(parts.delivery_annotations, STAMPED_KEYS),
        fields[:EXPIRY],
        [time_ms is None for time_ms in fields[EXPIRY:GROUP_ID]],
        fields[GROUP_ID:],
        parts.bare[end:],
    )


@pytest.mark.req("E-03", "E-04")
def test_a_message_from_the_backlog_is_equal_to_one_sent_directly(broker, client):
    messages = list(originals())
    send(client, "orders", messages)
    send(client, BACKLOG, [diverted(message, "orders") for message in messages])

    restored = bring_home(broker, len(messages))

    with Wire(Address(broker.connection_string, broker.ca_file)) as wire:
        both = wire.attach("orders", receiver=True).receive(2 * len(messages))
        wire.complete(len(both))
    sent, brought_home = both[: len(messages)], both[len(messages) :]
    assert [seen(data) for data in brought_home] == [seen(data) for data in sent]
    assert len(restored) == len(messages)
    assert all(time.time() - 60 < one.enqueued_ms / 1000 < time.time() + 1 for one in restored)


@pytest.mark.req("E-04")
def test_the_sdk_receives_from_its_session_and_finds_no_alias(broker, client):
    due = datetime.now(UTC).replace(microsecond=0) + HOUR
    now, later = (
        ServiceBusMessage(
            name,
            message_id=name,
            session_id="a session",
            time_to_live=HOUR,
            application_properties={"k": "v"},
            scheduled_enqueue_time_utc=due if name == "later" else None,
        )
        for name in ("now", "later")
    )
    send(client, BACKLOG, [diverted(message, "sessions") for message in (now, later)])

    bring_home(broker, 2)

    with client.get_queue_receiver("sessions", session_id="a session") as receiver:
        [received] = receiver.receive_messages(2, max_wait_time=30)
        receiver.complete_message(received)
        [waiting] = receiver.peek_messages(2)
    for message, name in ((received, "now"), (waiting, "later")):
        assert (str(message), message.message_id, message.session_id) == (name, name, "a session")
        assert message.time_to_live == HOUR
        assert message.application_properties == {b"k": b"v"}
        assert message.delivery_count == 0
    assert waiting.state is ServiceBusMessageState.SCHEDULED
    assert waiting.scheduled_enqueue_time_utc == due
