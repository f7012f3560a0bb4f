"""The script of the demo: which scene follows when, what is done then, and what is said.

Pure: it is handed the time and what is known, and answers with cues. A scene ends when what it
tells of has happened; each has a bound, and so has the whole, after which the account is made with
what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

FAILOVER_SECONDS_MAX: Final = 30.0
RETURN_SECONDS_MAX: Final = 45.0
WHOLE_SECONDS_MAX: Final = 86.0
"""From the first scene to the moment when sending must end."""
STOP_SECONDS_MAX: Final = 10.0
"""For calls that are under way when sending is to end."""
TELL_SECONDS_MAX: Final = 6.0
"""For the syphon's word, when the backlog is empty."""
COUNT_SECONDS_MAX: Final = 16.0
"""Without any arrival, when all has been sent: longer than a lock of the demo's entities lasts."""
ACCOUNT_SECONDS_MAX: Final = 22.0
"""For the account as a whole: with the rest, less than two minutes."""


class Scene(Enum):
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
class Pace:
    """How long the scenes last that do not end by themselves, in seconds."""

    healthy: float
    outage: float
    after: float

    @classmethod
    def of(cls, seconds: float, dice: Random) -> Pace:
        """The kill comes at a moment that nobody could prepare for."""
        return cls(
            healthy=seconds * dice.uniform(0.8, 1.2),
            outage=seconds * dice.uniform(1.1, 1.3),
            after=seconds / 4,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known now. Counted: by the namespaces, when they were asked last."""

    entities: int
    failed_over: int
    primary_pid: int
    is_primary_ready: bool
    is_syphon_ready: bool
    sent: int
    diverted: int
    raised: int
    received: int
    moved: int
    is_sending: bool
    backlog: int = 0
    left: int | None = None
    """In the queues and subscriptions of the primary; None while it is down."""
    counted_at: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    scene: Scene
    text: str
    action: Action | None = None


class Script:
    def __init__(self, pace: Pace, *, now: float) -> None:
        self._pace = pace
        self._began = now
        self._scene = Scene.HEALTHY
        self._scene_began = now
        self._killed = now
        self._ready: float | None = None
        self._received = 0
        self._received_at = now
        self._empty_since = now
        self._has_told_growth = False
        self._has_told_syphon = False
        self.failure = ""
        """What did not happen in time; empty if all did."""
        self._scenes: dict[Scene, Callable[[Facts, float], Iterator[Cue]]] = {
            Scene.HEALTHY: self._healthy,
            Scene.FAILING_OVER: self._failing_over,
            Scene.OUTAGE: self._outage,
            Scene.RETURNING: self._returning,
            Scene.DRAINING: self._draining,
            Scene.STOPPING: self._stopping,
            Scene.COUNTING: self._counting,
        }

    @property
    def scene(self) -> Scene:
        return self._scene

    def advance(self, facts: Facts, *, now: float) -> list[Cue]:
        """What is to be said and done now; at most one scene ends at a time."""
        if self._scene is Scene.OVER:
            return []
        cues = []
        if facts.is_syphon_ready and not self._has_told_syphon:
            self._has_told_syphon = True
            cues.append(self._say("Spark is up: the syphon watches the backlog queues."))
        if now - self._began >= WHOLE_SECONDS_MAX and not self._is_ending:
            spark = "" if facts.is_syphon_ready else ", and Spark is not up"
            cues += self._give_up(
                f"after {WHOLE_SECONDS_MAX:.0f} s it is still {self._scene.value}{spark}", now
            )
        else:
            cues += self._scenes[self._scene](facts, now)
        return cues

    def settle(self, *, now: float) -> list[Cue]:
        """Sending ends, whatever the scene, and the account is made."""
        return [self._turn(Scene.STOPPING, now, "The senders stop.", Action.STOP_SENDING)]

    # --- the scenes -------------------------------------------------------------------------------

    def _healthy(self, facts: Facts, now: float) -> Iterator[Cue]:
        # Every entity has been sent to, or its failover would be one of opening its first link.
        if now - self._scene_began < self._pace.healthy or facts.received < facts.entities:
            return
        self._killed = now
        yield self._turn(
            Scene.FAILING_OVER,
            now,
            f"The primary is killed, as a power cut would: kill -9 {facts.primary_pid}.",
            Action.KILL,
        )

    def _failing_over(self, facts: Facts, now: float) -> Iterator[Cue]:
        if facts.failed_over == facts.entities:
            yield self._turn(
                Scene.OUTAGE,
                now,
                f"All {facts.entities} entities failed over in {now - self._killed:.1f} s; "
                f"messages go to the secondary. {_failed(facts)}",
            )
        elif now - self._scene_began >= FAILOVER_SECONDS_MAX:
            yield from self._give_up(
                f"only {facts.failed_over} of {facts.entities} entities have failed over within "
                f"{FAILOVER_SECONDS_MAX:.0f} s",
                now,
            )

    def _outage(self, facts: Facts, now: float) -> Iterator[Cue]:
        since = now - self._killed
        if since >= self._pace.outage / 2 and facts.backlog and not self._has_told_growth:
            self._has_told_growth = True
            yield self._say(
                f"The backlog grows: {facts.backlog} messages wait on the secondary. The receiver "
                "has none to take."
            )
        if since >= self._pace.outage:
            yield self._turn(
                Scene.RETURNING,
                now,
                "The primary starts again, with its port and its data. Nobody is told.",
                Action.RESTART,
            )

    def _returning(self, facts: Facts, now: float) -> Iterator[Cue]:
        if facts.is_primary_ready and self._ready is None:
            self._ready = now
        if self._ready is not None and not facts.failed_over:
            self._empty_since = now
            yield self._turn(
                Scene.DRAINING,
                now,
                f"A ping found it {now - self._ready:.1f} s after it was up: all {facts.entities} "
                f"entities failed back. {_failed(facts)}",
            )
        elif now - self._scene_began >= RETURN_SECONDS_MAX:
            what = "the primary is not up" if self._ready is None else "no ping has found it"
            yield from self._give_up(f"{what} after {RETURN_SECONDS_MAX:.0f} s", now)

    def _draining(self, facts: Facts, now: float) -> Iterator[Cue]:
        if not (facts.counted_at > self._scene_began and not facts.backlog):
            self._empty_since = now
        # The syphon says what it has done when a round is over, so a little later.
        is_told = facts.moved >= facts.diverted or now - self._empty_since >= TELL_SECONDS_MAX
        is_empty = self._empty_since < now and is_told and not facts.failed_over
        if not is_empty or now - self._scene_began < self._pace.after:
            return
        yield self._say(
            f"The backlog is empty: {facts.diverted} messages were diverted, and the syphon has "
            f"brought {facts.moved} home."
        )
        yield from self.settle(now=now)

    def _stopping(self, facts: Facts, now: float) -> Iterator[Cue]:
        is_late = now - self._scene_began >= STOP_SECONDS_MAX
        if is_late and facts.is_sending:
            self.failure = self.failure or f"a send has not ended after {STOP_SECONDS_MAX:.0f} s"
        if is_late or not facts.is_sending:
            self._received, self._received_at = facts.received, now
            yield self._turn(
                Scene.COUNTING, now, f"{facts.sent} messages have been sent. {_failed(facts)}"
            )

    def _counting(self, facts: Facts, now: float) -> Iterator[Cue]:
        """Nothing may lie anywhere any more: then nothing can arrive, neither late nor twice."""
        if facts.received != self._received:
            self._received, self._received_at = facts.received, now
        is_counted = facts.counted_at > self._scene_began
        if is_counted and facts.left == 0 and not facts.backlog:
            yield self._turn(
                Scene.OVER,
                now,
                "All queues are empty, on both namespaces: nothing can arrive any more.",
                Action.END,
            )
        elif (
            now - self._received_at >= COUNT_SECONDS_MAX
            or now - self._scene_began >= ACCOUNT_SECONDS_MAX
        ):
            left = "an unknown number of" if facts.left is None else str(facts.left)
            self.failure = self.failure or "the queues are not empty"
            yield self._turn(
                Scene.OVER,
                now,
                f"The queues are not empty in time: {facts.backlog} messages are left in the "
                f"backlog and {left} on the primary.",
                Action.END,
            )

    # --- how it is said ---------------------------------------------------------------------------

    @property
    def _is_ending(self) -> bool:
        return self._scene in (Scene.STOPPING, Scene.COUNTING)

    def _say(self, text: str) -> Cue:
        return Cue(scene=self._scene, text=text)

    def _turn(self, scene: Scene, now: float, text: str, action: Action | None = None) -> Cue:
        self._scene, self._scene_began = scene, now
        return Cue(scene=scene, text=text, action=action)

    def _give_up(self, why: str, now: float) -> Iterator[Cue]:
        self.failure = why
        yield self._say(f"This did not go as it should: {why}.")
        yield from self.settle(now=now)


def _failed(facts: Facts) -> str:
    if facts.raised:
        return f"Calls that failed, and were repeated: {facts.raised}."
    return "No send has failed."
