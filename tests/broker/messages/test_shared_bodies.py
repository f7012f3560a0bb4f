"""The bytes of a message lie in the file once, however many subscriptions have a copy (B-08).

They go with the last copy, whatever way it goes, and not before.
"""

import threading
from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from pairbus.broker.storage import reads
from tests.broker.messages.topic_world import (
    at,
    bodies,
    body_of,
    check_bodies,
    check_file,
    delete,
    rule,
    shared_bodies,
    sub,
    topic,
)
from tests.broker.world import encoded

pytestmark = pytest.mark.req("B-08")

BIG = bytes(range(256)) * 8
DEAD = MailboxKind.DEAD_LETTER


def settle(world, path, settlement, **words):
    [lock] = world.receive(of=path)
    assert world.settle(lock, settlement, of=path, **words) is None
    return lock.message


def test_fifty_subscriptions_cost_one_body(make_world):
    world = make_world(topic(), *(sub(f"s{n}") for n in range(50)))

    world.send(encoded(BIG), encoded(BIG[::-1]), to="t")

    assert list(shared_bodies(world).values()) == [50, 50]
    [(rows, size)] = world.look("SELECT count(*), sum(length(bare)) FROM message")
    assert rows == 100
    assert size < 10 * rows  # numbers, not bytes
    assert bodies(world, at("s49")) == [BIG, BIG[::-1]]
    check_file(world)


@pytest.mark.parametrize(
    ("body", "subscriptions"),
    [
        pytest.param(b"small", 3, id="a small one is cheaper to copy"),
        pytest.param(BIG, 1, id="the only copy is its own"),
    ],
)
def test_small_bodies_are_not_shared(make_world, body, subscriptions):
    world = make_world(topic(), *(sub(f"s{n}") for n in range(subscriptions)))

    world.send(encoded(body), to="t")

    assert shared_bodies(world) == {}
    assert bodies(world, at("s0")) == [body]


def test_only_equal_bodies_are_shared(make_world):
    minute = timedelta(minutes=1)
    world = make_world(
        topic(),
        sub("a"),
        sub("b"),
        sub("marked", rule(action="SET seen = 1")),
        sub("marked-too", rule(action="SET seen = 1")),
        sub("other", rule(action="SET seen = 2")),
        sub("short", default_message_time_to_live=minute),
        sub("short-too", default_message_time_to_live=minute),
    )  # fmt: skip

    world.send(encoded(BIG), to="t")

    # How long a copy lives is not part of its bytes.
    assert sorted(shared_bodies(world).values()) == [2, 4]
    assert all(bodies(world, path) == [BIG] for path in map(at, ("a", "marked", "other", "short")))
    check_file(world)


def test_copies_of_one_subscription_tell_by_which_rule_they_came_and_are_not_alike(make_world):
    twice = (rule(action="SET n = 1", name="a"), rule(action="SET n = 1", name="b"))
    world = make_world(topic(), sub("a", *twice), sub("b", *twice))

    world.send(encoded(BIG), to="t")

    assert list(shared_bodies(world).values()) == [2, 2]
    assert bodies(world, at("a")) == bodies(world, at("b")) == [BIG, BIG]
    check_file(world)


# the ways that a copy goes


def complete(world, path):
    settle(world, path, Settlement.COMPLETE)


def receive_and_delete(world, path):
    world.receive_and_delete(of=path)


def dead_letter(world, path):
    settle(world, path, Settlement.DEAD_LETTER, reason="why")
    assert bodies(world, path, DEAD) == [BIG]


def abandon_with_properties(world, path):
    message = settle(world, path, Settlement.ABANDON, properties={"tried": 1})
    assert message.bare != BIG
    assert bodies(world, path) == [BIG]


def defer_with_properties(world, path):
    settle(world, path, Settlement.DEFER, properties={"tried": 1})
    assert bodies(world, path) == [BIG]


def defer_and_take_by_number(world, path):
    message = settle(world, path, Settlement.DEFER)
    check_bodies(world)
    body = {"sequence-numbers": [message.sequence], "receiver-settle-mode": 0}
    assert world.ask("receive-by-sequence-number", body, of=path).status == 200


def batch_delete(world, path):
    world.pass_time(1)
    body = {"message-count": 10, "enqueued-time-utc": world.now_ms}
    assert world.ask("batch-delete-messages", body, of=path).body["message-count"] == 1


def put_back(world, path):
    """Its receiver has left before it came: it is stored again, whole."""
    world.receive_and_delete(of=path, stays=False)
    assert bodies(world, path) == [BIG]


def fail_too_often(world, path):
    for _ in range(10):
        settle(world, path, Settlement.ABANDON)
    assert bodies(world, path, DEAD) == [BIG]


def delete_subscription(world, path):
    delete(world, path)
    clean_up(world)


def clean_up(world):
    for _ in range(10):
        world.pass_time(6)
    assert world.look("SELECT * FROM garbage") == []


WAYS = [
    complete,
    receive_and_delete,
    dead_letter,
    abandon_with_properties,
    defer_with_properties,
    defer_and_take_by_number,
    batch_delete,
    put_back,
    fail_too_often,
    delete_subscription,
]


@pytest.mark.parametrize("go", WAYS, ids=lambda way: way.__name__.replace("_", " "))
def test_the_body_is_deleted_with_the_last_copy(make_world, go):
    world = make_world(topic(), sub("a"), sub("b"), sub("c"))
    world.send(encoded(BIG), to="t")

    for left, name in [(2, "a"), (1, "b"), (0, "c")]:
        go(world, at(name))
        assert list(shared_bodies(world).values()) == ([left] if left else [])
        check_file(world)
        if name != "c":
            assert bodies(world, at("c")) == [BIG]


def test_a_forwarded_dead_letter_has_its_own_bytes(make_world):
    world = make_world(
        topic(), QueueDescription(name="q"), sub("b"),
        sub("a", forward_dead_lettered_messages_to="q"),
    )  # fmt: skip
    world.send(encoded(BIG), to="t")

    settle(world, at("a"), Settlement.DEAD_LETTER)
    complete(world, at("b"))

    assert shared_bodies(world) == {}
    assert bodies(world, "q") == [BIG]
    check_file(world)


def test_a_portion_is_released_once_however_slow_the_disk_is(make_world):
    world = make_world(topic(), sub("a"), sub("b"))
    world.send(encoded(BIG), to="t")
    delete(world, at("a"))

    world.clock.advance(6)
    world.namespace.tick()
    world.clock.advance(6)
    world.namespace.tick()
    world.flush()

    assert list(shared_bodies(world).values()) == [1]
    assert [body_of(lock.message) for lock in world.receive(of=at("b"))] == [BIG]


def test_a_fan_out_to_a_subscription_that_is_deleted_meanwhile(make_world):
    world = make_world(topic(), sub("a"), sub("b"))

    _, reported = world.submit(encoded(BIG), to="t")
    world.namespace.delete(world.queue(at("a")))
    world.flush()
    clean_up(world)

    assert reported == [None]
    assert list(shared_bodies(world).values()) == [1]
    assert bodies(world, at("b")) == [BIG]


# restarts and disks


@pytest.mark.req("B-12")
def test_a_broken_disk_keeps_the_bodies_of_a_portion(make_world):
    world = make_world(topic(), sub("a"), sub("b"))
    world.send(encoded(BIG), to="t")
    delete(world, at("a"))

    with world.broken_disk():
        world.clock.advance(6)
        world.namespace.tick()
    check_bodies(world)
    clean_up(world)

    assert list(shared_bodies(world).values()) == [1]


def test_a_body_that_is_deleted_while_its_message_is_read_does_no_harm(make_world, monkeypatch):
    """The commit runs on another thread, between any two statements of a reader."""
    world = make_world(topic(), sub("a"), sub("b"))
    world.send(encoded(BIG), to="t")
    complete(world, at("b"))
    [lock] = world.receive(of=at("a"))
    world.start_settling(lock, Settlement.COMPLETE, of=at("a"))
    store, read = world.namespace.store, reads.from_row
    store.apply()

    thread = threading.Thread(target=store.commit)

    def commit_meanwhile(row):
        if thread.ident is None:
            thread.start()
            thread.join()
        return read(row)

    monkeypatch.setattr(reads, "from_row", commit_meanwhile)
    body = {"from-sequence-number": 0, "message-count": 10}
    [answer] = world.ask("peek-message", body, of=at("a"), wait=False)

    assert answer.status in (200, 204)
    assert world.namespace.store.read_one(1, 1) is None
