"""The two shells of `tests/pairing/shells.py`, with their parts. Those of asyncio are called like
their blocking counterparts, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pairbus.client.aio.background as aio_background
import pairbus.client.aio.pool as aio_pool
import pairbus.client.aio.sender as aio_sender
import pairbus.client.blocking.background as blocking_background
import pairbus.client.blocking.pool as blocking_pool
import pairbus.client.blocking.sender as blocking_sender
from tests.client.fakes import StandIn
from tests.interop.shells import HANG_SECONDS, Blocking
from tests.pairing.shells import AsyncioShell, SyncShell


class AsyncStandIn(StandIn):
    async def close(self) -> None:  # type: ignore[override]
        super().close()


class Work:
    """What a background worker performs: tasks that take until the gate is open."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate = threading.Event()
        if is_open:
            self.gate.set()
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.errors: list[Exception] = []
        """What the next tasks raise."""
        self.most = 0
        """How many there were at once."""
        self._lock = threading.Lock()

    def begin(self, task: Any) -> None:
        with self._lock:
            self.begun.append(task)
            self.most = max(self.most, len(self.begun) - len(self.ended))
            if self.errors:
                self.ended.append(task)
                raise self.errors.pop(0)

    def end(self, task: Any) -> None:
        with self._lock:
            self.ended.append(task)


Make = Callable[[str], Any]


class SyncSide(SyncShell):
    stand_in = StandIn
    """In place of the SDK's senders."""

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it, and wait until it is done."""
        return function(*args, **kwargs)

    def pool(self, make: Make, clock: Callable[[], float], client: Any = None) -> Any:
        return blocking_pool.ConnectionPool(make, client=client, clock=clock)

    def lock(self, path: str) -> Any:
        return blocking_sender.SenderLock(path)

    def worker(self, take_due: Callable[[], Any], work: Work) -> Any:
        def perform(task: Any) -> None:
            work.begin(task)
            assert work.gate.wait(HANG_SECONDS)
            work.end(task)

        return blocking_background.BackgroundWorker(
            "test", clock=time.monotonic, take_due=take_due, perform=perform
        )


class AsyncioSide(AsyncioShell):
    stand_in = AsyncStandIn

    def pool(self, make: Make, clock: Callable[[], float], client: Any = None) -> Any:
        made = self.call(aio_pool.ConnectionPool, make, client=client, clock=clock)
        return Blocking(made, self)

    def lock(self, path: str) -> Any:
        return Blocking(self.call(aio_sender.SenderLock, path), self)

    def worker(self, take_due: Callable[[], Any], work: Work) -> Any:
        async def perform(task: Any) -> None:
            work.begin(task)
            while not work.gate.is_set():
                await asyncio.sleep(0.005)
            work.end(task)

        made = self.call(
            aio_background.BackgroundWorker,
            "test",
            clock=time.monotonic,
            take_due=take_due,
            perform=perform,
        )
        return Blocking(made, self)


Side = SyncSide | AsyncioSide


class Others:
    """Threads in addition to the test's own, whose calls may wait."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)

    def begin(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(function, *args, **kwargs)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def is_waiting(call: Future[Any], seconds: float = 0.1) -> bool:
    try:
        call.exception(seconds)
    except TimeoutError:
        return True
    return False
