"""A pairing in the asyncio shell: like `blocking/pairing.py`."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from azure.servicebus.aio import ServiceBusClient

from pairbus.client.aio.background import BackgroundWorker, bounded
from pairbus.client.aio.pool import ConnectionPool, PromptSender
from pairbus.client.outbox import drain
from pairbus.client.outbox_file import OutboxFile
from pairbus.client.pairing import PairingCore
from pairbus.client.route.plans import BackgroundTask, Drain, PeekBacklog, Ping
from pairbus.client.sdk import private
from pairbus.client.sdk.backlog_queues import BacklogQueues
from pairbus.client.sdk.messages import ping_message
from pairbus.client.state import state_of
from pairbus.client.steps import OnDisk, SendStored, run_async
from pairbus.client.timing import PEEK_PAGE
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.client")

Result = TypeVar("Result")


class Pairing(PairingCore):
    """What `client.pairing` is."""

    def __init__(
        self,
        client: ServiceBusClient,
        options: SendAvailabilityPairedNamespaceOptions,
        backlog: BacklogQueues,
        *,
        sender_class: Any = None,
    ) -> None:
        """`sender_class`: the paired sender, which also sends what waits in the outbox."""
        super().__init__(client, options, backlog)
        self._sender_class = sender_class
        self._primary = private.with_own_handlers(client)
        self._secondary = private.with_own_handlers(options.messaging_factory)
        self.pool: ConnectionPool = ConnectionPool(
            self._new_sender, client=options.messaging_factory, clock=self.clock
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
        """Raises if the secondary accepts no connection. The connection stays open, except with
        `lazy` in the options.
        """
        self.worker.start()
        queue = random.choice(self.backlog_queues)
        try:
            await self._open_connection(queue, is_kept=self.is_ready_mode)
        except Exception as error:
            raise self.not_connected(queue, error) from error
        if self.is_ordered:
            try:
                await self._peek_page(queue, from_sequence=1, count=1)
            except Exception as error:
                raise self.not_readable(queue, error) from error

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
        state = state_of(self.options.messaging_factory)
        if state is not None:
            state.forget(self)
        await self.worker.stop()
        await self.pool.close()
        if self.outbox is not None and not self._is_disk_closed:
            await asyncio.wrap_future(self._disk.submit(self.outbox.close))
        self._is_disk_closed = True
        self._disk.shutdown()

    # --- what the worker runs ---------------------------------------------------------------------

    async def perform(self, task: BackgroundTask) -> None:
        if isinstance(task, Ping):
            await self._ping(task)
        elif isinstance(task, Drain):
            await self._drain(task)
        elif isinstance(task, PeekBacklog):
            await self._peek(task)
        else:
            await self._probe(task.queue)

    async def _ping(self, ping: Ping) -> None:
        if not self.is_wanted(ping):
            return
        seconds = self.timing.task_seconds
        sender = PromptSender.of(self._primary, ping.path)
        private.set_retries(sender, 0)
        try:
            async with bounded(seconds, f"pinging {ping.path!r}"):
                if self.options.ping_mode == "link":
                    await sender.__aenter__()
                else:
                    await sender.send_messages(ping_message(), timeout=seconds)
        except Exception as error:
            self.ping_ended(ping, error)
        else:
            # Report first, then close: closing the sender may take a moment and would delay the
            # failback.
            await self._open_links(ping)
            self.ping_ended(ping, None)
        finally:
            await sender.close()

    async def _open_links(self, ping: Ping) -> None:
        """Open links for the senders that are about to send to the primary again, while their
        messages are still diverted. The failback does not depend on it: the ping was answered."""
        senders = self.senders_to_open(ping)
        links = [sender.open_early(ping.epoch + 1, self) for sender in senders]
        for outcome in await asyncio.gather(*links, return_exceptions=True):
            if outcome is not None:
                logger.debug("opening a link to %s failed: %r", ping.path, outcome)

    async def _peek(self, peek: PeekBacklog) -> None:
        try:
            messages = await self._peek_page(peek.queue, from_sequence=peek.from_sequence)
        except Exception as error:
            self.peek_failed(peek, error)
        else:
            self.peeked(peek, messages)

    async def _peek_page(
        self, queue: str, *, from_sequence: int, count: int = PEEK_PAGE
    ) -> list[Any]:
        seconds = self.timing.task_seconds
        receiver = ServiceBusClient.get_queue_receiver(self._secondary, queue)
        private.grant_no_credit(receiver)
        private.set_retries(receiver, 0)
        try:
            async with bounded(seconds, f"peeking at {queue!r}"):
                return await receiver.peek_messages(
                    count, sequence_number=max(1, from_sequence), timeout=seconds
                )
        finally:
            await receiver.close()

    async def _probe(self, queue: str) -> None:
        try:
            await self._open_connection(queue)
        except Exception as error:
            self.probe_ended(queue, error)
        else:
            self.probe_ended(queue, None)

    async def on_disk(self, work: Callable[[OutboxFile], Result]) -> Result:
        """What waits for the disk. If this is cancelled, work that has begun still ends."""
        assert self.outbox is not None
        if self._is_disk_closed:
            return work(self.outbox.file)  # raises OutboxError, and waits for nothing
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._disk, work, self.outbox.file)

    async def _drain(self, task: Drain) -> None:
        assert self.outbox is not None
        path = self.outbox.file.entities[task.path]
        sender = self._sender_class.of(self._primary, path, self._state)
        failure: Exception | None = None
        try:
            steps = drain(self.outbox, task)
            await run_async(steps, lambda step: self._perform_drain(sender, step))
        except Exception as error:
            failure = error
        finally:
            self.outbox.drain_ended(task, failure)
            await sender.close()

    async def _perform_drain(self, sender: Any, step: OnDisk | SendStored) -> Any:
        if isinstance(step, OnDisk):
            return await self.on_disk(step.work)
        return await sender.send_stored(self, step.messages)

    async def _open_connection(self, queue: str, *, is_kept: bool = True) -> None:
        seconds = self.timing.task_seconds
        connection = await self.pool.borrow(queue, seconds, is_fresh=True)
        private.set_retries(connection.sender, 0)
        is_open = False
        try:
            async with bounded(seconds, f"opening a link to {queue!r}"):
                await connection.sender.__aenter__()
            is_open = is_kept
        finally:
            self.pool.give_back(connection, is_usable=is_open)

    def _new_sender(self, queue: str) -> PromptSender:
        return PromptSender.of(self._secondary, queue)
