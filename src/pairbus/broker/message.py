"""One message in the broker: its bytes in slices, and the fields that the broker needs.

The body is never decoded. Times are UTC epoch milliseconds, as AMQP and the data file write them.
`Message.row` and `from_row` convert between a message and its row in the data file; `stamped` makes
the bytes that a receiver gets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from pairbus.amqp.codec.sections import EXPIRY_TIME, EXPIRY_TIME_MS_MAX, slice_message
from pairbus.amqp.codec.stamp import stamp, with_property
from pairbus.amqp.codec.types import Timestamp
from pairbus.amqp.codec.values import encode

Row = tuple[int | str | bytes | None, ...]

COLUMNS: Final = (
    "id", "state", "enqueued_ms", "expires_ms", "due_ms", "delivery_count", "session_id", "size",
    "extra", "bare",
)  # fmt: skip
"""Few columns, because each costs a third of a microsecond to write. Rare fields are packed into
`extra`, which is null for nearly all messages.
"""

# durable, priority, ttl, annotations (bytes, pairs), delivery annotations (bytes, pairs), original
# sequence number, partition, bytes of the dead-letter source; -1 stands for none
_EXTRA: Final = struct.Struct("<bhqIIIIqhh")

PARTITION_SHIFT: Final = 48
SEQUENCE_MASK: Final = (1 << PARTITION_SHIFT) - 1
LARGE_FROM_BYTES: Final = 4096
"""The bytes of such a message are not kept in memory while a receiver has its lock."""
MAILBOX_SHIFT: Final = 40
ROW_SEQUENCE_MASK: Final = (1 << MAILBOX_SHIFT) - 1
"""A row's id is its mailbox and its sequence number in one integer: a mailbox's messages lie
together in the file, in order, and need no second index."""


class MessageState(IntEnum):
    """The numbers are those of the annotation `x-opt-message-state`."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(slots=True, eq=False)
class Message:
    sequence: int
    state: int
    enqueued_ms: int
    expires_ms: int | None
    ttl_ms: int | None
    due_ms: int | None
    delivery_count: int
    session_id: str | None
    durable: bool | None
    priority: int | None
    annotations: bytes
    annotation_count: int
    delivery_annotations: bytes
    delivery_annotation_count: int
    enqueued_sequence: int
    dead_letter_source: str | None
    partition_id: int | None
    size: int
    bare: bytes
    """Empty while a receiver has the lock of a large message: the disk has the bytes."""
    body_id: int | None = None
    """The row of table `body`, where several subscriptions share the same bytes."""
    lock: bytes | None = None
    """The token of its lock, while a receiver holds it; see `Mailbox.locks`."""
    busy: bool = False
    """A change of the message is being written to disk. Until that has ended, nothing else may
    change it.
    """

    @property
    def wire_sequence(self) -> int:
        """Partitioned entities have the partition in the number's top 16 bits."""
        if self.partition_id is None:
            return self.sequence
        return self.partition_id << PARTITION_SHIFT | self.sequence

    def row(self, mailbox_id: int) -> Row:
        return (
            mailbox_id << MAILBOX_SHIFT | self.sequence,
            self.state,
            self.enqueued_ms,
            self.expires_ms,
            self.due_ms,
            self.delivery_count,
            self.session_id,
            self.size,
            self.extra(),
            self.bare if self.body_id is None else self.body_id,
        )

    def extra(self) -> bytes | None:
        if (
            self.ttl_ms is None
            and not self.annotation_count
            and self.durable is None
            and self.priority is None
            and not self.delivery_annotation_count
            and self.enqueued_sequence == self.sequence
            and self.partition_id is None
            and self.dead_letter_source is None
        ):
            return None
        source = b"" if self.dead_letter_source is None else self.dead_letter_source.encode()
        head = _EXTRA.pack(
            -1 if self.durable is None else self.durable,
            -1 if self.priority is None else self.priority,
            -1 if self.ttl_ms is None else self.ttl_ms,
            len(self.annotations),
            self.annotation_count,
            len(self.delivery_annotations),
            self.delivery_annotation_count,
            self.enqueued_sequence,
            -1 if self.partition_id is None else self.partition_id,
            -1 if self.dead_letter_source is None else len(source),
        )
        return b"".join((head, self.annotations, self.delivery_annotations, source))


def from_row(row: tuple[Any, ...]) -> Message:
    """The inverse of `Message.row`. The row has one more column: the bytes, if they are shared."""
    (
        row_id, state, enqueued_ms, expires_ms, due_ms, count, session_id, size, extra, bare,
        shared,
    ) = row  # fmt: skip
    body_id = None
    if shared is not None:
        body_id, bare = bare, shared
    sequence = row_id & ROW_SEQUENCE_MASK
    message = Message(
        sequence, state, enqueued_ms, expires_ms, None, due_ms, count, session_id, None, None,
        b"", 0, b"", 0, sequence, None, None, size, bare, body_id,
    )  # fmt: skip
    if extra is not None:
        _unpack_extra(message, extra)
    return message


def _unpack_extra(message: Message, extra: bytes) -> None:
    (
        durable, priority, ttl_ms, size, message.annotation_count, delivery_size,
        message.delivery_annotation_count, message.enqueued_sequence, partition_id, source_size,
    ) = _EXTRA.unpack_from(extra)  # fmt: skip
    message.durable = None if durable < 0 else bool(durable)
    message.priority = None if priority < 0 else priority
    message.ttl_ms = None if ttl_ms < 0 else ttl_ms
    message.partition_id = None if partition_id < 0 else partition_id
    start = _EXTRA.size
    message.annotations = extra[start : start + size]
    start += size
    message.delivery_annotations = extra[start : start + delivery_size]
    start += delivery_size
    if source_size >= 0:
        message.dead_letter_source = extra[start : start + source_size].decode()


def guid(token: bytes) -> bytes:
    """Converts between .NET's byte order (delivery tags) and RFC 4122's (AMQP uuids), both ways."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


def stamped(message: Message, *, locked_until_ms: int | None = None) -> bytes:
    """The bytes that a receiver gets: the message's own, with the broker's annotations in front.

    Without `locked_until_ms` it has no lock token: it is peeked at, or deleted on receipt.
    """
    bare = message.bare
    if message.expires_ms is not None:
        # Not written on enqueue, because copies of several subscriptions share their bytes.
        expiry = encode(Timestamp(min(message.expires_ms, EXPIRY_TIME_MS_MAX)))
        bare = with_property(bare, slice_message(bare).properties, EXPIRY_TIME, expiry)
    token = None if locked_until_ms is None else message.lock
    return stamp(
        durable=message.durable,
        priority=message.priority,
        ttl_ms=message.ttl_ms,
        delivery_count=message.delivery_count,
        lock_token=None if token is None else guid(token),
        sequence=message.wire_sequence,
        enqueued_ms=message.enqueued_ms,
        locked_until_ms=locked_until_ms,
        # As on Azure, only where it says something: the message came here from another entity.
        enqueued_sequence=(
            None if message.enqueued_sequence == message.sequence else message.enqueued_sequence
        ),
        state=message.state,
        partition_id=message.partition_id,
        dead_letter_source=message.dead_letter_source,
        delivery_annotations=message.delivery_annotations,
        delivery_annotation_count=message.delivery_annotation_count,
        annotations=message.annotations,
        annotation_count=message.annotation_count,
        bare=bare,
    )
