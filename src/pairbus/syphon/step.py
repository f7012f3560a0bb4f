"""What to do with a backlog message, given what is known of its destination.

Pure: it is handed a message, a destination and `now` (UTC, in seconds), and neither sends nor
settles nor sleeps. `destinations.py` has the policy; here is what follows from it for a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.client.route.envelope import EnvelopeError
from pairbus.syphon.policy import POLICY, Condition, Destination, Failure, Reaction
from pairbus.syphon.restore import Restored

UNREADABLE: Final = "EnvelopeUnreadable"
NOT_FOUND: Final = "DestinationNotFound"
REFUSED: Final = "RefusedByDestination"
"""Reasons of dead letters."""
DESCRIPTION_MAX: Final = 4096
"""Characters that Service Bus takes for a reason or a description."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send it, and complete it in the backlog once the primary has acknowledged it.

    Never the other way round: who dies in between delivers it twice, which duplicate detection
    absorbs; the other order would lose it, which nothing absorbs.
    """


@dataclass(frozen=True, slots=True)
class Wait:
    """Release it, and do not try before `until`."""

    until: float
    because: str


@dataclass(frozen=True, slots=True)
class Bury:
    """Dead-letter it in the backlog queue."""

    reason: str
    description: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Complete it without sending: its time to live has ended."""


@dataclass(frozen=True, slots=True)
class Split:
    """Send them again in smaller parts: one of them may be at fault."""


Step = Send | Wait | Bury | Drop
_SEND, _DROP, _SPLIT = Send(), Drop(), Split()


def next_step(
    message: Restored | EnvelopeError, destination: Destination | None, *, now: float
) -> Step:
    """What to do with a message; `destination` is None for one that cannot be restored.

    The order matters. What cannot be read is buried while its destination is down, too, and what
    has expired is dropped: waiting helps neither.
    """
    if isinstance(message, EnvelopeError):
        return _buried(UNREADABLE, str(message))
    assert destination is not None, "a restored message has a destination"
    if message.is_expired:
        return _DROP
    if destination.is_open(now=now):
        return _SEND
    if destination.condition is Condition.GONE:
        return _not_found(destination)
    return Wait(
        destination.until,
        f"{destination.path!r} is {destination.condition.value}: {destination.detail}",
    )


def after_failure(
    destination: Destination, failure: Failure, *, count: int, now: float, detail: str = ""
) -> Wait | Bury | Split:
    """What to do with each of the `count` messages of a send that has failed.

    Unless they are split, `destination.failed` is to be told first.
    """
    rule = POLICY[failure]
    what = rule.of_many if count > 1 else rule.of_one
    if what is Reaction.SPLIT:
        return _SPLIT  # of the destination this says nothing yet
    if what is Reaction.WAIT:
        # Not at once, even if the destination is not to blame.
        until = max(destination.until, now + rule.first_seconds)
        return Wait(until, f"{destination.path!r} did not take it: {detail}")
    if failure is Failure.NOT_FOUND:
        return _not_found(destination)
    return _buried(REFUSED, f"{destination.path!r} refuses the message: {detail}")


def _not_found(destination: Destination) -> Bury:
    return _buried(
        NOT_FOUND,
        f"the primary has no queue or topic {destination.path!r} (any more): "
        f"{destination.detail}. Create it and send the message again, or delete it",
    )


def _buried(reason: str, description: str) -> Bury:
    if len(description) > DESCRIPTION_MAX:
        description = description[: DESCRIPTION_MAX - 1] + "…"
    return Bury(reason, description)
