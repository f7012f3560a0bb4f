"""One task per paired client, for what is due in the background: as `blocking/keeper.py`.

There is nobody to be freed here: the SDK's asyncio client keeps to its time-outs.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pairbus.client.route.router import Chore

logger = logging.getLogger("pairbus.client")

CHORES_AT_ONCE_MAX = 64
LOOK_SECONDS_MAX = 15.0


class Keeper:
    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float],
        due: Callable[[], tuple[list[Chore], float | None]],
        do: Callable[[Chore], Awaitable[None]],
    ) -> None:
        """`due` answers what is to be done now, and when next; `do` does one of it."""
        self._name = f"pairbus-{name}"
        self._clock = clock
        self._due, self._do = due, do
        self._woken = asyncio.Event()
        self._waiting: deque[Chore] = deque()
        self._chores: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        # A context of its own: what happens in the background is no part of what the application
        # happened to be doing when it paired.
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=self._name, context=contextvars.Context())

    def wake(self) -> None:
        self._woken.set()

    async def stop(self) -> None:
        """When it returns, no task of it runs."""
        tasks = [*self._chores, *([self._task] if self._task is not None else [])]
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
                wait = self._turn()
            except Exception:
                logger.exception("the background of a paired client failed; it goes on")
                wait = 1.0
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()

    def _turn(self) -> float:
        """Does what is due, and says for how long nothing will be."""
        chores, next_due = self._due()
        self._waiting.extend(chores)
        while self._waiting and len(self._chores) < CHORES_AT_ONCE_MAX:
            chore = self._waiting.popleft()
            task = asyncio.get_running_loop().create_task(
                self._run_chore(chore), name="pairbus-chore"
            )
            self._chores.add(task)
            task.add_done_callback(self._ended)
        now = self._clock()
        return max(0.0, min(now + LOOK_SECONDS_MAX, next_due or float("inf")) - now)

    async def _run_chore(self, chore: Chore) -> None:
        try:
            await self._do(chore)
        except Exception:
            logger.exception("%r failed", chore)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._chores.discard(task)
        self.wake()
