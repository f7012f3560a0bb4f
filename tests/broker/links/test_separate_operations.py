"""Operations of an entity that does not batch them: each has a transaction of its own (B-10)."""

import sqlite3
from contextlib import contextmanager

import pytest

from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.messages.lifecycle import Settlement
from tests.broker.messages.topic_world import at, bodies, check_file, sub, topic
from tests.broker.world import encoded

pytestmark = pytest.mark.req("B-10")

APART = {"enable_batched_operations": False}


@contextmanager
def counted(world, *, refused=()):
    """Counts the commits, and refuses those with these numbers."""
    store, commit, seen = world.namespace.store, world.namespace.store.commit, []

    def count():
        seen.append(len(seen))
        if seen[-1] in refused:
            raise sqlite3.OperationalError("database or disk is full")
        commit()

    store.commit = count
    yield seen
    world.flush()
    store.commit = commit


@pytest.mark.parametrize(("settings", "commits"), [({}, 1), (APART, 5)], ids=["batched", "apart"])
@pytest.mark.parametrize("name", ["q", "t"])
def test_sends_of_one_moment_share_a_commit_or_not(make_world, name, settings, commits):
    world = make_world(
        QueueDescription(name="q", **settings), topic(**settings), sub("a"), sub("b")
    )

    with counted(world) as seen:
        reported = [world.submit(encoded(b"%d" % n), to=name)[1] for n in range(5)]

    assert len(seen) == commits
    assert reported == [[None]] * 5
    expected = [b"%d" % n for n in range(5)]
    assert bodies(world, "q" if name == "q" else at("a")) == expected
    check_file(world)


@pytest.mark.parametrize(("settings", "commits"), [({}, 1), (APART, 5)], ids=["batched", "apart"])
@pytest.mark.parametrize("name", ["q", at("a")])
def test_settlements_of_one_moment_share_a_commit_or_not(make_world, name, settings, commits):
    world = make_world(QueueDescription(name="q", **settings), topic(), sub("a", **settings))
    world.send(*(encoded() for _ in range(5)), to="q" if name == "q" else "t")
    locks = world.receive(5, of=name)

    with counted(world) as seen:
        for lock in locks:
            world.start_settling(lock, Settlement.COMPLETE, of=name)

    assert len(seen) == commits
    assert bodies(world, name) == []
    check_file(world)


@pytest.mark.req("B-12")
@pytest.mark.parametrize("refused", [{0}, {1}, {0, 2}, {2}])
def test_what_is_stored_is_what_was_not_refused(make_world, refused):
    world = make_world(QueueDescription(name="q", **APART))

    with counted(world, refused=refused):
        reported = [world.submit(encoded(b"%d" % n))[1] for n in range(3)]

    assert all(len(one) == 1 for one in reported)
    assert reported[min(refused)] != [None]
    kept = [b"%d" % n for n in range(3) if reported[n] == [None]]
    assert bodies(world, "q") == kept
    check_file(world)
    world.restart()
    check_file(world)
    assert len(world.receive(5)) == len(kept)


@pytest.mark.req("B-12")
def test_nothing_is_stored_in_an_entity_that_the_disk_refused(make_world):
    world = make_world()

    with counted(world, refused={0}):
        world.namespace.create(QueueDescription(name="new", **APART))
        reported = world.submit(encoded(b"x"), to="new")[1]

    assert reported != [None]
    assert world.namespace.find("new") is None
    assert world.look("SELECT count(*) FROM message") == [(0,)]


@pytest.mark.req("B-07")
def test_a_duplicate_of_a_send_that_was_refused_is_refused_with_it(make_world):
    world = make_world(QueueDescription(name="q", requires_duplicate_detection=True, **APART))

    with counted(world, refused={0}):
        reported = [world.submit(encoded(b"x", message_id="m"))[1] for _ in range(2)]

    assert all(one[0] is not None for one in reported)
    assert world.send(encoded(b"x", message_id="m")) == [3]
    assert bodies(world, "q") == [b"x"]
    check_file(world)


@pytest.mark.req("B-12")
def test_a_crash_between_two_operations_keeps_the_first(make_world):
    world = make_world(QueueDescription(name="q", **APART))
    for n in range(3):
        world.submit(encoded(b"%d" % n))

    world.commit_unheard()
    world.crash()

    assert bodies(world, "q") == [b"0"]
    check_file(world)
