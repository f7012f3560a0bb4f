"""What a namespace counts as billed operations."""

import pytest

from pairbus.amqp.codec.types import Array, Long, Timestamp
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages.lifecycle import Settlement
from pairbus.cost.meter import Tally
from tests.broker.links.test_management import defer
from tests.broker.links.test_management import token as lock_token
from tests.broker.world import encoded, ping

LARGE = b"x" * (64 * 1024)


def tally(world, name="q"):
    return world.namespace.meter.read().of(name)


@pytest.mark.req("M-01")
def test_sends_are_counted_by_message_and_by_begun_64_kb(world):
    world.send(encoded())
    world.send(*[encoded(b"x" * 10_000)] * 20)  # a batch of more than 64 KB, of small messages
    world.send(encoded(), encoded(LARGE))

    assert tally(world) == Tally(send=1 + 20 + 1 + 2)


@pytest.mark.req("M-01")
def test_a_ping_is_counted_as_one_and_not_as_a_send(world):
    world.send(ping())

    assert tally(world) == Tally(ping=1)


def test_what_is_refused_is_not_counted_and_a_duplicate_is(make_world):
    world = make_world(
        QueueDescription(
            name="q", requires_duplicate_detection=True, max_message_size_in_kilobytes=1024
        )
    )
    world.send(encoded(message_id="a"))
    world.send(encoded(message_id="a"))
    assert tally(world) == Tally(send=2)

    assert world.send(encoded(b"x" * 2_000_000)).condition
    assert tally(world) == Tally(send=2)


def test_settlements_and_renewals_are_counted_by_message(world):
    world.send(*[encoded()] * 4)
    locks = world.receive(4)
    tokens = Array([lock_token(lock) for lock in locks])
    world.ask("renew-lock", {"lock-tokens": tokens})
    world.settle(locks[0], Settlement.COMPLETE)
    world.settle(locks[1], Settlement.ABANDON)
    world.settle(locks[2], Settlement.DEAD_LETTER)
    world.settle(locks[3], Settlement.RELEASE)

    assert tally(world) == Tally(send=4, renew=4, settle=4)


def test_a_peek_is_one_for_each_64_kb_that_it_shows(world):
    peek = {"from-sequence-number": 0, "message-count": 10}
    world.ask("peek-message", peek)
    assert tally(world).peek == 1

    world.send(encoded(LARGE), encoded(LARGE))
    world.ask("peek-message", peek)
    assert tally(world).peek == 1 + 3


def test_deferred_messages_are_received_by_number_at_their_size(world):
    world.send(encoded(), encoded(LARGE))
    defer(world, count=2)
    numbers = {"sequence-numbers": Array([Long(1), Long(2)])}
    world.ask("receive-by-sequence-number", {**numbers, "receiver-settle-mode": 1})

    assert tally(world).receive == 1 + 2


def test_a_scheduled_message_is_a_send_and_its_cancelling_one_operation(world):
    due = encoded(due_ms=world.now_ms + 60_000)
    world.ask("schedule-message", {"messages": [{"message": due}]})
    world.ask("cancel-scheduled-message", {"sequence-numbers": Array([Long(1)])})

    assert tally(world) == Tally(send=1, manage=1)


def test_requests_that_are_refused_are_not_counted(world):
    world.ask("peek-message", {})
    world.ask("cancel-scheduled-message", {"sequence-numbers": Array([Long(7)])})

    assert tally(world) == Tally()


def test_sessions_are_renewed_and_their_state_is_got_and_set(make_world):
    world = make_world(QueueDescription(name="q", requires_session=True))
    world.send(encoded(session="a"))
    holder = world.accept("a")
    for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
        world.ask(operation, {"session-id": "a", "session-state": None}, holder=holder)
    begin = Timestamp(0)
    world.ask("get-message-sessions", {"last-updated-time": begin, "skip": 0, "top": 1})

    assert tally(world) == Tally(send=1, renew=1, session=3)


def test_forwarding_is_counted_where_it_arrives(make_world):
    world = make_world(QueueDescription(name="end"), QueueDescription(name="q", forward_to="end"))
    world.send(encoded(), encoded(LARGE))

    assert tally(world) == Tally(send=3)
    assert tally(world, "end") == Tally(forward=3)


def test_what_was_counted_outlives_the_entity(world):
    world.send(encoded())
    world.namespace.delete(world.queue())
    world.flush()
    world.namespace.create(QueueDescription(name="q"))
    world.send(encoded())

    assert tally(world) == Tally(send=2)
