"""The clients of a task, for the primary and the secondary.

A cache lends them. Both are opened at the same time, because both may be far away, and the task's
window learns how long that took. At the end they go back to the cache, or are closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from pairbus.cost.meter import MeterReading
from pairbus.fast.address import Address
from pairbus.fast.client import FastClient
from pairbus.fast.connection_cache import ConnectionCache
from pairbus.syphon.window import ANSWER_SECONDS_MAX, TaskWindow


class TaskClients:
    def __init__(
        self,
        cache: ConnectionCache,
        window: TaskWindow,
        *,
        run: str,
        primary: Address,
        secondary: Address,
        open_seconds: float,
    ) -> None:
        """Neither client connects yet."""
        self._cache = cache
        self._window = window
        self._open_seconds = open_seconds
        self._leases = [
            cache.lend(run, address, timeout_seconds=ANSWER_SECONDS_MAX)
            for address in (primary, secondary)
        ]
        self.primary, self.secondary = (lease.client for lease in self._leases)
        self._usage_before = [lease.client.usage() for lease in self._leases]
        self._opening = EarlyOpening(self.primary)
        self.has_opened_primary = False
        self.has_reached_primary = False

    def open_secondary(self, attach: Callable[[], None]) -> None:
        """The task's time starts when the secondary has accepted the connection, so a distant
        secondary costs no work time. `attach` is the first use of the secondary.
        """
        began = time.monotonic()
        self._opening.start(deadline=began + self._open_seconds)
        self.secondary.set_deadline(began + self._open_seconds)
        attach()
        lease, now = self._leases[1], time.monotonic()
        lease.opening_seconds = lease.opening_seconds or now - began
        self._window.secondary_opened(took=lease.opening_seconds, now=now)

    def open_primary(self, send: Callable[[], float]) -> None:
        """`send` is the first use of the primary. It returns how long the primary's answers are
        known to take.
        """
        self.has_opened_primary = True
        began = time.monotonic()
        has_timed_out = self._opening.wait()
        opened = time.monotonic()
        self.primary.set_deadline(opened + (0.0 if has_timed_out else self._open_seconds))
        answer_seconds = send()
        self.has_reached_primary = self.primary.is_open
        lease, now = self._leases[0], time.monotonic()
        lease.opening_seconds = lease.opening_seconds or self._opening.seconds + now - opened
        self._window.primary_opened(
            took=lease.opening_seconds, waited=now - began, answer_seconds=answer_seconds
        )

    def set_deadlines(self) -> None:
        """The task ends soon after its time, even if a namespace stops answering."""
        self.primary.set_deadline(self._window.primary_until)
        self.secondary.set_deadline(self._window.secondary_until)

    def give_back(self, *, is_clean: bool) -> None:
        is_abandoned = self._opening.abandon()
        for lease in self._leases[1:] if is_abandoned else self._leases:
            self._cache.give_back(lease, is_clean=is_clean)

    def usage(self) -> tuple[MeterReading, ...]:
        """The operations of this task."""
        return tuple(
            lease.client.usage() - before
            for lease, before in zip(self._leases, self._usage_before, strict=True)
        )


class EarlyOpening:
    """Opens a connection in a thread of its own, while the task opens another one.

    The client is the thread's until `wait` returns.
    """

    def __init__(self, client: FastClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_abandoned = False
        self._has_timed_out = False
        self.seconds = 0.0
        """How long it took."""

    def start(self, *, deadline: float) -> None:
        """`deadline` (monotonic): if the opening has not ended by then, it fails."""
        if not self._client.is_open:
            self._client.set_deadline(deadline)
            self._thread = threading.Thread(target=self._open, args=(deadline,), daemon=True)
            self._thread.start()

    def _open(self, deadline: float) -> None:
        began = time.monotonic()
        # The error is not lost: the next call that needs the connection tries again and raises it.
        with contextlib.suppress(Exception):
            self._client.open()
        self.seconds = time.monotonic() - began
        self._has_timed_out = not self._client.is_open and time.monotonic() >= deadline
        with self._lock:  # `abandon` comes either before, or finds that the opening has ended
            self._thread = None
        if self._is_abandoned:
            self._client.close()

    def wait(self) -> bool:
        """Returns whether the namespace has not answered in time."""
        thread = self._thread
        if thread is not None:
            thread.join()
        return self._has_timed_out

    def abandon(self) -> bool:
        """Do not wait for a namespace that does not answer: if the opening has not ended yet, the
        client is closed when it has. Returns whether it has not ended yet.
        """
        with self._lock:
            self._is_abandoned = self._thread is not None
        return self._is_abandoned
