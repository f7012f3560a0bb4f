"""The faults of one namespace, put into effect on its loop, by its clock.

Keeps the schedule. At each change it gives the namespace a new `active_faults`, which connections
and links ask, and acts itself on the port, the disk, the clock and open links.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from random import Random
from typing import Final, Protocol, TypeVar

from pairbus.broker.faults.active_faults import ActiveFaults
from pairbus.broker.faults.kinds import Fault, Mode, Restart, Unreachable
from pairbus.broker.faults.schedule import FaultSchedule, RunningFault
from pairbus.broker.storage.committer import Committer
from pairbus.errors import BrokerError

logger = logging.getLogger(__name__)

_CALL_SECONDS: Final = 30.0

T = TypeVar("T")


class FaultyClient(Protocol):
    """A connection, as far as the controller is concerned."""

    def faults_changed(self) -> None: ...
    def cut(self) -> None: ...
    def shutdown(self) -> None: ...


class FaultTarget(Protocol):
    """The part of a namespace that faults use."""

    name: str
    clock: Callable[[], float]
    loop: asyncio.AbstractEventLoop
    committer: Committer
    active_faults: ActiveFaults | None

    @property
    def connections(self) -> Collection[FaultyClient]: ...
    def find(self, path: str) -> object | None: ...
    def set_clock(self, clock: Callable[[], float]) -> None: ...
    def run(self) -> None: ...


class Port(Protocol):
    """Where clients connect."""

    def refuse(self) -> None:
        """Stop listening, but keep the port."""

    def admit(self) -> None:
        """Listen again."""

    def shut_down_all(self) -> None:
        """Close all connections cleanly; answers that are being written are finished."""


class FaultController:
    def __init__(self, namespace: FaultTarget) -> None:
        self.port: Port | None = None
        self._namespace = namespace
        self._clock = namespace.clock
        """The broker's clock: a jump of the namespace's clock does not end a fault."""
        self._schedule = FaultSchedule(
            Random(),
            when_spent=lambda: namespace.loop.call_soon(self.update),
            clear=self.clear_from_any_thread,
        )
        self._offset_seconds = 0.0
        self._has_moved_clock = False
        """Since the last `call`."""
        self._is_refusing = False
        self._disk: _FaultyDisk | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    def now(self) -> float:
        """The time of the broker's clock, independent of the namespace's clock."""
        return self._clock()

    # on the loop

    @property
    def faults(self) -> list[RunningFault]:
        """Planned and active."""
        self.update()
        return self._schedule.faults

    def find(self, number: int) -> RunningFault | None:
        self.update()
        return self._schedule.find(number)

    def start(self, fault: Fault) -> RunningFault:
        return self.script([(0.0, fault)])[0]

    def script(
        self, faults: Sequence[tuple[float, Fault]], *, seed: int | None = None
    ) -> list[RunningFault]:
        planned = self._schedule.plan(faults, seed=seed, now=self._clock())
        for running in planned:
            entity = running.fault.entity
            if entity is not None and not self._namespace.find(entity):
                logger.warning(
                    "namespace %s: fault %d (%s) is for %r, which does not exist",
                    self._namespace.name, running.id, running.fault.kind, entity,
                )  # fmt: skip
        self.update()
        return planned

    def clear(self, faults: Sequence[RunningFault]) -> None:
        for fault in faults:
            if fault.state != "over":
                self._log(fault, "is cleared")
            self._schedule.end(fault)
        self._apply()

    def _log(self, running: RunningFault, what: str) -> None:
        name = self._namespace.name
        logger.info("namespace %s: fault %d %s: %s", name, running.id, what, running.fault)

    def update(self) -> None:
        """Start and end what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        started, ended = self._schedule.pass_time(now=self._clock())
        for fault in started:
            self._log(fault, "starts")
        for fault in ended:
            self._log(fault, "is over")
        if started or ended:
            self._apply()
        for fault in started:
            self._begin(fault)
        next_at = self._schedule.next_at
        if next_at is not None:
            delay = max(next_at - self._clock(), 0.0)
            self._timer = self._namespace.loop.call_later(delay, self.update)

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def close(self) -> None:
        """The namespace stops: no fault is in effect any more, and port and clock stay as is."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for fault in self._schedule.faults:
            self._schedule.end(fault)
        self._namespace.active_faults = None
        self._set_disk(None)
        self._changed.set()

    # from any thread

    def call(self, function: Callable[[], T]) -> T:
        """Call the function on the loop; return when what it changed is in effect."""
        loop = self._namespace.loop
        try:
            if asyncio.get_running_loop() is loop:
                return function()
        except RuntimeError:
            pass  # the caller has no loop
        outcome: Future[T] = Future()

        def call() -> None:
            try:
                result = function()
            except BaseException as error:
                outcome.set_exception(error)
                return
            if self._has_moved_clock:
                # Return only when the effects of the new time are on the disk.
                self._has_moved_clock = False
                self._namespace.committer.when_durable(lambda _: outcome.set_result(result))
            else:
                outcome.set_result(result)

        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise BrokerError("the broker is not running: it has no faults") from error
        return outcome.result(_CALL_SECONDS)

    def clear_from_any_thread(self, *faults: RunningFault) -> None:
        """All at once. Does nothing if the broker has stopped."""
        if not self._namespace.loop.is_closed():
            self.call(lambda: self.clear([fault for fault in faults if fault.state != "over"]))

    # effects

    def _apply(self) -> None:
        namespace = self._namespace
        active = self._schedule.active
        faults = ActiveFaults(active) if active else None
        namespace.active_faults = faults
        self._set_disk(faults)
        self._set_clock(0.0 if faults is None else faults.clock_offset_seconds)
        self._set_port(faults is not None and faults.is_refusing)
        for connection in list(namespace.connections):
            connection.faults_changed()
        self._changed.set()
        self._changed = asyncio.Event()
        namespace.loop.call_soon(namespace.run)

    def _begin(self, running: RunningFault) -> None:
        """What happens once, when a fault of the whole namespace starts."""
        fault = running.fault
        if running.scope is not None:
            return
        if isinstance(fault, Unreachable) and fault.mode is Mode.REFUSE:
            for connection in list(self._namespace.connections):
                connection.cut()
        elif isinstance(fault, Restart):
            for connection in list(self._namespace.connections):
                connection.shutdown()
        else:
            return
        if self.port is not None:
            self.port.shut_down_all()

    def _set_port(self, is_refusing: bool) -> None:
        if self.port is None or is_refusing is self._is_refusing:
            return
        self._is_refusing = is_refusing
        if is_refusing:
            self.port.refuse()
        else:
            self.port.admit()

    def _set_clock(self, offset_seconds: float) -> None:
        if offset_seconds == self._offset_seconds:
            return
        self._offset_seconds = offset_seconds
        self._has_moved_clock = True
        clock = self._clock
        self._namespace.set_clock((lambda: clock() + offset_seconds) if offset_seconds else clock)

    def _set_disk(self, faults: ActiveFaults | None) -> None:
        if self._disk is not None:
            self._disk.over.set()
        self._disk = None if faults is None or not faults.has_disk_faults else _FaultyDisk(faults)
        self._namespace.committer.before_commit = self._disk


class _FaultyDisk:
    """Called on the committer's thread before each commit."""

    def __init__(self, faults: ActiveFaults) -> None:
        self._faults = faults
        self.over = threading.Event()

    def __call__(self) -> None:
        self.over.wait(self._faults.commit_seconds())
        if not self.over.is_set() and self._faults.is_disk_full():
            raise sqlite3.OperationalError("database or disk is full")
