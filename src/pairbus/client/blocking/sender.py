"""The SDK's sender, with its whole surface, that turns to the backlog when its entity is failed
over.

Unpaired it is the SDK's. Paired, what touches the entity goes through `deliver`. It may be
shared by threads, which the SDK's own may not: on the primary they take turns.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.billing import extra_units
from pairbus.client.blocking.delivery import deliver, divert_at_once
from pairbus.client.blocking.failing import QuickToFail
from pairbus.client.blocking.keeper import CUT_AGAIN_SECONDS
from pairbus.client.errand import (
    Done,
    Errand,
    FirstFailure,
    TurnTaken,
    check_arguments,
    check_known,
    check_live,
    count_of,
    is_single,
    is_stuck,
    unknown_numbers,
)
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.batch import Batch
from pairbus.client.sdk.messages import diverted_all, give_ids

if TYPE_CHECKING:
    from pairbus.client.blocking.pairing import Pairing


# What the background has to end in, when it opens the link of a sender that is closed.
CLOSE_SECONDS_MAX = 5.0


class PairedSender(QuickToFail):
    """Get one from `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    _client_state: Any
    """The client's, where its pairing is found: also one that comes after this sender was made."""

    def belong_to(self, state: Any) -> None:
        self._client_state = state
        self.turn = Turn(self.entity_name)
        self.epoch = 0
        self.has_called = False
        self.is_opening = False

    @property
    def _pairing(self) -> Pairing | None:
        pairing: Pairing | None = self._client_state.pairing
        return pairing

    def __enter__(self) -> Self:
        pairing = self._pairing
        if pairing is None:
            self._client_state.check()
            super().__enter__()
        else:
            check_live(self)
            opening: Errand[Any, None] = Errand(
                count=0,
                on_primary=lambda timeout: super(PairedSender, self).__enter__(),
                when_diverted=lambda queue: None,
            )
            deliver(pairing, self, opening, None)
        return self

    def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """As the SDK's. Where the entity is failed over, the messages go to a backlog queue.

        `timeout` then holds for each of the two namespaces.
        """
        pairing = self._pairing
        if pairing is None:
            self._client_state.check()
            super().send_messages(message, timeout=timeout, **kwargs)
            return
        check_arguments(self, timeout, kwargs)
        if isinstance(message, dict) and not message:
            return  # as the SDK does
        message = give_ids(message)
        count = count_of(message)
        if not count:
            return
        failed: FirstFailure | None = None
        way = pairing.direct(self.entity_name)
        # The way of almost every message, without what only the others need.
        if way is not None and way.epoch == self.epoch and self.turn.take_at_once():
            bound = pairing.send_seconds if timeout is None else timeout
            began = pairing.clock()
            try:
                with pairing.keeper.guard(self, bound):
                    internals.send(super().send_messages, message, bound)
            except Exception as error:
                failed = FirstFailure(way, error, began)
            except BaseException:
                self.distrust()
                raise
            finally:
                self.turn.release()
            if failed is None:  # told when the turn is free: an observer may send as well
                extra = extra_units(self, message)
                pairing.sent(self.entity_name, way, count=count, extra=extra)
                return
        elif way is None and is_single(message):
            self.has_called = True
            first = divert_at_once(pairing, self.entity_name, message, timeout)
            if isinstance(first, Done):
                return
            failed = first
        send = super().send_messages
        sending: Errand[None, None] = Errand(
            count=count,
            content=message,
            on_primary=lambda timeout: send(message, timeout=timeout),
            diverted=lambda: diverted_all(message, self.entity_name),
            when_diverted=lambda queue: None,
        )
        deliver(pairing, self, sending, timeout, failed)

    def schedule_messages(
        self,
        messages: Any,
        schedule_time_utc: datetime,
        *,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """As the SDK's. Where the entity is failed over, the messages go to a backlog queue, and
        come home with their schedule.

        Their sequence numbers are not known then: in place of each there is an
        `UnknownSequenceNumber` (-1), which cannot be cancelled and says what became of the message.
        """
        pairing = self._pairing
        if pairing is None:
            self._client_state.check()
            return super().schedule_messages(messages, schedule_time_utc, timeout=timeout, **kwargs)
        check_arguments(self, timeout, kwargs)
        messages = give_ids(messages)
        schedule = super().schedule_messages
        scheduling: Errand[list[int], list[int]] = Errand(
            count=count_of(messages),
            content=messages,
            on_primary=lambda timeout: schedule(messages, schedule_time_utc, timeout=timeout),
            diverted=lambda: diverted_all(messages, self.entity_name, schedule=schedule_time_utc),
            when_diverted=lambda queue: unknown_numbers(messages, queue),
        )
        return deliver(pairing, self, scheduling, timeout) if scheduling.count else []

    def cancel_scheduled_messages(
        self, sequence_numbers: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's, on the primary always: what was diverted has no number to be cancelled
        by."""
        check_live(self)
        check_known(self.entity_name, sequence_numbers)
        pairing = self._pairing
        if pairing is None:
            super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
            return
        bound = pairing.send_seconds if timeout is None else timeout
        self.turn.take(bound)
        try:
            with pairing.keeper.guard(self, bound):
                super().cancel_scheduled_messages(sequence_numbers, timeout=bound, **kwargs)
        finally:
            self.turn.release()

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """As the SDK's. Where the entity is failed over, the limit is that of the last link
        known."""
        self._client_state.check()
        pairing = self._pairing
        if pairing is None or self.turn.is_mine() or self._max_message_size_on_link:
            return Batch.of(super().create_message_batch(max_size_in_bytes))
        check_live(self)
        create, lanes = super().create_message_batch, pairing.lanes

        def create_diverted(queue: str) -> ServiceBusMessageBatch:
            internals.lend_limits(self, lanes.limits)
            return create(max_size_in_bytes)

        batching: Errand[ServiceBusMessageBatch, ServiceBusMessageBatch] = Errand(
            count=0,
            on_primary=lambda timeout: create(max_size_in_bytes),
            when_diverted=create_diverted,
        )
        return Batch.of(deliver(pairing, self, batching, None))

    def close(self) -> None:
        """As the SDK's, but not under the background that is just opening the link: that would go
        on, and leave behind what it opened."""
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while self.is_opening and time.monotonic() < until:
            internals.cut(self)  # again and again: there may be nothing to be cut yet
            time.sleep(CUT_AGAIN_SECONDS)
        super().close()

    # --- for `deliver` ----------------------------------------------------------------------------

    def renew(self, epoch: int) -> None:
        """Before the first use after a way back to the primary: a link from before the outage may
        be dead without having told, and its failure would fail the entity over again."""
        self.epoch = epoch
        with suppress(Exception):  # it is gone, one way or another
            self._close_handler()

    @property
    def is_in_use(self) -> bool:
        """Somebody has sent with it, and so will close it: it may be given a link unasked."""
        return not self._shutdown.is_set() and (self.has_called or internals.has_link(self))

    def make_ready(self, epoch: int, pairing: Pairing) -> None:
        """Before the way back is told: a link of this epoch, so that the first message home does
        not wait for it. Who uses the sender just now sees to that; so does the next call if it
        fails."""
        if not self.turn.take_at_once():
            return
        self.is_opening = True
        try:
            with pairing.keeper.guard(self, pairing.link_seconds):
                self.renew(epoch)
                internals.open_link(self, pairing.link_seconds)
        except BaseException:
            self.distrust()
            raise
        finally:
            if self._shutdown.is_set():  # meanwhile: nobody else would close it
                self._close_handler()
            self.is_opening = False
            self.turn.release()

    def distrust(self) -> None:
        """A call was interrupted, and its answer may still come: the link is opened anew."""
        self.epoch = -1

    # --- for the SDK ------------------------------------------------------------------------------

    def _handle_exception(self, exception: BaseException) -> ServiceBusError:
        error = super()._handle_exception(exception)
        if self._pairing is not None:
            internals.raise_if_busy(error)
        return error

    def _create_handler(self, auth: Any) -> None:
        pairing = self._pairing
        if pairing is not None:
            pairing.use_tls(self)
        super()._create_handler(auth)


class Turn:
    """A lock that tells the time-out of the one who holds it from that of the many who wait."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._taken = 0

    def take_at_once(self) -> bool:
        """False: somebody else has it."""
        if not self._lock.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        self._taken += 1
        return True

    def take(self, timeout: float) -> bool:
        """Whether it had to be waited for."""
        before, has_waited = self._taken, False
        if not self._lock.acquire(blocking=False):
            has_waited = True
            if not self._lock.acquire(timeout=timeout):
                stuck = is_stuck(self._taken - before, timeout)
                raise TurnTaken(self._path, timeout, is_stuck=stuck)
        self._owner = threading.get_ident()
        self._taken += 1
        return has_waited

    def release(self) -> None:
        self._owner = None
        self._lock.release()

    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()
