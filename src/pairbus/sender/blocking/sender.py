"""The SDK's sender, with its whole surface, that turns to the backlog when its entity is failed
over.

Unpaired it is the SDK's. Paired, what touches the entity goes through `deliver`. It may be
shared by threads, which the SDK's own may not: on the primary they take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import ServiceBusError

from pairbus.sender.batch import Batch
from pairbus.sender.blocking.delivery import deliver
from pairbus.sender.blocking.failing import QuickToFail
from pairbus.sender.errand import (
    Errand,
    TurnTaken,
    check_arguments,
    check_known,
    check_live,
    count_of,
    is_stuck,
    unknown_numbers,
)
from pairbus.servicebus import internals
from pairbus.servicebus.messages import diverted_all, give_ids

if TYPE_CHECKING:
    from pairbus.sender.blocking.pairing import Pairing


class PairedSender(QuickToFail):
    """Get one from `ServiceBusClient.get_queue_sender` or `get_topic_sender`."""

    _client_state: Any
    """The client's, where its pairing is found: also one that comes after this sender was made."""

    def belong_to(self, state: Any) -> None:
        self._client_state = state
        self._turn = Turn(self.entity_name)
        self._epoch = 0

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
        send = super().send_messages
        sending: Errand[None, None] = Errand(
            count=count_of(message),
            on_primary=lambda timeout: send(message, timeout=timeout),
            diverted=lambda: diverted_all(message, self.entity_name),
            when_diverted=lambda queue: None,
        )
        if sending.count:
            deliver(pairing, self, sending, timeout)

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
        with self.taking_turn(bound), pairing.keeper.guard(self, bound):
            super().cancel_scheduled_messages(sequence_numbers, timeout=bound, **kwargs)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        """As the SDK's. Where the entity is failed over, the limit is that of the last link
        known."""
        self._client_state.check()
        pairing = self._pairing
        if pairing is None or self._turn.is_mine() or self._max_message_size_on_link:
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

    # --- for `deliver` ----------------------------------------------------------------------------

    @contextmanager
    def taking_turn(self, timeout: float | None) -> Iterator[None]:
        """One thread at a time: the SDK's link is not made for more."""
        self._turn.take(timeout)
        try:
            yield
        finally:
            self._turn.release()

    def renew(self, epoch: int) -> None:
        """Before the first use after a way back to the primary: a link from before the outage may
        be dead without having told, and its failure would fail the entity over again."""
        if epoch != self._epoch:
            self._epoch = epoch
            with suppress(Exception):  # it is gone, one way or another
                self._close_handler()

    def distrust(self) -> None:
        """A call was interrupted, and its answer may still come: the link is opened anew."""
        self._epoch = -1

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

    def take(self, timeout: float | None) -> None:
        before = self._taken
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise TurnTaken(self._path, timeout, is_stuck=is_stuck(self._taken - before, timeout))
        self._owner = threading.get_ident()
        self._taken += 1

    def release(self) -> None:
        self._owner = None
        self._lock.release()

    def is_mine(self) -> bool:
        return self._owner == threading.get_ident()
