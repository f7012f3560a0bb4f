"""Where the syphon runs, the two clients of a pair end together: as `blocking/partnership.py`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pairbus.client.aio.pairing import Pairing
from pairbus.client.route.partners import Partners, Which
from pairbus.client.syphon import STOP_SECONDS_MAX, Syphon, SyphonContext

logger = logging.getLogger("pairbus.client")


class Partnership:
    def __init__(self, primary: Any, pairing: Pairing, syphon: Syphon) -> None:
        self._clients: dict[Which, Any] = {
            "primary": primary,
            "secondary": pairing.options.messaging_factory,
        }
        self._pairing = pairing
        self._syphon = syphon
        self._loop = asyncio.get_running_loop()
        self._partners = Partners()
        self._ended: set[Which] = set()
        self._is_abandoned = False
        self._both_ended = asyncio.Event()
        self._is_started = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """What the syphon raises at its start surfaces from here; `stop` is to be called then."""
        self._is_started = True
        context = SyphonContext(
            namespace=self._pairing.namespace,
            primary=self._clients["primary"],
            secondary=self._clients["secondary"],
            manager=self._pairing.options.secondary_namespace_manager,
            backlog_queues=self._pairing.backlog_queues,
            fault=self._fault_both_from_a_thread,
        )
        starting = asyncio.ensure_future(asyncio.to_thread(self._syphon.start, context))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])  # so that it can be stopped
            raise
        for which, client in self._clients.items():
            told = client._state.listen(self, self._listener(which))
            if inspect.isawaitable(told):
                await told

    async def abandon(self) -> None:
        """The pairing came to nothing: the syphon is stopped, and nobody is faulted."""
        self._is_abandoned = True
        self._forget()
        await self.stop()

    async def stop(self) -> None:
        """The syphon, once."""
        is_first, self._is_started = self._is_started, False
        if is_first:
            try:
                await asyncio.to_thread(self._syphon.stop, timeout_seconds=STOP_SECONDS_MAX)
            except Exception:
                logger.exception("the syphon of %s did not stop well", self._pairing.namespace)

    def _listener(self, which: Which) -> Callable[[str], Awaitable[None]]:
        async def has_ended(reason: str) -> None:
            if self._is_abandoned:
                return
            is_first = not self._ended
            self._ended.add(which)
            self._partners.ended(which, now=self._pairing.clock(), reason=reason)
            if not is_first:
                self._both_ended.set()
                return
            await self.stop()
            self._spawn(self._watch())

        return has_ended

    async def _watch(self) -> None:
        deadline = self._partners.deadline
        if deadline is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, deadline - self._pairing.clock())):
                await self._both_ended.wait()
        fault = self._partners.due(now=max(self._pairing.clock(), deadline))
        if fault is not None and not self._is_abandoned:
            await self._fault(fault.which, fault.reason)
        self._forget()

    def _forget(self) -> None:
        for client in self._clients.values():
            client._state.forget(self)

    def _fault_both_from_a_thread(self, reason: str) -> None:
        async def fault_both() -> None:
            for which in self._clients:
                await self._fault(which, reason)

        self._loop.call_soon_threadsafe(lambda: self._spawn(fault_both()))

    async def _fault(self, which: Which, reason: str) -> None:
        logger.warning("faulting the %s client of %s: %s", which, self._pairing.namespace, reason)
        await self._clients[which].fault(reason)

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work, name="pairbus-partner")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
