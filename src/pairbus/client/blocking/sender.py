"""The SDK's sender, with its whole surface. When its entity is failed over, messages go to the
backlog.

An unpaired sender behaves like the SDK's. In a paired one, `send.py` decides each call, and
`_perform` carries out the steps. Threads may share one sender, which the SDK's own does not allow:
on the primary, one thread sends at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, Self, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, ServiceBusSender

from pairbus.client.blocking.background import CUT_AGAIN_SECONDS
from pairbus.client.blocking.pairing import Pairing
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
    run,
)

P = ParamSpec("P")
Result = TypeVar("Result")

# How long `close` waits while the background opens this sender's link.
CLOSE_SECONDS_MAX = 5.0
# How often a call that waits for the sender's lock looks whether it is free.
LOCK_LOOK_SECONDS = 1.0


def reports_fault(call: Callable[P, Result]) -> Callable[P, Result]:
    """For the methods of a sender: if the client has faulted, the caller gets ClientFaulted, and
    not the error that the call got while the client was ending.
    """

    @wraps(call)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            sender: Any = args[0]
            sender.client_state.check(error)
            raise

    return reporting


class PairedSender(SenderState, private.PromptFailures, ServiceBusSender):  # type: ignore[misc]
    """Create it with `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    def bind(self, state: ClientState[Pairing]) -> None:
        self.client_state = state
        self.lock = SenderLock(self.entity_name)
        self.is_opening = False

    @property
    def _pairing(self) -> Pairing | None:
        return self.client_state.pairing

    @reports_fault
    def __enter__(self) -> Self:
        pairing = self._pairing
        if pairing is None:
            self.client_state.check()
            self.has_called = True
            super().__enter__()
        else:
            self._open_primary(pairing)
        return self

    @reports_fault
    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Like the SDK's method. If the entity is failed over, the messages go to a backlog queue.

        The timeout then applies to each of the two namespaces.
        """
        pairing = self._pairing
        if pairing is None:
            self.client_state.check()
            self.has_called = True
            super().send_messages(message, timeout=timeout, **kwargs)
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
        self._run_call(pairing, request, timeout)

    @reports_fault
    def schedule_messages(
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
            return super().schedule_messages(messages, schedule_time_utc, timeout=timeout, **kwargs)
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
        numbers: list[int] = self._run_call(pairing, request, timeout)
        return numbers

    @reports_fault
    def cancel_scheduled_messages(
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
            super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
            return
        seconds = pairing.timing.send_seconds if timeout is None else timeout
        self.lock.acquire(seconds)
        try:
            with pairing.worker.deadline(self, seconds):
                super().cancel_scheduled_messages(sequence_numbers, timeout=seconds, **kwargs)
        finally:
            self.lock.release()

    @reports_fault
    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Like the SDK's method. If the entity is failed over, the size limit is that of a backlog
        queue.
        """
        self.client_state.check()
        self.has_called = True
        pairing = self._pairing
        # The SDK itself may call this from `send_messages`, under our lock.
        if pairing is None or self.lock.is_mine():
            return Batch.of(super().create_message_batch(max_size_in_bytes))
        if not private.knows_limits(self):
            self._open_primary(pairing)
            private.lend_limits(self, pairing.pool.limits)
        path = self.entity_name
        # With ordered fail-back, the envelopes are made when the batch is sent.
        is_plain = pairing.is_ordered or isinstance(pairing.plan(path), ToPrimary)
        made = super().create_message_batch(max_size_in_bytes)
        return Batch.of(made, path=None if is_plain else path)

    def close(self) -> None:
        """Like the SDK's method, but it waits while the background opens the link: the background
        would otherwise continue and leak what it opened.
        """
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while self.is_opening and time.monotonic() < until:
            private.cut(self)  # repeatedly, because there may be no socket to cut yet
            time.sleep(CUT_AGAIN_SECONDS)
        super().close()

    # --- the steps of a call ----------------------------------------------------------------------

    def _open_primary(self, pairing: Pairing) -> None:
        check_live(self)
        open_link = super().__enter__
        self._run_call(pairing, SendRequest(on_primary=lambda seconds: open_link()), None)

    def _send_primary(self, request: SendRequest, seconds: float) -> None:
        sent = request.messages
        if isinstance(sent, list):
            if request.batch is None:
                # As the SDK does with a list, but it would convert each message twice.
                batch = super().create_message_batch()
                for message in sent:
                    batch.add_message(message)
                request.batch = batch
            sent = request.batch
        elif isinstance(sent, Batch):
            sent.make_plain()
        super().send_messages(sent, timeout=seconds)

    def _run_call(self, pairing: Pairing, request: SendRequest, timeout: float | None) -> Any:
        call = SendCall(pairing, self, request, timeout)
        return run(call.steps(), lambda step: self._perform(pairing, call, step))

    def _perform(self, pairing: Pairing, call: SendCall, step: Step) -> Any:
        match step:
            case AcquireLock(seconds):
                return self.lock.acquire(seconds, call)
            case ResetLink(epoch):
                return self.reset_link(epoch)
            case CallPrimary(seconds):
                with pairing.worker.deadline(self, seconds):
                    return call.request.on_primary(seconds)
            case Borrow(queue, seconds, is_fresh):
                call.connection = pairing.pool.borrow(queue, seconds, is_fresh=is_fresh)
                return call.connection
            case OpenLink(connection, seconds):
                with pairing.worker.deadline(connection.sender, seconds):
                    return connection.sender.__enter__()
            case SendBatch(connection, content, seconds):
                with pairing.worker.deadline(connection.sender, seconds):
                    return connection.sender.send_messages(content, timeout=seconds)
            case Wait(seconds):
                return pairing.closing.wait(seconds)
            case StoreInOutbox(path, messages):
                return pairing.on_disk(lambda file: file.put(path, messages))

    def reset_link(self, epoch: int) -> None:
        """Close the link before its first use after a failback. A link from before the outage may
        be dead without an error yet, and its failure would fail the entity over again.
        """
        self.epoch = epoch
        with suppress(Exception):  # the link is gone in either case
            private.close_link(self)

    # --- for the background -----------------------------------------------------------------------

    @classmethod
    def of(cls, client: Any, path: str, state: ClientState[Pairing]) -> PairedSender:
        """A sender that the application's `close` does not know."""
        sender = private.adopt(ServiceBusClient.get_queue_sender(client, path), cls)
        sender.bind(state)
        return sender

    def send_stored(self, pairing: Pairing, messages: Sequence[Any]) -> None:
        """Send messages that wait in the outbox. One goes by itself: a batch may not hold it."""
        request = SendRequest(
            messages=messages[0] if len(messages) == 1 else list(messages),
            count=len(messages),
            on_primary=lambda seconds: self._send_primary(request, seconds),
            is_from_outbox=True,
        )
        self._run_call(pairing, request, None)

    def open_early(self, epoch: int, pairing: Pairing) -> None:
        """Open a link of this epoch before the entity fails back, so that the first message does
        not wait for it. If the sender is in use, or this fails, the next call opens the link."""
        if not self.lock.try_acquire():
            return
        self.is_opening = True
        seconds = pairing.timing.link_seconds
        try:
            with pairing.worker.deadline(self, seconds):
                self.reset_link(epoch)
                private.open_link(self, seconds)
        except BaseException:
            self.require_new_link()
            raise
        finally:
            if private.is_shut(self):  # closed in the meantime: nothing else would close the link
                private.close_link(self)
            self.is_opening = False
            self.lock.release()

    # --- for the SDK ------------------------------------------------------------------------------

    @property
    def handshake_seconds(self) -> float | None:
        pairing = self._pairing
        return None if pairing is None else pairing.timing.send_seconds


class SenderLock:
    """Allows one call at a time on the primary. It records its owner, and whether one call or
    several held it while another call waited.

    A Ctrl-C can come between any two steps of a program. So `acquire` takes the lock and notes its
    holder in one step, and a call that does not know whether it got the lock can release it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._holder: dict[None, object] = {}  # `setdefault` is the one step
        self._freed = threading.Condition()
        self._waiting = 0
        self._owner: int | None = None
        self._acquired = 0

    def try_acquire(self, holder: object = None) -> bool:
        """Returns False if another call holds the lock."""
        holder = object() if holder is None else holder
        if self._holder.setdefault(None, holder) is not holder:
            return False
        self._owner = threading.get_ident()
        self._acquired += 1
        return True

    def acquire(self, seconds: float, holder: object = None) -> bool:
        """Acquires the lock. Returns whether it had to wait."""
        before = self._acquired
        if self.try_acquire(holder):
            return False
        until = time.monotonic() + seconds
        with self._freed:
            self._waiting += 1
            try:
                while not self.try_acquire(holder):
                    left = until - time.monotonic()
                    if left <= 0:
                        raise SenderBusy(self._path, seconds, calls=self._acquired - before)
                    # Not longer: a Ctrl-C can prevent the notification.
                    self._freed.wait(min(left, LOCK_LOOK_SECONDS))
            finally:
                self._waiting -= 1
        return True

    def release(self, holder: object = None) -> None:
        """No effect if another call than the holder has the lock."""
        if holder is not None and self._holder.get(None) is not holder:
            return
        self._owner = None
        self._holder.clear()
        if self._waiting:
            with self._freed:
                self._freed.notify()

    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()
