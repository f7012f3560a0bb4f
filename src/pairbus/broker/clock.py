"""The clock of a namespace: UTC that runs evenly.

Somebody may set the clock of the machine while the broker runs. Times in the data file and in
tokens are UTC, so the broker must follow. Locks are durations, so they must neither end nor last
longer because of it. Between two calls of `follow`, the clock runs as the monotonic clock does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_STEP_SECONDS: Final = 1.0
"""A smaller difference is not a step: clocks drift, and are corrected, all the time."""


class SystemClock:
    """Seconds since the epoch."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def __call__(self) -> float:
        return self._monotonic() + self._offset

    def follow(self) -> float:
        """Adopt the machine's time. Returns the step in seconds, if somebody has set it."""
        difference = self._wall() - self()
        self._offset += difference
        return difference if abs(difference) >= _STEP_SECONDS else 0.0
