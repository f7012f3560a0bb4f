"""Connections to backlog queues, each lent to one send at a time: as `blocking/lanes.py`."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from pairbus.client import pool as shelves
from pairbus.client.aio.failing import QuickToFail
from pairbus.client.sdk import private as internals

logger = logging.getLogger("pairbus.client")

CLOSE_SECONDS_MAX = 5.0


class BacklogSender(QuickToFail):
    async def _handle_exception(self, exception: BaseException) -> Any:
        error = await super()._handle_exception(exception)
        internals.raise_if_busy(error)  # how long to wait for a busy service is decided elsewhere
        return error


Lane = shelves.Lane[BacklogSender]


class Lanes:
    def __init__(self, client: Any, *, clock: Callable[[], float]) -> None:
        self._client = internals.twin_of(client)
        self._clock = clock
        self._shelves: shelves.Shelves[BacklogSender] = shelves.Shelves(self._new_sender)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._out: set[Lane] = set()
        self._is_back = asyncio.Event()
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def limits(self) -> tuple[int, int]:
        return self._shelves.limits

    async def borrow(self, queue: str, *, timeout: float, fresh: bool = False) -> Lane:
        """An idle lane, or a new one that is not open yet. `fresh`: a new one at any rate."""
        internals.check_client_open(self._client)
        if fresh:
            for old in self._shelves.clear(queue):
                self._end(old)
        try:
            async with asyncio.timeout(timeout):
                while (lane := None if self._is_closed else self._shelves.take(queue)) is None:
                    if self._is_closed:
                        raise ValueError("the paired client has been closed")
                    freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.append(freed)
                    await freed
        except TimeoutError:
            raise shelves.AllBusy(queue, timeout) from None
        self._out.add(lane)
        return lane

    def borrow_at_once(self, queue: str) -> Lane | None:
        """An idle lane that is open; None: there is none, and `borrow` says more."""
        if self._is_closed or internals.is_client_closed(self._client):
            return None
        lane = self._shelves.take_open(queue)
        if lane is not None:
            self._out.add(lane)
        return lane

    def give_back(self, lane: Lane, *, is_usable: bool) -> None:
        """Waits for nothing, so that it also works while the task is being cancelled."""
        self._out.discard(lane)
        self._is_back.set()
        is_usable = is_usable and not self._is_closed
        self._shelves.put_back(lane, is_usable=is_usable, now=self._clock())
        if not is_usable:
            self._end(lane)
        self._wake()

    def has_ready(self, queue: str) -> bool:
        return self._shelves.has_ready(queue)

    def trim(self, *, keep: frozenset[str]) -> None:
        for lane in self._shelves.trim(keep=keep, now=self._clock()):
            self._end(lane)

    async def drop(self) -> None:
        """Ends all lanes, those that are lent too: what is sent on them fails."""
        idle, lent = self._shelves.empty()
        self._wake()
        for lane in idle:
            self._end(lane)
        # Not closed: a task that is opening one would go on, and leave what it opened behind. Its
        # wait ends with an error, and then it gives the lane back.
        for lane in lent:
            internals.abort(lane.sender)
        if self._endings:
            await asyncio.wait(list(self._endings))

    async def close(self) -> None:
        """For good. When it returns, they are closed."""
        self._is_closed = True
        await self.drop()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                while self._out:
                    self._is_back.clear()
                    await self._is_back.wait()
        if self._endings:
            await asyncio.wait(list(self._endings))

    def _wake(self) -> None:
        # Which queue each of them waits for does not matter: who finds nothing waits again. So all
        # are woken, or a free lane of one queue might wake only who waits for another's.
        waiting, self._waiting = self._waiting, deque()
        for freed in waiting:
            if not freed.done():
                freed.set_result(None)

    def _end(self, lane: Lane) -> None:
        ending = asyncio.get_running_loop().create_task(_close(lane))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    def _new_sender(self, queue: str) -> BacklogSender:
        # Not the client's own method: a secondary that is itself paired would divert the diverted.
        made = ServiceBusClient.get_queue_sender(self._client, queue)
        return internals.adopt(made, BacklogSender)


async def _close(lane: Lane) -> None:
    try:
        await lane.sender.close()
    except Exception as error:  # its connection is gone already; nothing is lost with it
        logger.debug("closing a connection to %s: %r", lane.queue, error)
