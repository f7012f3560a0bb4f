"""A pairing in the asyncio shell: like `blocking/pairing.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from pairbus.client import tasks
from pairbus.client.aio.background import BackgroundWorker, bounded
from pairbus.client.aio.pool import ConnectionPool, PromptSender
from pairbus.client.outbox_file import OutboxFile
from pairbus.client.pairing import PairingCore
from pairbus.client.route.plans import BackgroundTask, Ping
from pairbus.client.state import state_of
from pairbus.client.steps import Result, run_async

logger = logging.getLogger("pairbus.client")


class Pairing(PairingCore):
    """What `client.pairing` is."""

    pool: ConnectionPool
    sdk_client = ServiceBusClient
    sender_class = PromptSender

    def make_parts(self) -> None:
        self.pool = ConnectionPool(
            lambda queue: self.new_sender(self.secondary_client, queue),
            client=self.options.messaging_factory,
            clock=self.clock,
        )
        self.worker = BackgroundWorker(
            self.namespace, clock=self.clock, take_due=self.take_due_tasks, perform=self.perform
        )
        self.closing = asyncio.Event()
        # A thread of its own, which starts on first use: in an outage, slow lookups of host names
        # may occupy the threads of the loop.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="pairbus-outbox")
        self._is_disk_closed = False

    async def start(self) -> None:
        """Raises if the outbox cannot be used, or if the secondary accepts no connection."""
        if self.outbox is not None:
            # On the thread that closes the outbox: if this is cancelled, it is closed afterwards.
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._disk, self.open_outbox)
        self.worker.start()
        await run_async(tasks.start(self))

    async def follow_secondary(self) -> None:
        """If the secondary's client is a pairbus client and is closed, its connections are closed
        too.
        """
        state = state_of(self.options.messaging_factory)
        if state is not None:
            dropping = state.listen(self, lambda reason: self.pool.drop())
            if dropping is not None:
                await dropping

    def wake(self) -> None:
        self.worker.wake()

    async def close(self) -> None:
        """Stop the pings and close the connections to the secondary. When this returns, no task or
        socket is left.
        """
        # Each step can be repeated, because an earlier call may have been interrupted.
        self.closing.set()
        self.close_router()
        await self.worker.stop()
        await self.pool.close()
        if self.outbox is not None and not self._is_disk_closed:
            await asyncio.wrap_future(self._disk.submit(self.outbox.close))
        self._is_disk_closed = True
        self._disk.shutdown()

    # --- for the tasks ----------------------------------------------------------------------------

    async def perform(self, task: BackgroundTask) -> None:
        await run_async(tasks.steps_of(self, task))

    async def open_link(self, sender: Any, seconds: float, path: str) -> None:
        async with bounded(seconds, f"opening a link to {path!r}"):
            await sender.__aenter__()

    async def within(
        self, sender: Any, seconds: float, what: str, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        async with bounded(seconds, what):
            return await call()

    async def open_early(self, senders: Sequence[Any], ping: Ping) -> None:
        links = [sender.open_early(ping.epoch + 1, self) for sender in senders]
        for outcome in await asyncio.gather(*links, return_exceptions=True):
            if outcome is not None:
                logger.debug("opening a link to %s failed: %r", ping.path, outcome)

    async def on_disk(self, work: Callable[[OutboxFile], Result]) -> Result:
        """What waits for the disk. If this is cancelled, work that has begun still ends."""
        assert self.outbox is not None
        if self._is_disk_closed:
            return work(self.outbox.file)  # raises OutboxError, and waits for nothing
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, work, self.outbox.file)
