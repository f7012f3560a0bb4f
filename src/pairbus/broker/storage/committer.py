"""Group commit: changes that arrive while the disk is busy become the next transaction.

One transaction is in progress at a time. Its statements run on the loop's thread and its COMMIT on
another thread; after that it calls the waiting callbacks. If a commit fails, all of them get the
error, and so do later ones. Each undoes what it has changed in memory.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pairbus.broker.storage.store import Group, Store

logger = logging.getLogger(__name__)

_LOG_SECONDS: Final = 10.0
"""The time between two log lines with the same error. A full disk refuses every commit."""
Waiter = tuple[Callable[..., object], tuple[Any, ...]]


class Committer:
    """`when_durable` is called with the error first, or None: `callback(error, *arguments)`."""

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, *, after_commit: Callable[[], None]
    ) -> None:
        self._store = store
        self._loop = loop
        # Called once after the callbacks of a commit, to send what they have prepared.
        self._after_commit = after_commit
        self._waiters: list[Waiter] = []
        # Complete groups that wait to be committed. Changes that are made now come after them.
        self._closed: deque[tuple[Group, list[Waiter]]] = deque()
        self.before_commit: Callable[[], None] | None = None
        """A fault on demand. It is called on the committing thread, and may sleep or raise."""
        self.refusal: Exception | None = None
        """If set, nothing more is written: every commit fails with this error."""
        self._scheduled = False
        self._in_flight: list[Waiter] | None = None
        self._commit_requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._logged = ""
        self._log_again_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(
            target=self._commit_forever, name=f"commit:{store.path.stem}", daemon=True
        )
        self._thread.start()

    def when_durable(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call `callback` when all changes made to the store so far are on the disk."""
        self._waiters.append((callback, arguments))
        self.request()

    def separate(self) -> None:
        """Later changes get a transaction of their own."""
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
            # Not at once: other changes in this turn of the loop share the commit.
            self._loop.call_soon(self._begin)

    async def flushed(self) -> None:
        """Wait until nothing is pending any more."""
        while self._has_work or self._in_flight is not None:
            self.request()
            await self._idle.wait()

    async def stop(self) -> None:
        await self.flushed()
        self.abort()

    def abort(self) -> None:
        """End the thread. Pending changes are not committed, and their callbacks are not called."""
        self._commit_requests.put(False)
        self._thread.join()

    def _begin(self) -> None:
        self._scheduled = False
        if not self._closed:
            self.separate()
        if not self._closed:
            self._idle.set()
            return
        group, self._in_flight = self._closed.popleft()
        if self.refusal is not None or not group:
            self._finish(self.refusal)
            return
        try:
            self._store.apply(group)
        except Exception as error:
            # Catch everything: the callbacks must run, and the next commit must start.
            self._log(error)
            self._finish(error)
        else:
            self._commit_requests.put(True)

    def _commit_forever(self) -> None:
        while self._commit_requests.get():  # False comes from stop()
            error: Exception | None = None
            try:
                if (fault := self.before_commit) is not None:
                    fault()
                self._store.commit()
            except Exception as failure:
                error = failure
            try:
                self._loop.call_soon_threadsafe(self._committed, error)
            except RuntimeError:  # the loop is closed: the process is exiting
                return

    def _committed(self, error: Exception | None) -> None:
        if error is not None:
            self._log(error)
            self._store.rollback()
        self._finish(error)

    def _log(self, error: Exception) -> None:
        now, text = self._loop.time(), repr(error)
        if text != self._logged or now >= self._log_again_at:
            self._logged, self._log_again_at = text, now + _LOG_SECONDS
            logger.error("the data file %s cannot be written: %s", self._store.path, text)

    def _finish(self, error: Exception | None) -> None:
        waiters, self._in_flight = self._in_flight or [], None
        if error is not None:
            # Later changes build on the refused ones, so they fail as well. The newest are undone
            # first.
            self.separate()
            while self._closed:
                waiters += self._closed.popleft()[1]
            waiters.reverse()
        for callback, arguments in waiters:
            try:
                callback(error, *arguments)
            except Exception:
                # One callback's failure must not keep the others from running.
                logger.exception("a callback failed after a commit")
        try:
            self._after_commit()
        except Exception:
            logger.exception("the work after a commit failed")
        if self._has_work:
            self.request()
        else:
            self._idle.set()
