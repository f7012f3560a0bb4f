"""How messages get into a queue: checks, duplicates, pings.

A batch is checked whole before anything of it is stored, and stored in one transaction. Where a
queue forwards, `forwarding.py` takes over. Times are epoch milliseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.message import State
from pairbus.broker.messages import forwarding, lifecycle
from pairbus.broker.messages.incoming import IncomingMessage, check, to_message
from pairbus.cost.meter import UNIT_BYTES, units_of

if TYPE_CHECKING:
    from pairbus.broker.messages.forwarding import Placed
    from pairbus.broker.messages.queue import Done, Queue

PARTITIONS: Final = 16


class _FirstSend:
    """A message id on its way to the disk, for the duplicates that come meanwhile."""

    __slots__ = ("enqueuer", "error", "message_id")

    def __init__(self, message_id: str, enqueuer: Enqueuer) -> None:
        self.message_id = message_id
        self.enqueuer: Enqueuer | None = enqueuer
        self.error: Exception | None = None


class Enqueuer:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        # Message ids of sends that are not durable yet; `store.was_seen` knows the others.
        self._pending_ids: dict[str, _FirstSend] = {}
        self._last_times = (
            0,
            queue.description,
            lifecycle.times_at_enqueue(queue.description, ttl_ms=None, due_ms=None, now_ms=0),
        )

    def enqueue(
        self,
        batch: Sequence[IncomingMessage],
        done: Done,
        arguments: tuple[Any, ...],
        *,
        now_ms: int,
    ) -> AmqpError | list[int]:
        queue = self._queue
        added = 0
        for one in batch:
            error = check(one, queue.description, queue.namespace.lock_tokens)
            if error is not None:
                return error
            added += one.size
        if (faults := queue.namespace.active_faults) is not None:
            for one in batch:
                later_ms = faults.visible_at_ms(queue.name, now_ms=now_ms)
                one.due_ms = max(one.due_ms or 0, later_ms or 0) or None
        error = lifecycle.refusal_to_send(queue.description) or lifecycle.refusal_of_size(
            queue.description, used=queue.size_bytes, added=added
        )
        if error is not None:
            return error
        queue.tally.send += (
            # If all together are no larger than that, each of them is one.
            len(batch) if added <= UNIT_BYTES else sum(units_of(one.size) for one in batch)
        )
        placed: Placed = []
        numbers = []
        firsts: list[_FirstSend] = []
        plain_times = self.plain_times(now_ms)
        for one in batch:
            number, where = self._pass_on(one, firsts, plain_times, now_ms=now_ms)
            numbers.append(number)
            placed += where
        queue.namespace.committer.when_durable(self._taken_in, placed, firsts, done, arguments)
        return numbers

    def _taken_in(
        self,
        error: Exception | None,
        placed: Placed,
        firsts: list[_FirstSend],
        done: Done,
        arguments: tuple[Any, ...],
    ) -> None:
        if firsts:
            error = self._ids_durable(error, firsts)
        if error is not None:
            for queue, mailbox, message in placed:
                queue.unplace(mailbox, message)
            done(forwarding.cannot_store(error), *arguments)
            return
        for queue, mailbox, message in placed:
            queue.arrived(mailbox, message)
        done(None, *arguments)

    def _ids_durable(self, error: Exception | None, firsts: list[_FirstSend]) -> Exception | None:
        """The error of the first send is also its duplicates': they rely on its being stored."""
        for first in firsts:
            if first.enqueuer is self:
                self._pending_ids.pop(first.message_id, None)
                first.enqueuer = None
                first.error = error
            error = error or first.error
        return error

    def _forwarded_ids_durable(self, error: Exception | None, firsts: list[_FirstSend]) -> None:
        self._ids_durable(error, firsts)

    def plain_times(self, now_ms: int) -> lifecycle.Times:
        """Of messages without a time of their own: the same for all that come at one moment."""
        description = self._queue.description
        if self._last_times[0] != now_ms or self._last_times[1] is not description:
            times = lifecycle.times_at_enqueue(description, ttl_ms=None, due_ms=None, now_ms=now_ms)
            self._last_times = (now_ms, description, times)
        return self._last_times[2]

    # ways in

    def _pass_on(
        self,
        one: IncomingMessage,
        firsts: list[_FirstSend],
        plain_times: lifecycle.Times,
        *,
        now_ms: int,
    ) -> tuple[int, Placed]:
        """Number it here, drop a duplicate or a ping, and store it here or where this forwards."""
        queue = self._queue
        number = queue.main.next_sequence()
        if one.is_ping or self._is_duplicate(one, firsts, now_ms=now_ms):
            if one.is_ping:
                units = units_of(one.size)
                queue.tally.send -= units
                queue.tally.ping += units
            queue.namespace.store.keep_count(queue.main.counters)
            return number, []
        times = plain_times
        if one.parts.ttl_ms is not None or one.due_ms is not None:
            times = lifecycle.times_at_enqueue(
                queue.description, ttl_ms=one.parts.ttl_ms, due_ms=one.due_ms, now_ms=now_ms
            )
        if queue.description.forward_to is not None and times.state == State.ACTIVE:
            queue.namespace.store.keep_count(queue.main.counters)
            return number, forwarding.forward(queue, one, number, now_ms=now_ms)
        return self.deposit(one, number, times, enqueued_sequence=number, now_ms=now_ms)

    def deposit(
        self,
        one: IncomingMessage,
        number: int,
        times: lifecycle.Times,
        *,
        enqueued_sequence: int,
        now_ms: int,
        source: str | None = None,
    ) -> tuple[int, Placed]:
        """This is where the message stays."""
        queue = self._queue
        message = to_message(
            one,
            number,
            times,
            partition_id=self._partition(one, number),
            enqueued_sequence=enqueued_sequence,
            dead_letter_source=source,
        )
        queue.place(queue.main, message)
        return message.wire_sequence, [(queue, queue.main, message)]

    def is_new(self, one: IncomingMessage, *, now_ms: int) -> bool:
        """Of a message that another queue forwards to this one."""
        firsts: list[_FirstSend] = []
        is_duplicate = self._is_duplicate(one, firsts, now_ms=now_ms)
        if firsts:
            self._queue.namespace.committer.when_durable(self._forwarded_ids_durable, firsts)
        return not is_duplicate

    def _is_duplicate(self, one: IncomingMessage, firsts: list[_FirstSend], *, now_ms: int) -> bool:
        queue = self._queue
        if not queue.description.requires_duplicate_detection or one.message_id is None:
            return False
        store, mailbox_id = queue.namespace.store, queue.main.counters.mailbox_id
        first = self._pending_ids.get(one.message_id)
        if first is not None:
            firsts.append(first)
            return True
        if store.was_seen(mailbox_id, one.message_id, now_ms=now_ms):
            return True
        window = milliseconds(queue.description.duplicate_detection_history_time_window) or 0
        store.remember(mailbox_id, one.message_id, now_ms + window)
        first = _FirstSend(one.message_id, self)
        self._pending_ids[one.message_id] = first
        firsts.append(first)
        return False

    def _partition(self, one: IncomingMessage, number: int) -> int | None:
        if not self._queue.description.enable_partitioning:
            return None
        if one.partition_id is not None:
            return one.partition_id
        key = one.session_id or one.partition_key or one.message_id or str(number)
        return zlib.crc32(key.encode()) % PARTITIONS
