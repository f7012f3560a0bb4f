"""Peek and schedule with the official SDK: what is there before it can be received."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.exceptions import MessageNotFoundError

from tests.interop.bus import take


def in_seconds(bus, seconds):
    """An instant by the broker's clock."""
    return datetime.fromtimestamp(bus.clock(), UTC) + timedelta(seconds=seconds)


@pytest.mark.req("B-03")
def test_peek_goes_on_where_it_stopped_and_locks_nothing(bus):
    bus.send(*"abcde")
    receiver = bus.receiver()
    pages = [[str(m) for m in receiver.peek_messages(2)] for _ in range(4)]
    assert pages == [["a", "b"], ["c", "d"], ["e"], []]
    assert [str(m) for m in receiver.peek_messages(2, sequence_number=4)] == ["d", "e"]
    [message] = take(receiver)
    assert (str(message), message.delivery_count) == ("a", 0)


@pytest.mark.req("B-03")
def test_a_peeked_message_shows_itself_and_cannot_be_settled(bus):
    bus.send("a", message_id="id", application_properties={"k": 1}, session_id="ignored here")
    receiver = bus.receiver()
    [message] = receiver.peek_messages()
    assert (str(message), message.message_id) == ("a", "id")
    assert message.application_properties == {b"k": 1}
    assert message.session_id == "ignored here"
    assert message.sequence_number == 1
    assert message.enqueued_time_utc is not None
    assert message.delivery_count == 0
    assert message.state == ServiceBusMessageState.ACTIVE
    with pytest.raises(ValueError, match="peeked"):
        receiver.complete_message(message)


@pytest.mark.req("B-03")
def test_peek_shows_active_locked_deferred_and_scheduled_messages(bus):
    bus.send("active", "locked", "deferred")
    receiver = bus.receiver()
    active, _locked, deferred = take(receiver, 3)
    receiver.abandon_message(active)
    receiver.defer_message(deferred)
    bus.send("scheduled", scheduled_enqueue_time_utc=in_seconds(bus, 600))
    assert [(str(m), m.state) for m in bus.left()] == [
        ("active", ServiceBusMessageState.ACTIVE),
        ("locked", ServiceBusMessageState.ACTIVE),
        ("deferred", ServiceBusMessageState.DEFERRED),
        ("scheduled", ServiceBusMessageState.SCHEDULED),
    ]


@pytest.mark.req("B-03")
def test_peeking_much_at_once_returns_what_fits_and_loses_nothing(bus):
    sender = bus.sender()
    for start in range(0, 300, 100):
        sender.send_messages([ServiceBusMessage(f"{n}" * 300) for n in range(start, start + 100)])
    receiver = bus.receiver()
    seen = []
    while page := receiver.peek_messages(300):
        seen += page
    assert [m.sequence_number for m in seen] == list(range(1, 301))


@pytest.mark.req("B-05")
def test_a_scheduled_message_appears_at_its_time(bus):
    sender, receiver = bus.sender(), bus.receiver()
    due = in_seconds(bus, 60)
    [number] = sender.schedule_messages(ServiceBusMessage("later"), due)
    [shown] = bus.left()
    assert shown.state == ServiceBusMessageState.SCHEDULED
    assert shown.sequence_number == number
    assert abs(shown.scheduled_enqueue_time_utc - due) < timedelta(milliseconds=2)
    assert receiver.receive_messages(max_wait_time=0.3) == []
    bus.advance(61)
    [message] = take(receiver)
    assert (str(message), message.state) == ("later", ServiceBusMessageState.ACTIVE)
    assert message.enqueued_time_utc >= due - timedelta(milliseconds=2)
    receiver.complete_message(message)
    assert bus.left() == []


@pytest.mark.req("B-05")
def test_a_scheduled_time_on_a_plain_send_schedules_it(bus):
    due = in_seconds(bus, 60)
    bus.send("later", scheduled_enqueue_time_utc=due)
    bus.send("now")
    receiver = bus.receiver()
    [now] = take(receiver)
    assert str(now) == "now"
    receiver.complete_message(now)
    bus.advance(61)
    [later] = take(receiver)
    assert str(later) == "later"


@pytest.mark.req("B-05")
def test_several_are_scheduled_at_once_and_each_can_be_cancelled(bus):
    sender = bus.sender()
    due = in_seconds(bus, 60)
    numbers = sender.schedule_messages([ServiceBusMessage(f"{n}") for n in range(4)], due)
    assert len(set(numbers)) == 4
    sender.cancel_scheduled_messages(numbers[0])
    sender.cancel_scheduled_messages(numbers[1:3])
    assert bus.left_bodies() == ["3"]
    bus.advance(61)
    [message] = take(bus.receiver())
    assert str(message) == "3"


@pytest.mark.req("B-05")
def test_cancelling_what_is_not_scheduled_is_an_error(bus):
    sender = bus.sender()
    bus.send("active")
    for number in (1, 4711):
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(number)
    assert bus.left_bodies() == ["active"]


@pytest.mark.req("B-05")
@pytest.mark.queue(requires_session=True)
def test_a_scheduled_message_of_a_session_appears_in_it(bus):
    sender = bus.sender()
    sender.schedule_messages(ServiceBusMessage("later", session_id="s"), in_seconds(bus, 60))
    sender.send_messages(ServiceBusMessage("now", session_id="s"))
    bus.advance(61)
    messages = take(bus.receiver(session_id="s"), 2)
    assert sorted(str(m) for m in messages) == ["later", "now"]
