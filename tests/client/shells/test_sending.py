"""How the shells carry out the steps of a call: the real sender, lock, pool and worker, with the
SDK's own send replaced. One suite for both shells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusServerBusyError,
)

from pairbus.client.pool import OPENINGS_AT_ONCE_MAX, PoolExhausted
from pairbus.client.sdk import private
from pairbus.client.sdk.messages import diverted
from pairbus.events import Event, Throttled
from tests.client.fakes import busy, outage
from tests.client.sdk.wire import encoded
from tests.client.shells.both import (
    AsyncioSide,
    Others,
    Scripted,
    Side,
    SyncSide,
    is_waiting,
    until,
)

PATH = "orders"


class Interrupted(BaseException):
    """Like a KeyboardInterrupt, or the cancellation of a task."""


class World:
    """A paired sender whose SDK does what the test says."""

    def __init__(self, side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
        self.side = side
        self.events: list[Event] = []
        self.script: list[Any] = []
        """What each send to the primary does: raise, or be called."""
        self.attempts: list[float] = []
        self.backlog: list[Scripted] = []
        """Senders to backlog queues, in the order in which they were made."""
        self.backlog_scripts: list[list[Any]] = []
        is_sync = side.name == "sync"
        module: Any = azure.servicebus if is_sync else azure.servicebus.aio
        send = self._send if is_sync else self._send_async
        monkeypatch.setattr(module.ServiceBusSender, "send_messages", send)
        self.client = side.client()
        self.pairing = side.pairing(
            self._make, failover_interval=timedelta(0), observers=[self.events.append]
        )
        self.set_throttle_wait(0.01)
        self.client._state.install(self.pairing)
        self.sender = side.call(self.client.get_queue_sender, PATH)
        private.lend_limits(self.sender, (10_000, 10_000))

    def set_throttle_wait(self, seconds: float) -> None:
        self.pairing.timing = replace(self.pairing.timing, throttle_wait_seconds=seconds)

    def _make(self, queue: str) -> Scripted:
        sender = self.side.scripted(queue)
        sender.sends = self.backlog_scripts.pop(0) if self.backlog_scripts else []
        self.backlog.append(sender)
        return sender

    def _send(self, message: Any, *, timeout: float) -> None:
        self.attempts.append(timeout)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            step()

    async def _send_async(self, message: Any, *, timeout: float) -> None:
        self._send(message, timeout=timeout)

    def send(self, message: Any = None, **settings: Any) -> None:
        message = ServiceBusMessage("a") if message is None else message
        self.side.call(self.sender.send_messages, message, **settings)

    def fail_over(self) -> str:
        self.pairing.failed(PATH, self.pairing.plan(PATH), outage())
        self.pairing.plan(PATH)
        self.events.clear()
        return str(self.entity.backlog_queue)

    @property
    def entity(self) -> Any:
        return self.pairing.status().entity(PATH)

    @property
    def is_locked(self) -> bool:
        """Whether a call holds the sender's lock."""
        if self.side.call(self.sender.lock.try_acquire):
            self.side.call(self.sender.lock.release)
            return False
        return True

    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


@pytest.fixture
def world(side: Side, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World(side, monkeypatch)
    yield world
    side.call(world.client.close)


# --- the primary


@pytest.mark.req("A-10")
def test_a_healthy_send_is_one_call_of_the_sdk(world: World) -> None:
    world.send([ServiceBusMessage("a"), ServiceBusMessage("b")])
    world.send(timeout=3.0)

    assert world.attempts == [60.0, pytest.approx(3.0, abs=0.5)]
    assert world.entity.sent == 3
    assert world.events == []
    assert not world.is_locked


@pytest.mark.req("R-03")
def test_a_busy_primary_is_waited_for_without_the_lock(world: World, others: Others) -> None:
    world.set_throttle_wait(60.0)
    world.script = [busy()]
    call = others.begin(world.send)
    until(lambda: Throttled in world.kinds(), "it is throttled")

    assert is_waiting(call)
    assert not world.is_locked
    world.side.call(world.pairing.closing.set)

    with pytest.raises(ServiceBusServerBusyError):
        call.result(30)


def test_an_interrupted_send_releases_the_lock_and_takes_a_new_link(world: World) -> None:
    world.send()
    world.script = [Interrupted()]

    with pytest.raises(Interrupted):
        world.send()

    assert not world.is_locked
    assert world.sender.epoch != 0
    world.send()
    assert world.sender.epoch == 0, "the link was reset"
    assert world.entity.sent == 2


@pytest.mark.req("F-08")
def test_an_interrupt_in_the_moment_in_which_the_lock_is_acquired_leaves_it_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Ctrl-C, which only a thread gets: a task is cancelled where it awaits."""
    world = World(SyncSide(), monkeypatch)
    lock = world.sender.lock
    acquire = lock.acquire

    def acquire_and_be_interrupted(*args: Any) -> None:
        acquire(*args)
        raise Interrupted

    monkeypatch.setattr(lock, "acquire", acquire_and_be_interrupted)

    with pytest.raises(Interrupted):
        world.send()

    assert not world.is_locked
    world.client.close()


def test_a_send_waits_for_the_lock_of_another(world: World, others: Others) -> None:
    assert world.side.call(world.sender.lock.try_acquire)
    call = others.begin(world.send)
    assert is_waiting(call)
    assert world.attempts == []

    world.side.call(world.sender.lock.release)

    call.result(30)
    assert len(world.attempts) == 1


# --- the backlog


@pytest.mark.req("F-05")
def test_while_failed_over_all_sends_use_one_connection(world: World) -> None:
    queue = world.fail_over()
    message = ServiceBusMessage("a")

    world.send(message)
    world.send(timeout=9.0)

    assert world.attempts == []
    [sender] = world.backlog
    assert (sender.entity_name, sender.opened) == (queue, 1)
    (first, bound), (_, given) = sender.sent
    assert encoded(first) == encoded(diverted(message, PATH))
    assert (bound, given) == (20.0, pytest.approx(3.0, abs=0.5))  # a third of its time
    assert world.entity.diverted == 2


def test_a_stale_connection_is_closed_and_replaced_with_all_like_it(world: World) -> None:
    queue = world.fail_over()
    world.backlog_scripts = [[outage()] for _ in range(3)]
    borrow, give_back = world.pairing.pool.borrow, world.pairing.pool.give_back
    lent = [world.side.call(borrow, queue, 1.0) for _ in range(3)]
    for connection in lent:
        connection.sender.open((100_000, 100_000))
        world.side.call(give_back, connection, is_usable=True)

    world.send()

    *stale, fresh = world.backlog
    assert sum(len(sender.sent) for sender in stale) == 1
    assert len(fresh.sent) == 1
    for sender in stale:
        until(lambda sender=sender: sender.is_closed, "all of them are closed")


def test_an_interrupted_send_to_the_backlog_closes_its_connection(world: World) -> None:
    world.fail_over()
    world.backlog_scripts = [[Interrupted()]]

    with pytest.raises(Interrupted):
        world.send()

    until(lambda: world.backlog[0].is_closed, "it is closed")
    world.send()
    assert len(world.backlog) == 2


def test_connections_that_are_all_lent_say_nothing_about_the_queue(world: World) -> None:
    queue = world.fail_over()
    borrow = world.pairing.pool.borrow
    for _ in range(OPENINGS_AT_ONCE_MAX):
        world.side.call(borrow, queue, 1.0)
    # Opening a connection gets five seconds at least; here that is too long.
    world.pairing.pool.borrow = lambda queue, seconds, *, is_fresh: borrow(
        queue, 0.01, is_fresh=is_fresh
    )

    with pytest.raises(PoolExhausted):
        world.send()
    assert world.entity.backlog_queue == queue


@pytest.mark.req("C-02")
def test_a_diverted_send_that_begins_when_the_client_is_closed_is_refused(world: World) -> None:
    world.fail_over()
    world.side.call(world.pairing.pool.close)

    with pytest.raises(ValueError, match="the paired client has been closed"):
        world.send()


# --- batches


def test_a_batch_is_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty batch is falsy: it must not be taken for a missing one."""
    module: Any = azure.servicebus if world.side.name == "sync" else azure.servicebus.aio
    create = module.ServiceBusSender.create_message_batch
    made: list[Any] = []

    def counted(sender: Any, size: int | None = None) -> Any:
        made.append(size)
        return create(sender, size)

    monkeypatch.setattr(module.ServiceBusSender, "create_message_batch", counted)

    batch = world.side.call(world.sender.create_message_batch, 500)

    assert len(batch) == 0
    assert batch.max_size_in_bytes == 500
    assert made == [500]


def test_a_batch_made_while_failed_over_goes_to_the_backlog_as_it_is(world: World) -> None:
    queue = world.fail_over()
    batch = world.side.call(world.sender.create_message_batch)
    batch.add_message(ServiceBusMessage("a", message_id="a"))

    world.send(batch)

    [sender] = world.backlog
    assert [content for content, _ in sender.sent] == [batch]
    assert batch.path == PATH
    assert world.entity.diverted == 1
    assert world.entity.backlog_queue == queue


def test_a_batch_made_while_failed_over_is_a_plain_one_on_a_primary_that_is_back(
    world: World,
) -> None:
    world.fail_over()
    batch = world.side.call(world.sender.create_message_batch)
    batch.add_message(ServiceBusMessage("a", message_id="a"))
    world.pairing.mark_path_healthy(PATH)

    world.send(batch)

    assert batch.path is None
    assert len(batch) == 1
    assert world.entity.sent == 1


def test_a_batch_for_another_entity_gets_the_envelope_of_the_one_it_is_sent_to(
    world: World,
) -> None:
    world.fail_over()
    batch = world.side.call(world.sender.create_message_batch)
    batch.add_message(ServiceBusMessage("a", message_id="a"))
    other = world.side.call(world.client.get_queue_sender, "other")
    world.pairing.failed("other", world.pairing.plan("other"), outage())

    world.side.call(other.send_messages, batch)

    [sent] = [content for sender in world.backlog for content, _ in sender.sent]
    assert sent.application_properties["x-ms-path"]["VALUE"] == "other"


# --- time limits


def test_every_call_of_the_blocking_shell_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SyncSide(), monkeypatch)
    bound: list[Any] = []
    deadline = world.pairing.worker.deadline

    def watched(sender: Any, seconds: float) -> Any:
        bound.append(sender)
        return deadline(sender, seconds)

    world.pairing.worker.deadline = watched
    world.send()
    world.fail_over()
    world.send()

    [backlog] = world.backlog
    assert bound == [world.sender, backlog, backlog], "a send; opening a link, and a send on it"
    world.client.close()


def test_opening_has_an_end_in_the_asyncio_shell(
    asyncio_side: AsyncioSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairbus.client.aio.background.GRACE_SECONDS", 0.0)
    world = World(asyncio_side, monkeypatch)
    world.pairing.timing = replace(world.pairing.timing, send_seconds=0.05)
    ended = threading.Event()

    async def never(sender: Any) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    monkeypatch.setattr(azure.servicebus.aio.ServiceBusSender, "__aenter__", never)

    asyncio_side.call(world.sender.__aenter__)

    assert ended.is_set()
    error = world.pairing.causes(PATH).primary_error
    assert isinstance(error, OperationTimeoutError)
    assert str(error) == "opening a link to 'orders' took longer than 0.05 seconds"
    asyncio_side.call(world.client.close)
