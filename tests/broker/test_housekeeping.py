"""What happens as time passes: expiry, auto-delete on idle, and housekeeping."""

import logging
from datetime import timedelta

import pytest

from pairbus.broker import housekeeping
from pairbus.broker.messages.lifecycle import Settlement
from tests.broker.messages.topic_world import sub, topic
from tests.broker.world import FakeConnection, encoded, queue


@pytest.mark.req("B-05")
def test_expired_messages_behind_locked_ones_are_found(world, monkeypatch):
    monkeypatch.setattr(housekeeping, "SWEEP_COUNT", 3)
    world.send(*[encoded(ttl_ms=1000)] * 10)
    locks = world.receive(7)

    world.pass_time(1)
    world.tick()

    assert world.sequences() == [1, 2, 3, 4, 5, 6, 7]
    for lock in locks:
        assert world.settle(lock, Settlement.COMPLETE) is None
    world.check_counters()


@pytest.mark.req("B-05")
@pytest.mark.parametrize("settlement", [Settlement.ABANDON, Settlement.RELEASE, Settlement.DEFER])
def test_an_expired_message_that_is_locked_has_to_wait_without_many_ticks(world, settlement):
    world.send(encoded(ttl_ms=1000))
    [lock] = world.receive()
    world.tick()

    world.clock.advance(1)
    assert world.next_tick_seconds() == pytest.approx(4)

    assert world.settle(lock, settlement) is None
    assert world.loop.delays[-1] == pytest.approx(0.02)
    world.tick()
    assert world.sequences() == []
    world.check_counters()


@pytest.mark.req("B-05")
def test_many_expired_messages_that_are_locked_cause_no_more_ticks_than_one(world, monkeypatch):
    monkeypatch.setattr(housekeeping, "_SWEEP_SECONDS", 0)
    world.send(*[encoded(ttl_ms=1000)] * 10)
    world.receive(9)
    world.tick()

    world.clock.advance(1)
    ticks = [world.next_tick_seconds() for _ in range(2)]

    assert ticks == pytest.approx([0.02, 4])
    assert len(world.sequences()) == 9


@pytest.mark.req("B-05")
def test_an_expired_message_is_found_when_its_lock_ends(make_world):
    world = make_world(queue(lock_duration=timedelta(seconds=3)))
    world.send(encoded(ttl_ms=1000))
    world.receive()
    world.tick()

    world.clock.advance(1)
    assert world.next_tick_seconds() == pytest.approx(2)
    world.clock.advance(2)
    assert world.next_tick_seconds() == pytest.approx(0.02)
    world.tick()

    assert world.sequences() == []
    world.check_counters()


@pytest.mark.req("B-03")
def test_locks_that_end_together_do_not_hold_up_others_for_long(make_world, monkeypatch):
    monkeypatch.setattr(housekeeping, "_SWEEP_SECONDS", 0)
    world = make_world(queue(), queue("s", requires_session=True))
    world.send(encoded(), encoded())
    world.send(encoded(session="a"), to="s")
    world.receive(2)
    holder = world.accept("a", of="s", credit=1)
    world.clock.advance(60)

    ticks = [world.next_tick_seconds() for _ in range(4)]

    assert ticks == pytest.approx([0.02, 0.02, 0.02, 5])
    assert holder.has_lost_session
    assert [lock.message.delivery_count for lock in world.receive(2)] == [1, 1]
    world.check_counters()


def test_scheduled_messages_that_have_to_wait_do_not_hold_up_others(make_world, monkeypatch):
    monkeypatch.setattr(housekeeping, "SWEEP_COUNT", 3)
    world = make_world(topic(), sub("a"), queue())
    world.send(*[encoded(due_ms=world.now_ms + 1000)] * 5, to="t")
    world.send(encoded(due_ms=world.now_ms + 2000))
    world.queue("t").is_waiting = True  # for its rules

    world.pass_time(2)

    assert len(world.receive()) == 1


@pytest.mark.req("B-05")
def test_more_than_a_sweep_of_expired_messages_goes_sweep_by_sweep(world, monkeypatch):
    monkeypatch.setattr(housekeeping, "SWEEP_COUNT", 3)
    world.send(*[encoded(ttl_ms=1000)] * 8, *[encoded(due_ms=world.now_ms + 1000)] * 5)
    world.clock.advance(1)

    assert [world.next_tick_seconds() for _ in range(3)] == pytest.approx([0.02, 0.02, 5])

    assert [world.rows(columns="state").get(n) for n in range(1, 14)] == [None] * 13
    assert len(world.receive(99)) == 5


@pytest.mark.req("B-05")
def test_an_idle_queue_is_deleted_with_all_it_has(make_world, caplog):
    world = make_world(queue(auto_delete_on_idle=timedelta(minutes=5)), queue("other"))
    world.send(encoded())

    world.pass_time(299)
    assert world.namespace.find("q") is not None
    with caplog.at_level(logging.INFO):
        world.pass_time(6)

    assert world.namespace.find("q") is None
    assert "queue 'q' was idle for" in caplog.text
    world.queues = ()
    world.crash()
    assert [q.name for q in world.namespace.queues] == ["other"]


def test_the_last_use_is_written_down(make_world):
    world = make_world(queue(auto_delete_on_idle=timedelta(hours=1)))
    world.clock.advance(10)
    world.send(encoded())

    world.tick()

    assert world.namespace.store.entities()[0].accessed_ms == world.now_ms


def test_housekeeping_looks_at_tokens_and_sweeps(make_world):
    world = make_world(queue(requires_duplicate_detection=True))
    connection = FakeConnection()
    world.namespace.connections.add(connection)
    world.send(encoded(message_id="x"))
    world.tick()

    world.pass_time(601)

    assert connection.checked[-1] == world.now_ms
    assert world.look("SELECT count(*) FROM seen") == [(0,)]
