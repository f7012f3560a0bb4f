"""What a router answers: where a message goes, and which chores are due."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToPrimary:
    epoch: int
    """The entity's when this was planned: a failure of an earlier one is no news."""


@dataclass(frozen=True, slots=True)
class ToBacklog:
    queue: str
    turn: int = field(default=0, compare=False)
    """The queue's when this was planned, for the same reason."""


@dataclass(frozen=True, slots=True)
class Nowhere:
    """The entity is failed over, and no backlog queue is left."""

    primary_error: BaseException | None
    backlog_error: BaseException | None


Way = ToPrimary | ToBacklog
Plan = Way | Nowhere


@dataclass(frozen=True, slots=True)
class Ping:
    path: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Look whether a withdrawn backlog queue takes messages again."""

    queue: str


Chore = Ping | Probe
