"""Real time, where the SDK's clock and the broker's must agree.

Tests of other modules move the clock; these wait for short times.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, SessionLockLostError

from tests.interop.bus import take
from tests.interop.shells import both_clients

SECOND = timedelta(seconds=1)
SHORT = timedelta(seconds=3)
"""Long enough for the SDK's next call, on a busy machine too."""
RENEWABLE = timedelta(seconds=8)
"""The SDK's renewer looks once a second; with a shorter lock it would look too late."""
MARGIN = timedelta(milliseconds=5)

pytestmark = both_clients


@pytest.mark.req("B-03")
@pytest.mark.queue(lock_duration=SHORT)
def test_a_waiting_receiver_gets_a_message_whose_lock_ended(bus):
    bus.send("a")
    receiver = bus.receiver()
    [first] = take(receiver)
    [again] = take(receiver)
    assert (str(again), again.delivery_count) == ("a", 1)
    assert again.enqueued_time_utc == first.enqueued_time_utc
    assert datetime.now(UTC) >= first.locked_until_utc - MARGIN, "not before the lock had ended"
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(first)
    receiver.complete_message(again)
    assert bus.left() == []


@pytest.mark.req("B-03", "B-06")
@pytest.mark.queue(lock_duration=RENEWABLE)
@pytest.mark.queue("sessions", requires_session=True, lock_duration=RENEWABLE)
def test_the_sdks_lock_renewer_keeps_a_message_and_a_session(bus):
    bus.send("slow")
    receiver, other = bus.receiver(), bus.receiver()
    [message] = take(receiver)
    with bus.shell.lock_renewer() as renewer:
        renewer.register(receiver, message)
        holder = bus.receiver(bus.path("sessions"), session_id="s", auto_lock_renewer=renewer)
        assert other.receive_messages(max_wait_time=9) == []
        receiver.complete_message(message)
        holder.session.set_state("still mine")
    assert message.auto_renew_error is None
    assert holder.session.auto_renew_error is None
    assert bus.left() == []


@pytest.mark.req("B-06")
@pytest.mark.queue(requires_session=True, lock_duration=SHORT)
def test_the_sdk_sees_a_session_lock_end(bus):
    bus.send("x", session_id="s")
    receiver = bus.receiver(session_id="s")
    [message] = take(receiver)
    with pytest.raises(SessionLockLostError):
        receiver.receive_messages(max_wait_time=30)
    with pytest.raises(SessionLockLostError):
        receiver.complete_message(message)
    with pytest.raises(SessionLockLostError):
        receiver.session.get_state()
    [again] = take(bus.receiver(session_id="s"))
    assert again.delivery_count == 1


@pytest.mark.req("B-05")
def test_a_waiting_receiver_gets_a_scheduled_message_at_its_time(bus):
    due = datetime.now(UTC) + SECOND
    bus.sender().schedule_messages(ServiceBusMessage("soon"), due)
    [message] = take(bus.receiver())
    assert str(message) == "soon"
    assert datetime.now(UTC) >= due - MARGIN
    assert due - MARGIN <= message.enqueued_time_utc < due + 60 * SECOND
