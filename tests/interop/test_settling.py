"""Peek-lock with the official SDK: settlement, renewal, expiry.

The SDK looks at its own clock before it settles a message, so the broker's is set forward where
the broker's answer is wanted.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessageState, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageLockLostError

from tests.interop.bus import receive_one, take
from tests.interop.shells import both_clients

pytestmark = pytest.mark.req("B-03")

DEAD_LETTER = "deadletter"


def test_an_abandoned_message_comes_again_in_its_old_place_and_is_counted(bus):
    bus.send("a", "b")
    receiver = bus.receiver()
    first = receive_one(receiver)
    receiver.abandon_message(first)
    [again, second] = take(receiver, 2)
    assert (str(again), again.delivery_count) == ("a", 1)
    assert (str(second), second.delivery_count) == ("b", 0)
    assert again.sequence_number == first.sequence_number
    assert again.lock_token != first.lock_token


def test_a_dead_lettered_message_carries_its_reason_and_description(bus):
    bus.send("bad", application_properties={"kept": "yes"}, subject="also kept")
    receiver = bus.receiver()
    receiver.dead_letter_message(receive_one(receiver), reason="why", error_description="how so")
    assert bus.left() == []
    dead = bus.receiver(sub_queue=DEAD_LETTER)
    message = receive_one(dead)
    assert str(message) == "bad"
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("why", "how so")
    assert message.application_properties[b"kept"] == b"yes"
    assert message.subject == "also kept"
    dead.complete_message(message)
    assert bus.left(sub_queue=DEAD_LETTER) == []


def test_a_dead_letter_without_a_reason_has_none(bus):
    bus.send("bad")
    receiver = bus.receiver()
    receiver.dead_letter_message(receive_one(receiver))
    [message] = bus.left(sub_queue=DEAD_LETTER)
    assert message.dead_letter_reason is None
    assert message.dead_letter_error_description is None


def test_a_deferred_message_comes_only_by_its_number(bus):
    bus.send("later", "now")
    receiver = bus.receiver()
    deferred = receive_one(receiver)
    receiver.defer_message(deferred)
    assert str(receive_one(receiver)) == "now"
    [message] = receiver.receive_deferred_messages([deferred.sequence_number])
    assert str(message) == "later"
    assert message.state == ServiceBusMessageState.DEFERRED
    assert message.lock_token is not None
    receiver.complete_message(message)
    assert bus.left_bodies() == ["now"]


def test_receive_and_delete_removes_the_message_at_once(bus):
    bus.send("a", "b")
    receiver = bus.receiver(receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    message = receive_one(receiver)
    assert str(message) == "a"
    assert message.lock_token is None
    with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
        receiver.complete_message(message)
    assert bus.left_bodies() == ["b"]


@both_clients
def test_prefetch_serves_receives_from_the_buffer_and_gives_back_the_rest(bus):
    bus.send(*(f"{n}" for n in range(10)))
    receiver = bus.receiver(prefetch_count=5)
    [message] = take(receiver, 1)
    assert str(message) == "0"
    receiver.complete_message(message)
    receiver.close()
    again = take(bus.receiver(), 9)
    assert [str(m) for m in again] == [f"{n}" for n in range(1, 10)]
    assert {m.delivery_count for m in again} == {0}, "what was only buffered was never delivered"


@both_clients
def test_the_iterator_yields_until_nothing_comes_for_its_wait(bus):
    bus.send("a", "b", "c")
    receiver = bus.receiver(max_wait_time=0.5)
    seen = []
    for message in receiver:
        receiver.complete_message(message)
        seen.append(str(message))
    assert seen == ["a", "b", "c"]
    assert bus.left() == []


@both_clients
def test_another_receiver_of_the_queue_settles_by_the_lock_token(bus):
    bus.send("complete", "abandon", "dead-letter", "defer")
    owner, other = bus.receiver(), bus.receiver()
    done, back, dead, later = take(owner, 4)
    other.complete_message(done)
    other.abandon_message(back)
    other.dead_letter_message(dead, reason="r", error_description="d")
    other.defer_message(later)
    assert bus.left_bodies() == ["abandon", "defer"]
    assert str(receive_one(other)) == "abandon"
    [message] = bus.left(sub_queue=DEAD_LETTER)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("r", "d")
    assert [str(m) for m in other.receive_deferred_messages(later.sequence_number)] == ["defer"]


def test_a_lock_outlives_the_receiver_that_took_it(bus):
    bus.send("a")
    owner = bus.receiver()
    message = receive_one(owner)
    owner.close()
    other = bus.receiver()
    assert other.receive_messages(max_wait_time=0.3) == []
    other.complete_message(message)
    assert bus.left() == []


@pytest.mark.queue(lock_duration=timedelta(seconds=30))
def test_renewing_moves_the_end_of_the_lock(bus):
    bus.send("a")
    receiver = bus.receiver()
    message = receive_one(receiver)
    before = message.locked_until_utc
    bus.advance(20)
    renewed = receiver.renew_message_lock(message)
    assert renewed == message.locked_until_utc
    assert timedelta(seconds=19) < renewed - before < timedelta(seconds=30)
    bus.advance(20)  # 40 s after the receive: only the renewed lock still holds
    receiver.complete_message(message)
    assert bus.left() == []


@both_clients
@pytest.mark.queue(lock_duration=timedelta(seconds=30))
def test_a_lock_that_ended_is_lost_for_settlement_and_renewal(bus):
    bus.send("a", "b")
    receiver = bus.receiver()
    first, second = take(receiver, 2)
    bus.advance(31)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(first)
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(second)
    again = take(receiver, 2)
    assert [(str(m), m.delivery_count) for m in again] == [("a", 1), ("b", 1)]
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(first)  # it is locked, but no longer by this token
    for message in again:
        receiver.complete_message(message)
    assert bus.left() == []


@both_clients
def test_credit_left_over_is_used_for_later_messages_and_released_ones_are_not_counted(bus):
    """Without prefetch the SDK hands back, as released, what arrives outside a receive call."""
    receiver = bus.receiver()
    bus.send("a")
    [first] = receiver.receive_messages(5, max_wait_time=30)  # four credits stay with the broker
    receiver.complete_message(first)
    bus.send("b", "c")
    receiver.close()
    again = take(bus.receiver(), 2)
    assert [(str(m), m.delivery_count) for m in again] == [("b", 0), ("c", 0)]
