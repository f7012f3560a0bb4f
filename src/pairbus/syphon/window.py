"""How long a task works and waits, given how far away and how slow the namespaces are.

Pure: it is told what took how long. A round is short, so that a stop does not wait for long. But
where a way is long, or a primary slow, a task takes the time that it needs: else nothing would ever
come home, or the same again and again. Times are in seconds.
"""

from __future__ import annotations

import math
from typing import Final

EMPTY_SECONDS: Final = 0.25
"""A queue that had nothing for so long is empty; longer, where the secondary is far away."""
ANSWER_SECONDS_MAX: Final = 15.0
"""The most that one answer is waited for: locks must outlast a silent primary."""
SEND_LATE_SECONDS: Final = 0.25
ANSWER_LATE_SECONDS: Final = 1.0
RELEASE_LATE_SECONDS: Final = 0.5
"""How far beyond the task's time something may be sent, an answer of the primary be waited for,
and one of the secondary after that. A stop waits for all of it."""
OPEN_SECONDS: Final = 3.0
LONG_OPENING_EVERY: Final = 4
"""A stop waits as well for namespaces that do not let a task in. So they have little time for that,
and now and then a lot, in case they are very far away."""
_ROUND_TRIPS: Final = 6
"""... that it takes until the secondary has let us in, at least."""


def opening(fruitless_rounds: int) -> float:
    """How long a namespace may take to let a task in, after so many rounds that came to nothing."""
    is_long = fruitless_rounds and not fruitless_rounds % LONG_OPENING_EVERY
    return ANSWER_SECONDS_MAX if is_long else OPEN_SECONDS


class Pace:
    def __init__(self, seconds: float) -> None:
        """`seconds` of work are wanted."""
        self.seconds = seconds
        self.deadline = math.inf
        """When the work is to end, by the clock of `now`."""
        self.empty = EMPTY_SECONDS
        self.late = ANSWER_LATE_SECONDS
        self._opening = 0.0
        self._slowest = 0.0

    def opened(self, *, took: float, now: float) -> None:
        """The secondary has let us in: now the task's time begins."""
        self._opening = took
        self.empty = max(EMPTY_SECONDS, 3 * took / _ROUND_TRIPS)
        self.seconds = max(self.seconds, took)
        self.deadline = now + self.seconds

    def reached(self, *, took: float, patience: float) -> None:
        """So has the primary, and that was not a matter of the task's time. `patience`: how long
        its answers are known to take."""
        self.late = min(max(ANSWER_LATE_SECONDS, 2 * took, patience), ANSWER_SECONDS_MAX)
        self.deadline += took

    def answered(self, *, took: float) -> None:
        """All that was sent at once."""
        self._slowest = max(self._slowest, took)

    def has_time(self, *, now: float) -> bool:
        """To send something more, and to have its answer."""
        return now < self.deadline and now + self._slowest < self.deadline + self.late

    def is_enough(self, count: int, *, of: int, now: float) -> bool:
        """Are `count` messages enough for the time that is left, at the pace of `of` so far?"""
        left = self.deadline - now
        gone = self.seconds - left
        return left < gone and left * of < count * gone

    @property
    def sends_until(self) -> float:
        return self.deadline + SEND_LATE_SECONDS

    @property
    def home_until(self) -> float:
        """No answer of the primary is waited for any longer."""
        return self.deadline + self.late

    @property
    def backlog_until(self) -> float:
        return self.home_until + max(RELEASE_LATE_SECONDS, self._opening)
