"""A queue with sessions, where the disk is slow or refuses.

Who holds a session, in which order, and until when: test_session_model.py.
"""

from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.world import Receiver, encoded

COMPLETE, ABANDON = Settlement.COMPLETE, Settlement.ABANDON


@pytest.fixture
def world(make_world):
    return make_world(
        QueueDescription(
            name="q",
            requires_session=True,
            lock_duration=timedelta(seconds=30),
            max_delivery_count=3,
        )
    )


def send(world, *sessions):
    return world.send(*(encoded(session=session) for session in sessions))


def wait_for_session(world, *, seconds=60):
    seeker = Receiver(world.queue())
    world.queue().waiting[seeker] = world.now_ms + int(seconds * 1000)
    world.queue().serve_waiting(now_ms=world.now_ms)
    return seeker


@pytest.mark.req("B-06", "B-04")
def test_too_many_expired_locks_dead_letter_the_message_without_its_session(world):
    send(world, "a")
    for _ in range(3):
        world.accept("a", credit=1)
        world.pass_time(30)

    assert world.sequences() == []
    dead = world.receive(kind=MailboxKind.DEAD_LETTER)[0].message
    assert (dead.sequence, dead.session_id) == (1, None)
    assert world.queue().main.sessions.next_available() is None
    world.check_counters()


@pytest.mark.req("B-06")
def test_order_survives_an_expired_lock_however_slow_the_disk_is(world):
    send(world, "a", "a", "a")
    world.accept("a", credit=2)
    seeker = wait_for_session(world)
    seeker.credit = 1
    world.clock.advance(30)

    world.namespace.tick()  # the disk has not answered yet
    if seeker.session is not None:
        seeker.flow(0)
    world.flush()
    seeker.flow(5)

    assert seeker.sequences == [1, 2, 3]


@pytest.mark.req("B-06")
def test_order_survives_an_expired_lock_after_an_abandoned_message(world):
    send(world, "a", "a", "a")
    first = world.accept("a", credit=2)
    world.settle(first.locks[0], ABANDON)
    seeker = wait_for_session(world)
    world.clock.advance(30)

    world.namespace.tick()
    world.flush()
    seeker.flow(5)

    assert seeker.sequences == [1, 2, 3]


def test_a_settlement_on_its_way_that_fails_after_the_session_was_closed_loses_nothing(world):
    send(world, "a", "a")
    receiver = world.accept("a", credit=2)

    with world.broken_disk():
        reported = world.start_settling(receiver.locks[0], COMPLETE)
        receiver.close()

    assert reported[0].condition == "amqp:internal-error"
    assert world.accept("a", credit=9).sequences == [1, 2]
    world.check_counters()


def test_an_abandon_on_its_way_when_the_session_is_closed_keeps_the_order(world):
    send(world, "a", "a", "a")
    receiver = world.accept("a", credit=2)
    seeker = wait_for_session(world)
    seeker.credit = 1

    world.start_settling(receiver.locks[0], ABANDON)
    receiver.close()
    world.namespace.run()
    if seeker.session is not None:
        seeker.flow(0)
    world.flush()
    seeker.flow(5)

    assert seeker.sequences == [1, 2, 3]


@pytest.mark.req("B-06")
def test_a_link_that_closes_while_its_lost_session_comes_back_does_not_end_it_twice(world):
    send(world, "a", "a", "a")
    receiver = world.accept("a", credit=1)
    seeker = wait_for_session(world)
    world.clock.advance(30)

    world.namespace.tick()  # the lock has expired, and the disk has not answered yet
    receiver.close()
    world.namespace.run()
    if seeker.session is not None:
        seeker.flow(1)
    world.flush()
    seeker.flow(5)

    assert seeker.sequences == [1, 2, 3]
    assert world.queue().main.sessions.is_held("a")
    assert not receiver.has_lost_session  # its link is closed already
    assert world.queue().main.attached == 1


# -- next available ---------------------------------------------------------------------------


def test_a_session_whose_messages_have_expired_is_not_next(world):
    world.send(encoded(session="a", ttl_ms=1000))

    world.pass_time(1)

    assert wait_for_session(world).session is None


def test_an_empty_session_may_be_held_and_leaves_no_trace(world):
    receiver = world.accept("nobody")
    assert world.queue().main.sessions.is_held("nobody")

    receiver.close()

    assert world.queue().main.sessions.find("nobody") is None


def test_an_undelivered_message_returns_to_its_session(world):
    """Receive-and-delete from a session whose link closes in between."""
    send(world, "a", "a")
    receiver = world.accept("a")
    queue, reported = world.queue(), []
    [message] = queue.main.take(receiver.session, 1)
    queue.remove(queue.main, [message], reported.append)
    world.flush()
    receiver.close()

    queue.put_back(queue.main, message)
    world.commit_unheard()
    other = world.accept("a", credit=9)
    world.flush()
    other.flow(9)

    assert sorted(other.sequences) == [1, 2]
    for lock in other.locks:
        assert world.settle(lock, COMPLETE) is None
    world.check_counters()
