"""What makes tests of time fast: a clock that is moved by hand, for `Broker(clock=...)`.

Whoever uses such a clock may ask to be told when it was moved, because timers were set by the old
time. A broker does, so that after `advance` its locks, schedules and expiries are up to date.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class ManualClock:
    """Seconds since the epoch. Call it for the time; `advance` returns when users have caught up.

    >>> clock = ManualClock(1000.0)
    >>> clock.advance(60)
    >>> clock()
    1060.0
    """

    def __init__(self, now: float | None = None, *, runs: bool = False) -> None:
        """`runs`: it goes on like a real clock between two jumps, from now unless told."""
        self._runs = runs
        if runs:
            self._offset = 0.0 if now is None else now - time.time()
        else:
            self._offset = 1_800_000_000.0 if now is None else now
        self._moved: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self._offset + (time.time() if self._runs else 0.0)

    def advance(self, seconds: float) -> None:
        self._offset += seconds
        for moved in list(self._moved):
            moved()

    def subscribe(self, moved: Callable[[], None]) -> Callable[[], None]:
        """`moved` is called after each jump; the result ends that."""
        self._moved.append(moved)
        return lambda: self._moved.remove(moved)
