"""One message as the broker holds it: its bytes in slices, and the few facts that decide its way.

The body is never decoded. Times are UTC epoch milliseconds, as AMQP and the data file write them.
This module knows neither the wire nor the store; it only says which columns a message has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pairbus.broker.mailbox import Lock

Row = tuple[int | str | bytes | None, ...]

COLUMNS: Final = (
    "id", "state", "enqueued_ms", "expires_ms", "ttl_ms", "due_ms", "delivery_count", "session_id",
    "durable", "priority", "annotations", "annotation_count", "delivery_annotations",
    "delivery_annotation_count", "enqueued_sequence", "dead_letter_source", "partition_id", "size",
    "bare",
)  # fmt: skip

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
            mailbox_id << MAILBOX_SHIFT | self.sequence, self.state, self.enqueued_ms,
            self.expires_ms, self.ttl_ms, self.due_ms, self.delivery_count, self.session_id,
            self.durable, self.priority, self.annotations or None, self.annotation_count,
            self.delivery_annotations or None, self.delivery_annotation_count,
            self.enqueued_sequence, self.dead_letter_source, self.partition_id, self.size,
            self.bare,
        )  # fmt: skip


def from_row(row: tuple[object, ...]) -> Message:
    """The inverse of `Message.row`; the row comes from our own file, so its types are known."""
    (
        row_id, state, enqueued_ms, expires_ms, ttl_ms, due_ms, delivery_count, session_id,
        durable, priority, annotations, annotation_count, delivery_annotations,
        delivery_annotation_count, enqueued_sequence, dead_letter_source, partition_id, size, bare,
    ) = row  # fmt: skip
    return Message(
        row_id & ROW_SEQUENCE_MASK, state, enqueued_ms, expires_ms, ttl_ms, due_ms,  # type: ignore
        delivery_count, session_id, durable if durable is None else bool(durable), priority,  # type: ignore
        annotations or b"", annotation_count, delivery_annotations or b"",  # type: ignore
        delivery_annotation_count, enqueued_sequence, dead_letter_source, partition_id, size, bare,  # type: ignore
    )  # fmt: skip
