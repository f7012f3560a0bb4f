"""What happens to a message: pure decisions, from the time and the entity's description.

Nothing here reads a clock, a file or a socket, and nothing is changed: each function answers a
question about one message, and `queue.py` acts on the answer. Times are epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import EntityDescription, Status
from pairbus.broker.entities.durations import milliseconds
from pairbus.broker.message import Message, MessageState

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
PING_TTL_MS: Final = 1000

REASON_DELIVERIES: Final = "MaxDeliveryCountExceeded"
REASON_EXPIRED: Final = "TTLExpiredException"
FORWARD_HOPS_MAX: Final = 4
_ACTIVE: Final = int(MessageState.ACTIVE)
_SCHEDULED: Final = int(MessageState.SCHEDULED)


class MailboxKind(Enum):
    """An entity has three mailboxes. The last two are its dead-letter sub-queues."""

    MAIN = 0
    DEAD_LETTER = 1
    TRANSFER_DEAD_LETTER = 2


class Settlement(Enum):
    COMPLETE = auto()
    ABANDON = auto()
    DEFER = auto()
    DEAD_LETTER = auto()
    RELEASE = auto()


@dataclass(frozen=True, slots=True)
class Remove:
    """It is deleted."""


@dataclass(frozen=True, slots=True)
class MakeAvailable:
    """The message is available again, in its old place in the order."""

    delivery_count: int


@dataclass(frozen=True, slots=True)
class Defer:
    """From now on it can only be received by its sequence number."""

    delivery_count: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The message goes to the dead-letter queue, or to the target for dead letters."""

    reason: str | None
    description: str | None


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is refused and has no effect."""

    error: AmqpError


Change = Remove | MakeAvailable | Defer | DeadLetter
Decision = Change | Refuse


@dataclass(frozen=True, slots=True)
class Times:
    """When a message counts as enqueued, and its state, expiry and schedule."""

    state: int
    """A plain number: SQLite takes half a microsecond longer to bind a member of an enum."""
    enqueued_ms: int
    ttl_ms: int | None
    expires_ms: int | None
    due_ms: int | None


def effective_ttl_ms(queue: EntityDescription, message_ttl_ms: int | None) -> int | None:
    """The smaller of the message's and the entity's (B-05)."""
    default = milliseconds(queue.default_message_time_to_live)
    if message_ttl_ms is None:
        return default
    return message_ttl_ms if default is None else min(message_ttl_ms, default)


def times_at_enqueue(
    queue: EntityDescription, *, ttl_ms: int | None, due_ms: int | None, now_ms: int
) -> Times:
    """A time to live starts when the message can first be received, not when it is scheduled."""
    if due_ms is not None and due_ms > now_ms:
        return Times(_SCHEDULED, now_ms, ttl_ms, None, due_ms)
    ttl = effective_ttl_ms(queue, ttl_ms)
    return Times(_ACTIVE, now_ms, ttl, None if ttl is None else now_ms + ttl, None)


def refusal_to_send(queue: EntityDescription) -> AmqpError | None:
    if queue.status is not Status.ACTIVE and queue.status is not Status.RECEIVE_DISABLED:
        return AmqpError(
            "com.microsoft:entity-disabled",
            f"{queue} is {queue.status.value}: it does not accept messages",
        )
    return None


def refusal_to_receive(queue: EntityDescription, kind: MailboxKind) -> AmqpError | None:
    if queue.status in (Status.DISABLED, Status.RECEIVE_DISABLED):
        return AmqpError(
            "com.microsoft:entity-disabled",
            f"{queue} is {queue.status.value}: it does not deliver messages",
        )
    if queue.forward_to is not None and kind is MailboxKind.MAIN:
        return AmqpError(
            "amqp:not-allowed",
            f"{queue} forwards to {queue.forward_to!r}: receive from there",
        )
    return None


def refusal_of_message(
    queue: EntityDescription, *, size: int, session_id: str | None
) -> AmqpError | None:
    """Checks the message itself. `refusal_of_size` checks whether the entity is full."""
    limit = queue.max_message_size_in_kilobytes * 1024
    if size > limit:
        return AmqpError(
            "amqp:link:message-size-exceeded",
            f"the message has {size} bytes; {queue} accepts at most {limit}",
        )
    if queue.requires_session and session_id is None:
        return AmqpError(
            "amqp:not-allowed",
            f"{queue} requires sessions: the message needs a session id",
        )
    return None


def refusal_of_size(queue: EntityDescription, *, used: int, added: int) -> AmqpError | None:
    limit = queue.max_size_in_megabytes * 1024 * 1024
    if used + added > limit:
        return AmqpError(
            "amqp:resource-limit-exceeded",
            f"{queue} is full: {used} of {limit} bytes are used, and {added} more do not fit",
        )
    return None


def settled(
    settlement: Settlement,
    message: Message,
    queue: EntityDescription,
    kind: MailboxKind,
    *,
    reason: str | None = None,
    description: str | None = None,
) -> Decision:
    """A receiver settles a message whose lock it holds."""
    match settlement:
        case Settlement.COMPLETE:
            return Remove()
        case Settlement.RELEASE:
            return MakeAvailable(message.delivery_count)
        case Settlement.ABANDON:
            return delivery_failed(message, queue, kind)
        case Settlement.DEFER:
            return Defer(message.delivery_count)
        case Settlement.DEAD_LETTER:
            if kind is not MailboxKind.MAIN:
                return Refuse(
                    AmqpError(
                        "amqp:not-allowed",
                        f"a dead letter of {queue} cannot be dead-lettered again",
                    )
                )
            return DeadLetter(reason, description)


def delivery_failed(message: Message, queue: EntityDescription, kind: MailboxKind) -> Change:
    count = message.delivery_count + 1
    if message.state == MessageState.DEFERRED:
        # A deferred message was received by its number. It stays deferred.
        return Defer(count)
    if kind is MailboxKind.MAIN and count >= queue.max_delivery_count:
        return DeadLetter(
            REASON_DELIVERIES,
            f"Message could not be consumed after {queue.max_delivery_count} delivery attempts.",
        )
    return MakeAvailable(count)


def is_expired(message: Message, *, now_ms: int) -> bool:
    return message.expires_ms is not None and message.expires_ms <= now_ms


def expired(queue: EntityDescription) -> Change:
    """Only messages in the main mailbox have an expiry: dead-lettering removes it."""
    if queue.dead_lettering_on_message_expiration:
        return DeadLetter(REASON_EXPIRED, "The message expired and was dead lettered.")
    return Remove()
