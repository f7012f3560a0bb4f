"""The columns of a row: their names and types, how each is read, and whether it can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp.codec.sections import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    GROUP_ID,
    MESSAGE_ID,
    REPLY_TO,
    REPLY_TO_GROUP_ID,
    SUBJECT,
    TO,
)
from pairbus.amqp.codec.values import PAST_THE_END, MalformedMessage
from pairbus.fast import rows
from pairbus.fast.rows import (
    PARTITION_KEY,
    SCHEDULED,
    Getter,
    MessageView,
    id_property,
    integer_annotation,
    text_annotation,
    text_application_property,
    text_property,
    time_annotation,
    unreadable,
)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str
    """binary, string, long, timestamp (microseconds since 1970), or properties."""
    read: Getter
    writable: bool = True
    """False: set by the service. A row to be written may have it; it is ignored."""


COLUMNS: Final = (
    Column("body", "binary", lambda message: message.body[0]),
    Column("bodyType", "string", lambda message: message.body[1]),
    Column("messageId", "string", id_property(MESSAGE_ID)),
    Column("correlationId", "string", id_property(CORRELATION_ID)),
    Column("subject", "string", text_property(SUBJECT)),
    Column("contentType", "string", text_property(CONTENT_TYPE)),
    Column("contentEncoding", "string", text_property(CONTENT_ENCODING)),
    Column("to", "string", text_property(TO)),
    Column("replyTo", "string", text_property(REPLY_TO)),
    Column("replyToSessionId", "string", text_property(REPLY_TO_GROUP_ID)),
    Column("sessionId", "string", text_property(GROUP_ID)),
    Column("userId", "binary", rows.user_id),
    Column("partitionKey", "string", text_annotation(PARTITION_KEY)),
    Column("timeToLive", "long", rows.time_to_live),
    Column("scheduledEnqueueTime", "timestamp", time_annotation(SCHEDULED)),
    Column("applicationProperties", "properties", rows.typed_application_properties),
    Column("annotations", "properties", rows.typed_annotations),
    Column("enqueuedTime", "timestamp", time_annotation("x-opt-enqueued-time"), False),
    Column("sequenceNumber", "long", integer_annotation("x-opt-sequence-number"), False),
    Column(
        "enqueuedSequenceNumber",
        "long",
        integer_annotation("x-opt-enqueue-sequence-number"),
        False,
    ),
    Column("state", "string", rows.state, False),
    Column("deliveryCount", "long", rows.delivery_count, False),
    Column("deadLetterReason", "string", text_application_property("DeadLetterReason"), False),
    Column(
        "deadLetterErrorDescription",
        "string",
        text_application_property("DeadLetterErrorDescription"),
        False,
    ),
    Column("deadLetterSource", "string", text_annotation("x-opt-deadletter-source"), False),
    Column("lockToken", "string", rows.lock_token, False),
    Column("lockedUntil", "timestamp", time_annotation("x-opt-locked-until"), False),
    Column("entity", "string", lambda message: message.entity, False),
)
BY_NAME: Final = {column.name: column for column in COLUMNS}
NAMES: Final = tuple(BY_NAME)
DESTINATION: Final = "destination"
"""Only for writing: the queue or topic that a row is sent to."""


def reader_of(names: Iterable[str]) -> Callable[[MessageView], list[Any]]:
    """A function that makes a row of these columns, in this order. It raises UnreadableMessage."""
    getters = [BY_NAME[name].read for name in names]

    def values(message: MessageView) -> list[Any]:
        try:
            return [getter(message) for getter in getters]
        except (MalformedMessage, UnicodeDecodeError, *PAST_THE_END) as error:
            raise unreadable(message.entity, error) from error

    return values
