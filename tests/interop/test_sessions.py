"""Sessions with the official SDK: locks, the next available session, state, order, listing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.interop.bus import take
from tests.interop.shells import both_clients

SESSIONS = pytest.mark.queue(requires_session=True, lock_duration=timedelta(seconds=30))
pytestmark = [pytest.mark.req("B-06")]


def send(bus, session, *bodies):
    bus.send(*bodies, session_id=session)


@SESSIONS
def test_a_named_session_gives_only_its_messages_and_in_order(bus):
    for n in range(10):
        send(bus, "a" if n % 2 else "b", f"{n}")
    receiver = bus.receiver(session_id="a")
    assert receiver.session.session_id == "a"
    messages = take(receiver, 5)
    assert [str(m) for m in messages] == ["1", "3", "5", "7", "9"]
    assert {m.session_id for m in messages} == {"a"}
    assert {m.locked_until_utc for m in messages} == {None}, "the session holds the lock"
    for message in messages:
        receiver.complete_message(message)
    assert receiver.peek_messages(10, sequence_number=1) == []


@both_clients
@SESSIONS
def test_every_settlement_works_in_a_session(bus):
    send(bus, "s", "complete", "abandon", "defer", "dead-letter")
    receiver = bus.receiver(session_id="s")
    done, back, later, dead = take(receiver, 4)
    receiver.complete_message(done)
    receiver.defer_message(later)
    receiver.dead_letter_message(dead, reason="why", error_description="how")
    receiver.abandon_message(back)
    [again] = take(receiver, 1)
    assert (str(again), again.delivery_count) == ("abandon", 1)
    [deferred] = receiver.receive_deferred_messages(later.sequence_number)
    assert str(deferred) == "defer"
    receiver.complete_message(deferred)
    [dead] = bus.left(sub_queue="deadletter")
    assert (str(dead), dead.session_id) == ("dead-letter", "s")
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "how")


@SESSIONS
def test_receive_and_delete_works_in_a_session(bus):
    send(bus, "s", "1", "2")
    receiver = bus.receiver(session_id="s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert [str(m) for m in take(receiver, 2)] == ["1", "2"]
    assert receiver.peek_messages(10, sequence_number=1) == []


@both_clients
@SESSIONS
def test_prefetch_in_a_session_and_what_was_buffered_comes_again(bus):
    send(bus, "s", *(f"{n}" for n in range(10)))
    with bus.receiver(session_id="s", prefetch_count=20) as receiver:
        first, second = take(receiver, 2)
        receiver.complete_message(first)
        assert str(second) == "1"
    again = take(bus.receiver(session_id="s"), 9)
    assert [str(m) for m in again] == [f"{n}" for n in range(1, 10)]


@SESSIONS
def test_the_next_available_session_is_not_locked(bus):
    for session in ("a", "b", "c"):
        send(bus, session, f"in {session}")
    bus.receiver(session_id="b")
    receivers = [bus.receiver(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5) for _ in range(2)]
    assert {r.session.session_id for r in receivers} == {"a", "c"}
    for receiver in receivers:
        [message] = take(receiver)
        assert str(message) == f"in {receiver.session.session_id}"


@both_clients
@SESSIONS
def test_a_receiver_that_waits_for_a_session_gets_it_with_the_next_message(bus):
    waiting = bus.client.get_queue_receiver(
        bus.queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20
    )
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(waiting.receive_messages, 1, 20)
        send(bus, "late", "x")
        [message] = received.result()
        assert (str(message), waiting.session.session_id) == ("x", "late")
        waiting.close()


@both_clients
@SESSIONS
def test_without_a_free_session_the_wait_ends_in_a_time_out(bus):
    bus.receiver(session_id="held")
    send(bus, "held", "not available")
    with pytest.raises(OperationTimeoutError):
        bus.receiver(session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)


@SESSIONS
@pytest.mark.parametrize("wait_seconds", [70, 10])
def test_the_next_session_is_waited_for_as_long_as_the_receiver_says(bus, wait_seconds):
    receiver = bus.client.get_queue_receiver(
        bus.queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait_seconds
    )

    def is_waiting():
        link = getattr(receiver._handler, "_link", None)
        return link is not None and link.state.name == "ATTACH_SENT"

    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(receiver.__enter__)
        while not is_waiting():
            time.sleep(0.01)
        waited_seconds = 0
        for step in (65, *[5] * 20) if wait_seconds == 70 else [5] * 10:
            bus.advance(step)
            waited_seconds += step
            if wait([opening], timeout=1).done:
                break
        with pytest.raises(OperationTimeoutError):
            opening.result(timeout=30)
    receiver.close()
    assert (waited_seconds > 65) == (wait_seconds == 70)


@both_clients
@SESSIONS
def test_a_session_is_locked_by_one_receiver_and_free_once_it_closes(bus):
    send(bus, "s", "x")
    holder = bus.receiver(session_id="s")
    [held] = holder.receive_messages(max_wait_time=30)
    with pytest.raises(SessionCannotBeLockedError):
        bus.receiver(session_id="s")
    holder.close()
    [message] = take(bus.receiver(session_id="s"))
    assert message.message_id == held.message_id


@SESSIONS
def test_an_empty_session_can_be_locked_by_name_and_served_later(bus):
    receiver = bus.receiver(session_id="empty")
    assert receiver.session.locked_until_utc > datetime.now(UTC)
    send(bus, "empty", "x")
    [message] = take(receiver)
    assert str(message) == "x"


@both_clients
@SESSIONS
def test_the_state_of_a_session_is_kept_changed_and_cleared(bus):
    with bus.receiver(session_id="s") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state("first")
        assert receiver.session.get_state() == b"first"
        receiver.session.set_state(bytes(range(256)))
    with bus.receiver(session_id="s") as receiver:
        assert receiver.session.get_state() == bytes(range(256))
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None
    with bus.receiver(session_id="other") as receiver:
        assert receiver.session.get_state() is None


@SESSIONS
def test_renewing_keeps_the_session(bus):
    send(bus, "s", "x")
    receiver = bus.receiver(session_id="s")
    before = receiver.session.locked_until_utc
    [message] = take(receiver)
    bus.advance(20)
    renewed = receiver.session.renew_lock()
    assert renewed == receiver.session.locked_until_utc
    assert timedelta(seconds=19) < renewed - before < timedelta(seconds=30)
    bus.advance(20)  # 40 s after the attach: only the renewed lock still holds
    receiver.complete_message(message)
    with pytest.raises(SessionCannotBeLockedError):
        bus.receiver(session_id="s")


@both_clients
@SESSIONS
def test_a_session_lock_that_ended_is_lost_and_its_messages_return(bus):
    send(bus, "s", "x")
    receiver = bus.receiver(session_id="s")
    [message] = take(receiver)
    bus.advance(31)
    successor = bus.receiver(session_id="s")
    [again] = take(successor)
    assert (str(again), again.delivery_count) == ("x", 1)
    with pytest.raises(SessionLockLostError):
        receiver.complete_message(message)
    with pytest.raises(SessionLockLostError):
        receiver.receive_messages(max_wait_time=1)
    successor.complete_message(again)
    assert successor.peek_messages(1, sequence_number=1) == []


@SESSIONS
def test_the_sessions_of_a_queue_can_be_listed(bus):
    assert list(bus.client.list_queue_sessions(bus.queue)) == []
    send(bus, "with messages", "x", "y")
    with bus.receiver(session_id="with state") as receiver:
        receiver.session.set_state("s")
    with bus.receiver(session_id="with neither"):
        pass
    assert sorted(bus.client.list_queue_sessions(bus.queue)) == ["with messages", "with state"]


@SESSIONS
def test_many_sessions_are_listed_over_several_pages(bus):
    sender = bus.sender()
    names = [f"session-{n:03}" for n in range(230)]
    sender.send_messages([ServiceBusMessage("x", session_id=name) for name in names])
    assert sorted(bus.client.list_queue_sessions(bus.queue)) == names


def test_a_plain_queue_and_a_session_receiver_do_not_go_together(bus):
    with pytest.raises(ServiceBusError, match="not-allowed"):
        bus.receiver(session_id="s")


@SESSIONS
def test_a_session_id_that_is_no_text_is_refused(bus):
    with pytest.raises(ServiceBusError, match="argument-error"):
        bus.receiver(session_id=1)


@SESSIONS
@pytest.mark.parametrize("session", ["übung/ёж ☃", "a" * 128, "with spaces & 'quotes'"])
def test_session_ids_are_any_text(bus, session):
    send(bus, session, "x")
    receiver = bus.receiver(session_id=session)
    [message] = take(receiver)
    assert (message.session_id, receiver.session.session_id) == (session, session)


@SESSIONS
def test_peek_in_a_session_shows_only_that_session(bus):
    send(bus, "a", "1", "2")
    send(bus, "b", "3")
    receiver = bus.receiver(session_id="a")
    assert [str(m) for m in receiver.peek_messages(10)] == ["1", "2"]


@both_clients
@SESSIONS
def test_competing_receivers_keep_the_order_inside_each_session(bus):
    sender = bus.sender()
    for start in range(0, 40, 20):
        sender.send_messages(
            [ServiceBusMessage(f"{n}", session_id=f"s{n % 4}") for n in range(start, start + 20)]
        )

    def work(_):
        with bus.client.get_queue_receiver(
            bus.queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5
        ) as receiver:
            taken = take(receiver, 10)
            for message in taken:
                receiver.complete_message(message)
            return receiver.session.session_id, [int(str(m)) for m in taken]

    with ThreadPoolExecutor(4) as pool:
        taken = dict(pool.map(work, range(4)))
    assert taken == {f"s{k}": list(range(k, 40, 4)) for k in range(4)}
