"""The faults of a namespace, without a network."""

import asyncio
import logging

import pytest

from pairbus.broker import Broker
from pairbus.broker.faults import (
    KINDS,
    CannotSend,
    ClockJump,
    DelayedVisibility,
    DiskFull,
    Hang,
    Restart,
    SlowDisk,
    Unreachable,
)
from pairbus.broker.faults.handle import Faults
from pairbus.errors import BrokerError
from tests.broker.world import encoded

pytestmark = pytest.mark.req("B-13")


@pytest.fixture
def controller(world):
    return world.namespace.faults


class Client:
    """A connection, as the controller sees it."""

    def __init__(self, world):
        self.reported = []
        world.namespace.connections.add(self)

    def __getattr__(self, name):
        return lambda: self.reported.append(name)


class Port(Client):
    def __init__(self, controller):
        self.reported = []
        controller.port = self


def test_without_faults_there_is_no_active_faults(world, controller):
    assert world.namespace.active_faults is None
    entry = controller.start(Hang())
    assert world.namespace.active_faults is not None
    controller.clear([entry])
    assert world.namespace.active_faults is None


def test_a_jump_of_the_namespaces_clock_ends_no_fault(world, controller):
    entry = controller.start(Hang(seconds=60))
    controller.start(ClockJump(offset_seconds=3600))
    world.tick()
    assert entry.is_active
    assert world.namespace.clock() == world.clock() + 3600


def test_connections_are_notified_of_every_change(world, controller):
    client = Client(world)
    entry = controller.start(Hang())
    controller.clear([entry])
    assert client.reported == ["faults_changed", "faults_changed"]


@pytest.mark.parametrize(("fault", "farewell"), [(Restart(), "shutdown"), (Unreachable(), "cut")])
def test_a_closed_port_refuses_connections_until_the_fault_ends(world, controller, fault, farewell):
    port, client = Port(controller), Client(world)
    entry = controller.start(fault)
    assert port.reported == ["refuse", "shut_down_all"]
    assert client.reported == ["faults_changed", farewell]
    other = controller.start(Restart(seconds=60))
    controller.clear([entry])
    assert port.reported == ["refuse", "shut_down_all", "shut_down_all"]
    controller.clear([other])
    assert port.reported[3:] == ["admit"]


def test_an_entitys_fault_leaves_the_port_open(world, controller):
    port = Port(controller)
    controller.start(Restart("q"))
    controller.start(Unreachable("q"))
    assert port.reported == []


def test_a_slow_disk_is_waited_for_and_let_go(world, controller):
    entry = controller.start(SlowDisk(latency_seconds=3600))
    _, reported = world.submit(encoded())
    world.loop.run_until_complete(asyncio.sleep(0))
    assert reported == []
    controller.clear([entry])
    world.flush()
    assert reported == [None]


def test_delayed_messages_survive_a_crash(world, controller):
    controller.start(DelayedVisibility("Q", delay_seconds=900))
    world.send(encoded(b"late"))
    world.crash()
    assert world.receive() == []
    world.pass_time(899)
    assert world.receive() == []
    world.pass_time(1)
    [lock] = world.receive()
    assert b"late" in lock.message.bare


def test_a_delay_shortens_no_schedule(world, controller):
    controller.start(DelayedVisibility(delay_seconds=60))
    world.send(encoded(due_ms=world.now_ms + 120_000))
    world.pass_time(61)
    assert world.receive() == []
    world.pass_time(60)
    assert len(world.receive()) == 1


def test_a_fault_for_an_unknown_entity_is_logged(world, controller, caplog):
    controller.start(CannotSend("oders"))
    assert "is for 'oders', which does not exist" in caplog.text


def test_a_namespace_closes_in_the_middle_of_a_fault(world, controller):
    controller.start(DiskFull())
    controller.start(SlowDisk(latency_seconds=3600))
    world.submit(encoded())
    world.restart()
    assert len(world.sequences()) == 1


def test_the_log_says_when_a_fault_starts_when_it_is_over_and_when_it_is_cleared(
    world, controller, caplog
):
    caplog.set_level(logging.INFO, logger="pairbus.broker")
    controller.start(Hang("q", seconds=30))
    entry = controller.start(DiskFull())
    world.pass_time(30)
    controller.clear([entry])
    controller.clear([entry])
    assert caplog.messages == [
        "namespace local: fault 1 starts: hang on q, for 30 s",
        "namespace local: fault 2 starts: disk_full on all entities, until it is cleared",
        "namespace local: fault 1 is over: hang on q, for 30 s",
        "namespace local: fault 2 is cleared: disk_full on all entities, until it is cleared",
    ]


# -- `broker.faults` --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_method_of_its_name(kind):
    assert callable(getattr(Faults, kind.kind))


def test_the_faults_of_a_stopped_broker_cannot_be_listed():
    with Broker() as broker:
        faults = broker.faults
        running = faults.hang()
        assert running.is_active

    assert running.state == "over"
    running.clear()  # nothing is left to clear
    with pytest.raises(BrokerError, match="the broker is not running"):
        faults.all()
