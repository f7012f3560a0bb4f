"""The SDK's asyncio sender. When its entity is failed over, messages go to the backlog.

Like `blocking/sender.py`. Tasks may share one sender; the SDK's own sender does not allow that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from pairbus.client.aio.background import bounded
from pairbus.client.aio.pairing import Pairing
from pairbus.client.checks import check_arguments, check_cancellable, check_live
from pairbus.client.route.plans import ToPrimary
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import Batch, count_of, give_ids
from pairbus.client.send import SendCall, SenderBusy, SendRequest
from pairbus.client.state import ClientState, SenderState
from pairbus.client.steps import (
    AcquireLock,
    Borrow,
    CallPrimary,
    OpenLink,
    ResetLink,
    SendBatch,
    Step,
    StoreInOutbox,
    Wait,
    run_async,
)

P = ParamSpec("P")
Result = TypeVar("Result")

# How long `close` waits for a call that is under way.
CLOSE_SECONDS_MAX = 5.0


def reports_fault(
    call: Callable[P, Coroutine[Any, Any, Result]],
) -> Callable[P, Coroutine[Any, Any, Result]]:
    """For the methods of a sender: if the client has faulted, the caller gets ClientFaulted, and
    not the error that the call got while the client was ending.
    """

    @wraps(call)
    async def reporting(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return await call(*args, **kwargs)
        except Exception as error:
            sender: Any = args[0]
            sender.client_state.check(error)
            raise

    return reporting


class PairedSender(SenderState, private.AsyncPromptFailures, ServiceBusSender):  # type: ignore[misc]
    """Create it with `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    def bind(self, state: ClientState[Pairing]) -> None:
        self.client_state = state
        self.lock = SenderLock(self.entity_name)

    @property
    def _pairing(self) -> Pairing | None:
        return self.client_state.pairing

    @reports_fault
    async def __aenter__(self) -> Self:
        pairing = self._pairing
        if pairing is None:
            self.client_state.check()
            self.has_called = True
            await super().__aenter__()
        else:
            await self._open_primary(pairing)
        return self

    @reports_fault
    async def send_messages(
        self, message: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Like the SDK's method. If the entity is failed over, the messages go to a backlog queue.

        The timeout then applies to each of the two namespaces.
        """
        pairing = self._pairing
        if pairing is None:
            self.client_state.check()
            self.has_called = True
            await super().send_messages(message, timeout=timeout, **kwargs)
            return
        check_arguments(self, timeout, kwargs)
        message = give_ids(message)
        count = count_of(message)
        if not count or message == {}:
            return  # like the SDK
        request = SendRequest(
            messages=message,
            count=count,
            on_primary=lambda seconds: self._send_primary(request, seconds),
        )
        await self._run_call(pairing, request, timeout)

    @reports_fault
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
        pairing = self._pairing
        if pairing is None:
            self.client_state.check()
            self.has_called = True
            return await super().schedule_messages(
                messages, schedule_time_utc, timeout=timeout, **kwargs
            )
        check_arguments(self, timeout, kwargs)
        messages = give_ids(messages)
        count = count_of(messages)
        if not count:
            return []
        schedule = super().schedule_messages
        request = SendRequest(
            messages=messages,
            count=count,
            schedule=schedule_time_utc,
            returns_numbers=True,
            on_primary=lambda seconds: schedule(messages, schedule_time_utc, timeout=seconds),
        )
        numbers: list[int] = await self._run_call(pairing, request, timeout)
        return numbers

    @reports_fault
    async def cancel_scheduled_messages(
        self, sequence_numbers: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Like the SDK's method, and always on the primary: a diverted message has no sequence
        number, so it cannot be cancelled.
        """
        check_live(self)
        check_cancellable(self.entity_name, sequence_numbers)
        pairing = self._pairing
        if pairing is None:
            self.has_called = True
            await super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
            return
        seconds = pairing.timing.send_seconds if timeout is None else timeout
        await self.lock.acquire(seconds)
        try:
            await super().cancel_scheduled_messages(sequence_numbers, timeout=seconds, **kwargs)
        finally:
            self.lock.release()

    @reports_fault
    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """Like the SDK's method. If the entity is failed over, the size limit is that of a backlog
        queue.
        """
        self.client_state.check()
        self.has_called = True
        pairing = self._pairing
        # The SDK itself may call this from `send_messages`, under our lock.
        if pairing is None or self.lock.is_mine():
            return Batch.of(await super().create_message_batch(max_size_in_bytes))
        if not private.knows_limits(self):
            await self._open_primary(pairing)
            private.lend_limits(self, pairing.pool.limits)
        path = self.entity_name
        # With ordered fail-back, the envelopes are made when the batch is sent.
        is_plain = pairing.is_ordered or isinstance(pairing.plan(path), ToPrimary)
        made = await super().create_message_batch(max_size_in_bytes)
        return Batch.of(made, path=None if is_plain else path)

    async def close(self) -> None:
        """Like the SDK's method, but it waits while a task opens the link: that task would
        otherwise continue and leak what it opened.
        """
        if self._pairing is None or self.lock.is_mine():
            await super().close()
            return
        private.mark_shut(self)  # tasks that wait for the lock now fail instead of sending
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

    async def _open_primary(self, pairing: Pairing) -> None:
        check_live(self)
        open_link = super().__aenter__
        await self._run_call(pairing, SendRequest(on_primary=lambda seconds: open_link()), None)

    async def _send_primary(self, request: SendRequest, seconds: float) -> None:
        sent = request.messages
        if isinstance(sent, list):
            if request.batch is None:
                # As the SDK does with a list, but it would convert each message twice.
                batch = await super().create_message_batch()
                for message in sent:
                    batch.add_message(message)
                request.batch = batch
            sent = request.batch
        elif isinstance(sent, Batch):
            sent.make_plain()
        await super().send_messages(sent, timeout=seconds)

    async def _run_call(self, pairing: Pairing, request: SendRequest, timeout: float | None) -> Any:
        call = SendCall(pairing, self, request, timeout)
        return await run_async(call.steps(), lambda step: self._perform(pairing, call, step))

    async def _perform(self, pairing: Pairing, call: SendCall, step: Step) -> Any:
        match step:
            case AcquireLock(seconds):
                return await self.lock.acquire(seconds, call)
            case ResetLink(epoch):
                return await self.reset_link(epoch)
            case CallPrimary(seconds) if call.request.count:
                return await call.request.on_primary(seconds)
            case CallPrimary(seconds):  # the SDK opens a link without a time limit
                async with bounded(seconds, f"opening a link to {self.entity_name!r}"):
                    return await call.request.on_primary(seconds)
            case Borrow(queue, seconds, is_fresh):
                call.connection = await pairing.pool.borrow(queue, seconds, is_fresh=is_fresh)
                return call.connection
            case OpenLink(connection, seconds):
                async with bounded(seconds, f"opening a link to {connection.queue!r}"):
                    return await connection.sender.__aenter__()
            case SendBatch(connection, content, seconds):
                return await connection.sender.send_messages(content, timeout=seconds)
            case Wait(seconds):
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        return await pairing.closing.wait()
                return False
            case StoreInOutbox(path, messages):
                return await pairing.on_disk(lambda file: file.put(path, messages))

    async def reset_link(self, epoch: int) -> None:
        """Close the link before its first use after a failback. A link from before the outage may
        be dead without an error yet, and its failure would fail the entity over again.
        """
        self.epoch = epoch
        with suppress(Exception):  # the link is gone in either case
            await private.close_link(self)

    # --- for the background -----------------------------------------------------------------------

    @classmethod
    def of(cls, client: Any, path: str, state: ClientState[Pairing]) -> PairedSender:
        """A sender that the application's `close` does not know."""
        sender = private.adopt(ServiceBusClient.get_queue_sender(client, path), cls)
        sender.bind(state)
        return sender

    async def send_stored(self, pairing: Pairing, messages: Sequence[Any]) -> None:
        """Send messages that wait in the outbox. One goes by itself: a batch may not hold it."""
        request = SendRequest(
            messages=messages[0] if len(messages) == 1 else list(messages),
            count=len(messages),
            on_primary=lambda seconds: self._send_primary(request, seconds),
            is_from_outbox=True,
        )
        await self._run_call(pairing, request, None)

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
    """Allows one call at a time on the primary. It records its owner, and whether one call or
    several held it while another call waited.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._holder: object = None
        self._owner: asyncio.Task[Any] | None = None
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
        self._owner = asyncio.current_task()
        self._acquired += 1

    def release(self, holder: object = None) -> None:
        """No effect if another call than the holder has the lock."""
        if holder is not None and self._holder is not holder:
            return
        self._holder = self._owner = None
        self._lock.release()

    def is_mine(self) -> bool:
        return self._owner is not None and self._owner is asyncio.current_task()
