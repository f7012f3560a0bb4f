"""Other ends of a message: delivery counts, time to live, forwarding, dead letters, pings.

The decisions are in tests/broker/messages; each setting is in test_settings.py.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError

from pairbus.broker.entities.descriptions import Status
from tests.interop.bus import receive_one, take

MINUTE = timedelta(minutes=1)
DEAD_LETTER = "deadletter"
TRANSFER_DEAD_LETTER = "transferdeadletter"


@pytest.mark.req("B-04")
@pytest.mark.queue(max_delivery_count=3)
def test_too_many_deliveries_dead_letter_a_message(bus):
    bus.send("poison", "fine")
    receiver = bus.receiver()
    counts = []
    for _ in range(3):
        message = receive_one(receiver)
        counts.append((str(message), message.delivery_count))
        receiver.abandon_message(message)
    assert counts == [("poison", 0), ("poison", 1), ("poison", 2)]
    assert str(receive_one(receiver)) == "fine"
    [dead] = bus.left(sub_queue=DEAD_LETTER)
    assert str(dead) == "poison"
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description


@pytest.mark.req("B-04")
def test_a_dead_letter_queue_is_a_queue_of_its_own(bus):
    bus.send("a", "b", "c")
    receiver = bus.receiver()
    for message in take(receiver, 3):
        receiver.dead_letter_message(message, reason=str(message))
    dead = bus.receiver(sub_queue=DEAD_LETTER)
    a, b, c = take(dead, 3)
    dead.abandon_message(a)
    assert dead.renew_message_lock(b) is not None
    dead.defer_message(b)
    dead.complete_message(c)
    again = receive_one(dead)
    assert (str(again), again.delivery_count) == ("a", 1)
    [deferred] = dead.receive_deferred_messages(b.sequence_number)
    assert (str(deferred), deferred.dead_letter_reason) == ("b", "b")


@pytest.mark.req("B-04")
def test_receive_and_delete_empties_a_dead_letter_queue(bus):
    bus.send("dead")
    receiver = bus.receiver()
    receiver.dead_letter_message(receive_one(receiver), reason="r")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    taken = receive_one(bus.receiver(sub_queue=DEAD_LETTER, receive_mode=mode))
    assert (str(taken), taken.dead_letter_reason) == ("dead", "r")
    assert bus.left(sub_queue=DEAD_LETTER) == []


@pytest.mark.req("B-05")
def test_an_expired_message_is_gone(bus):
    bus.send("short", time_to_live=MINUTE)
    bus.send("long", time_to_live=10 * MINUTE)
    short, _ = bus.left()
    assert short.time_to_live == MINUTE
    assert short.expires_at_utc == short.enqueued_time_utc + MINUTE
    bus.advance(61)
    assert bus.left_bodies() == ["long"]
    assert str(receive_one(bus.receiver())) == "long"
    assert bus.left(sub_queue=DEAD_LETTER) == []


@pytest.mark.req("B-05")
@pytest.mark.queue(forward_to="target")
@pytest.mark.queue("target")
def test_a_forwarded_message_arrives_in_the_target_only(bus):
    sender = bus.sender()
    sender.send_messages(ServiceBusMessage("0", message_id="m", application_properties={"k": 1}))
    sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
    receiver = bus.receiver(bus.path("target"))
    messages = take(receiver, 3)
    assert [str(m) for m in messages] == ["0", "1", "2"]
    assert messages[0].message_id == "m"
    assert messages[0].application_properties == {b"k": 1}
    for message in messages:
        receiver.complete_message(message)
    with pytest.raises(ServiceBusError, match="not-allowed"):
        bus.receiver()  # a queue that forwards gives nothing itself


@pytest.mark.req("B-05")
@pytest.mark.queue(forward_to="target")
@pytest.mark.queue("target")
def test_a_scheduled_message_is_forwarded_at_its_time(bus):
    due = datetime.fromtimestamp(bus.clock(), UTC) + MINUTE
    bus.sender().schedule_messages(ServiceBusMessage("later"), due)
    assert bus.left(bus.path("target")) == []
    bus.advance(61)
    assert bus.left_bodies(bus.path("target")) == ["later"]


@pytest.mark.queue(forward_to="target")
@pytest.mark.queue("target", status=Status.SEND_DISABLED)
def test_what_cannot_be_forwarded_goes_to_the_transfer_dead_letter_queue(bus):
    bus.send("stuck")
    transfer = bus.receiver(sub_queue=TRANSFER_DEAD_LETTER)
    message = receive_one(transfer)
    assert str(message) == "stuck"
    assert message.dead_letter_reason
    transfer.complete_message(message)
    assert bus.left(sub_queue=TRANSFER_DEAD_LETTER) == []


@pytest.mark.req("B-11")
@pytest.mark.queue(dead_lettering_on_message_expiration=True)
def test_a_ping_is_accepted_and_never_seen_again(bus):
    content_type = "application/vnd.ms-servicebus-ping"
    ping = {"content_type": content_type, "time_to_live": timedelta(seconds=1)}
    receiver = bus.receiver()
    bus.send(b"", **ping)
    bus.send(b"", session_id="random", **ping)
    bus.send("after")
    assert bus.left_bodies() == ["after"]
    assert str(receive_one(receiver)) == "after"
    bus.advance(5)
    assert bus.left(sub_queue=DEAD_LETTER) == []
    assert receiver.receive_messages(max_wait_time=0.3) == []


@pytest.mark.req("B-11")
@pytest.mark.queue(requires_session=True)
def test_a_ping_with_a_random_session_leaves_no_session_behind(bus):
    content_type = "application/vnd.ms-servicebus-ping"
    bus.send(b"", content_type=content_type, time_to_live=timedelta(seconds=1), session_id="r")
    assert list(bus.client.list_queue_sessions(bus.queue)) == []


@pytest.mark.req("B-11")
@pytest.mark.queue(status=Status.SEND_DISABLED)
def test_a_ping_fails_where_a_send_would(bus):
    content_type = "application/vnd.ms-servicebus-ping"
    with pytest.raises(MessagingEntityDisabledError):
        bus.send(b"", content_type=content_type, time_to_live=timedelta(seconds=1))
