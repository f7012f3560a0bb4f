"""An incoming message: the fields that are read, and the reasons to refuse it.

Pure: callers pass the entity's description. The body is never read; identifiers and annotations are
decoded only where the entity's settings need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.sections import Parts, slice_message
from pairbus.amqp.codec.stamp import (
    STAMPED_KEYS,
    with_application_properties,
    with_property,
    without_keys,
)
from pairbus.amqp.codec.types import Char
from pairbus.amqp.codec.values import encode
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import EntityDescription
from pairbus.broker.message import Message
from pairbus.broker.messages import lifecycle
from pairbus.broker.messages.lifecycle import PING_CONTENT_TYPE, PING_TTL_MS
from pairbus.broker.messages.mailbox import LockTokens

_NULL: Final = 0x40
_YEAR_10000_MS: Final = 253_402_300_800_000
_ID_SECTION: Final = b"\x00\x53\x73\xc0\x23\x01\xa1\x20"
"""A properties section with nothing but a message id of 32 characters, which follow."""
_EMPTY_BODIES: Final = (sections.DATA8 + b"\x00", sections.DATA32 + b"\x00\x00\x00\x00", b"")
_STAMPED_NAMES: Final = frozenset(key.decode() for key in STAMPED_KEYS)
SCHEDULED_TIME: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY: Final = "x-opt-partition-key"


@dataclass(slots=True)
class IncomingMessage:
    """A message that was sent or forwarded. `check` reads what the entity needs to know of it."""

    parts: Parts
    size: int
    session_id: str | None = None
    message_id: str | None = None
    due_ms: int | None = None
    partition_key: str | None = None
    partition_id: int | None = None
    """Set if the message had a partition before."""
    is_ping: bool = False
    enqueued_sequence: int = 0
    """The number that it got in the entity that it was sent to, or last forwarded by."""
    source: str | None = None
    """The entity that dead-lettered it, if one did."""
    hops: int = 0
    """How often it was forwarded so far, through topics too."""


def check(
    one: IncomingMessage, description: EntityDescription, tokens: LockTokens
) -> AmqpError | None:
    """Read the fields that the entity needs. Returns why it refuses the message, or None."""
    try:
        _give_id(one.parts, tokens)
        if description.reads_identifiers:
            one.session_id = sections.group_id(one.parts)
            one.message_id = sections.message_id(one.parts)
        if one.parts.annotation_count:
            _read_annotations(one)
        one.is_ping = _is_ping(one.parts)
    except ValueError as error:
        return AmqpError("amqp:decode-error", f"the message for {description.name!r}: {error}")
    return lifecycle.refusal_of_message(
        description, size=one.size, session_id=one.session_id
    ) or _refusal_of_partition_key(description, one)


def _read_annotations(one: IncomingMessage) -> None:
    parts = one.parts
    notes = sections.read_annotations(parts.annotations)
    due = notes.get(SCHEDULED_TIME)
    if isinstance(due, int):
        if not 0 <= due < _YEAR_10000_MS:
            raise ValueError(
                f"{SCHEDULED_TIME} is {due}, which is not a time before the year 10000"
            )
        one.due_ms = int(due)
    key = notes.get(_PARTITION_KEY)
    if isinstance(key, str) and type(key) is not Char:  # a Char may be a surrogate
        one.partition_key = key
    if not _STAMPED_NAMES.isdisjoint(notes):
        # A message that was received and is sent again still has the broker's own annotations.
        parts.annotations, parts.annotation_count = without_keys(parts.annotations, STAMPED_KEYS)


def _is_ping(parts: Parts) -> bool:
    """An empty body, one second to live, and the ping's content type (B-11). Nearly all messages
    fail the first test.
    """
    if parts.ttl_ms != PING_TTL_MS or sections.content_type(parts) != PING_CONTENT_TYPE:
        return False
    ends = [span[1] for span in (parts.properties, parts.application_properties) if span]
    return parts.bare[max(ends) :] in _EMPTY_BODIES


def _give_id(parts: Parts, tokens: LockTokens) -> None:
    """Messages without an id get one, as in Azure: Node's SDK cannot settle without it."""
    span = parts.properties
    if span is None:
        # Spliced by hand for speed: a plain message of an AMQP client has no properties section.
        shift = len(_ID_SECTION) + 32
        parts.bare = _ID_SECTION + tokens.next().hex().encode() + parts.bare
        parts.properties = (0, shift)
        if (other := parts.application_properties) is not None:
            parts.application_properties = (other[0] + shift, other[1] + shift)
        return
    position, count = sections.section_values(parts.bare, *span)
    if count and parts.bare[position] != _NULL:
        return
    message_id = encode(tokens.next().hex())
    named = slice_message(with_property(parts.bare, span, sections.MESSAGE_ID, message_id))
    parts.bare, parts.properties = named.bare, named.properties
    parts.application_properties = named.application_properties


def _refusal_of_partition_key(
    description: EntityDescription, one: IncomingMessage
) -> AmqpError | None:
    if one.session_id is None or one.partition_key is None or one.session_id == one.partition_key:
        return None
    return AmqpError(
        "com.microsoft:argument-error",
        f"a message for {description.name!r} has session id {one.session_id!r} and partition key "
        f"{one.partition_key!r}: if both are given, they must be equal",
    )


def dead_letter_properties(reason: str | None, description: str | None) -> dict[str, str]:
    named = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    return {name: text for name, text in named.items() if text is not None}


def parts_of(message: Message, properties: Mapping[str, Any]) -> Parts:
    """The parts of a stored message, as if it were sent again, with these properties added."""
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


def to_message(
    one: IncomingMessage, number: int, times: lifecycle.Times, partition_id: int | None = None
) -> Message:
    parts = one.parts
    ttl_ms = times.ttl_ms
    if ttl_ms is not None and ttl_ms > sections.HEADER_TTL_MS_MAX:
        ttl_ms = sections.HEADER_TTL_MS_MAX
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
        one.enqueued_sequence,
        one.source,
        partition_id,
        one.size,
        parts.bare,
    )
