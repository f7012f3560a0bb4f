"""The SDK's asyncio sender, that turns to the backlog when its entity is failed over.

As `blocking/sender.py`. It may be shared by tasks, which the SDK's own may not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusMessageBatch

from pairbus.client.aio.bounds import bounded
from pairbus.client.aio.delivery import deliver, divert_at_once
from pairbus.client.aio.failing import QuickToFail
from pairbus.client.billing import extra_units
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
    from pairbus.client.aio.pairing import Pairing


# What a call that is under way has to end in when its sender is closed.
CLOSE_SECONDS_MAX = 5.0

_Made = ServiceBusMessageBatch | None


class PairedSender(QuickToFail):
    """Get one from `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    _client_state: Any
    """The client's, where its pairing is found: also one that comes after this sender was made."""

    def belong_to(self, state: Any) -> None:
        self._client_state = state
        self.turn = Turn(self.entity_name)
        self.epoch = 0
        self.has_called = False

    @property
    def _pairing(self) -> Pairing | None:
        pairing: Pairing | None = self._client_state.pairing
        return pairing

    async def __aenter__(self) -> Self:
        pairing = self._pairing
        if pairing is None:
            self._client_state.check()
            await super().__aenter__()
        else:
            check_live(self)
            opening: Errand[Any, None] = Errand(
                count=0,
                on_primary=lambda timeout: super(PairedSender, self).__aenter__(),
                when_diverted=lambda queue: None,
            )
            await deliver(pairing, self, opening, None)
        return self

    async def send_messages(
        self, message: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's. Where the entity is failed over, the messages go to a backlog queue.

        `timeout` then holds for each of the two namespaces.
        """
        pairing = self._pairing
        if pairing is None:
            self._client_state.check()
            await super().send_messages(message, timeout=timeout, **kwargs)
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
                await internals.send(super().send_messages, message, bound)
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
            first = await divert_at_once(pairing, self.entity_name, message, timeout)
            if isinstance(first, Done):
                return
            failed = first
        send = super().send_messages
        sending: Errand[Awaitable[None], None] = Errand(
            count=count,
            content=message,
            on_primary=lambda timeout: send(message, timeout=timeout),
            diverted=lambda: diverted_all(message, self.entity_name),
            when_diverted=lambda queue: None,
        )
        await deliver(pairing, self, sending, timeout, failed)

    async def schedule_messages(
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
            return await super().schedule_messages(
                messages, schedule_time_utc, timeout=timeout, **kwargs
            )
        check_arguments(self, timeout, kwargs)
        messages = give_ids(messages)
        schedule = super().schedule_messages
        scheduling: Errand[Awaitable[list[int]], list[int]] = Errand(
            count=count_of(messages),
            content=messages,
            on_primary=lambda timeout: schedule(messages, schedule_time_utc, timeout=timeout),
            diverted=lambda: diverted_all(messages, self.entity_name, schedule=schedule_time_utc),
            when_diverted=lambda queue: unknown_numbers(messages, queue),
        )
        return await deliver(pairing, self, scheduling, timeout) if scheduling.count else []

    async def cancel_scheduled_messages(
        self, sequence_numbers: Any, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's, on the primary always: what was diverted has no number to be cancelled
        by."""
        check_live(self)
        check_known(self.entity_name, sequence_numbers)
        pairing = self._pairing
        if pairing is None:
            await super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
            return
        bound = pairing.send_seconds if timeout is None else timeout
        await self.turn.take(bound)
        try:
            await super().cancel_scheduled_messages(sequence_numbers, timeout=bound, **kwargs)
        finally:
            self.turn.release()

    async def create_message_batch(
        self, max_size_in_bytes: int | None = None
    ) -> ServiceBusMessageBatch:
        """As the SDK's. Where the entity is failed over, the limit is that of the last link
        known."""
        self._client_state.check()
        pairing = self._pairing
        if pairing is None or self.turn.is_mine() or self._max_message_size_on_link:
            return Batch.of(await super().create_message_batch(max_size_in_bytes))
        check_live(self)
        create, lanes = super().create_message_batch, pairing.lanes

        batching: Errand[Awaitable[_Made], _Made] = Errand(
            count=0,
            on_primary=lambda timeout: create(max_size_in_bytes),
            when_diverted=lambda queue: internals.lend_limits(self, lanes.limits),
        )
        made = await deliver(pairing, self, batching, None)
        return Batch.of(made or await create(max_size_in_bytes))

    async def close(self) -> None:
        """As the SDK's, but not under a task that is just opening the link: that would go on, and
        leave behind what it opened."""
        if self._pairing is None or self.turn.is_mine():
            await super().close()
            return
        self._shutdown.set()  # who waits for the turn has nothing to wait for any more
        is_taken = self.turn.take_at_once()
        until = time.monotonic() + CLOSE_SECONDS_MAX
        while not is_taken and time.monotonic() < until:
            internals.abort(self)  # again and again: the SDK may try anew
            with suppress(TurnTaken):
                await self.turn.take(0.1)
                is_taken = True
        try:
            await super().close()
        finally:
            if is_taken:
                self.turn.release()

    # --- for `deliver` ----------------------------------------------------------------------------

    async def renew(self, epoch: int) -> None:
        """Before the first use after a way back to the primary: a link from before the outage may
        be dead without having told, and its failure would fail the entity over again."""
        self.epoch = epoch
        with suppress(Exception):  # it is gone, one way or another
            await self._close_handler()

    @property
    def is_in_use(self) -> bool:
        """Somebody has sent with it, and so will close it: it may be given a link unasked."""
        return not self._shutdown.is_set() and (self.has_called or internals.has_link(self))

    async def make_ready(self, epoch: int, pairing: Pairing) -> None:
        """Before the way back is told: a link of this epoch, so that the first message home does
        not wait for it. Who uses the sender just now sees to that; so does the next call if it
        fails."""
        if not self.turn.take_at_once():
            return
        seconds = pairing.link_seconds
        try:
            async with bounded(seconds, f"opening a link to {self.entity_name!r}"):
                await self.renew(epoch)
                await internals.open_link(self, seconds)
        except BaseException:
            self.distrust()
            raise
        finally:
            self.turn.release()

    def distrust(self) -> None:
        """A call was interrupted, and its answer may still come: the link is opened anew."""
        self.epoch = -1

    # --- for the SDK ------------------------------------------------------------------------------

    async def _handle_exception(self, exception: BaseException) -> Any:
        error = await super()._handle_exception(exception)
        if self._pairing is not None:
            internals.raise_if_busy(error)
        return error


class Turn:
    """A lock that tells the time-out of the one who holds it from that of the many who wait."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None
        self._taken = 0
        self._waiting = 0

    def take_at_once(self) -> bool:
        """False: somebody else has it, or is to have it."""
        if self._waiting or self._lock.locked():
            return False
        # `acquire` of a free lock does not wait, so it can be run to its end here. (Without
        # `suppress`, which would take longer than the lock: every message comes here.)
        try:  # noqa: SIM105
            self._lock.acquire().send(None)
        except StopIteration:
            pass
        self._owner = asyncio.current_task()
        self._taken += 1
        return True

    async def take(self, timeout: float) -> bool:
        """Whether it had to be waited for."""
        before, has_waited = self._taken, False
        if self._waiting or self._lock.locked():
            has_waited = True
            self._waiting += 1
            try:
                async with asyncio.timeout(timeout):
                    await self._lock.acquire()
            except TimeoutError:
                stuck = is_stuck(self._taken - before, timeout)
                raise TurnTaken(self._path, timeout, is_stuck=stuck) from None
            finally:
                self._waiting -= 1
        else:
            await self._lock.acquire()  # at once
        self._owner = asyncio.current_task()
        self._taken += 1
        return has_waited

    def release(self) -> None:
        self._owner = None
        self._lock.release()

    def is_mine(self) -> bool:
        return self._owner is not None and self._owner is asyncio.current_task()
