"""What is known about one backlog queue, and when the syphon looks at it again.

Pure: `now` (UTC, in seconds) is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pairbus.syphon.policy import Destinations
from pairbus.syphon.receipts import Receipt, ReceiptOutcome

REST_SECONDS_MIN = 0.5
# If no destination is to blame, each rest is twice as long as the last.
_DOUBLINGS_MAX = 5
# If fewer than this fraction of the messages were settled, the queue rests for a second for each
# 200 messages that wait: receiving them repeatedly to deliver a few is too expensive.
_LITTLE = 0.1
_WAITING_A_SECOND = 200
# A probe that has to receive other messages first is repeated less often: ten messages a second.
_PROBED_A_SECOND = 10
# If peeks cannot show what is in a queue, it is looked at this often.
BLIND_SECONDS = 900.0


@dataclass(slots=True)
class Rest:
    """A queue from which nothing, or little, could be brought home."""

    until: float
    """No look at the queue before this time."""
    destinations: dict[str, int] = field(default_factory=dict)
    """The destinations of its messages, in lower case, and how many messages are ahead of the first
    one for it."""
    forced_at: float = math.inf
    """Look at the queue after this time, whatever the state of its destinations."""
    attempts: int = 0
    probe_at: float = 0.0
    """No probe takes messages of this queue before this time."""
    peek_at: float = -math.inf
    is_peeked: bool = False
    """The last peeks belong to this rest: only what has arrived since is of interest."""

    def next_doubling(self, seconds_max: float) -> float:
        """Returns the next wait. Each wait is twice as long as the last."""
        self.attempts += 1
        return min(REST_SECONDS_MIN * 2.0 ** min(self.attempts - 1, _DOUBLINGS_MAX), seconds_max)


@dataclass(slots=True, eq=False)
class QueueState:
    """What is known about one backlog queue."""

    name: str
    primary: str
    is_pending: bool
    """It may hold messages."""
    last_round_at: float = 0.0
    is_deep: bool = False
    """Messages that can go home are known to be behind others that wait."""
    is_full: bool = False
    """The last deep look held too many messages to see what is behind them."""
    rest: Rest | None = None

    def has_deliverable(self, known: Destinations) -> bool:
        """Whether it rests and holds messages for a destination that may accept them."""
        return self.rest is not None and any(
            not known.find(path).is_failing for path in self.rest.destinations
        )

    def emptied(self) -> None:
        self.is_pending, self.is_deep, self.rest = False, False, None

    def look_ended(
        self,
        receipts: Sequence[Receipt],
        known: Destinations,
        *,
        is_lost: bool,
        has_failed: bool,
        is_full: bool,
        now: float,
        rest_seconds_max: float,
    ) -> None:
        """A task has taken all that there was time for.

        `is_lost`: the primary does not answer. `has_failed`: the queue could not be received from,
        or not settled in.
        """
        self.is_full = is_full
        waiting = sum(each.count for each in receipts if each.outcome is ReceiptOutcome.WAITING)
        settled = sum(each.count for each in receipts) - waiting
        is_little = 0 < settled < _LITTLE * waiting
        # A queue without receipts had no turn, perhaps because the primary was lost.
        if not is_little and (settled or not (waiting or has_failed or is_lost)):
            self.rest = None
            return
        self.is_deep = self.is_deep and bool(settled)
        attempts = self.rest.attempts if self.rest else 0
        rest = self.rest = Rest(now, _waiting_for(receipts), attempts=attempts)
        if is_full:
            rest.peek_at = math.inf  # what is behind them cannot be reached anyway
        if is_little:
            seconds = max(waiting / _WAITING_A_SECOND, REST_SECONDS_MIN)
            rest.until = rest.forced_at = now + min(seconds, rest_seconds_max)
        elif has_failed or (not is_lost and self.has_deliverable(known)):
            rest.until = rest.probe_at = now + rest.next_doubling(rest_seconds_max)
            rest.forced_at = rest.until if has_failed else math.inf

    def probe_ended(
        self,
        receipts: Sequence[Receipt],
        known: Destinations,
        *,
        has_failed: bool,
        now: float,
        rest_seconds_max: float,
    ) -> None:
        """A task has taken a few messages, to see whether their destinations are available."""
        waits = _waiting_for(receipts)
        for path in {each.path.lower() for each in receipts} - waits.keys():
            each = known.find(path)
            if each.is_failing and each.is_open(now=now):
                each.may_be_up(now=now)  # its message is settled, so it is worth a look
        if self.rest is None:
            if not waits and not has_failed:
                return
            self.rest = Rest(now, forced_at=now if has_failed else math.inf)
        rest = self.rest
        if has_failed:
            rest.probe_at = now + rest.next_doubling(rest_seconds_max)
            rest.until = max(rest.until, rest.probe_at)
            rest.forced_at = max(rest.forced_at, rest.probe_at)
            return
        for path in [*rest.destinations]:
            each = known.find(path)
            if each.is_failing and each.is_open(now=now) and path not in waits:
                # The probe did not find its message, so it is not where it was thought to be.
                del rest.destinations[path]
                rest.is_peeked, rest.peek_at = False, now
        rest.destinations = waits | rest.destinations
        waiting = sum(each.count for each in receipts if each.outcome is ReceiptOutcome.WAITING)
        pause = max(REST_SECONDS_MIN, min(waiting / _PROBED_A_SECOND, BLIND_SECONDS))
        rest.until, rest.probe_at = now, now + pause


def _waiting_for(receipts: Iterable[Receipt]) -> dict[str, int]:
    """The destinations of messages that wait, with none ahead of the first one for each."""
    waiting = [each for each in receipts if each.outcome is ReceiptOutcome.WAITING]
    return {each.path.lower(): 0 for each in waiting}
