"""One text for the parts of the two shells: asyncio's run on a loop in a thread of its own, and are
called like their blocking twins, from any thread.

What the shells are given in place of the SDK's senders is scripted here as well.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import pairbus
import pairbus.aio
import pairbus.client.aio.delivery as aio_delivery
import pairbus.client.aio.keeper as aio_keeper
import pairbus.client.aio.pairing as aio_pairing
import pairbus.client.aio.pool as aio_lanes
import pairbus.client.aio.sender as aio_sender
import pairbus.client.blocking.delivery as blocking_delivery
import pairbus.client.blocking.keeper as blocking_keeper
import pairbus.client.blocking.pairing as blocking_pairing
import pairbus.client.blocking.pool as blocking_lanes
import pairbus.client.blocking.sender as blocking_sender
from tests.client import fakes
from tests.client.fakes import StandIn

HANG_SECONDS = 30.0


def until(condition: Callable[[], Any], what: str = "it", seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.005)
    return answer


class Scripted(StandIn):
    """A sender of the SDK whose sends go as the script says: None is taken, an error is raised, a
    function is called first. Without a script everything is taken."""

    def __init__(self, queue: str = "q", *, limits: tuple[int, int] = (100_000, 100_000)) -> None:
        super().__init__(queue)
        self.limits = limits
        self.opens: list[Any] = []
        self.sends: list[Any] = []
        self.opened = 0
        self.sent: list[tuple[Any, float]] = []
        self._shutdown = threading.Event()
        self._config = type("Config", (), {"retry_total": 3})()

    def close(self) -> None:
        super().close()
        self._shutdown.set()

    def __enter__(self) -> Scripted:
        self.opened += 1
        _play(self.opens)
        self.open(self.limits)
        return self

    def send_messages(self, content: Any, *, timeout: float) -> None:
        assert self._running, "the link is not open"
        self.sent.append((content, timeout))
        _play(self.sends)

    @property
    def _amqp_transport(self) -> Any:
        return fakes.plain_client().get_queue_sender("q")._amqp_transport


class AsyncScripted(Scripted):
    async def close(self) -> None:  # type: ignore[override]
        super().close()

    async def __aenter__(self) -> AsyncScripted:
        super().__enter__()
        return self

    async def send_messages(self, content: Any, *, timeout: float) -> None:  # type: ignore[override]
        super().send_messages(content, timeout=timeout)


def _play(script: list[Any]) -> None:
    step = script.pop(0) if script else None
    if isinstance(step, BaseException):
        raise step
    if step is not None:
        step()


class Work:
    """What a keeper is given to do: chores that take until the gate is open."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.gate = threading.Event()
        if is_open:
            self.gate.set()
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.errors: list[Exception] = []
        """What the next chores raise."""
        self.most = 0
        """How many there were at once."""
        self._lock = threading.Lock()

    def begin(self, chore: Any) -> None:
        with self._lock:
            self.begun.append(chore)
            self.most = max(self.most, len(self.begun) - len(self.ended))
            if self.errors:
                self.ended.append(chore)
                raise self.errors.pop(0)

    def end(self, chore: Any) -> None:
        with self._lock:
            self.ended.append(chore)


class Side(Protocol):
    """A shell's parts, under the blocking names."""

    name: str
    scripted: type[Scripted]

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Whatever it is, to its end."""

    def lanes(self, make: Callable[[str], Any], clock: Callable[[], float]) -> Any: ...

    def lanes_of(self, client: Any) -> Any: ...

    def pairing_client(self) -> Any:
        """One of ours, that is never connected."""

    def turn(self, path: str) -> Any: ...

    def keeper(self, due: Callable[[], Any], work: Work) -> Any: ...

    def pairing(self, **settings: Any) -> Any: ...

    def deliver(
        self, pairing: Any, sender: Any, errand: Any, timeout: float | None, failed: Any = None
    ) -> Any: ...

    def divert_at_once(
        self, pairing: Any, path: str, message: Any, timeout: float | None
    ) -> Any: ...


class SyncSide:
    name = "sync"
    scripted = Scripted

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def lanes(self, make: Callable[[str], Any], clock: Callable[[], float]) -> Any:
        lanes = self.lanes_of(fakes.plain_client(), clock)
        lanes._shelves._make = make
        return lanes

    def lanes_of(self, client: Any, clock: Callable[[], float] = time.monotonic) -> Any:
        return blocking_lanes.Lanes(client, handshake_seconds=1.0, clock=clock)

    def pairing_client(self) -> Any:
        return pairbus.ServiceBusClient.from_connection_string(fakes.SECONDARY)

    def turn(self, path: str) -> Any:
        return blocking_sender.Turn(path)

    def keeper(self, due: Callable[[], Any], work: Work) -> Any:
        def do(chore: Any) -> None:
            work.begin(chore)
            assert work.gate.wait(HANG_SECONDS)
            work.end(chore)

        return blocking_keeper.Keeper("test", clock=time.monotonic, due=due, do=do)

    def pairing(self, *, queues: int = 3, retry_total: int = 3, **settings: Any) -> Any:
        client = fakes.plain_client(retry_total=retry_total)
        return blocking_pairing.Pairing(client, fakes.options(**settings), fakes.found(queues))

    def deliver(
        self, pairing: Any, sender: Any, errand: Any, timeout: float | None, failed: Any = None
    ) -> Any:
        return blocking_delivery.deliver(pairing, sender, errand, timeout, failed)

    def divert_at_once(self, pairing: Any, path: str, message: Any, timeout: float | None) -> Any:
        return blocking_delivery.divert_at_once(pairing, path, message, timeout)

    def on_primary(self, function: Callable[[float], Any]) -> Callable[[float], Any]:
        return function


class AsyncioSide:
    name = "asyncio"
    scripted = AsyncScripted

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

    def lanes(self, make: Callable[[str], Any], clock: Callable[[], float]) -> Any:
        lanes = self.lanes_of(self.pairing_client(), clock)
        lanes.target._shelves._make = make
        return lanes

    def lanes_of(self, client: Any, clock: Callable[[], float] = time.monotonic) -> Any:
        return Bound(self.call(aio_lanes.Lanes, client, clock=clock), self)

    def pairing_client(self) -> Any:
        return self.call(pairbus.aio.ServiceBusClient.from_connection_string, fakes.SECONDARY)

    def turn(self, path: str) -> Any:
        return Bound(self.call(aio_sender.Turn, path), self)

    def keeper(self, due: Callable[[], Any], work: Work) -> Any:
        async def do(chore: Any) -> None:
            work.begin(chore)
            while not work.gate.is_set():
                await asyncio.sleep(0.005)
            work.end(chore)

        made = self.call(aio_keeper.Keeper, "test", clock=time.monotonic, due=due, do=do)
        return Bound(made, self)

    def pairing(self, *, queues: int = 3, retry_total: int = 3, **settings: Any) -> Any:
        async def made() -> Any:
            client: Any = fakes.plain_client(retry_total=retry_total)
            given = fakes.asyncio_options(**settings)
            await given.secondary_namespace_manager.close()
            return aio_pairing.Pairing(client, given, fakes.found(queues))

        return self.call(made)

    def deliver(
        self, pairing: Any, sender: Any, errand: Any, timeout: float | None, failed: Any = None
    ) -> Any:
        return self.call(aio_delivery.deliver, pairing, sender, errand, timeout, failed)

    def divert_at_once(self, pairing: Any, path: str, message: Any, timeout: float | None) -> Any:
        return self.call(aio_delivery.divert_at_once, pairing, path, message, timeout)

    def on_primary(self, function: Callable[[float], Any]) -> Callable[[float], Any]:
        async def run(timeout: float) -> Any:
            return function(timeout)

        return run


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
