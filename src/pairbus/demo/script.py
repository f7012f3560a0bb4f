"""The script of the demo: when each phase ends, what is done then, and the text that explains it.

Pure: it gets the time and the facts, and returns steps. A phase ends when its condition is true.
Each phase has a time limit and so has the whole demo; after it, the demo counts what has arrived so
far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

FAILOVER_SECONDS_MAX: Final = 30.0
RETURN_SECONDS_MAX: Final = 45.0
SENDING_SECONDS_MAX: Final = 86.0
"""The time limit from the first phase until sending must stop."""
STOPPING_SECONDS_MAX: Final = 10.0
"""The time limit for sends that are in progress when sending stops."""
REPORT_SECONDS_MAX: Final = 6.0
"""The time limit for the syphon's report after the backlog is empty."""
IDLE_SECONDS_MAX: Final = 16.0
"""The time limit without any arrival, while counting. It is longer than a lock of the demo's
entities.
"""
COUNTING_SECONDS_MAX: Final = 22.0
"""The time limit for counting. Together with the other limits, the demo takes less than two
minutes.
"""


class Phase(Enum):
    HEALTHY = "healthy"
    FAILING_OVER = "failing over"
    OUTAGE = "outage"
    RETURNING = "returning"
    DRAINING = "draining"
    STOPPING = "stopping"
    COUNTING = "counting"
    OVER = "over"


class Action(Enum):
    KILL = "kill"
    RESTART = "restart"
    STOP_SENDING = "stop sending"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSeconds:
    """The duration, in seconds, of the phases that do not end by themselves."""

    healthy: float
    outage: float
    after: float

    @classmethod
    def random(cls, seconds: float, random: Random) -> PhaseSeconds:
        """Random, so that the code cannot be tuned to the time of the kill."""
        return cls(
            healthy=seconds * random.uniform(0.8, 1.2),
            outage=seconds * random.uniform(1.1, 1.3),
            after=seconds / 4,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFacts:
    """What is known now. The last three fields come from the namespaces' own counts."""

    entities: int
    failed_over: int
    primary_pid: int
    is_primary_ready: bool
    is_syphon_ready: bool
    sent: int
    diverted: int
    raised: int
    received: int
    brought_home: int
    is_sending: bool
    backlog: int = 0
    left: int | None = None
    """Messages in the primary's queues and subscriptions; None while it is down."""
    counted_at: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    phase: Phase
    text: str
    action: Action | None = None


class Script:
    def __init__(self, timing: PhaseSeconds, *, now: float) -> None:
        self._timing = timing
        self._started_at = now
        self._phase = Phase.HEALTHY
        self._phase_started_at = now
        self._killed_at = now
        self._ready_at: float | None = None
        self._received = 0
        self._received_at = now
        self._empty_since = now
        self._has_reported_backlog = False
        self._has_reported_syphon = False
        self.failure = ""
        """What did not happen in time; empty if everything did."""
        self._phases: dict[Phase, Callable[[DemoFacts, float], Iterator[Step]]] = {
            Phase.HEALTHY: self._healthy,
            Phase.FAILING_OVER: self._failing_over,
            Phase.OUTAGE: self._outage,
            Phase.RETURNING: self._returning,
            Phase.DRAINING: self._draining,
            Phase.STOPPING: self._stopping,
            Phase.COUNTING: self._counting,
        }

    @property
    def phase(self) -> Phase:
        return self._phase

    def advance(self, facts: DemoFacts, *, now: float) -> list[Step]:
        """The steps that are due now. At most one phase ends in one call."""
        if self._phase is Phase.OVER:
            return []
        steps = []
        if facts.is_syphon_ready and not self._has_reported_syphon:
            self._has_reported_syphon = True
            steps.append(self._report("Spark is up: the syphon watches the backlog queues."))
        is_ending = self._phase in (Phase.STOPPING, Phase.COUNTING)
        if now - self._started_at >= SENDING_SECONDS_MAX and not is_ending:
            spark = "" if facts.is_syphon_ready else ", and Spark is not up"
            steps += self._give_up(
                f"the demo is still {self._phase.value} after {SENDING_SECONDS_MAX:.0f}s{spark}",
                now,
            )
        else:
            steps += self._phases[self._phase](facts, now)
        return steps

    def stop_sending(self, *, now: float) -> list[Step]:
        """Stops the senders and starts counting, in any phase of the demo."""
        return [self._enter(Phase.STOPPING, now, "The senders stop.", Action.STOP_SENDING)]

    # --- the phases -------------------------------------------------------------------------------

    def _healthy(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        # Wait until each entity has been sent to: a failover must not coincide with a first send.
        elapsed = now - self._phase_started_at
        if elapsed < self._timing.healthy or facts.received < facts.entities:
            return
        self._killed_at = now
        yield self._enter(
            Phase.FAILING_OVER,
            now,
            f"The primary is killed, as by a power cut: kill -9 {facts.primary_pid}.",
            Action.KILL,
        )

    def _failing_over(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        if facts.failed_over == facts.entities:
            yield self._enter(
                Phase.OUTAGE,
                now,
                f"All {facts.entities} entities failed over within {now - self._killed_at:.1f}s; "
                f"messages go to the secondary. {_failed_sends(facts)}",
            )
        elif now - self._phase_started_at >= FAILOVER_SECONDS_MAX:
            yield from self._give_up(
                f"only {facts.failed_over} of {facts.entities} entities failed over within "
                f"{FAILOVER_SECONDS_MAX:.0f}s",
                now,
            )

    def _outage(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        elapsed = now - self._killed_at
        is_half_over = elapsed >= self._timing.outage / 2
        if is_half_over and facts.backlog and not self._has_reported_backlog:
            self._has_reported_backlog = True
            yield self._report(
                f"The backlog grows: {facts.backlog} messages wait on the secondary. The receiver "
                "gets nothing."
            )
        if elapsed >= self._timing.outage:
            yield self._enter(
                Phase.RETURNING,
                now,
                "The primary starts again, with the same port and data. No client is notified.",
                Action.RESTART,
            )

    def _returning(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        if facts.is_primary_ready and self._ready_at is None:
            self._ready_at = now
        if self._ready_at is not None and not facts.failed_over:
            self._empty_since = now
            yield self._enter(
                Phase.DRAINING,
                now,
                f"A ping reached it {now - self._ready_at:.1f}s after it was up: all "
                f"{facts.entities} entities failed back. {_failed_sends(facts)}",
            )
        elif now - self._phase_started_at >= RETURN_SECONDS_MAX:
            what = "the primary is not up" if self._ready_at is None else "no ping has reached it"
            yield from self._give_up(f"{what} after {RETURN_SECONDS_MAX:.0f}s", now)

    def _draining(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        if facts.backlog or facts.counted_at <= self._phase_started_at:
            self._empty_since = now
        # The syphon reports when its round is over, so a little after the backlog is empty.
        is_reported = (
            facts.brought_home >= facts.diverted or now - self._empty_since >= REPORT_SECONDS_MAX
        )
        is_drained = self._empty_since < now and is_reported and not facts.failed_over
        if not is_drained or now - self._phase_started_at < self._timing.after:
            return
        yield self._report(
            f"The backlog is empty: {facts.diverted} messages were diverted, and the syphon "
            f"brought {facts.brought_home} home."
        )
        yield from self.stop_sending(now=now)

    def _stopping(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        is_late = now - self._phase_started_at >= STOPPING_SECONDS_MAX
        if is_late and facts.is_sending:
            self.failure = self.failure or f"a send has not ended after {STOPPING_SECONDS_MAX:.0f}s"
        if is_late or not facts.is_sending:
            self._received, self._received_at = facts.received, now
            yield self._enter(
                Phase.COUNTING, now, f"{facts.sent} messages were sent. {_failed_sends(facts)}"
            )

    def _counting(self, facts: DemoFacts, now: float) -> Iterator[Step]:
        """Waits until all queues are empty: then nothing can arrive any more, late or twice."""
        if facts.received != self._received:
            self._received, self._received_at = facts.received, now
        is_counted = facts.counted_at > self._phase_started_at
        if is_counted and facts.left == 0 and not facts.backlog:
            yield self._enter(
                Phase.OVER,
                now,
                "All queues of both namespaces are empty: nothing more can arrive.",
                Action.END,
            )
        elif (
            now - self._received_at >= IDLE_SECONDS_MAX
            or now - self._phase_started_at >= COUNTING_SECONDS_MAX
        ):
            left = "an unknown number" if facts.left is None else str(facts.left)
            self.failure = self.failure or "the queues are not empty"
            yield self._enter(
                Phase.OVER,
                now,
                f"The queues did not become empty in time: {facts.backlog} messages are left in "
                f"the backlog and {left} on the primary.",
                Action.END,
            )

    # --- steps ------------------------------------------------------------------------------------

    def _report(self, text: str) -> Step:
        return Step(phase=self._phase, text=text)

    def _enter(self, phase: Phase, now: float, text: str, action: Action | None = None) -> Step:
        self._phase, self._phase_started_at = phase, now
        return Step(phase=phase, text=text, action=action)

    def _give_up(self, reason: str, now: float) -> Iterator[Step]:
        self.failure = reason
        yield self._report(f"Something went wrong: {reason}.")
        yield from self.stop_sending(now=now)


def _failed_sends(facts: DemoFacts) -> str:
    if facts.raised:
        return f"Sends that failed and were repeated: {facts.raised}."
    return "No send failed."
