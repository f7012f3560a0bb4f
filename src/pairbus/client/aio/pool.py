"""Connections to backlog queues, each lent to one send at a time: like `blocking/pool.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from azure.servicebus.aio import ServiceBusSender

from pairbus.client.pool import BacklogConnection, PoolExhausted, PoolState
from pairbus.client.sdk import private
from pairbus.client.state import check_open

logger = logging.getLogger("pairbus.client")

CLOSE_SECONDS_MAX = 5.0


class PromptSender(private.AsyncPromptFailures, ServiceBusSender):  # type: ignore[misc]
    """The SDK's sender for pings and backlog queues: it reports a failure at once."""


Connection = BacklogConnection[PromptSender]


class ConnectionPool:
    def __init__(
        self, make: Callable[[str], PromptSender], *, client: Any, clock: Callable[[], float]
    ) -> None:
        """`make` makes a sender for a backlog queue; `client` is the secondary's."""
        self._client = client
        self._clock = clock
        self._state: PoolState[PromptSender] = PoolState(make)
        self._changed = asyncio.Event()
        self._closers: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def batch_bytes_max(self) -> int:
        return self._state.batch_bytes_max

    async def borrow(
        self, queue: str, seconds: float, *, is_fresh: bool = False, call: object = None
    ) -> Connection:
        """Returns an idle connection, or a new one that is not open yet. With `is_fresh`, the idle
        ones are closed first: one of them has just failed. If `call` is gone before the connection
        is given back, `trim` closes the connection.
        """
        check_open(self._client)
        if is_fresh:
            self._state.clear(queue)
            self._close_ended()
        place = object()
        try:
            async with asyncio.timeout(seconds):
                while not self._is_closed:
                    connection = self._state.take(queue, place, call=call)
                    if connection is not None:
                        return connection
                    await self._changed.wait()
                raise ValueError("the paired client has been closed")
        except TimeoutError:
            raise PoolExhausted(queue, seconds) from None
        finally:
            if self._state.stop_waiting(queue, place):
                self._wake_all()  # the next in line may get another one

    def give_back(self, connection: Connection, *, is_usable: bool) -> None:
        """This never waits, so it also works while the task is being cancelled."""
        is_usable = is_usable and not self._is_closed
        self._state.put_back(connection, is_usable=is_usable, now=self._clock())
        self._close_ended()
        self._wake_all()

    def has_ready(self, queue: str) -> bool:
        return self._state.has_ready(queue)

    def trim(self, *, keep: frozenset[str]) -> None:
        """Close connections that were idle for too long, except one for each queue in `keep`, and
        those that an interrupted call has left.
        """
        self._state.trim(keep=keep, now=self._clock())
        self._close_ended()

    async def drop(self) -> None:
        """Close all connections. A send that is using one of them fails."""
        self._state.clear_all()
        self._close_ended()
        # Abort instead of close: a task that is opening a connection would continue and leak what
        # it opened. After an abort its wait ends with an error, and it returns the connection.
        for connection in self._state.lent:
            private.abort(connection.sender)
        self._wake_all()
        await self._closed_all()

    async def close(self) -> None:
        """Close the pool for good. When this returns, its connections are closed."""
        self._is_closed = True
        await self.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                while self._state.lent:
                    await self._changed.wait()
        await self._closed_all()

    def _wake_all(self) -> None:
        # Wake all waiters: a single wake-up might reach a task that waits for another queue.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def close_soon(self, sender: Any) -> None:
        """Close a sender or a receiver in a task of its own."""
        task = asyncio.get_running_loop().create_task(_close(sender))
        self._closers.add(task)
        task.add_done_callback(self._closers.discard)

    def _close_ended(self) -> None:
        while self._state.ended:
            self.close_soon(self._state.ended.pop(0).sender)

    async def _closed_all(self) -> None:
        if self._closers:
            await asyncio.wait(list(self._closers))


async def _close(sender: Any) -> None:
    try:
        await sender.close()
    except Exception as error:  # the connection is already gone, and nothing is lost with it
        logger.debug("closing %s failed: %r", sender, error)
