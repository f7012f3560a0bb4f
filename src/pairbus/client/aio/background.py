"""The background worker of a paired client: one task that runs what is due.

Like `blocking/background.py`, but without socket deadlines: the SDK's asyncio client keeps its own
time-outs, except that it opens a link without one. `bounded` limits that.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.client.route.plans import BackgroundTask
from pairbus.client.timing import GRACE_SECONDS

logger = logging.getLogger("pairbus.client")

TASKS_AT_ONCE_MAX = 64
LOOK_SECONDS_MAX = 15.0


@asynccontextmanager
async def bounded(seconds: float, what: str) -> AsyncIterator[None]:
    """Limits the time for a call that may open a link. The SDK itself sets no limit there."""
    limit = asyncio.timeout(seconds + GRACE_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise OperationTimeoutError(
            message=f"{what} took longer than {seconds:g} seconds"
        ) from None


class BackgroundWorker:
    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float],
        take_due: Callable[[], tuple[list[BackgroundTask], float | None]],
        perform: Callable[[BackgroundTask], Awaitable[None]],
    ) -> None:
        """`take_due` returns the tasks that are due and when the next one is; `perform` runs
        one."""
        self._name = f"pairbus-{name}"
        self._clock = clock
        self._take_due, self._perform = take_due, perform
        self._woken = asyncio.Event()
        self._waiting: deque[BackgroundTask] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        # A separate context: background work must not appear in the trace or the context variables
        # of the code that paired.
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=self._name, context=contextvars.Context())

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        """Stop the worker. When this returns, none of its tasks runs."""
        tasks = [*self._running, *([self._task] if self._task is not None else [])]
        tasks = [task for task in tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- the task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:  # until it is cancelled
            self._woken.clear()
            try:
                wait = self._work()
            except Exception:
                logger.exception("the background worker of a paired client failed; it continues")
                wait = 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()

    def _work(self) -> float:
        """Start the tasks that are due, and return the seconds until the next one."""
        tasks, next_due = self._take_due()
        self._waiting.extend(tasks)
        while self._waiting and len(self._running) < TASKS_AT_ONCE_MAX:
            work = self._run_task(self._waiting.popleft())
            task = asyncio.get_running_loop().create_task(work, name="pairbus-task")
            self._running.add(task)
            task.add_done_callback(self._ended)
        if next_due is None:
            return LOOK_SECONDS_MAX
        return min(max(0.0, next_due - self._clock()), LOOK_SECONDS_MAX)

    async def _run_task(self, task: BackgroundTask) -> None:
        try:
            await self._perform(task)
        except Exception:
            logger.exception("%r failed", task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.wake()
