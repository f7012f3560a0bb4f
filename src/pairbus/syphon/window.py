"""How long a task works and waits, and how much it sends ahead of the answers, given how far away
and how slow the namespaces are.

Pure: the caller reports how long things took, and passes in the time, which is monotonic, because
the clock of a machine may be set back. A round is short, so that a stop does not wait long. But if
a namespace is far away or slow, a task takes the time that it needs. Otherwise nothing would come
home, or the same messages would be sent repeatedly. Times are in seconds.
"""

from __future__ import annotations

import math
from typing import Final

EMPTY_SECONDS: Final = 0.25
"""A queue that delivers nothing for this long plus a round trip is asked whether it is empty."""
ANSWER_SECONDS_MAX: Final = 15.0
"""The longest wait for one answer. The locks of backlog messages must outlast a silent primary."""
# How long after the task's time something may be sent, the primary may answer, and then the
# secondary may answer. A stop waits for all three.
SEND_LATE_SECONDS: Final = 0.25
ANSWER_LATE_SECONDS: Final = 1.0
RELEASE_LATE_SECONDS: Final = 0.5
# A stop also waits for a namespace that does not accept a connection. So each gets little time to
# connect. Every fourth failed round gives it much more, in case it is very far away.
OPEN_SECONDS: Final = 3.0
LONG_OPEN_EVERY: Final = 4
_ROUND_TRIPS: Final = 6
"""The minimum number of round trips to open a connection, with a token and links."""
# A round begins and ends with some round trips in which little is moved. So if the secondary is far
# away, a task works longer: by this many times the time that the opening took, but no longer than
# `FAR_SECONDS`, or `FAR_STOPPABLE_SECONDS` if it notices a stop.
_OPENINGS: Final = 5
FAR_SECONDS: Final = 3.0
FAR_STOPPABLE_SECONDS: Final = 10.0
NEAR_SECONDS: Final = 0.05
_GATHERING: Final = 0.1
"""For `gather_seconds`: the part of a round trip beyond `NEAR_SECONDS`."""

# How many messages may be sent and not settled: `NEAR_MAX`, which keeps a near pair busy, and in
# addition what a task can move during the time from a send to the end of its settlement.
NEAR_MAX: Final = 1_000
RATE_MAX: Final = 25_000
"""Messages a second. No task moves more."""
# How many messages are received ahead. They are locked, so there are few if the secondary is near.
# If it is far away, credit takes longer to reach it, so there are more. Brokers limit the number of
# locked messages of a connection.
AHEAD_MIN: Final = 2_500
AHEAD_MAX: Final = 4_000
BYTES_MAX: Final = 16 * 1024 * 1024
"""The maximum size of the messages that are sent and not acknowledged, and of those that have
arrived and are not sent. A single message may be larger."""


def open_seconds(rounds_without_progress: int) -> float:
    """How long a namespace may take to accept the connection of a task."""
    is_long = rounds_without_progress and not rounds_without_progress % LONG_OPEN_EVERY
    return ANSWER_SECONDS_MAX if is_long else OPEN_SECONDS


class TaskWindow:
    """The time of one task."""

    def __init__(self, seconds: float, *, chunk: int, is_stoppable: bool = False) -> None:
        """`chunk`: the maximum of `size`."""
        self.seconds = seconds
        """How long the task works."""
        self.deadline = math.inf
        """When the work ends."""
        self.empty_seconds = EMPTY_SECONDS
        self.late_seconds = ANSWER_LATE_SECONDS
        """How long after the deadline the primary may answer."""
        self._chunk = chunk
        self._far_seconds = FAR_STOPPABLE_SECONDS if is_stoppable else FAR_SECONDS
        self._opening = 0.0
        self._slowest = 0.0
        self._cycle = math.inf

    def secondary_opened(self, *, took: float, now: float) -> None:
        """The secondary has accepted the connection: the task's time begins."""
        self._opening = took
        far_seconds = min(self.seconds + _OPENINGS * took, self._far_seconds)
        self.seconds = max(self.seconds, took, far_seconds)
        self.empty_seconds = EMPTY_SECONDS + self._round_trip
        self.deadline = now + self.seconds

    def primary_opened(self, *, took: float, waited: float, answer_seconds: float) -> None:
        """The primary has accepted the connection, too. The time that the task waited for it does
        not count as the task's time. `answer_seconds`: how long its answers are known to take.
        """
        self.late_seconds = min(
            max(ANSWER_LATE_SECONDS, 2 * took, answer_seconds), ANSWER_SECONDS_MAX
        )
        self.deadline += waited

    def answered(self, *, took: float) -> None:
        """The primary has answered all that was sent at once."""
        self._slowest = max(self._slowest, took)

    def settled(self, *, took: float) -> None:
        """A batch was sent, acknowledged and settled."""
        self._cycle = min(self._cycle, took)

    @property
    def size(self) -> int:
        """How many messages may be sent and not settled. It follows the shortest time that this has
        taken, which is the distance to both namespaces: a longer one only shows that they are busy.
        """
        cycle = self._cycle if math.isfinite(self._cycle) else 2 * self._round_trip
        return min(NEAR_MAX + round(RATE_MAX * min(cycle, ANSWER_SECONDS_MAX)), self._chunk)

    @property
    def ahead(self) -> int:
        """How many messages are received ahead, from all queues together."""
        return min(AHEAD_MIN + round(RATE_MAX * self._round_trip), AHEAD_MAX)

    @property
    def gather_seconds(self) -> float:
        """How long to wait for more messages when the first ones have come. Their batches are on
        their way for a round trip, and what comes in the meantime waits for it. 0 if the secondary
        is near.
        """
        return _GATHERING * max(self._round_trip - NEAR_SECONDS, 0.0)

    @property
    def _round_trip(self) -> float:
        return self._opening / _ROUND_TRIPS

    def has_time(self, *, now: float) -> bool:
        """Whether there is time to send another batch and to wait for the answer."""
        return now < self.deadline and now + self._slowest < self.deadline + self.late_seconds

    def is_covered_by(self, count: int, *, taken: int, now: float) -> bool:
        """Whether `count` messages last for the rest of the time, if `taken` is the pace so far."""
        left = self.deadline - now
        # The first message comes a round trip after the credit, and its answer another one later.
        # If that time counted, the pace would be too low, and a far task would stop early.
        gone = self.seconds - left - 2 * self._round_trip
        return left < gone and left * taken < count * gone

    @property
    def sends_until(self) -> float:
        return self.deadline + SEND_LATE_SECONDS

    @property
    def primary_until(self) -> float:
        """After this time, the task no longer waits for the primary."""
        return self.deadline + self.late_seconds

    @property
    def secondary_until(self) -> float:
        return self.primary_until + max(RELEASE_LATE_SECONDS, self._opening)
