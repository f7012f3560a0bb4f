"""The SDK's asyncio sender. When its entity is failed over, messages go to the backlog.

Like `blocking/sender.py`. Tasks may share one sender; the SDK's own sender does not allow that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender

from pairbus.client.aio.background import bounded
from pairbus.client.aio.pairing import Pairing
from pairbus.client.sdk import private
from pairbus.client.send import SenderBusy
from pairbus.client.sender import SenderCore
from pairbus.client.state import ClientState
from pairbus.client.steps import (
    AcquireLock,
    Borrow,
    CallPrimary,
    OpenLink,
    ResetLink,
    Result,
    SendBatch,
    Steps,
    StoreInOutbox,
    Wait,
    run_async,
)

# How long `close` waits for a call that is under way.
CLOSE_SECONDS_MAX = 5.0


class PairedSender(SenderCore, private.AsyncPromptFailures, ServiceBusSender):  # type: ignore[misc]
    """Create it with `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    def bind(self, state: ClientState[Pairing]) -> None:
        self.client_state = state
        self.lock = SenderLock(self.entity_name)

    async def __aenter__(self) -> Self:
        await self._run(self._opening())
        return self

    async def send_messages(
        self, message: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Like the SDK's method. If the entity is failed over, the messages go to a backlog queue.

        The timeout then applies to each of the two namespaces.
        """
        await self._run(self._sending(message, timeout, kwargs))

    async def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Like the SDK's method. If the entity is failed over, the messages go to a backlog queue.
        The syphon brings them home with their schedule.

        Their sequence numbers are not known yet. The result has an `UnknownSequenceNumber` (-1) in
        place of each. It cannot be cancelled, and it names the backlog queue that has the message.
        """
        return await self._run(self._scheduling(messages, schedule_time_utc, timeout, kwargs))

    async def cancel_scheduled_messages(
        self, sequence_numbers: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Like the SDK's method, and always on the primary: a diverted message has no sequence
        number, so it cannot be cancelled.
        """
        await self._run(self._cancelling(sequence_numbers, timeout, kwargs))

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """Like the SDK's method. If the entity is failed over, the size limit is that of a backlog
        queue.
        """
        return await self._run(self._making_batch(max_size_in_bytes))

    async def close(self) -> None:
        """Like the SDK's method, but it waits while a task opens the link: that task would
        otherwise continue and leak what it opened.
        """
        self.is_closed = True
        if self.client_state.pairing is None:
            await super().close()
            return
        has_lock = await self.lock.try_acquire()
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while not has_lock and time.monotonic() < until:
            private.abort(self)  # repeatedly, because the SDK may retry
            with suppress(SenderBusy):
                await self.lock.acquire(0.1)
                has_lock = True
        try:
            await super().close()
        finally:
            if has_lock:
                self.lock.release()

    # --- the steps of a call ----------------------------------------------------------------------

    async def _run(self, steps: Steps[Result]) -> Result:
        """If the client has faulted, the caller gets ClientFaulted, and not the error that the call
        got while the client was ending.
        """
        try:
            return await run_async(steps, self._perform)
        except Exception as error:
            self.client_state.check(error)
            raise

    async def _perform(self, step: Any) -> Any:
        pairing: Any = self.client_state.pairing
        match step:
            case AcquireLock(seconds, holder):
                return await self.lock.acquire(seconds, holder)
            case ResetLink(epoch):
                return await self.reset_link(epoch)
            case CallPrimary(seconds, call, is_opening=False):
                return await call(seconds)
            case CallPrimary(seconds, call):  # the SDK opens a link without a time limit
                async with bounded(seconds, f"opening a link to {self.entity_name!r}"):
                    return await call(seconds)
            case Borrow(queue, seconds, is_fresh, call):
                call.connection = await pairing.pool.borrow(
                    queue, seconds, is_fresh=is_fresh, call=call
                )
                return call.connection
            case OpenLink(connection, seconds):
                return await pairing.open_link(connection.sender, seconds, connection.queue)
            case SendBatch(connection, content, seconds):
                return await connection.sender.send_messages(content, timeout=seconds)
            case Wait(seconds):
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        return await pairing.closing.wait()
                return False
            case StoreInOutbox(path, messages):
                return await pairing.on_disk(lambda file: file.put(path, messages))
            case _:
                return await step()

    def _sdk_open(self) -> Any:
        return super().__aenter__()

    async def reset_link(self, epoch: int) -> None:
        """Close the link before its first use after a failback. A link from before the outage may
        be dead without an error yet, and its failure would fail the entity over again.
        """
        self.epoch = epoch
        with suppress(Exception):  # the link is gone in either case
            await private.close_link(self)

    # --- for the background -----------------------------------------------------------------------

    async def send_stored(self, messages: Sequence[Any]) -> None:
        # Not `_run`: what is in the backlog is deleted from the outbox, also if the client faults.
        await run_async(self._sending_stored(messages), self._perform)

    async def open_early(self, epoch: int, pairing: Pairing) -> None:
        """Open a link of this epoch before the entity fails back, so that the first message does
        not wait for it. If the sender is in use, or this fails, the next call opens the link."""
        if not await self.lock.try_acquire():
            return
        seconds = pairing.timing.link_seconds
        try:
            async with bounded(seconds, f"opening a link to {self.entity_name!r}"):
                await self.reset_link(epoch)
                await private.open_link(self, seconds)
        except BaseException:
            self.require_new_link()
            raise
        finally:
            self.lock.release()


class SenderLock:
    """Allows one call at a time on the primary. It records whether one call or several held it
    while another call waited.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._holder: object = None
        self._acquired = 0
        # A lock that was just handed to a waiting task looks free until that task runs.
        self._waiting = 0

    async def try_acquire(self, holder: object = None) -> bool:
        """Returns False if another call holds the lock or is about to get it."""
        if self._waiting or self._lock.locked():
            return False
        await self._lock.acquire()  # the lock is free, so this does not yield to another task
        self._note_holder(holder)
        return True

    async def acquire(self, seconds: float, holder: object = None) -> bool:
        """Acquires the lock. Returns whether it had to wait."""
        before = self._acquired
        if await self.try_acquire(holder):
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._lock.acquire()
        except TimeoutError:
            raise SenderBusy(self._path, seconds, calls=self._acquired - before) from None
        finally:
            self._waiting -= 1
        self._note_holder(holder)
        return True

    def _note_holder(self, holder: object) -> None:
        self._holder = holder
        self._acquired += 1

    def release(self, holder: object = None) -> None:
        """No effect if another call than the holder has the lock."""
        if holder is not None and self._holder is not holder:
            return
        self._holder = None
        self._lock.release()
