"""What a row has: the columns of the data source, and where a message keeps what they hold.

`COLUMNS` is the rule: what each column is called, what it holds, and whether a row that is written
may say it. Pure; `rows.py` reads by it, and `outgoing.py` writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.amqp.codec.sections import DATA, SEQUENCE, VALUE


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str
    """binary, string, int, long, timestamp (microseconds since 1970), or properties."""
    writable: bool = True
    """False: the service says it, and a row that is written may have it but is not asked."""


COLUMNS: Final = (
    Column("body", "binary"),
    Column("bodyType", "string"),
    Column("messageId", "string"),
    Column("correlationId", "string"),
    Column("subject", "string"),
    Column("contentType", "string"),
    Column("contentEncoding", "string"),
    Column("to", "string"),
    Column("replyTo", "string"),
    Column("replyToSessionId", "string"),
    Column("sessionId", "string"),
    Column("userId", "binary"),
    Column("partitionKey", "string"),
    Column("timeToLive", "long"),
    Column("scheduledEnqueueTime", "timestamp"),
    Column("applicationProperties", "properties"),
    Column("annotations", "properties"),
    Column("enqueuedTime", "timestamp", writable=False),
    Column("sequenceNumber", "long", writable=False),
    Column("enqueuedSequenceNumber", "long", writable=False),
    Column("state", "string", writable=False),
    Column("deliveryCount", "long", writable=False),
    Column("deadLetterReason", "string", writable=False),
    Column("deadLetterErrorDescription", "string", writable=False),
    Column("deadLetterSource", "string", writable=False),
    Column("lockToken", "string", writable=False),
    Column("lockedUntil", "timestamp", writable=False),
    Column("entity", "string", writable=False),
)
NAMES: Final = tuple(column.name for column in COLUMNS)
DESTINATION: Final = "destination"
"""Only for writing: the queue or topic that a row is for."""

DATA_BODY, MANY_DATA, SEQUENCE_BODY, VALUE_BODY = "data", "dataSections", "sequence", "value"
BODY_SECTIONS: Final = {
    DATA_BODY: DATA,
    MANY_DATA: DATA,
    SEQUENCE_BODY: SEQUENCE,
    VALUE_BODY: VALUE,
}

STATES: Final = ("active", "deferred", "scheduled")
HEADER_TTL_MAX: Final = 2**32 - 1

# The fields of the properties section.
MESSAGE_ID, USER_ID, TO, SUBJECT, REPLY_TO, CORRELATION_ID = range(6)
CONTENT_TYPE, CONTENT_ENCODING, EXPIRY, CREATION, GROUP_ID = range(6, 11)
REPLY_TO_GROUP_ID: Final = 12

PARTITION_KEY: Final = "x-opt-partition-key"
SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
# What columns of their own tell, and the rest of what a service says of a message.
TOLD: Final = frozenset(
    {
        PARTITION_KEY,
        SCHEDULED,
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-deadletter-source",
        "x-opt-lock-token",
    }
)
