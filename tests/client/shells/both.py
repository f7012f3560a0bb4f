"""The parts of the two shells under one interface: asyncio's run on a loop in a thread of its own,
and are called like their blocking counterparts, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import pairbus
import pairbus.aio
import pairbus.client.aio.background as aio_background
import pairbus.client.aio.pool as aio_pool
import pairbus.client.aio.sender as aio_sender
import pairbus.client.blocking.background as blocking_background
import pairbus.client.blocking.pool as blocking_pool
import pairbus.client.blocking.sender as blocking_sender
from tests.client import fakes
from tests.client.fakes import StandIn

HANG_SECONDS = 60.0


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


class Side(Protocol):
    """A shell's parts, under the blocking names."""

    name: str
    stand_in: type[StandIn]
    """In place of the SDK's senders."""

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call it, and wait until it is done."""

    def pool(self, make: Make, clock: Callable[[], float], client: Any = None) -> Any: ...

    def client(self, connection_string: str = fakes.PRIMARY) -> Any:
        """One of ours, that never connects."""

    def lock(self, path: str) -> Any: ...

    def worker(self, take_due: Callable[[], Any], work: Work) -> Any: ...


class SyncSide:
    name = "sync"
    stand_in = StandIn

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def pool(self, make: Make, clock: Callable[[], float], client: Any = None) -> Any:
        return blocking_pool.ConnectionPool(make, client=client, clock=clock)

    def client(self, connection_string: str = fakes.PRIMARY) -> Any:
        return pairbus.ServiceBusClient.from_connection_string(connection_string)

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


class AsyncioSide:
    name = "asyncio"
    stand_in = AsyncStandIn

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="asyncio-side")
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        async def run() -> Any:
            result = function(*args, **kwargs)
            return await result if asyncio.iscoroutine(result) else result

        return self.begin(run()).result(HANG_SECONDS)

    def pool(self, make: Make, clock: Callable[[], float], client: Any = None) -> Any:
        made = self.call(aio_pool.ConnectionPool, make, client=client, clock=clock)
        return Bound(made, self)

    def client(self, connection_string: str = fakes.PRIMARY) -> Any:
        return self.call(pairbus.aio.ServiceBusClient.from_connection_string, connection_string)

    def lock(self, path: str) -> Any:
        return Bound(self.call(aio_sender.SenderLock, path), self)

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
        return Bound(made, self)


class Bound:
    """An object whose methods are called on the loop."""

    def __init__(self, target: Any, side: AsyncioSide) -> None:
        self.target = target
        self._side = side

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if callable(value):
            return lambda *args, **kwargs: self._side.call(value, *args, **kwargs)
        return value


class Others:
    """Threads beside that of the test, whose calls may wait."""

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
