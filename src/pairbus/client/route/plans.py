"""What a router decides: where a message goes, and what the background has to do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToPrimary:
    epoch: int
    """The entity's epoch at the time of the plan. A failure from an earlier epoch is ignored."""


@dataclass(frozen=True, slots=True)
class ToBacklog:
    queue: str
    generation: int = field(default=0, compare=False)
    """The queue's generation at the time of the plan. A failure from an earlier one is ignored."""


@dataclass(frozen=True, slots=True)
class Nowhere:
    """The entity is failed over, and no backlog queue is left."""

    primary_error: BaseException | None
    backlog_error: BaseException | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait, and ask again: otherwise order would be lost."""

    seconds: float


Way = ToPrimary | ToBacklog
Plan = Way | Nowhere | Hold


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask whether an entity of the primary accepts messages again."""

    path: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Open a connection to a backlog queue: to probe a withdrawn one, or to keep a connection ready
    to one in use.
    """

    queue: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Send the messages of an entity that wait in the outbox."""

    path: str
    """In lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekBacklog:
    """Peek at one page of a backlog queue, to see whether messages of this client are left."""

    path: str
    queue: str
    epoch: int
    from_sequence: int
    diverted: int
    """How many messages the entity had diverted when the task was handed out."""


BackgroundTask = Ping | Probe | Drain | PeekBacklog
