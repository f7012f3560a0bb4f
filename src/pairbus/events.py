"""What happened to a pair of namespaces, as facts for observers.

The decisions in `client/route/` make events; logging, metrics, traces and the application's own
observers receive them. The thread or task that caused the event calls the observer, after the event
and outside any lock. It cannot delay a decision, but the send that caused the event waits for it,
so it should be quick. What it raises is logged and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    namespace: str
    """The primary's name, as in the paths of its backlog queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired(Event):
    backlog_queues: tuple[str, ...]
    made: tuple[str, ...]
    """The queues that were missing and have been created."""
    warnings: tuple[str, ...] = ()
    """Settings of existing backlog queues that could lose messages, and backlog queues that the
    syphon of this client does not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryFailed(Event):
    """A failure that counts, before the entity fails over: the caller got the error."""

    path: str
    error: BaseException
    since_seconds: float
    """The time since the first failure after the last success."""
    failover_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """A send succeeded before the failover interval was over."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOver(Event):
    path: str
    backlog_queue: str | None
    """Where its messages go; None if no backlog queue is left."""
    error: BaseException | None
    after_seconds: float
    """From the first failure until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBack(Event):
    path: str
    reason: str
    """`ping`, or `by hand`; with ordered failback also `backlog home`, or `wait over` if
    `fail_back_wait_max` ended first and order is not kept."""
    after_seconds: float
    """How long the entity was failed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning(Event):
    """The primary answers. Messages are still diverted, until those in the backlog are home. Only
    with `fail_back="ordered"`.
    """

    path: str
    backlog_queue: str | None
    after_seconds: float
    """How long the entity has been failed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailBackDelayed(Event):
    """The primary answers, and none of this client's messages for the entity has come home for a
    while. Perhaps no syphon runs. Only with `fail_back="ordered"`.
    """

    path: str
    backlog_queue: str | None
    seconds: float
    """How long no message has come home."""
    error: BaseException | None
    """Why the backlog queue could not be peeked at, if it could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flapping(Event):
    """An entity failed over again soon after it had failed back, so it needs more answered pings
    than before. Only with `fail_back_pings` of 2 or more.
    """

    path: str
    times: int
    """How often the number of pings has been doubled."""
    pings_needed: int
    after_seconds: float
    """From the last failback to this failover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calmed(Event):
    """An entity that was flapping has stayed healthy, and needs `fail_back_pings` again."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverted(Event):
    path: str
    backlog_queue: str
    count: int
    seconds: float
    """How long the send to the backlog queue took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogWithdrawn(Event):
    """A backlog queue failed and left the rotation for now."""

    backlog_queue: str
    error: BaseException
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogReadmitted(Event):
    """A withdrawn backlog queue answers again."""

    backlog_queue: str
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled(Event):
    """The service is busy. The primary gets the message again after the wait. A busy backlog queue
    leaves the rotation for that time, and another one gets the message.
    """

    path: str
    wait_seconds: float
    backlog_queue: str | None
    """The backlog queue that is busy, or None for the primary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingSent(Event):
    path: str
    answered: bool
    error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailed(Event):
    """Neither namespace accepted a message; the caller got an error with both causes."""

    path: str
    primary_error: BaseException | None
    backlog_error: BaseException | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent(Event):
    """What the events of an outbox have in common: its state after the event."""

    file: str
    waiting: int
    """How many messages wait in the file now, of all entities."""
    oldest_seconds: float
    """How long the oldest of them has waited; 0 if none waits."""
    file_bytes: int
    """The size of the file, with its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxOpened(OutboxEvent):
    """The outbox holds messages of an earlier run. They are sent before any others."""

    held: int
    """Messages that are not sent any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredInOutbox(OutboxEvent):
    """Neither namespace accepted the messages, or earlier ones of the entity wait in the outbox.
    They are in its file.
    """

    path: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutbox(OutboxEvent):
    """A namespace accepted messages that waited in the outbox."""

    path: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInOutbox(OutboxEvent):
    """A message stays in the file and is not sent any more: it is refused, or too old."""

    path: str
    message_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStalled(Event):
    """The messages of an entity could not leave the outbox. They wait there."""

    path: str
    error: BaseException
    waiting: int
    """How many messages of the entity wait."""
    retry_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonFailed(Event):
    """The syphon of this client failed, or could not be restarted. The client is not affected."""

    error: BaseException
    down_seconds: float
    """How long no syphon has run in this client: 0 if it has just failed."""
    restart_in_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonRestarted(Event):
    """The syphon of this client runs again."""

    down_seconds: float
    """How long no syphon ran in this client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Event):
    pass


Observer = Callable[[Event], None]
