"""Group commit: what gathers while the disk is busy becomes the next transaction.

One transaction is under way at a time. Its statements run on the loop's thread, its COMMIT on a
thread of its own, and only then are those told who wait for it. A failed commit tells the error to
all of them and to those behind them; what they had changed in memory is theirs to put back.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from pairbus.broker.storage.store import Group, Store

logger = logging.getLogger(__name__)

Waiter = tuple[Callable[..., None], tuple[Any, ...]]


class Committer:
    """`when_durable` is called with the error first, or None: `callback(error, *arguments)`."""

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, *, settled: Callable[[], None]
    ) -> None:
        self._store = store
        self._loop = loop
        # Called once after the waiters of a commit were told, to send what they prepared.
        self._settled = settled
        self._waiters: list[Waiter] = []
        # Groups that are complete and wait for their turn; what gathers now comes after them.
        self._closed: deque[tuple[Group, list[Waiter]]] = deque()
        self.before_commit: Callable[[], None] | None = None
        """A fault on demand: called on the committing thread, it may take its time or raise."""
        self._scheduled = False
        self._in_flight: list[Waiter] | None = None
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(
            target=self._commit_forever, name=f"commit:{store.path.stem}", daemon=True
        )
        self._thread.start()

    def when_durable(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back once all changes made to the store so far are on the disk."""
        self._waiters.append((callback, arguments))
        self.request()

    def separate(self) -> None:
        """What has gathered so far shares its transaction with nothing that comes later."""
        if self._waiters or self._store.has_changes:
            self._closed.append((self._store.take(), self._waiters))
            self._waiters = []

    @property
    def _has_work(self) -> bool:
        return bool(self._waiters or self._closed or self._store.has_changes)

    def request(self) -> None:
        if not self._scheduled and self._in_flight is None:
            self._scheduled = True
            self._idle.clear()
            # Not at once: what else arrives in this turn of the loop shares the commit.
            self._loop.call_soon(self._begin)

    async def flushed(self) -> None:
        """Wait until nothing is pending any more."""
        while self._has_work or self._in_flight is not None:
            self.request()
            await self._idle.wait()

    async def stop(self) -> None:
        await self.flushed()
        self._orders.put(False)
        self._thread.join()  # it has nothing left to do but to end

    def _begin(self) -> None:
        self._scheduled = False
        if not self._closed:
            self.separate()
        if not self._closed:
            self._idle.set()
            return
        group, self._in_flight = self._closed.popleft()
        if not group:
            self._finish(None)
            return
        try:
            self._store.apply(group)
        except Exception as error:
            # Whatever it is: those who wait must be told, and the next commit must come.
            logger.error("the data file %s cannot be written: %r", self._store.path, error)
            self._finish(error)
        else:
            self._orders.put(True)

    def _commit_forever(self) -> None:
        while self._orders.get():  # until stop() orders the end
            error: Exception | None = None
            try:
                if (fault := self.before_commit) is not None:
                    fault()
                self._store.commit()
            except Exception as trouble:
                error = trouble
            try:
                self._loop.call_soon_threadsafe(self._committed, error)
            except RuntimeError:  # the loop was closed under us: the process is going away
                return

    def _committed(self, error: Exception | None) -> None:
        if error is not None:
            logger.error("the data file %s cannot be written: %r", self._store.path, error)
            self._store.rollback()
        self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        waiters, self._in_flight = self._in_flight or [], None
        if error is not None:
            # What has gathered since builds on what was refused: it is refused as well, and taken
            # back first.
            self.separate()
            while self._closed:
                waiters += self._closed.popleft()[1]
            waiters.reverse()
        for callback, arguments in waiters:
            try:
                callback(error, *arguments)
            except Exception:
                # One peer's trouble must not cost the others their answer.
                logger.exception("after a commit")
        try:
            self._settled()
        except Exception:
            logger.exception("after a commit")
        if self._has_work:
            self.request()
        else:
            self._idle.set()
