"""A namespace as a whole: what it loads, what it makes, what time does to it."""

import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest

from pairbus.broker import housekeeping
from pairbus.broker.entities.descriptions import Status
from pairbus.broker.entities.namespace_options import NamespaceOptions
from pairbus.broker.messages.lifecycle import Settlement
from pairbus.broker.namespace import Namespace
from pairbus.errors import ConfigError, DataFileError, StartError
from pairbus.testing import ManualClock
from tests.broker.world import FakeConnection, Receiver, StillLoop, World, encoded, queue

# -- start and stop ---------------------------------------------------------------------------


def test_a_namespace_without_a_folder_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loop = StillLoop()
    namespace = Namespace(NamespaceOptions(queues=[queue()]), loop=loop, clock=ManualClock())
    namespace.open()
    assert len(list(tmp_path.iterdir())) == 1

    loop.run_until_complete(namespace.close())

    assert list(tmp_path.iterdir()) == []
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    options = NamespaceOptions(data=tmp_path / "file" / "data")
    loop = StillLoop()

    with pytest.raises(StartError, match="file/data cannot be written"):
        Namespace(options, loop=loop, clock=ManualClock()).open()

    loop.close()


def test_a_data_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    loop = StillLoop()

    with pytest.raises(StartError, match="file is a file: choose another name"):
        Namespace(NamespaceOptions(data=tmp_path / "file"), loop=loop, clock=ManualClock()).open()

    loop.close()


def test_closing_waits_for_pending_changes_and_sets_no_timer(world):
    world.tick()
    _, reported = world.submit(encoded(ttl_ms=1000), encoded(due_ms=world.now_ms + 1000))
    world.loop.delays.clear()

    world.close()

    assert reported == [None]
    assert world.loop.delays == []
    world.open()
    assert world.sequences() == [1, 2]


# -- queues -----------------------------------------------------------------------------------


def test_a_queue_is_brought_in_line_and_keeps_its_messages_and_the_case_of_its_name(make_world):
    world = make_world(queue("Orders", max_delivery_count=3))
    world.send(encoded(), to="orders")

    world.queues = (queue("ORDERS", max_delivery_count=5, status=Status.SEND_DISABLED),)
    world.restart()
    world.queues = ()
    world.restart()

    found = world.queue("orders")
    assert found.name == "Orders"
    assert found.description.max_delivery_count == 5
    assert world.send(encoded(), to="orders").condition == "com.microsoft:entity-disabled"
    assert world.sequences(of="orders") == [1]


@pytest.mark.parametrize(
    "fixed", ["requires_session", "requires_duplicate_detection", "enable_partitioning"]
)
def test_a_fixed_setting_that_differs_refuses_the_start_and_changes_nothing(world, fixed):
    world.close()
    world.queues = (queue("new"), queue(**{fixed: True}))

    with pytest.raises(ConfigError, match=f"'q' exists with another {fixed}"):
        world.open()

    world.queues = ()
    world.open()
    assert [q.name for q in world.namespace.queues] == ["q"]


def test_a_description_that_this_version_does_not_know_is_named(world):
    world.namespace.store.update_entity(world.queue().entity_id, {"shiny": 1}, now_ms=0)
    world.close()

    with pytest.raises(DataFileError, match=r"'q'.*shiny"):
        World(world.folder)

    world.namespace.store = None
    for name in ("local.db", "local.lock"):
        (world.folder / name).unlink()
    world.open()


# -- time -------------------------------------------------------------------------------------


def test_the_clock_is_looked_at_when_the_first_thing_is_due(world):
    assert world.next_tick_seconds() == pytest.approx(5)  # housekeeping
    world.send(*(encoded(due_ms=world.now_ms + ms) for ms in (9000, 4000)))
    assert world.next_tick_seconds() == pytest.approx(4)
    world.send(encoded(ttl_ms=9000), encoded(ttl_ms=3000))
    assert world.next_tick_seconds() == pytest.approx(3)
    world.queue().waiting[Receiver(world.queue())] = world.now_ms + 2000
    assert world.next_tick_seconds() == pytest.approx(2)


def test_a_lock_sets_the_timer_to_its_expiry(make_world):
    world = make_world(queue(lock_duration=timedelta(seconds=1)))
    world.send(encoded())
    world.tick()

    world.receive()

    assert world.loop.delays[-1] == pytest.approx(1)
    assert world.next_tick_seconds() == pytest.approx(1)


def test_work_that_cannot_be_done_now_does_not_spin_the_loop(world):
    world.send(encoded(ttl_ms=1000))
    world.receive()
    world.clock.advance(2)

    assert world.next_tick_seconds() == pytest.approx(5)


def test_a_tick_replaces_the_timer_of_the_next_one(world):
    world.tick()
    before = world.loop.timers[-1]

    world.tick()

    assert before.cancelled()
    assert not world.loop.timers[-1].cancelled()


def test_a_moved_clock_is_noticed_at_once(tmp_path):
    """`ManualClock` tells its users; in the loop's own thread that is immediate."""
    loop, clock = StillLoop(), ManualClock()
    options = NamespaceOptions(queues=[queue()], data=tmp_path / "data")
    namespace = Namespace(options, loop=loop, clock=clock)
    namespace.open()
    looked = len(loop.delays)

    async def move():
        clock.advance(60)

    loop.run_until_complete(move())

    assert len(loop.delays) > looked
    loop.run_until_complete(namespace.close())
    clock.advance(1)  # nobody listens any more
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def test_a_connection_with_output_is_flushed_once_after_a_commit(world):
    connection = FakeConnection()
    world.submit(encoded())
    world.namespace.unsent(connection)
    world.namespace.unsent(connection)

    world.flush()

    assert connection.flushes == 1


def failing_with(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(("method", "number"), [("activate", 2), ("expire", 3)])
def test_a_failure_with_one_message_does_not_stop_the_clock(
    world, monkeypatch, caplog, method, number
):
    world.send(encoded(), encoded(due_ms=world.now_ms + 1000), encoded(ttl_ms=1000))
    lock = world.receive()[0]
    monkeypatch.setattr(world.queue(), method, failing_with(RuntimeError("failing")))
    world.clock.advance(61)
    world.namespace.tick()

    assert f"message {number}" in caplog.text
    assert world.settle(lock, Settlement.COMPLETE) == "lock lost"  # what else was due has been done
    assert world.loop.delays[-1] == pytest.approx(5)  # at once, it would fail and be logged again
    assert not world.loop.timers[-1].cancelled()


def test_damage_that_a_tick_meets_is_told_once_and_without_a_trace(
    make_world, monkeypatch, caplog, tmp_path
):
    world = make_world()
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database" * 1000)

    def read(*_, **__):
        with closing(sqlite3.connect(garbage)) as file:
            file.execute("SELECT * FROM message")

    with monkeypatch.context() as patched:
        patched.setattr(housekeeping, "activate_due_messages", read)
        patched.setattr(housekeeping, "next_deadline_ms", read)
        for _ in range(3):
            world.namespace.tick()

    [reported] = [one for one in caplog.records if one.levelname == "ERROR"]
    assert "local.db is damaged: file is not a database" in reported.message
    assert reported.exc_info is None
    assert "local.db is damaged" in world.send(encoded(b"x")).description


@pytest.mark.parametrize("method", ["activate", "expire", "expire_locks"])
def test_damage_in_a_message_is_damage_of_the_file(world, monkeypatch, caplog, method):
    world.send(encoded(), encoded(due_ms=world.now_ms + 1000), encoded(ttl_ms=1000))
    world.receive()
    damage = sqlite3.DatabaseError("database disk image is malformed")
    damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    monkeypatch.setattr(world.queue(), method, failing_with(damage))

    world.clock.advance(61)
    world.namespace.tick()

    [reported] = [one for one in caplog.records if one.levelname == "ERROR"]
    assert "local.db is damaged: database disk image is malformed" in reported.message


def test_a_disk_that_cannot_be_read_for_a_while_does_not_stop_the_clock(world, monkeypatch):
    world.send(encoded())
    lock = world.receive()[0]

    def read(*_, **__):
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(housekeeping, "activate_due_messages", read)
        patched.setattr(housekeeping, "next_deadline_ms", read)
        with pytest.raises(sqlite3.OperationalError):
            world.namespace.tick()
    assert world.loop.delays[-1] == pytest.approx(5)
    assert not world.loop.timers[-1].cancelled()

    world.clock.advance(61)
    world.namespace.tick()
    assert world.settle(lock, Settlement.COMPLETE) == "lock lost"
