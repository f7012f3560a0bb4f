"""The SDK's sender, with its whole surface. When its entity is failed over, messages go to the
backlog.

`client/sender.py` has what each call does; `_perform` carries out the steps. Threads may share one
sender, which the SDK's own does not allow: on the primary, one thread sends at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Self

from azure.servicebus import ServiceBusMessageBatch, ServiceBusSender

from pairbus.client.blocking.background import CUT_AGAIN_SECONDS
from pairbus.client.blocking.pairing import Pairing
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
    run,
)

# How long `close` waits while the background opens this sender's link.
CLOSE_SECONDS_MAX = 5.0
# How often a call that waits for the sender's lock looks whether it is free.
LOCK_LOOK_SECONDS = 1.0


class PairedSender(SenderCore, private.PromptFailures, ServiceBusSender):  # type: ignore[misc]
    """Create it with `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    def bind(self, state: ClientState[Pairing]) -> None:
        self.client_state = state
        self.lock = SenderLock(self.entity_name)
        self.is_opening = False

    def __enter__(self) -> Self:
        self._run(self._opening())
        return self

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Like the SDK's method. If the entity is failed over, the messages go to a backlog queue.

        The timeout then applies to each of the two namespaces.
        """
        self._run(self._sending(message, timeout, kwargs))

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
        return self._run(self._scheduling(messages, schedule_time_utc, timeout, kwargs))

    def cancel_scheduled_messages(
        self, sequence_numbers: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """Like the SDK's method, and always on the primary: a diverted message has no sequence
        number, so it cannot be cancelled.
        """
        self._run(self._cancelling(sequence_numbers, timeout, kwargs))

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """Like the SDK's method. If the entity is failed over, the size limit is that of a backlog
        queue.
        """
        return self._run(self._making_batch(max_size_in_bytes))

    def close(self) -> None:
        """Like the SDK's method, but it waits while the background opens the link: the background
        would otherwise continue and leak what it opened.
        """
        self.is_closed = True
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while self.is_opening and time.monotonic() < until:
            private.cut(self)  # repeatedly, because there may be no socket to cut yet
            time.sleep(CUT_AGAIN_SECONDS)
        super().close()

    # --- the steps of a call ----------------------------------------------------------------------

    def _run(self, steps: Steps[Result]) -> Result:
        """If the client has faulted, the caller gets ClientFaulted, and not the error that the call
        got while the client was ending.
        """
        try:
            return run(steps, self._perform)
        except Exception as error:
            self.client_state.check(error)
            raise

    def _perform(self, step: Any) -> Any:
        pairing: Any = self.client_state.pairing
        match step:
            case AcquireLock(seconds, holder):
                return self.lock.acquire(seconds, holder)
            case ResetLink(epoch):
                return self.reset_link(epoch)
            case CallPrimary(seconds, call):
                with pairing.worker.deadline(self, seconds):
                    return call(seconds)
            case Borrow(queue, seconds, is_fresh, call):
                call.connection = pairing.pool.borrow(queue, seconds, is_fresh=is_fresh, call=call)
                return call.connection
            case OpenLink(connection, seconds):
                return pairing.open_link(connection.sender, seconds, connection.queue)
            case SendBatch(connection, content, seconds):
                with pairing.worker.deadline(connection.sender, seconds):
                    return connection.sender.send_messages(content, timeout=seconds)
            case Wait(seconds):
                return pairing.closing.wait(seconds)
            case StoreInOutbox(path, messages):
                return pairing.on_disk(lambda file: file.put(path, messages))
            case _:
                return step()

    def _sdk_open(self) -> Any:
        return super().__enter__()

    def reset_link(self, epoch: int) -> None:
        """Close the link before its first use after a failback. A link from before the outage may
        be dead without an error yet, and its failure would fail the entity over again.
        """
        self.epoch = epoch
        with suppress(Exception):  # the link is gone in either case
            private.close_link(self)

    # --- for the background -----------------------------------------------------------------------

    def send_stored(self, messages: Sequence[Any]) -> None:
        # Not `_run`: what is in the backlog is deleted from the outbox, also if the client faults.
        run(self._sending_stored(messages), self._perform)

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
            if self.is_closed:  # in the meantime: nothing else would close the link
                with suppress(Exception):  # the link is gone in either case
                    private.close_link(self)
            self.is_opening = False
            self.lock.release()

    # --- for the SDK ------------------------------------------------------------------------------

    @property
    def handshake_seconds(self) -> float | None:
        pairing = self.client_state.pairing
        return None if pairing is None else pairing.timing.send_seconds


class SenderLock:
    """Allows one call at a time on the primary. It records whether one call or several held it
    while another call waited.

    A Ctrl-C can come between any two steps of a program. So `acquire` takes the lock and notes its
    holder in one step, and a call that does not know whether it got the lock can release it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._holder: dict[None, object] = {}  # `setdefault` is the one step
        # `with` takes the lock and not the condition, as in `ReentrantEvent`.
        self._lock = threading.RLock()
        self._freed = threading.Condition(self._lock)
        self.waiting = 0
        """How many calls wait."""
        self._acquired = 0

    def try_acquire(self, holder: object = None) -> bool:
        """Returns False if another call holds the lock."""
        holder = object() if holder is None else holder
        if self._holder.setdefault(None, holder) is not holder:
            return False
        self._acquired += 1
        return True

    def acquire(self, seconds: float, holder: object = None) -> bool:
        """Acquires the lock. Returns whether it had to wait."""
        before = self._acquired
        if self.try_acquire(holder):
            return False
        until = time.monotonic() + seconds
        with self._lock:
            self.waiting += 1
            try:
                while not self.try_acquire(holder):
                    left = until - time.monotonic()
                    if left <= 0:
                        raise SenderBusy(self._path, seconds, calls=self._acquired - before)
                    # Not longer: a Ctrl-C can prevent the notification.
                    self._freed.wait(min(left, LOCK_LOOK_SECONDS))
            finally:
                self.waiting -= 1
        return True

    def release(self, holder: object = None) -> None:
        """No effect if another call than the holder has the lock."""
        if holder is not None and self._holder.get(None) is not holder:
            return
        self._holder.clear()
        if self.waiting:
            with self._lock:
                self._freed.notify()
