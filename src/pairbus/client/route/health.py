"""The health of one entity of the primary: healthy, suspect, failed over, or on its way back.

One `Health` per entity. It reads no clock and never sleeps: callers pass `now` (monotonic seconds).
It does not know messages, backlog queues, other entities or the reason of a failure: callers report
only failures that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class HealthState(Enum):
    HEALTHY = "healthy"  # sends go to the primary
    SUSPECT = "suspect"  # sends still go to the primary; the failover interval runs
    FAILED_OVER = "failed over"  # sends go to the backlog; the primary is only pinged
    # Only with fail_back="ordered":
    RETURNING = "returning"  # the primary answers; sends go to the backlog until it is home
    HOLDING = "holding"  # the backlog is nearly home, and sends wait for it

    @property
    def is_on_primary(self) -> bool:
        """Whether sends go to the primary."""
        return self is HealthState.HEALTHY or self is HealthState.SUSPECT

    @property
    def is_returning(self) -> bool:
        """Whether the primary answers, and the backlog is awaited."""
        return self is HealthState.RETURNING or self is HealthState.HOLDING


class Signal(Enum):
    SENT = auto()
    FAILED = auto()
    INTERVAL_ELAPSED = auto()
    PING_ANSWERED = auto()
    PING_FAILED = auto()
    ANSWERS_SUFFICE = auto()  # as many pings in a row were answered as the entity needs
    CALM_ELAPSED = auto()  # it has stayed healthy for another `CALM_SECONDS`
    BACKLOG_HOME = auto()  # nothing in the backlog has to be waited for
    BACKLOG_NEAR = auto()  # what is left in the backlog was diverted a moment ago
    HOLD_ELAPSED = auto()
    WAIT_ELAPSED = auto()
    MARKED_HEALTHY = auto()
    NAMESPACE_FAILED_OVER = auto()


# An entity that fails over again so soon after its failback is flapping: the pings it needs double.
# Each time that it stays healthy for as long, they halve.
CALM_SECONDS: Final = 600.0
DOUBLINGS_MAX: Final = 4
# How long sends wait for the last messages in the backlog.
HOLD_SECONDS: Final = 10.0

# The whole policy. A missing pair is a bug in the caller, not a no-op: only `advance` signals that
# a time elapsed or that the answers suffice, and the router drops the outcome of a ping that ends
# after the failback.
TRANSITIONS: Final[dict[tuple[HealthState, Signal], HealthState]] = {
    (HealthState.HEALTHY, Signal.SENT): HealthState.HEALTHY,
    (HealthState.HEALTHY, Signal.FAILED): HealthState.SUSPECT,
    (HealthState.HEALTHY, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    (HealthState.HEALTHY, Signal.CALM_ELAPSED): HealthState.HEALTHY,
    (HealthState.SUSPECT, Signal.SENT): HealthState.HEALTHY,
    (HealthState.SUSPECT, Signal.FAILED): HealthState.SUSPECT,
    (HealthState.SUSPECT, Signal.INTERVAL_ELAPSED): HealthState.FAILED_OVER,
    (HealthState.SUSPECT, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    # Late answers to sends that had begun before the failover. Only a ping or an operator ends the
    # failover: one successful send does not prove that the outage is over.
    (HealthState.FAILED_OVER, Signal.SENT): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.FAILED): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.PING_ANSWERED): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.PING_FAILED): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.ANSWERS_SUFFICE): HealthState.RETURNING,
    (HealthState.FAILED_OVER, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    # The way back. If nothing has to be waited for, the first step is already the last.
    (HealthState.RETURNING, Signal.BACKLOG_HOME): HealthState.HEALTHY,
    (HealthState.RETURNING, Signal.BACKLOG_NEAR): HealthState.HOLDING,
    (HealthState.RETURNING, Signal.WAIT_ELAPSED): HealthState.HEALTHY,
    (HealthState.RETURNING, Signal.PING_ANSWERED): HealthState.RETURNING,
    (HealthState.RETURNING, Signal.PING_FAILED): HealthState.FAILED_OVER,
    (HealthState.RETURNING, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    (HealthState.RETURNING, Signal.SENT): HealthState.RETURNING,
    (HealthState.RETURNING, Signal.FAILED): HealthState.RETURNING,
    (HealthState.HOLDING, Signal.BACKLOG_HOME): HealthState.HEALTHY,
    (HealthState.HOLDING, Signal.BACKLOG_NEAR): HealthState.HOLDING,
    (HealthState.HOLDING, Signal.HOLD_ELAPSED): HealthState.RETURNING,
    (HealthState.HOLDING, Signal.PING_ANSWERED): HealthState.HOLDING,
    (HealthState.HOLDING, Signal.PING_FAILED): HealthState.FAILED_OVER,
    (HealthState.HOLDING, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    (HealthState.HOLDING, Signal.SENT): HealthState.HOLDING,
    (HealthState.HOLDING, Signal.FAILED): HealthState.HOLDING,
    # Only with failover_scope="namespace".
    (HealthState.HEALTHY, Signal.NAMESPACE_FAILED_OVER): HealthState.FAILED_OVER,
    (HealthState.SUSPECT, Signal.NAMESPACE_FAILED_OVER): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.NAMESPACE_FAILED_OVER): HealthState.FAILED_OVER,
    (HealthState.RETURNING, Signal.NAMESPACE_FAILED_OVER): HealthState.RETURNING,
    (HealthState.HOLDING, Signal.NAMESPACE_FAILED_OVER): HealthState.HOLDING,
}

# What the end of a state's own time means.
ELAPSED: Final = {
    HealthState.SUSPECT: Signal.INTERVAL_ELAPSED,
    HealthState.HEALTHY: Signal.CALM_ELAPSED,
    HealthState.RETURNING: Signal.WAIT_ELAPSED,
    HealthState.HOLDING: Signal.HOLD_ELAPSED,
}


@dataclass(slots=True)
class Health:
    failover_seconds: float
    fail_back_pings: int = 1
    """How many pings in a row must be answered. With 1, flapping does not raise the number."""
    wait_seconds_max: float | None = None
    """How long to wait for the backlog on the way back; None: as long as it takes."""
    state: HealthState = HealthState.HEALTHY
    since: float = 0.0
    """When this state began. A failover begins when the interval ends, even if that is noticed
    later.
    """
    first_failure: float | None = None
    """The first failure after the last success; None while healthy."""
    epoch: int = 0
    """Increases by one at each failback, to recognise sends that began before it."""
    answers: int = 0
    """Pings in a row that were answered since the failover."""
    doublings: int = 0
    """How often flapping has doubled the pings that the entity needs."""
    failed_over_at: float = 0.0
    returning_since: float = 0.0
    awaits_backlog: bool = False
    """Messages must come home before the entity may fail back."""
    failed_back_at: float | None = None
    calm_at: float = 0.0
    """While healthy and doubled: when the pings that it needs are halved."""

    @property
    def pings_needed(self) -> int:
        return self.fail_back_pings << self.doublings

    def observe(self, signal: Signal, *, now: float) -> HealthState:
        # Check the interval first: a success after its end is too late to clear it.
        epoch = self.epoch
        self.advance(now=now)
        if self.epoch != epoch:
            return self.state  # time alone failed it back: what is observed belongs to the outage
        self._move(signal, at=now)
        return self.advance(now=now)  # an interval of zero ends at once

    def advance(self, *, now: float) -> HealthState:
        """Let time pass. Call at `deadline`, or whenever convenient."""
        while (due := self._due(now=now)) is not None:  # each changes the state, or halves
            signal, at = due
            self._move(signal, at=at)
        return self.state

    def _due(self, *, now: float) -> tuple[Signal, float] | None:
        state = self.state
        if state is HealthState.FAILED_OVER:
            return (Signal.ANSWERS_SUFFICE, now) if self.answers >= self.pings_needed else None
        if not (state.is_on_primary or self.awaits_backlog):
            return Signal.BACKLOG_HOME, now
        deadline = self.deadline
        return None if deadline is None or now < deadline else (ELAPSED[state], deadline)

    @property
    def deadline(self) -> float | None:
        """When time alone changes the entity next."""
        if self.state is HealthState.SUSPECT and self.first_failure is not None:
            return self.first_failure + self.failover_seconds
        if self.state is HealthState.HEALTHY and self.doublings:
            return self.calm_at
        if not self.state.is_returning:
            return None
        limit = self.wait_seconds_max
        wait_over = None if limit is None else self.returning_since + limit
        if self.state is HealthState.RETURNING:
            return wait_over
        hold_over = self.since + HOLD_SECONDS
        return hold_over if wait_over is None else min(hold_over, wait_over)

    def _move(self, signal: Signal, *, at: float) -> None:
        before, after = self.state, TRANSITIONS[self.state, signal]
        self._count(signal, at=at)
        if after is before:
            return
        self.state, self.since = after, at
        if after is HealthState.SUSPECT or before is HealthState.HEALTHY:
            self.first_failure = at
        elif after is HealthState.HEALTHY:
            self.first_failure = None
            if before is not HealthState.SUSPECT:
                self.epoch += 1
                self.failed_back_at, self.calm_at = at, at + CALM_SECONDS
        if after is HealthState.FAILED_OVER:
            self.answers = 0
            if before.is_on_primary:
                self.failed_over_at = at
                if self.is_flapping:
                    self.doublings = min(self.doublings + 1, DOUBLINGS_MAX)
        elif before is HealthState.FAILED_OVER:
            self.returning_since = at

    def _count(self, signal: Signal, *, at: float) -> None:
        if signal is Signal.PING_ANSWERED:
            self.answers += 1
        elif signal is Signal.PING_FAILED:
            self.answers = 0
        elif signal is Signal.CALM_ELAPSED:
            self.doublings -= 1
            self.calm_at = at + CALM_SECONDS

    @property
    def is_flapping(self) -> bool:
        """Whether it failed over soon after the last failback, and flapping counts."""
        if self.failed_back_at is None or self.fail_back_pings == 1:
            return False
        return self.failed_over_at - self.failed_back_at < CALM_SECONDS
