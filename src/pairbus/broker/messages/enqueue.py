"""How messages get into an entity: checks, the quota, pings, duplicate detection.

A batch is checked as a whole before any of it is stored, and stored in one transaction. Where an
entity forwards, `forwarding.py` takes over. Times are epoch milliseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.message import MessageState
from pairbus.broker.messages import forwarding, lifecycle
from pairbus.broker.messages.entity import Done, Entity, Placements
from pairbus.broker.messages.incoming import IncomingMessage, check, to_message
from pairbus.cost.meter import UNIT_BYTES, units_of

PARTITIONS: Final = 16


@dataclass(slots=True, eq=False)
class FirstSend:
    """A message id that is being written to the disk."""

    message_id: str
    is_pending: bool = True
    error: Exception | None = None


class DuplicateDetection:
    """An entity drops a message whose id it has seen within its time window.

    The store remembers ids that are durable, and this class those that are still being written. A
    duplicate that arrives during the write depends on the first message, so it succeeds or fails
    with it.
    """

    def __init__(self, entity: Entity) -> None:
        self._entity = entity
        self._pending: dict[str, FirstSend] = {}

    def is_duplicate(
        self, message_id: str | None, relies_on: list[FirstSend], *, now_ms: int
    ) -> bool:
        """Remember a new id. `relies_on` gets the pending ids that the message depends on."""
        description = self._entity.description
        if not description.requires_duplicate_detection or message_id is None:
            return False
        first = self._pending.get(message_id)
        if first is not None:
            relies_on.append(first)
            return True
        store, mailbox_id = self._entity.runtime.store, self._entity.main.counters.mailbox_id
        if store.was_seen(mailbox_id, message_id, now_ms=now_ms):
            return True
        window_ms = milliseconds(description.duplicate_detection_history_time_window) or 0
        store.remember(mailbox_id, message_id, now_ms + window_ms)
        first = self._pending[message_id] = FirstSend(message_id)
        relies_on.append(first)
        return False

    def written(self, error: Exception | None, relies_on: list[FirstSend]) -> Exception | None:
        """The commit has ended. Returns its error, or that of a message that it depends on."""
        for first in relies_on:
            if first.is_pending:
                del self._pending[first.message_id]
                first.is_pending = False
                first.error = error
            error = error or first.error
        return error


class Enqueuer:
    def __init__(self, entity: Entity) -> None:
        self._entity = entity
        self._duplicates = DuplicateDetection(entity)
        self._last_times = (
            0,
            entity.description,
            lifecycle.times_at_enqueue(entity.description, ttl_ms=None, due_ms=None, now_ms=0),
        )

    def enqueue(
        self,
        batch: Sequence[IncomingMessage],
        done: Done,
        arguments: tuple[Any, ...],
        *,
        now_ms: int,
    ) -> AmqpError | list[int]:
        """Enqueue all of the batch or nothing; see `Queue.enqueue`."""
        entity = self._entity
        added = 0
        for one in batch:
            error = check(one, entity.description, entity.runtime.lock_tokens)
            if error is not None:
                return error
            added += one.size
        if (faults := entity.runtime.active_faults) is not None:
            for one in batch:
                later_ms = faults.visible_at_ms(entity.name, now_ms=now_ms)
                one.due_ms = max(one.due_ms or 0, later_ms or 0) or None
        error = lifecycle.refusal_to_send(entity.description) or lifecycle.refusal_of_size(
            entity.description, used=entity.size_bytes, added=added
        )
        if error is not None:
            return error
        entity.tally.send += (
            # If all of them together fit into one unit, each of them is one.
            len(batch) if added <= UNIT_BYTES else sum(units_of(one.size) for one in batch)
        )
        placements = Placements()
        numbers = []
        relies_on: list[FirstSend] = []
        plain_times = self.plain_times(now_ms)
        for one in batch:
            number, placed = self._store_or_forward(one, relies_on, plain_times, now_ms=now_ms)
            numbers.append(number)
            placements += placed
        entity.runtime.committer.when_durable(
            self._enqueued, placements, relies_on, done, arguments
        )
        return numbers

    def _enqueued(
        self,
        error: Exception | None,
        placements: Placements,
        relies_on: list[FirstSend],
        done: Done,
        arguments: tuple[Any, ...],
    ) -> None:
        if relies_on:
            error = self._duplicates.written(error, relies_on)
        done(placements.finish(error), *arguments)

    def plain_times(self, now_ms: int) -> lifecycle.Times:
        """The times for messages without their own, the same for all messages of one moment."""
        description = self._entity.description
        if self._last_times[0] != now_ms or self._last_times[1] is not description:
            times = lifecycle.times_at_enqueue(description, ttl_ms=None, due_ms=None, now_ms=now_ms)
            self._last_times = (now_ms, description, times)
        return self._last_times[2]

    def _store_or_forward(
        self,
        one: IncomingMessage,
        relies_on: list[FirstSend],
        plain_times: lifecycle.Times,
        *,
        now_ms: int,
    ) -> tuple[int, Placements]:
        """Every message gets a number here, also a duplicate, a ping, and one that is forwarded."""
        entity = self._entity
        number = one.enqueued_sequence = entity.main.next_sequence()
        if one.is_ping or self._duplicates.is_duplicate(one.message_id, relies_on, now_ms=now_ms):
            if one.is_ping:
                units = units_of(one.size)
                entity.tally.send -= units
                entity.tally.ping += units
            entity.runtime.store.keep_count(entity.main.counters)
            return number, Placements()
        times = plain_times
        if one.parts.ttl_ms is not None or one.due_ms is not None:
            times = lifecycle.times_at_enqueue(
                entity.description, ttl_ms=one.parts.ttl_ms, due_ms=one.due_ms, now_ms=now_ms
            )
        if entity.description.forward_to is not None and times.state == MessageState.ACTIVE:
            entity.runtime.store.keep_count(entity.main.counters)
            return number, forwarding.forward(entity, one, number, now_ms=now_ms)
        return self.store(one, number, times, now_ms=now_ms)

    def store(
        self, one: IncomingMessage, number: int, times: lifecycle.Times, *, now_ms: int
    ) -> tuple[int, Placements]:
        """The message stays here."""
        entity = self._entity
        message = to_message(one, number, times, self._partition(one, number))
        entity.place(entity.main, message)
        return message.wire_sequence, Placements([(entity, entity.main, message)])

    def is_new(self, one: IncomingMessage, *, now_ms: int) -> bool:
        """Called for a message that another entity forwards to this one."""
        relies_on: list[FirstSend] = []
        is_duplicate = self._duplicates.is_duplicate(one.message_id, relies_on, now_ms=now_ms)
        if relies_on:
            self._entity.runtime.committer.when_durable(self._duplicates.written, relies_on)
        return not is_duplicate

    def _partition(self, one: IncomingMessage, number: int) -> int | None:
        if not self._entity.description.enable_partitioning:
            return None
        if one.partition_id is not None:
            return one.partition_id
        key = one.session_id or one.partition_key or one.message_id or str(number)
        return zlib.crc32(key.encode()) % PARTITIONS
