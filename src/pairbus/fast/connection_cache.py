"""Clients that outlive a task: tasks are short, and opening a distant connection takes a second.

Spark keeps its Python workers, so the cache of a worker serves the tasks of many rounds of a
syphon, and of many batches of a stream. A client is lent to one task at a time. Only a clean one
comes back: its links are attached, but nothing is on its way, and no message is locked. So a cached
connection never holds up a message.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pairbus.fast.address import Address
from pairbus.fast.client import FastClient

IDLE_SECONDS_MAX: Final = 10.0
"""A client that no task has taken for this long is closed: its user is idle, or has ended. No
service ends a connection that soon, so it needs no heartbeats. A token that is due in this time is
renewed by the next task.
"""
CLIENTS_MAX: Final = 4
"""How many clients are kept: two for a syphon, the others for streams in the same process. If there
are more, the oldest is closed.
"""


@dataclass(slots=True, eq=False)
class Lease:
    """A client that is lent to a task."""

    client: FastClient
    key: tuple[str, str]
    opening_seconds: float = 0.0
    """How long the connection took to open, which shows how far away the namespace is. 0 if that is
    not known yet."""
    idle_since: float = 0.0


class ConnectionCache:
    """Any thread may use it."""

    def __init__(
        self,
        *,
        clients_max: int = CLIENTS_MAX,
        idle_seconds_max: float = IDLE_SECONDS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients_max = clients_max
        self._idle_seconds_max = idle_seconds_max
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[Lease] = []  # the oldest first
        self._timer: threading.Timer | None = None

    def lend(self, run: str, address: Address, *, timeout_seconds: float) -> Lease:
        """An open client that an earlier task of this run gave back, or a new one that is not
        connected yet. The run stands for the credentials: it holds no secret.
        """
        key = (run, address.host)
        with self._lock:
            # The one that was used last, so that the others become idle and are closed.
            found = next((one for one in reversed(self._idle) if one.key == key), None)
            if found is not None:
                self._idle.remove(found)
        if found is not None:
            if found.client.wake():
                address.refresh(found.client)
                return found
            found.client.close()
        return Lease(address.client(timeout_seconds=timeout_seconds), key)

    def give_back(self, lease: Lease, *, is_clean: bool) -> None:
        """Keep the client for the next task, or close it."""
        gone = [lease]
        if is_clean and self._clients_max and lease.client.rest():
            with self._lock:
                lease.idle_since = self._clock()
                self._idle.append(lease)
                gone, self._idle = _split(self._idle, len(self._idle) - self._clients_max)
                self._start_timer()
        _close(gone)

    def close_idle(self) -> None:
        """Close the clients that were idle for too long."""
        with self._lock:
            self._timer = None
            oldest = self._clock() - self._idle_seconds_max
            count = sum(one.idle_since <= oldest for one in self._idle)
            gone, self._idle = _split(self._idle, count)
            self._start_timer()
        _close(gone)

    def close(self) -> None:
        """Close all clients that are not lent."""
        with self._lock:
            gone, self._idle = self._idle, []
        _close(gone)

    def forget(self) -> None:
        """In a process that was forked: the connections belong to its parent, and a close would end
        them there. The lock may be held by a thread that does not exist here.
        """
        self._lock = threading.Lock()
        self._idle, self._timer = [], None

    def __len__(self) -> int:
        return len(self._idle)

    def _start_timer(self) -> None:
        if self._idle and self._timer is None:
            due = self._idle[0].idle_since + self._idle_seconds_max
            self._timer = threading.Timer(max(due - self._clock(), 0.0), self.close_idle)
            self._timer.daemon = True  # it ends with the process, and so do the connections
            self._timer.start()


def _split(leases: list[Lease], count: int) -> tuple[list[Lease], list[Lease]]:
    count = max(count, 0)
    return leases[:count], leases[count:]


def _close(leases: list[Lease]) -> None:
    """Call it without the lock: a namespace may take two seconds to answer."""
    for one in leases:
        one.client.close()


OF_THIS_PROCESS: Final = ConnectionCache()
"""For the tasks of Spark, which share nothing else."""
os.register_at_fork(after_in_child=OF_THIS_PROCESS.forget)
