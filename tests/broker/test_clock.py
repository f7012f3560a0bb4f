"""A namespace follows the clock of its machine, and locks keep their length when it is set."""

import pytest

from pairbus.broker.clock import SystemClock
from pairbus.broker.entities.descriptions import QueueDescription
from tests.broker.world import World, encoded

HOURS = 7200.0


class Machine:
    """Its two clocks; somebody may set one of them."""

    def __init__(self):
        self.wall_seconds = 1_800_000_000.0
        self.monotonic_seconds = 100.0

    def run(self, seconds):
        self.wall_seconds += seconds
        self.monotonic_seconds += seconds

    def clock(self):
        return SystemClock(lambda: self.wall_seconds, lambda: self.monotonic_seconds)


def test_between_two_looks_it_runs_evenly_whatever_happens():
    machine = Machine()
    clock = machine.clock()

    machine.wall_seconds -= HOURS
    machine.run(5)

    assert clock() == 1_800_000_005
    assert clock.follow() == -HOURS
    assert clock() == 1_800_000_005 - HOURS
    assert clock.follow() == 0


def test_a_small_difference_is_adopted_and_is_no_step():
    machine = Machine()
    clock = machine.clock()

    machine.wall_seconds += 0.5

    assert clock.follow() == 0
    assert clock() == machine.wall_seconds


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def world(tmp_path, machine):
    queues = [QueueDescription(name="q"), QueueDescription(name="s", requires_session=True)]
    world = World(tmp_path / "data", *queues, clock=machine.clock())
    yield world
    world.end()


@pytest.mark.parametrize("step", [HOURS, -HOURS], ids=["forward", "back"])
def test_a_lock_keeps_the_time_that_it_has_left(world, machine, step):
    world.send(encoded(b"locked"))
    [lock] = world.receive()
    machine.run(20)

    machine.wall_seconds += step
    world.tick()

    assert lock.until_ms - world.now_ms == 40_000
    machine.run(39)
    world.tick()
    assert lock.message.lock is not None
    machine.run(2)
    world.tick()
    assert lock.message.lock is None


@pytest.mark.parametrize("step", [HOURS, -HOURS], ids=["forward", "back"])
def test_so_does_a_session(world, machine, step):
    world.send(encoded(b"locked", session="a"), to="s")
    receiver = world.accept("a", of="s", credit=1)

    machine.wall_seconds += step
    machine.run(59)
    world.tick()
    assert not receiver.has_lost_session
    machine.run(2)
    world.tick()

    assert receiver.has_lost_session


def test_schedules_go_on_after_a_step_back_and_right_again(world, machine):
    world.send(encoded(b"later", due_ms=world.now_ms + 30_000))
    machine.wall_seconds -= HOURS
    world.tick()
    machine.wall_seconds += HOURS

    machine.run(31)
    world.tick()

    assert len(world.receive()) == 1


def test_the_next_look_comes_within_seconds(world, machine):
    machine.wall_seconds -= HOURS
    world.tick()

    assert world.next_tick_seconds() <= 5
