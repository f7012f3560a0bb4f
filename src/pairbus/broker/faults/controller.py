"""The faults of one namespace, put into effect on its loop, by its clock.

Keeps the schedule. At each change it gives the namespace a new `active_faults`, which connections
and links ask, and does what nobody asks for: the port, the disk, the clock, links to be closed.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from pairbus.broker.faults.active_faults import ActiveFaults
from pairbus.broker.faults.kinds import Fault, Mode, Restart, Unreachable
from pairbus.broker.faults.schedule import Entry, Timeline

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace

logger = logging.getLogger(__name__)


class Port(Protocol):
    """Where clients come in."""

    def refuse(self) -> None:
        """Stop listening. The port stays ours."""

    def admit(self) -> None:
        """Listen again."""

    def shut_down_all(self) -> None:
        """Ask all who are in to leave; answers that are being written are finished."""


class FaultController:
    def __init__(self, namespace: Namespace) -> None:
        self.port: Port | None = None
        self._namespace = namespace
        self._clock = namespace.clock
        """The broker's: a jump of the namespace's clock ends no fault."""
        self._timeline = Timeline(Random())
        self._offset_seconds = 0.0
        self.has_moved_clock = False
        """Since somebody last looked."""
        self._is_refusing = False
        self._disk: _Disk | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    def now(self) -> float:
        """By the broker's clock, whatever the namespace's says."""
        return self._clock()

    @property
    def entries(self) -> list[Entry]:
        """Planned and active."""
        self.update()
        return self._timeline.entries

    def find(self, number: int) -> Entry | None:
        self.update()
        return self._timeline.find(number)

    def start(self, fault: Fault) -> Entry:
        return self.script([(0.0, fault)])[0]

    def script(
        self, faults: Sequence[tuple[float, Fault]], *, seed: int | None = None
    ) -> list[Entry]:
        planned = self._timeline.plan(faults, seed=seed, now=self._clock())
        for entry in planned:
            entry.when_spent = self._update_soon
            if entry.fault.entity is not None and not self._namespace.find(entry.fault.entity):
                logger.warning(
                    "%s: fault %d (%s) is for %r, which does not exist",
                    self._namespace.name, entry.id, entry.fault.kind, entry.fault.entity,
                )  # fmt: skip
        self.update()
        return planned

    def clear(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._timeline.end(entry)
        self._apply()

    def update(self) -> None:
        """Time has passed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        started, ended = self._timeline.pass_time(now=self._clock())
        for entry in (*started, *ended):
            logger.info("%s: fault %d is %s: %s",
                        self._namespace.name, entry.id, entry.state, entry.fault)  # fmt: skip
        if started or ended:
            self._apply()
        for entry in started:
            self._begin(entry)
        next_at = self._timeline.next_at
        if next_at is not None:
            delay = max(next_at - self._clock(), 0.0)
            self._timer = self._namespace.loop.call_later(delay, self.update)

    def _update_soon(self) -> None:
        self._namespace.loop.call_soon(self.update)

    async def changed(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def close(self) -> None:
        """The namespace stops: nothing is in effect any more, and nothing is put back."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for entry in self._timeline.entries:
            self._timeline.end(entry)
        self._namespace.active_faults = None
        self._set_disk(None)
        self._changed.set()

    # effects

    def _apply(self) -> None:
        namespace = self._namespace
        active = self._timeline.active
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

    def _begin(self, entry: Entry) -> None:
        """What happens once, when a fault of the whole namespace starts."""
        fault = entry.fault
        if entry.scope is not None:
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
        self.has_moved_clock = True
        self._namespace.set_clock(_shifted(self._clock, offset_seconds))

    def _set_disk(self, faults: ActiveFaults | None) -> None:
        if self._disk is not None:
            self._disk.over.set()
        has_disk_faults = faults is not None and faults.has_disk_faults
        self._disk = _Disk(faults) if faults is not None and has_disk_faults else None
        self._namespace.committer.before_commit = self._disk


class _Disk:
    """Called on the committer's thread before each commit."""

    def __init__(self, faults: ActiveFaults) -> None:
        self._faults = faults
        self.over = threading.Event()

    def __call__(self) -> None:
        self.over.wait(self._faults.commit_seconds())
        if not self.over.is_set() and self._faults.is_disk_full():
            raise sqlite3.OperationalError("database or disk is full")


def _shifted(clock: Callable[[], float], offset_seconds: float) -> Callable[[], float]:
    return (lambda: clock() + offset_seconds) if offset_seconds else clock
