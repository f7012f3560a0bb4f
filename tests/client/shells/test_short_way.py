"""The way of almost every message: a healthy entity, a sender that nobody else uses. In both
shells, with the SDK's own send replaced."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

import pairbus
import pairbus.aio
from pairbus.client.sdk import private as internals
from pairbus.events import Event
from tests.client.fakes import PRIMARY, busy, outage
from tests.client.shells.both import Others, Side, SyncSide, is_waiting

PATH = "orders"


class Interrupted(BaseException):
    """As a KeyboardInterrupt, or a task's cancellation."""


class World:
    """A paired sender whose SDK does as the test says."""

    def __init__(
        self, side: Side, monkeypatch: pytest.MonkeyPatch, *, is_below: bool = False
    ) -> None:
        """`is_below`: what is replaced is what the SDK's `send_messages` calls, and so do we."""
        self.side = side
        self.told: list[Event] = []
        self.script: list[Any] = []
        self.attempts: list[float] = []
        module: Any = azure.servicebus if side.name == "sync" else azure.servicebus.aio
        send = self._send if side.name == "sync" else self._send_async
        name = "_do_retryable_operation" if is_below else "send_messages"
        monkeypatch.setattr(module.ServiceBusSender, name, send)
        ours: Any = pairbus if side.name == "sync" else pairbus.aio
        self.client = side.call(ours.ServiceBusClient.from_connection_string, PRIMARY)
        self.pairing = side.pairing(failover_interval=timedelta(0), observers=[self.told.append])
        self.pairing.lanes._shelves._make = side.scripted
        self.pairing.throttle_seconds = 0.01
        self.client._state.install(self.pairing)
        self.sender = side.call(self.client.get_queue_sender, PATH)
        internals.lend_limits(self.sender, (10_000, 10_000))

    def _send(self, what: Any, *, timeout: float, **_: Any) -> None:
        assert self.sender.turn.is_mine(), "without its turn"
        self.attempts.append(timeout)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            step()

    async def _send_async(self, what: Any, *, timeout: float, **_: Any) -> None:
        self._send(what, timeout=timeout)

    def send(self, message: Any = None, **settings: Any) -> None:
        message = ServiceBusMessage("a") if message is None else message
        self.side.call(self.sender.send_messages, message, **settings)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.told]

    @property
    def entity(self) -> Any:
        return self.pairing.status().entity(PATH)

    @property
    def is_taken(self) -> bool:
        return bool(self.sender.turn._lock.locked())


@pytest.fixture(params=[False, True], ids=["the SDK's method", "what it calls"])
def world(
    request: pytest.FixtureRequest, side: Side, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    world = World(side, monkeypatch, is_below=request.param)
    yield world
    side.call(world.client.close)


@pytest.mark.req("A-10")
def test_a_healthy_send_is_one_call_of_the_sdk(world: World) -> None:
    world.send([ServiceBusMessage("a"), ServiceBusMessage("b")])
    world.send(timeout=3.0)

    assert world.attempts == [60.0, 3.0]
    assert world.entity.sent == 3
    assert world.told == []
    assert not world.is_taken


@pytest.mark.req("A-05")
def test_a_send_that_fails_over_is_diverted_itself(world: World) -> None:
    world.script = [outage()]

    world.send()

    assert world.attempts == [60.0], "and not tried again"
    assert world.kinds() == ["FailedOver", "Diverted"]
    assert not world.is_taken


@pytest.mark.req("F-05")
def test_what_follows_in_an_outage_is_diverted_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.script = [outage()]
    world.send()
    shell = "blocking" if world.side.name == "sync" else "aio"
    monkeypatch.setattr(f"pairbus.client.{shell}.sender.deliver", None)

    world.send()
    world.send(timeout=3.0)

    assert world.attempts == [60.0], "and not on the primary"
    assert world.kinds() == ["FailedOver", "Diverted", "Diverted", "Diverted"]
    assert world.entity.diverted == 3


@pytest.mark.req("R-03")
def test_a_busy_primary_is_waited_for_without_the_turn(world: World) -> None:
    taken: list[bool] = []
    world.pairing.observe(lambda event: taken.append(world.is_taken))
    world.script = [busy()]

    world.send()

    assert len(world.attempts) == 2
    assert taken == [False]
    assert world.entity.sent == 1


@pytest.mark.req("R-03")
def test_the_time_of_the_first_attempt_counts(world: World) -> None:
    world.pairing.throttle_seconds = 2.5
    clock = world.pairing.clock
    began = clock()

    def take_a_while() -> None:
        world.pairing.clock = lambda: clock() + 2.0
        raise busy()

    world.script = [take_a_while]

    with pytest.raises(ServiceBusServerBusyError):
        world.send(timeout=4.0)  # of which two seconds are left
    assert clock() - began < 2


def test_an_interrupted_send_gives_its_turn_back_and_its_link_is_not_trusted(world: World) -> None:
    world.send()
    world.script = [Interrupted()]

    with pytest.raises(Interrupted):
        world.send()

    assert not world.is_taken
    assert world.sender.epoch != 0
    world.send()
    assert world.sender.epoch == 0, "it was renewed"
    assert world.entity.sent == 2


@pytest.mark.req("F-08")
def test_the_first_send_after_the_way_back_renews_the_link(world: World) -> None:
    world.script = [outage()]
    world.send()
    world.pairing.mark_path_healthy(PATH)
    renewed: list[int] = []
    renew = world.sender.renew

    def watched(epoch: int) -> Any:
        renewed.append(epoch)
        return renew(epoch)

    world.sender.renew = watched
    world.send()
    world.send()

    assert renewed == [1]
    assert world.entity.sent == 2


def test_who_finds_the_turn_taken_waits_for_it(world: World, others: Others) -> None:
    assert world.side.call(world.sender.turn.take_at_once)
    call = others.begin(world.send)
    assert is_waiting(call)
    assert world.attempts == []

    world.side.call(world.sender.turn.release)

    call.result(5)
    assert len(world.attempts) == 1


def test_observers_are_told_when_the_turn_is_free_again(world: World) -> None:
    taken: list[tuple[str, bool]] = []
    world.pairing.observe(lambda event: taken.append((type(event).__name__, world.is_taken)))

    def fail_meanwhile() -> None:
        # Another's failure made it suspect; this send's success clears that.
        world.pairing._router._entities[PATH].health.failover_seconds = 60.0
        world.pairing.failed(PATH, world.pairing.plan(PATH), outage())
        taken.clear()

    world.script = [fail_meanwhile]
    world.send()

    assert taken == [("Recovered", False)]


@pytest.mark.req("C-02")
def test_a_send_of_a_client_that_closes_is_told_so(side: Side, world: World) -> None:
    side.call(world.client.close)

    with pytest.raises(ValueError, match="already been shutdown"):
        world.send()
    assert world.attempts == []


def test_the_blocking_send_is_guarded_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SyncSide(), monkeypatch, is_below=True)
    guards = world.pairing.keeper._guards
    seen: list[Any] = []
    world.script = [lambda: seen.extend(guard.sender for guard in guards.values())]

    world.send()

    assert seen == [world.sender]
    assert guards == {}
    world.client.close()
