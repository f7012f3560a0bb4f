"""How long a task works and waits, given how far away and how slow the namespaces are.

Pure: the caller reports how long things took. A round is short, so that a stop does not wait long.
But if a namespace is far away or slow, a task takes the time that it needs. Otherwise nothing would
come home, or the same messages would be sent repeatedly. Times are in seconds.
"""

from __future__ import annotations

import math
from typing import Final

EMPTY_SECONDS: Final = 0.25
"""A queue that delivers nothing for this long counts as empty. The time is longer if the secondary
is far away.
"""
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
"""The minimum number of round trips to open the connection to the secondary."""


def open_seconds(rounds_without_progress: int) -> float:
    """How long a namespace may take to accept the connection of a task."""
    is_long = rounds_without_progress and not rounds_without_progress % LONG_OPEN_EVERY
    return ANSWER_SECONDS_MAX if is_long else OPEN_SECONDS


class TaskWindow:
    """The time of one task."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """How long the task works."""
        self.deadline = math.inf
        """When the work ends, by the clock of `now`."""
        self.empty_seconds = EMPTY_SECONDS
        self.late_seconds = ANSWER_LATE_SECONDS
        """How long after the deadline the primary may answer."""
        self._opening = 0.0
        self._slowest = 0.0

    def secondary_opened(self, *, took: float, now: float) -> None:
        """The secondary has accepted the connection: the task's time begins."""
        self._opening = took
        self.empty_seconds = max(EMPTY_SECONDS, 3 * took / _ROUND_TRIPS)
        self.seconds = max(self.seconds, took)
        self.deadline = now + self.seconds

    def primary_opened(self, *, took: float, answer_seconds: float) -> None:
        """The primary has accepted the connection, too. That time does not count as the task's
        time. `answer_seconds`: how long its answers are known to take.
        """
        self.late_seconds = min(
            max(ANSWER_LATE_SECONDS, 2 * took, answer_seconds), ANSWER_SECONDS_MAX
        )
        self.deadline += took

    def answered(self, *, took: float) -> None:
        """The primary has answered all that was sent at once."""
        self._slowest = max(self._slowest, took)

    def has_time(self, *, now: float) -> bool:
        """Whether there is time to send another batch and to wait for the answer."""
        return now < self.deadline and now + self._slowest < self.deadline + self.late_seconds

    def is_covered_by(self, count: int, *, taken: int, now: float) -> bool:
        """Whether `count` messages last for the rest of the time, if `taken` is the pace so far."""
        left = self.deadline - now
        gone = self.seconds - left
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
