"""Sending with the official SDK: singly, as a list, as a batch, and what the broker refuses.

A refused send stores nothing, and the sender still works.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
)

from tests.interop.bus import take
from tests.interop.shells import both_clients

KILOBYTE = 1024


def test_one_message_arrives_with_everything_the_service_adds(bus):
    bus.send("hello", message_id="m-1")
    receiver = bus.receiver()
    [message] = take(receiver)
    assert (str(message), message.message_id) == ("hello", "m-1")
    assert message.delivery_count == 0
    assert message.sequence_number == 1
    assert message.enqueued_sequence_number is None  # it was enqueued here
    assert message.enqueued_time_utc is not None
    assert message.lock_token is not None
    assert message.locked_until_utc > message.enqueued_time_utc
    assert message.time_to_live is None
    assert message.expires_at_utc is None
    assert message.dead_letter_source is None


@both_clients
@pytest.mark.req("B-10")
def test_a_batch_keeps_its_order_and_each_messages_own_properties(bus):
    sender = bus.sender()
    batch = sender.create_message_batch()
    for n in range(50):
        batch.add_message(
            ServiceBusMessage(
                f"body {n}",
                message_id=f"id-{n}",
                subject=f"subject {n}",
                application_properties={"n": n},
            )
        )
    sender.send_messages(batch)
    messages = take(bus.receiver(), 50)
    assert [str(m) for m in messages] == [f"body {n}" for n in range(50)]
    assert [m.message_id for m in messages] == [f"id-{n}" for n in range(50)]
    assert [m.subject for m in messages] == [f"subject {n}" for n in range(50)]
    assert [m.application_properties[b"n"] for m in messages] == list(range(50))
    assert [m.sequence_number for m in messages] == list(range(1, 51))


def test_an_empty_list_and_an_empty_batch_send_nothing(bus):
    sender = bus.sender()
    sender.send_messages([])
    sender.send_messages(sender.create_message_batch())
    assert bus.left() == []


@both_clients
@pytest.mark.req("B-09")
def test_a_message_above_the_limit_is_refused_and_nothing_is_lost(bus):
    sender = bus.sender()
    sender.send_messages(ServiceBusMessage("before"))
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage("x" * (300 * KILOBYTE)))
    sender.send_messages(ServiceBusMessage("after"))
    assert bus.left_bodies() == ["before", "after"]


@pytest.mark.req("B-09")
def test_a_list_above_the_limit_is_refused(bus):
    sender = bus.sender()
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages([ServiceBusMessage("x" * (150 * KILOBYTE)) for _ in range(2)])
    assert bus.left() == []


@pytest.mark.req("B-09")
def test_the_sdk_learns_the_limit_from_the_link(bus):
    sender = bus.sender()
    assert sender.create_message_batch().max_size_in_bytes == 256 * KILOBYTE
    with pytest.raises(ValueError, match="too large"):
        sender.create_message_batch(max_size_in_bytes=256 * KILOBYTE + 1)
    batch = sender.create_message_batch(max_size_in_bytes=KILOBYTE)
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage("x" * KILOBYTE))


@both_clients
@pytest.mark.req("B-01")
def test_competing_receivers_share_the_load_and_each_message_goes_to_one(bus):
    bus.sender().send_messages([ServiceBusMessage(f"{n}") for n in range(60)])
    receivers = [bus.receiver() for _ in range(3)]

    def work(receiver):
        taken = []
        for _ in range(4):
            for message in take(receiver, 5):
                receiver.complete_message(message)
                taken.append(str(message))
        return taken

    with ThreadPoolExecutor(3) as pool:
        shares = list(pool.map(work, receivers))
    assert [len(share) for share in shares] == [20, 20, 20]
    assert sorted(int(body) for share in shares for body in share) == list(range(60))
    assert bus.left() == []


@both_clients
@pytest.mark.req("B-01")
def test_a_receiver_that_waits_gets_what_is_sent_later(bus):
    receiver = bus.receiver()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(receiver.receive_messages, 1, 10)
        bus.send("late")
        assert [str(m) for m in waiting.result()] == ["late"]


@both_clients
@pytest.mark.req("B-01")
def test_many_senders_at_once_each_keep_their_order(bus):
    senders = [bus.sender() for _ in range(4)]

    def work(number):
        for n in range(10):
            senders[number].send_messages(
                [ServiceBusMessage(f"{number}:{2 * n}"), ServiceBusMessage(f"{number}:{2 * n + 1}")]
            )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    bodies = [body.split(":") for body in bus.left_bodies()]
    for number in range(4):
        assert [int(n) for who, n in bodies if int(who) == number] == list(range(20))


@pytest.mark.queue("contoso/x-servicebus-transfer/0")
def test_a_queue_name_may_have_slashes(bus):
    path = bus.path("contoso/x-servicebus-transfer/0")
    bus.send("a", "b", queue=path)
    receiver = bus.receiver(path)
    a, b = take(receiver, 2)
    receiver.dead_letter_message(a)
    receiver.complete_message(b)
    assert bus.left(path) == []
    assert bus.left_bodies(path, "deadletter") == ["a"]


@pytest.mark.req("B-07")
@pytest.mark.queue(requires_duplicate_detection=True)
def test_ids_of_different_types_are_different_ids(bus):
    an_id = uuid.uuid4()
    sender = bus.sender()
    for message_id in (an_id, str(an_id), an_id, str(an_id)):
        sender.send_messages(
            AmqpAnnotatedMessage(data_body=b"x", properties={"message_id": message_id})
        )
    assert [m.raw_amqp_message.properties.message_id for m in bus.left()] == [
        an_id,
        str(an_id).encode(),
    ]


@pytest.mark.req("B-07")
@pytest.mark.queue(enable_partitioning=True)
def test_a_partitioned_queue_behaves(bus):
    sender = bus.sender()
    sender.send_messages([ServiceBusMessage(f"{n}", partition_key="k") for n in range(10)])
    receiver = bus.receiver()
    messages = take(receiver, 10)
    assert [str(m) for m in messages] == [f"{n}" for n in range(10)]
    assert {m.partition_key for m in messages} == {"k"}
    partitions = {m.sequence_number >> 48 for m in messages}
    assert len(partitions) == 1, "one key is one partition, in the top 16 bits of the number"
    receiver.defer_message(messages[0])
    for message in messages[1:]:
        receiver.complete_message(message)
    [deferred] = receiver.receive_deferred_messages([messages[0].sequence_number])
    receiver.complete_message(deferred)
    assert bus.left() == []


@pytest.mark.req("B-07")
@pytest.mark.queue(enable_partitioning=True, requires_session=True)
def test_a_partitioned_queue_with_sessions_accepts_a_batch(bus):
    bus.sender().send_messages([ServiceBusMessage(f"{n}", session_id="s") for n in range(5)])
    messages = take(bus.receiver(session_id="s"), 5)
    assert [str(m) for m in messages] == [f"{n}" for n in range(5)]
