"""One message as the broker holds it: its bytes in slices, and the few facts that decide its way.

The body is never decoded. Times are UTC epoch milliseconds, as AMQP and the data file write them.
This module knows neither the wire nor the store; it only says which columns a message has.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pairbus.broker.messages.mailbox import Lock

Row = tuple[int | str | bytes | None, ...]

COLUMNS: Final = (
    "id", "state", "enqueued_ms", "expires_ms", "due_ms", "delivery_count", "session_id", "size",
    "extra", "bare",
)  # fmt: skip
"""Few, because each costs a third of a microsecond to write: what a plain message does not have is
packed into `extra`, which is null for nearly all of them."""

# durable, priority, ttl, annotations (bytes, pairs), delivery annotations (bytes, pairs), original
# sequence number, partition, bytes of the dead-letter source; -1 stands for none
_EXTRA: Final = struct.Struct("<bhqIIIIqhh")

PARTITION_SHIFT: Final = 48
SEQUENCE_MASK: Final = (1 << PARTITION_SHIFT) - 1
MAILBOX_SHIFT: Final = 40
ROW_SEQUENCE_MASK: Final = (1 << MAILBOX_SHIFT) - 1
"""A row's id is its mailbox and its sequence number in one integer: a mailbox's messages lie
together in the file, in order, and need no second index."""


class State(IntEnum):
    """The numbers are those of `x-opt-message-state`."""

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
    body_id: int | None = None
    """Where the same bytes are kept once for several subscriptions, as which row of `body`."""
    lock: Lock | None = None
    busy: bool = False
    """A change of it is on its way to the disk; until that has ended, nobody else touches it."""

    @property
    def wire_sequence(self) -> int:
        """Partitioned entities show the partition in the number's top 16 bits."""
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
    """The inverse of `Message.row`, with one column more: the bytes, if they are shared."""
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
