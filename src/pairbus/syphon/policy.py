"""The policy: what a failed send says about its destination, when to retry, and what to do with the
messages.

`POLICY` is the complete policy, as a table. `Destination` applies it to one queue or topic of the
primary; `next_step` and `after_failure` apply it to messages. Pure: it neither sends nor settles
nor sleeps. `now` is UTC in seconds, because one task passes its knowledge of a destination to the
next, and the two may run on different machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from azure.servicebus import exceptions as sdk

from pairbus.client.route.envelope import EnvelopeError
from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.syphon.restore import Restored
from pairbus.syphon.window import ANSWER_SECONDS_MAX


class Condition(Enum):
    """What is known about a destination."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"
    THROTTLED = "throttled"
    FULL = "full"
    DISABLED = "disabled"
    NOT_FOUND = "not found"
    FORBIDDEN = "forbidden"


class Failure(Enum):
    """How a send failed."""

    UNREACHABLE = "unreachable"  # no answer: a time-out, or a connection lost or refused
    ERROR = "error"  # an answer that blames neither message nor entity, and may be temporary
    THROTTLED = "throttled"
    QUOTA_EXCEEDED = "quota exceeded"
    DISABLED = "disabled"
    NOT_FOUND = "not found"
    UNAUTHORIZED = "unauthorized"
    REFUSED = "refused"  # the message itself is at fault: every attempt would fail


class NextStep(Enum):
    """What to do with messages next, apart from dead-lettering (`ToDeadLetter`)."""

    SEND = "send"
    """Send, and complete in the backlog when the primary has acknowledged.

    Never in the other order. If the process dies between the two steps, the message arrives twice,
    and duplicate detection drops the copy. In the other order, the message would be lost.
    """
    WAIT = "wait"  # hold until the end of the task, then release
    SPLIT = "split"  # send again in smaller parts: one of the messages may be at fault
    DROP = "drop"  # complete without sending: the time to live has ended


@dataclass(frozen=True, slots=True)
class ToDeadLetter:
    """Move to the dead-letter queue of the backlog queue."""

    reason: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    condition: Condition | None
    """What the failure says about the destination; None if it says nothing."""
    first_seconds: float = 0.0
    """The pause after the first failure. Each further failure in a row doubles it, up to
    `seconds_max`.
    """
    seconds_max: float = 0.0
    strikes: int = 1
    """How many single messages must fail like this, with no success in between, before the
    destination is blamed. Until then the messages may be at fault."""
    splits: bool = False
    """Several messages are sent again in smaller parts, because one of them may be at fault."""
    dead_letters: bool = False
    """Messages that are not split are dead-lettered. Otherwise they wait."""
    is_back_by_link: bool = False
    """Whether a link that can be attached shows that the destination is back. That is not billed,
    so it is tried every few seconds, and a message only after these pauses. Otherwise only a
    message can show it.
    """


POLICY: Final[dict[Failure, Rule]] = {
    Failure.UNREACHABLE: Rule(
        condition=Condition.DOWN, first_seconds=15, seconds_max=60, is_back_by_link=True
    ),
    # Split, so that one message which the primary cannot process delays only itself.
    Failure.ERROR: Rule(
        condition=Condition.DOWN, first_seconds=1, seconds_max=5, strikes=3, splits=True
    ),
    # At least 10 seconds: the service asks for that.
    Failure.THROTTLED: Rule(condition=Condition.THROTTLED, first_seconds=10, seconds_max=10),
    Failure.QUOTA_EXCEEDED: Rule(condition=Condition.FULL, first_seconds=5, seconds_max=5),
    Failure.DISABLED: Rule(
        condition=Condition.DISABLED, first_seconds=60, seconds_max=300, is_back_by_link=True
    ),
    # For a minute, other messages for it are dead-lettered without an attempt. Then the primary is
    # tried again, because the entity may have been created.
    Failure.NOT_FOUND: Rule(
        condition=Condition.NOT_FOUND, first_seconds=60, seconds_max=60, dead_letters=True
    ),
    # The operator must correct wrong credentials. They never cause a dead letter.
    Failure.UNAUTHORIZED: Rule(
        condition=Condition.FORBIDDEN, first_seconds=60, seconds_max=300, is_back_by_link=True
    ),
    Failure.REFUSED: Rule(condition=None, splits=True, dead_letters=True),
}

# Reasons of dead letters.
UNREADABLE: Final = "EnvelopeUnreadable"
NOT_FOUND: Final = "DestinationNotFound"
REFUSED: Final = "RefusedByDestination"
DESCRIPTION_MAX: Final = 4096
"""Characters that Service Bus accepts as a reason or a description."""
SLOW_SECONDS: Final = 0.5
"""An answer that takes longer is slow."""
LONG_SECONDS: Final = 600.0
"""After this long, a destination that only a message can test is tried less often: a message is
received for each attempt, and billed."""
LONG_PAUSE_SECONDS: Final = 30.0
_DOUBLINGS_MAX: Final = 32  # far beyond every `seconds_max`
# The pauses of a destination that accepts links but no messages.
_NO_LINK: Final = Rule(condition=None, first_seconds=1, seconds_max=5)

# --- from an exception to a failure ---------------------------------------------------------------

_NO_ANSWER: Final = (
    sdk.OperationTimeoutError,
    sdk.ServiceBusConnectionError,
    sdk.ServiceBusCommunicationError,
)


def failure_of(error: BaseException) -> Failure | None:
    """Returns how a send failed; None if the error is neither the primary's nor the message's
    fault, but a bug."""
    if isinstance(error, sdk.ServiceBusQuotaExceededError):
        return Failure.QUOTA_EXCEEDED
    if isinstance(error, sdk.MessagingEntityDisabledError):
        return Failure.DISABLED
    match kind_of(error):
        case Kind.THROTTLED:
            return Failure.THROTTLED
        case Kind.MESSAGE:
            return Failure.REFUSED
        case Kind.SETUP:
            return Failure.NOT_FOUND if _is_not_found(error) else Failure.UNAUTHORIZED
        case Kind.OUTAGE:
            return Failure.UNREACHABLE if isinstance(error, _NO_ANSWER) else Failure.ERROR
        case Kind.OTHER:
            return None


def _is_not_found(error: BaseException) -> bool:
    if isinstance(error, sdk.MessagingEntityNotFoundError):
        return True
    # The service refuses the token for an entity that does not exist, with status 404.
    inner = getattr(error, "inner_exception", None)
    return getattr(inner, "status_code", None) == 404


# --- destinations ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Destination:
    """What is known about one queue or topic of the primary."""

    path: str
    """As it was first spelled."""
    condition: Condition = Condition.UNKNOWN
    until: float = 0.0
    """Nothing is sent there before this time."""
    failures: int = 0
    """The number of failures in a row with this condition."""
    detail: str = ""
    """The text of the last failure; empty if the destination is up or unknown."""
    since: float = 0.0
    """When this condition began."""
    last_heard: float = 0.0
    """When a send last succeeded or failed."""
    throttled_until: float = 0.0
    """The pause that it asked for when it throttled. Another send's success does not shorten it."""
    strikes: int = 0
    """Single messages in a row that failed without proving that it is down."""
    answer_seconds: float = 0.0
    """How long to wait for its answers if it is slow, and 0 if it is not."""
    failure: Failure | None = None
    """The last failure; None if it is up or unknown."""
    is_reopened: bool = False
    """A link was attached since the last success."""
    trusts_link: bool = True
    """False if a link was attached and messages failed all the same."""

    @property
    def is_failing(self) -> bool:
        """Whether messages wait for it. Messages for one that does not exist are dead-lettered."""
        return self.condition not in (Condition.UP, Condition.UNKNOWN, Condition.NOT_FOUND)

    @property
    def is_back_by_link(self) -> bool:
        """Whether to attach a link to see if it is back."""
        rule = None if self.failure is None else POLICY[self.failure]
        return self.is_failing and self.trusts_link and rule is not None and rule.is_back_by_link

    def is_open(self, *, now: float) -> bool:
        return now >= self.until

    def sent(self, *, now: float) -> None:
        """It has acknowledged messages."""
        self.last_heard, self.strikes = now, 0
        if now < self.throttled_until:
            self.until = self.throttled_until
            self._set_condition(Condition.THROTTLED, now=now)
            return
        self._set_condition(Condition.UP, now=now)
        self._forget_failures()

    def reopened(self, *, now: float) -> None:
        """A link was attached: it may be back. A message will show."""
        self.until, self.is_reopened = min(self.until, now), True

    def may_be_up(self, *, now: float) -> None:
        """It may be up, as far as is known: it has answered, or what made it fail has ended."""
        self._set_condition(Condition.UNKNOWN, now=now)
        self._forget_failures()

    def _forget_failures(self) -> None:
        self.until, self.failures, self.detail, self.failure = 0.0, 0, "", None
        self.is_reopened, self.trusts_link = False, True

    def failed(self, failure: Failure, *, now: float, detail: str = "") -> None:
        """A send has failed. Called by `after_failure`."""
        self.last_heard = now
        rule = POLICY[failure]
        if rule.condition is None:
            return
        if rule.strikes > 1 and self.condition is not rule.condition:
            self.strikes += 1
            if self.strikes < rule.strikes:
                return
        if self._set_condition(rule.condition, now=now):
            self.failures = 1
        elif self.is_open(now=now):
            # While the destination is closed, only sends that were already in flight fail. They
            # belong to the same outage, so they count once.
            self.failures += 1
        self.strikes, self.detail, self.failure = 0, detail, failure
        wait = self._pause(rule, now=now)
        self.until = max(self.until, now + wait)
        if rule.condition is Condition.THROTTLED:
            self.throttled_until = max(self.throttled_until, now + wait)

    def _pause(self, rule: Rule, *, now: float) -> float:
        if rule.is_back_by_link:
            if self.is_reopened:
                self.trusts_link = False
            rule = rule if self.trusts_link else _NO_LINK
        if not rule.is_back_by_link and now - self.since > LONG_SECONDS:
            return max(rule.seconds_max, LONG_PAUSE_SECONDS)
        doublings = min(self.failures - 1, _DOUBLINGS_MAX)
        return min(rule.first_seconds * float(2**doublings), rule.seconds_max)

    def answered(self, *, after: float) -> None:
        """An answer took this many seconds. If that is slow, the next may take twice as long."""
        self.answer_seconds = min(2 * after, ANSWER_SECONDS_MAX) if after > SLOW_SECONDS else 0.0

    def was_late(self, *, waited: float) -> None:
        """No answer came in time. The next one may take longer: otherwise a slow destination would
        get the same messages repeatedly.
        """
        self.answer_seconds = min(max(2 * waited, 2 * self.answer_seconds), ANSWER_SECONDS_MAX)

    def _set_condition(self, condition: Condition, *, now: float) -> bool:
        if self.condition is condition:
            return False
        self.condition, self.since = condition, now
        return True


class Destinations:
    """Destinations by path. Paths that differ only in case are one, as they are to the service."""

    def __init__(self, known: Iterable[Destination] = ()) -> None:
        self._by_path: dict[str, Destination] = {}
        self._by_spelling: dict[str, Destination] = {}
        for destination in known:
            self.learn(destination)

    def __getitem__(self, path: str) -> Destination:
        """Returns a destination. An unknown one is added."""
        found = self._by_spelling.get(path)
        if found is None:
            found = self._by_path.setdefault(path.lower(), Destination(path))
            self._by_spelling[path] = found
        return found

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_path.values())

    def find(self, path: str) -> Destination:
        """Returns a destination. An unknown one is not added."""
        return self._by_path.get(path.lower()) or Destination(path)

    def learn(self, other: Destination) -> bool:
        """Merge what another task found out, if it is newer."""
        known = self._by_path.get(other.path.lower())
        if known is not None and known.last_heard >= other.last_heard:
            return False
        path = other.path if known is None else known.path
        self._by_path[other.path.lower()] = replace(other, path=path)
        self._by_spelling.clear()
        return True


# --- messages -------------------------------------------------------------------------------------


def next_step(
    message: Restored, destination: Destination, *, now: float
) -> NextStep | ToDeadLetter:
    """What to do with a message: send, wait, drop, or dead-letter."""
    if message.is_expired:
        return NextStep.DROP  # even if its destination is down: waiting does not help
    if destination.is_open(now=now):
        return NextStep.SEND
    if destination.condition is Condition.NOT_FOUND:
        return _not_found(destination)
    return NextStep.WAIT


def after_failure(
    destination: Destination, failure: Failure, *, count: int, now: float, detail: str = ""
) -> NextStep | ToDeadLetter:
    """What to do with the `count` messages of a failed send: wait, split, or dead-letter.

    If they are not split, the failure counts against the destination.
    """
    rule = POLICY[failure]
    if rule.splits and count > 1:
        return NextStep.SPLIT  # says nothing about the destination yet
    destination.failed(failure, now=now, detail=detail)
    if not rule.dead_letters:
        return NextStep.WAIT
    if failure is Failure.NOT_FOUND:
        return _not_found(destination)
    return _dead_letter(REFUSED, f"{destination.path!r} refuses the message: {detail}")


def unreadable(error: EnvelopeError) -> ToDeadLetter:
    """What to do with a message that cannot be restored."""
    return _dead_letter(UNREADABLE, str(error))


def _not_found(destination: Destination) -> ToDeadLetter:
    return _dead_letter(
        NOT_FOUND,
        f"the primary has no queue or topic {destination.path!r}: {destination.detail}. Create it "
        "and resubmit the message, or delete the message",
    )


def _dead_letter(reason: str, description: str) -> ToDeadLetter:
    if len(description) > DESCRIPTION_MAX:
        description = description[: DESCRIPTION_MAX - 1] + "…"
    return ToDeadLetter(reason, description)
