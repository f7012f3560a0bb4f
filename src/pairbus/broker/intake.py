"""How messages get into a queue: checks, duplicates, pings, forwarding, burial, activation.

A batch is checked whole before anything of it is stored, and stored in one transaction. Where a
queue forwards, the message is stored at its destination at once; the queues on the way only see
it pass. Times are epoch milliseconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pairbus.amqp import sections
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sections import Parts, slice_message
from pairbus.amqp.splice import (
    STAMPED_KEYS,
    with_application_properties,
    with_property,
    without_annotations,
)
from pairbus.amqp.values import Timestamp, encode
from pairbus.broker import lifecycle
from pairbus.broker.entities import QueueDescription, milliseconds
from pairbus.broker.lifecycle import FORWARD_HOPS_MAX, PING_CONTENT_TYPE, Kind
from pairbus.broker.message import Message, State

if TYPE_CHECKING:
    from pairbus.broker.mailbox import Mailbox, Tokens
    from pairbus.broker.queue import Done, Queue

    Placed = list[tuple[Queue, Mailbox, Message]]

PARTITIONS: Final = 16
UINT_MAX: Final = 2**32 - 1
_PING_BYTES: Final = PING_CONTENT_TYPE.encode()
_ABSOLUTE_EXPIRY_TIME: Final = 8
_NULL: Final = 0x40
_YEAR_10000_MS: Final = 253_402_300_800_000
_ID_SECTION: Final = b"\x00\x53\x73\xc0\x23\x01\xa1\x20"
"""A properties section with nothing but a message id of 32 characters, which follow."""
_BODY_SECTIONS: Final = (b"\x00\x53\x75\xa0\x00", b"\x00\x53\x75\xb0\x00\x00\x00\x00", b"")
_STAMPED_NAMES: Final = frozenset(key.decode() for key in STAMPED_KEYS)
_SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY: Final = "x-opt-partition-key"


@dataclass(slots=True)
class Incoming:
    parts: Parts
    size: int


@dataclass(slots=True)
class _Checked:
    """A message that this queue will take, and what had to be read of it for that."""

    parts: Parts
    size: int
    session_id: str | None = None
    message_id: str | None = None
    due_ms: int | None = None
    partition_key: str | None = None
    is_ping: bool = False


class _FirstSend:
    """A message id on its way to the disk, for the duplicates that come meanwhile."""

    __slots__ = ("error", "intake", "message_id")

    def __init__(self, message_id: str, intake: Intake) -> None:
        self.message_id = message_id
        self.intake: Intake | None = intake
        self.error: Exception | None = None


class Intake:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        # Message ids of sends that are not durable yet; `store.was_seen` knows the others.
        self._pending_ids: dict[str, _FirstSend] = {}

    def take_in(
        self, batch: Sequence[Incoming], done: Done, arguments: tuple[Any, ...], *, now_ms: int
    ) -> AmqpError | list[int]:
        queue = self._queue
        checked = []
        added = 0
        for incoming in batch:
            one = self._check(incoming)
            if isinstance(one, AmqpError):
                return one
            checked.append(one)
            added += one.size
        error = lifecycle.refusal_to_send(queue.description) or lifecycle.refusal_of_size(
            queue.description, used=queue.size_bytes, added=added
        )
        if error is not None:
            return error
        placed: Placed = []
        numbers = []
        firsts: list[_FirstSend] = []
        plain_times = lifecycle.times_at_enqueue(
            queue.description, ttl_ms=None, due_ms=None, now_ms=now_ms
        )
        for one in checked:
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
        error = self._ids_durable(error, firsts)
        if error is not None:
            from pairbus.broker.queue import cannot_store

            for queue, mailbox, message in placed:
                queue.unplace(mailbox, message)
            done(cannot_store(error), *arguments)
            return
        for queue, mailbox, message in placed:
            queue.arrived(mailbox, message)
        done(None, *arguments)

    def _ids_durable(
        self, error: Exception | None, firsts: list[_FirstSend]
    ) -> Exception | None:
        """The error of the first send is also its duplicates': they rely on its being stored."""
        for first in firsts:
            if first.intake is self:
                self._pending_ids.pop(first.message_id, None)
                first.intake = None
                first.error = error
            error = error or first.error
        return error

    def _forwarded_ids_durable(self, error: Exception | None, firsts: list[_FirstSend]) -> None:
        self._ids_durable(error, firsts)

    # checks

    def _check(self, incoming: Incoming) -> _Checked | AmqpError:
        queue, parts = self._queue.description, incoming.parts
        one = _Checked(parts, incoming.size)
        try:
            _give_id(parts, self._queue.namespace.tokens)
            if queue.requires_session or queue.enable_partitioning or queue.forward_to:
                one.session_id = sections.group_id(parts)
            if (
                queue.requires_duplicate_detection
                or queue.enable_partitioning
                or queue.forward_to
            ):
                one.message_id = sections.message_id(parts)
            if parts.annotation_count:
                self._read_annotations(one)
            one.is_ping = _is_ping(parts)
        except ValueError as trouble:
            return AmqpError("amqp:decode-error", f"the message for {queue.name!r}: {trouble}")
        return (
            lifecycle.refusal_of_message(queue, size=one.size, session_id=one.session_id)
            or _refusal_of_partition_key(queue, one)
            or one
        )

    def _read_annotations(self, one: _Checked) -> None:
        parts = one.parts
        notes = sections.read_annotations(parts.annotations)
        due = notes.get(_SCHEDULED_TIME)
        if isinstance(due, int):
            if not 0 <= due < _YEAR_10000_MS:
                raise ValueError(f"{_SCHEDULED_TIME} is {due}, which is no time before year 10000")
            one.due_ms = int(due)
        key = notes.get(_PARTITION_KEY)
        if isinstance(key, str):
            one.partition_key = key
        if not _STAMPED_NAMES.isdisjoint(notes):
            # Of a message that was received and is sent again: these were our own words.
            parts.annotations, parts.annotation_count = without_annotations(
                parts.annotations, STAMPED_KEYS
            )

    # ways in

    def _pass_on(
        self, one: _Checked, firsts: list[_FirstSend], plain_times: lifecycle.Times, *, now_ms: int
    ) -> tuple[int, Placed]:
        """Number it here, drop a duplicate or a ping, and store it here or where this forwards."""
        queue = self._queue
        number = queue.main.next_sequence()
        if one.is_ping or self._is_duplicate(one, firsts, now_ms=now_ms):
            queue.namespace.store.keep_count(queue.main.counters)
            return number, []
        times = plain_times
        if one.parts.ttl_ms is not None or one.due_ms is not None:
            times = lifecycle.times_at_enqueue(
                queue.description, ttl_ms=one.parts.ttl_ms, due_ms=one.due_ms, now_ms=now_ms
            )
        if queue.description.forward_to is not None and times.state == State.ACTIVE:
            queue.namespace.store.keep_count(queue.main.counters)
            return number, self._forward(one, number, now_ms=now_ms)
        partition_id = self._partition(one, number)
        message = _message(one, number, times, partition_id=partition_id, enqueued_sequence=number)
        queue.place(queue.main, message)
        return message.wire_sequence, [(queue, queue.main, message)]

    def _is_duplicate(self, one: _Checked, firsts: list[_FirstSend], *, now_ms: int) -> bool:
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

    def _partition(self, one: _Checked, number: int) -> int | None:
        if not self._queue.description.enable_partitioning:
            return None
        key = one.session_id or one.partition_key or one.message_id or str(number)
        return zlib.crc32(key.encode()) % PARTITIONS

    def _forward(
        self, one: _Checked, number: int, *, now_ms: int, source: str | None = None, to: str = ""
    ) -> Placed:
        """Follow the chain to its end; what cannot arrive is buried here, with the reason."""
        start = self._queue
        target_name = to or start.description.forward_to
        hops = 0
        target: Queue | None = None
        while target_name is not None:
            target = start.namespace.find_queue(target_name)
            hops += 1
            reason = _refusal_of_hop(target_name, target, hops, one)
            if reason is not None or target is None:
                return start._intake._bury_in(
                    Kind.TRANSFER_DEAD_LETTER,
                    _message(
                        one,
                        number,
                        lifecycle.times_at_enqueue(
                            start.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
                        ),
                        enqueued_sequence=number,
                        dead_letter_source=source,
                    ),
                    "ForwardingFailed",
                    reason,
                )
            target_name = target.description.forward_to
        assert target is not None
        return target._intake._take_forwarded(one, number, source=source, now_ms=now_ms)

    def _take_forwarded(
        self, one: _Checked, enqueued_sequence: int, *, source: str | None, now_ms: int
    ) -> Placed:
        queue = self._queue
        firsts: list[_FirstSend] = []
        one.session_id = sections.group_id(one.parts) if queue.description.requires_session else None
        one.message_id = sections.message_id(one.parts)
        is_duplicate = self._is_duplicate(one, firsts, now_ms=now_ms)
        if firsts:
            queue.namespace.committer.when_durable(self._forwarded_ids_durable, firsts)
        if is_duplicate:
            return []
        number = queue.main.next_sequence()
        message = _message(
            one,
            number,
            lifecycle.times_at_enqueue(
                queue.description, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=now_ms
            ),
            partition_id=self._partition(one, number),
            enqueued_sequence=enqueued_sequence,
            dead_letter_source=source,
        )
        queue.place(queue.main, message)
        return [(queue, queue.main, message)]

    # ways on

    def bury(
        self, message: Message, reason: str | None, description: str | None, *, now_ms: int
    ) -> Placed:
        """To the dead-letter queue, or to where dead letters are forwarded."""
        queue = self._queue
        target = queue.description.forward_dead_lettered_messages_to
        if target is None:
            return self._bury_in(Kind.DEAD_LETTER, _copy(message), reason, description)
        parts = _parts(message, _why(reason, description))
        parts.ttl_ms = None
        one = _Checked(parts, message.size)
        source = message.dead_letter_source or queue.name
        return self._forward(one, message.sequence, now_ms=now_ms, source=source, to=target)

    def _bury_in(
        self, kind: Kind, message: Message, reason: str | None, description: str | None
    ) -> Placed:
        """A dead letter keeps its number and never expires."""
        queue = self._queue
        mailbox = queue.mailboxes[kind]
        self.add_properties(message, _why(reason, description))
        message.state, message.expires_ms, message.due_ms = State.ACTIVE, None, None
        message.session_id = None  # the property stays; dead-letter queues have no sessions
        queue.place(mailbox, message)
        return [(queue, mailbox, message)]

    def activate(self, message: Message, *, now_ms: int) -> None:
        """The old row goes and the new one comes in one transaction: never both, never none."""
        queue = self._queue
        message.busy = True
        queue.main.held[message.sequence] = message
        queue.main.counters.add(State.SCHEDULED, message.size, -1)
        queue.namespace.store.delete(queue.main.counters, message.sequence)
        one = _Checked(_parts(message, {}), message.size, message.session_id)
        if queue.description.forward_to is not None:
            placed = self._forward(one, message.sequence, now_ms=now_ms)
        else:
            times = lifecycle.times_at_enqueue(
                queue.description, ttl_ms=message.ttl_ms, due_ms=None, now_ms=now_ms
            )
            active = _message(
                one,
                queue.main.next_sequence(),
                times,
                partition_id=message.partition_id,
                enqueued_sequence=message.enqueued_sequence,
            )
            queue.place(queue.main, active)
            placed = [(queue, queue.main, active)]
        queue.namespace.committer.when_durable(self._activated, message, placed)

    def _activated(self, error: Exception | None, message: Message, placed: Placed) -> None:
        queue = self._queue
        message.busy = False
        queue.main.held.pop(message.sequence, None)
        if error is not None:
            queue.main.counters.add(State.SCHEDULED, message.size)
            for target, mailbox, copy in placed:
                target.unplace(mailbox, copy)
            return
        for target, mailbox, copy in placed:
            target.arrived(mailbox, copy)

    def add_properties(self, message: Message, properties: Mapping[str, Any]) -> None:
        if properties:
            parts = slice_message(message.bare)
            message.bare = with_application_properties(
                parts.bare, parts.application_properties, properties
            )


def _is_ping(parts: Parts) -> bool:
    """Empty body and the ping's content type (B-11); nearly all messages end at the first test."""
    if _PING_BYTES not in parts.bare or sections.content_type(parts) != PING_CONTENT_TYPE:
        return False
    ends = [span[1] for span in (parts.properties, parts.application_properties) if span]
    return parts.bare[max(ends) :] in _BODY_SECTIONS


def _give_id(parts: Parts, tokens: Tokens) -> None:
    """The service names what came without a message id; Node's SDK cannot settle without one."""
    span = parts.properties
    if span is None:
        # By hand, because a plain message of an AMQP client has no properties at all.
        shift = len(_ID_SECTION) + 32
        parts.bare = _ID_SECTION + tokens.next().hex().encode() + parts.bare
        parts.properties = (0, shift)
        if (other := parts.application_properties) is not None:
            parts.application_properties = (other[0] + shift, other[1] + shift)
        return
    position, count = sections.section_values(parts.bare, *span)
    if count and parts.bare[position] != _NULL:
        return
    named = slice_message(with_property(parts.bare, span, 0, encode(tokens.next().hex())))
    parts.bare, parts.properties = named.bare, named.properties
    parts.application_properties = named.application_properties


def _refusal_of_partition_key(queue: QueueDescription, one: _Checked) -> AmqpError | None:
    if one.session_id is None or one.partition_key is None or one.session_id == one.partition_key:
        return None
    return AmqpError(
        "com.microsoft:argument-error",
        f"a message for {queue.name!r} has session id {one.session_id!r} and partition key "
        f"{one.partition_key!r}: where both are given they must be the same",
    )


def _refusal_of_hop(name: str, target: Queue | None, hops: int, one: _Checked) -> str | None:
    """Why the message cannot go there."""
    if target is None:
        return f"the forwarding target {name!r} does not exist"
    if hops > FORWARD_HOPS_MAX:
        return f"forwarded more than {FORWARD_HOPS_MAX} times, last to {name!r}"
    description = target.description
    try:
        session_id = sections.group_id(one.parts)
        sections.message_id(one.parts)
    except ValueError as trouble:
        return f"{name!r} cannot take it: {trouble}"
    error = (
        lifecycle.refusal_to_send(description)
        or lifecycle.refusal_of_message(description, size=one.size, session_id=session_id)
        or lifecycle.refusal_of_size(description, used=target.size_bytes, added=one.size)
    )
    return None if error is None else error.description


def _why(reason: str | None, description: str | None) -> dict[str, str]:
    named = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return {name: text for name, text in named.items() if text is not None}


def _parts(message: Message, properties: Mapping[str, Any]) -> Parts:
    """A stored message as it would be sent again."""
    parts = slice_message(message.bare)
    if properties:
        parts = slice_message(
            with_application_properties(parts.bare, parts.application_properties, properties)
        )
    parts.durable, parts.priority, parts.ttl_ms = message.durable, message.priority, message.ttl_ms
    parts.annotations, parts.annotation_count = message.annotations, message.annotation_count
    parts.delivery_annotations = message.delivery_annotations
    parts.delivery_annotation_count = message.delivery_annotation_count
    return parts


def _copy(message: Message) -> Message:
    return replace(message, lock=None, busy=False)


def _message(
    one: _Checked,
    number: int,
    times: lifecycle.Times,
    *,
    enqueued_sequence: int,
    partition_id: int | None = None,
    dead_letter_source: str | None = None,
) -> Message:
    parts = one.parts
    bare, ttl_ms = parts.bare, times.ttl_ms
    if times.expires_ms is not None:
        bare = with_property(
            bare, parts.properties, _ABSOLUTE_EXPIRY_TIME, encode(Timestamp(times.expires_ms))
        )
    if ttl_ms is not None and ttl_ms > UINT_MAX:
        ttl_ms = UINT_MAX  # the header's field has 32 bits
    return Message(
        number,
        times.state,
        times.enqueued_ms,
        times.expires_ms,
        ttl_ms,
        times.due_ms,
        0,
        one.session_id,
        parts.durable,
        parts.priority,
        parts.annotations,
        parts.annotation_count,
        parts.delivery_annotations,
        parts.delivery_annotation_count,
        enqueued_sequence,
        dead_letter_source,
        partition_id,
        one.size,
        bare,
    )
