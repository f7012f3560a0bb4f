"""What is known of the queues and topics of the primary, and how long each is left alone.

Pure: it is told what became of sends, and `now`. That is UTC in seconds, because what one task has
learned of a destination is told to the next one, on whatever machine that runs. Which error of
which library is which `Failure`, the caller knows; what becomes of a message, `step.py` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final


class Condition(Enum):
    """What is known of a destination."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"
    THROTTLED = "throttled"
    FULL = "full"
    DISABLED = "disabled"
    GONE = "gone"  # the primary has no such entity
    FORBIDDEN = "forbidden"


class Failure(Enum):
    """What the primary said to a send, or its silence."""

    UNREACHABLE = "unreachable"  # no answer: a time-out, a connection lost or refused
    ERROR = "error"  # an answer that blames neither the message nor the entity; it may pass
    THROTTLED = "throttled"
    QUOTA_EXCEEDED = "quota exceeded"
    DISABLED = "disabled"
    NOT_FOUND = "not found"
    UNAUTHORIZED = "unauthorized"
    REFUSED = "refused"  # the message's own fault: any attempt would end like this


class Reaction(Enum):
    """What becomes of the messages of a send that failed."""

    WAIT = "wait"  # release them; the destination says when to try again
    SPLIT = "split"  # send them in smaller parts: one of them may be at fault
    BURY = "bury"  # dead-letter them


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    condition: Condition | None
    """What the failure says of the destination; None if it says nothing."""
    first_seconds: float = 0.0
    """How long to leave the destination alone after a first failure; twice as long after each
    further one in a row."""
    seconds_max: float = 0.0
    strikes: int = 1
    """How many single messages must fail like this, with no success in between, until the
    destination is blamed: below that it may be the messages."""
    of_many: Reaction = Reaction.WAIT
    of_one: Reaction = Reaction.WAIT


# The whole policy. An unlisted failure is a bug in the caller.
POLICY: Final[dict[Failure, Rule]] = {
    Failure.UNREACHABLE: Rule(condition=Condition.DOWN, first_seconds=1, seconds_max=60),
    # Taken apart, so that a message which upsets the primary holds up nobody but itself.
    Failure.ERROR: Rule(
        condition=Condition.DOWN,
        first_seconds=1,
        seconds_max=60,
        strikes=3,
        of_many=Reaction.SPLIT,
    ),
    # At least 10 seconds: the service says so.
    Failure.THROTTLED: Rule(condition=Condition.THROTTLED, first_seconds=10, seconds_max=60),
    # These end when somebody receives, or enables it: there is no hurry, and nothing is lost.
    Failure.QUOTA_EXCEEDED: Rule(condition=Condition.FULL, first_seconds=5, seconds_max=300),
    Failure.DISABLED: Rule(condition=Condition.DISABLED, first_seconds=5, seconds_max=300),
    # Believed for a minute, in which what else is meant for it is buried as well. Then it is asked
    # again: somebody may have created it.
    Failure.NOT_FOUND: Rule(
        condition=Condition.GONE,
        first_seconds=60,
        seconds_max=60,
        of_many=Reaction.BURY,
        of_one=Reaction.BURY,
    ),
    # Wrong credentials are the operator's to mend; no message is buried for them.
    Failure.UNAUTHORIZED: Rule(condition=Condition.FORBIDDEN, first_seconds=60, seconds_max=300),
    Failure.REFUSED: Rule(condition=None, of_many=Reaction.SPLIT, of_one=Reaction.BURY),
}

SLOW_SECONDS: Final = 0.5
"""An answer that takes longer is slow."""
PATIENCE_SECONDS_MAX: Final = 15.0
_DOUBLINGS_MAX: Final = 32  # far beyond every `seconds_max`


@dataclass(slots=True)
class Destination:
    """What is known of one queue or topic of the primary."""

    path: str
    """As it was first spelled."""
    condition: Condition = Condition.UNKNOWN
    until: float = 0.0
    """Nothing is sent there before."""
    failures: int = 0
    """Of this condition, in a row."""
    detail: str = ""
    """What was said about it last; empty when it is up or unknown."""
    since: float = 0.0
    """When this condition began."""
    heard: float = 0.0
    """When there was last a word of it."""
    throttled_until: float = 0.0
    """What it asked for when it throttled: no success of another send shortens that."""
    strikes: int = 0
    """Single messages in a row that failed without proving it down."""
    patience: float = 0.0
    """How many seconds an answer of it may take, where that is long."""

    def is_open(self, *, now: float) -> bool:
        return now >= self.until

    def sent(self, *, now: float) -> None:
        """It has acknowledged messages."""
        self.heard, self.strikes = now, 0
        if now < self.throttled_until:
            self.until = self.throttled_until
            self._become(Condition.THROTTLED, now=now)
            return
        self._become(Condition.UP, now=now)
        self.until, self.failures, self.detail = 0.0, 0, ""

    def failed(self, failure: Failure, *, now: float, detail: str = "") -> None:
        """A send has failed that is not taken apart: see `step.after_failure`."""
        self.heard = now
        rule = POLICY[failure]
        if rule.condition is None:
            return
        if rule.strikes > 1 and self.condition is not rule.condition:
            self.strikes += 1
            if self.strikes < rule.strikes:
                return
        if self._become(rule.condition, now=now):
            self.failures = 1
        elif self.is_open(now=now):
            # While it is closed, what fails was under way already: one trouble, counted once.
            self.failures += 1
        self.strikes, self.detail = 0, detail
        doublings = min(self.failures - 1, _DOUBLINGS_MAX)
        wait = min(rule.first_seconds * 2**doublings, rule.seconds_max)
        self.until = max(self.until, now + wait)
        if rule.condition is Condition.THROTTLED:
            self.throttled_until = max(self.throttled_until, now + wait)

    def answered(self, *, after: float) -> None:
        """It took so many seconds. Twice that is waited for the next time, if it is slow."""
        self.patience = min(2 * after, PATIENCE_SECONDS_MAX) if after > SLOW_SECONDS else 0.0

    def was_late(self, *, waited: float) -> None:
        """No answer came while it was waited for: it is waited for longer the next time, so that
        one that is slow does not get the same messages again and again."""
        self.patience = min(max(2 * waited, 2 * self.patience), PATIENCE_SECONDS_MAX)

    def _become(self, condition: Condition, *, now: float) -> bool:
        if self.condition is condition:
            return False
        self.condition, self.since = condition, now
        return True


class Destinations:
    """Those of one task. Paths that differ in case only are one, as they are to the service."""

    def __init__(self, known: Iterable[Destination] = ()) -> None:
        self._by_path: dict[str, Destination] = {}
        self._spelled: dict[str, Destination] = {}
        for destination in known:
            self.learn(destination)

    def __getitem__(self, path: str) -> Destination:
        """One that was never heard of is made."""
        found = self._spelled.get(path)
        if found is None:
            found = self._by_path.setdefault(path.lower(), Destination(path))
            self._spelled[path] = found
        return found

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_path.values())

    def learn(self, other: Destination) -> None:
        """What another task has found out; the later word holds."""
        known = self._by_path.get(other.path.lower())
        if known is None or known.heard < other.heard:
            spelled = other.path if known is None else known.path
            self._by_path[other.path.lower()] = replace(other, path=spelled)
            self._spelled.clear()

    def opens_next(self, *, now: float) -> float | None:
        """When the first of those that are left alone may be tried again; None if there is none."""
        return min((one.until for one in self if not one.is_open(now=now)), default=None)

    @property
    def stopper(self) -> Destination | None:
        """The destination for which the run must end: forbidden, while none is known to be up.

        Then the credentials are wrong, and going on would only hide it. Where others are up, the
        one that is forbidden waits like one that is down.
        """
        forbidden = [one for one in self if one.condition is Condition.FORBIDDEN]
        if not forbidden or any(one.condition is Condition.UP for one in self):
            return None
        return forbidden[0]
