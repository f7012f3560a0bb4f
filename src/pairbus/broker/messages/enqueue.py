"""How messages get into an entity: checks, the quota, pings, duplicate detection.

A batch is checked as a whole before any of it is stored, and stored in one transaction. Where an
entity forwards, `forwarding.py` takes over. Times are epoch milliseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.message import MessageState
from pairbus.broker.messages import forwarding, lifecycle
from pairbus.broker.messages.entity import Done, Entity, Placements
from pairbus.broker.messages.incoming import IncomingMessage, check, to_message
from pairbus.cost.meter import UNIT_BYTES, units_of

PARTITIONS: Final = 16


class DuplicateDetection:
    """An entity drops a message whose id it has seen within its time window.

    The store remembers ids that are durable, and this class those that are still being written. A
    duplicate that arrives during the write cannot be acknowledged without the first message: its
    commit comes later, and a failed commit fails all later ones.
    """

    def __init__(self, entity: Entity) -> None:
        self._entity = entity
        self._pending: set[str] = set()

    def is_duplicate(self, message_id: str | None, *, now_ms: int) -> bool:
        """Remembers a new id."""
        description = self._entity.description
        if not description.requires_duplicate_detection or message_id is None:
            return False
        store, mailbox_id = self._entity.runtime.store, self._entity.main.counters.mailbox_id
        if message_id in self._pending or store.was_seen(mailbox_id, message_id, now_ms=now_ms):
            return True
        window_ms = milliseconds(description.duplicate_detection_history_time_window) or 0
        store.remember(mailbox_id, message_id, now_ms + window_ms)
        self._pending.add(message_id)
        # After the commit, the store knows the id. If the commit failed, the id is new again.
        self._entity.runtime.committer.when_durable(lambda _: self._pending.discard(message_id))
        return False


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
        plain_times = self.plain_times(now_ms)
        for one in batch:
            number, placed = self._store_or_forward(one, plain_times, now_ms=now_ms)
            numbers.append(number)
            placements += placed
        entity.runtime.committer.when_durable(
            lambda error: done(placements.finish(error), *arguments)
        )
        return numbers

    def plain_times(self, now_ms: int) -> lifecycle.Times:
        """The times for messages without their own, the same for all messages of one moment."""
        description = self._entity.description
        if self._last_times[0] != now_ms or self._last_times[1] is not description:
            times = lifecycle.times_at_enqueue(description, ttl_ms=None, due_ms=None, now_ms=now_ms)
            self._last_times = (now_ms, description, times)
        return self._last_times[2]

    def _store_or_forward(
        self, one: IncomingMessage, plain_times: lifecycle.Times, *, now_ms: int
    ) -> tuple[int, Placements]:
        """Every message gets a number here, also a duplicate, a ping, and one that is forwarded."""
        entity = self._entity
        number = one.enqueued_sequence = entity.main.next_sequence()
        if one.is_ping or self._duplicates.is_duplicate(one.message_id, now_ms=now_ms):
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
        return not self._duplicates.is_duplicate(one.message_id, now_ms=now_ms)

    def _partition(self, one: IncomingMessage, number: int) -> int | None:
        if not self._entity.description.enable_partitioning:
            return None
        if one.partition_id is not None:
            return one.partition_id
        key = one.session_id or one.partition_key or one.message_id or str(number)
        return zlib.crc32(key.encode()) % PARTITIONS
