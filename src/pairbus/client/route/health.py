"""The health of one entity of the primary: healthy, suspect, or failed over.

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


class Signal(Enum):
    SENT = auto()
    FAILED = auto()
    INTERVAL_ELAPSED = auto()
    PING_ANSWERED = auto()
    MARKED_HEALTHY = auto()
    NAMESPACE_FAILED_OVER = auto()


# The whole policy. A missing pair is a bug in the caller, not a no-op: only `advance` signals that
# the interval elapsed, and the router drops a ping that is answered late.
TRANSITIONS: Final[dict[tuple[HealthState, Signal], HealthState]] = {
    (HealthState.HEALTHY, Signal.SENT): HealthState.HEALTHY,
    (HealthState.HEALTHY, Signal.FAILED): HealthState.SUSPECT,
    (HealthState.HEALTHY, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    (HealthState.SUSPECT, Signal.SENT): HealthState.HEALTHY,
    (HealthState.SUSPECT, Signal.FAILED): HealthState.SUSPECT,
    (HealthState.SUSPECT, Signal.INTERVAL_ELAPSED): HealthState.FAILED_OVER,
    (HealthState.SUSPECT, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    # Late answers to sends that had begun before the failover. Only a ping or an operator ends the
    # failover: one successful send does not prove that the outage is over.
    (HealthState.FAILED_OVER, Signal.SENT): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.FAILED): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.PING_ANSWERED): HealthState.HEALTHY,
    (HealthState.FAILED_OVER, Signal.MARKED_HEALTHY): HealthState.HEALTHY,
    # Only with failover_scope="namespace".
    (HealthState.HEALTHY, Signal.NAMESPACE_FAILED_OVER): HealthState.FAILED_OVER,
    (HealthState.SUSPECT, Signal.NAMESPACE_FAILED_OVER): HealthState.FAILED_OVER,
    (HealthState.FAILED_OVER, Signal.NAMESPACE_FAILED_OVER): HealthState.FAILED_OVER,
}


@dataclass(slots=True)
class Health:
    failover_seconds: float
    state: HealthState = HealthState.HEALTHY
    since: float = 0.0
    """When this state began. A failover begins when the interval ends, even if that is noticed
    later.
    """
    first_failure: float | None = None
    """The first failure after the last success; None while healthy."""
    epoch: int = 0
    """Increases by one at each failback, to recognise sends that began before it."""

    def observe(self, signal: Signal, *, now: float) -> HealthState:
        # Check the interval first: a success after its end is too late to clear it.
        self.advance(now=now)
        self._move(signal, at=now)
        return self.advance(now=now)  # an interval of zero ends at once

    def advance(self, *, now: float) -> HealthState:
        """Let time pass. Call at `deadline`, or whenever convenient."""
        deadline = self.deadline
        if deadline is not None and now >= deadline:
            self._move(Signal.INTERVAL_ELAPSED, at=deadline)
        return self.state

    @property
    def deadline(self) -> float | None:
        """When the interval is over, while it runs."""
        if self.state is not HealthState.SUSPECT or self.first_failure is None:
            return None
        return self.first_failure + self.failover_seconds

    def _move(self, signal: Signal, *, at: float) -> None:
        before, after = self.state, TRANSITIONS[self.state, signal]
        if after is before:
            return
        self.state, self.since = after, at
        if after is HealthState.SUSPECT or before is HealthState.HEALTHY:
            self.first_failure = at
        elif after is HealthState.HEALTHY:
            self.first_failure = None
            if before is HealthState.FAILED_OVER:
                self.epoch += 1
