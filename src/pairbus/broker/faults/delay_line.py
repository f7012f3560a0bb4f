"""A slow line: what goes in comes out later, in the same order.

Pure: `now` is in seconds of any clock that never goes back. The line has a latency for each thing,
and takes its time to carry it; or it is blocked, and nothing comes out until it is not.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DelayLine(Generic[T]):
    def __init__(self) -> None:
        self.size_bytes = 0
        self._things: deque[tuple[float, int, T]] = deque()
        self._free_at = 0.0
        self._last_at = 0.0

    def __len__(self) -> int:
        return len(self._things)

    def put(
        self,
        thing: T,
        size_bytes: int,
        *,
        now: float,
        latency_seconds: float = 0.0,
        transmission_seconds: float = 0.0,
    ) -> None:
        self._free_at = max(self._free_at, now) + transmission_seconds
        self._last_at = max(self._free_at + latency_seconds, self._last_at)
        self._things.append((self._last_at, size_bytes, thing))
        self.size_bytes += size_bytes

    def take(self, *, now: float) -> T | None:
        """The next that has arrived."""
        if not self._things or self._things[0][0] > now:
            return None
        _, size_bytes, thing = self._things.popleft()
        self.size_bytes -= size_bytes
        return thing

    @property
    def next_at(self) -> float | None:
        return self._things[0][0] if self._things else None

    def hurry(self) -> None:
        """The latency has gone: what is on its way arrives now."""
        self._things = deque((0.0, size, thing) for _, size, thing in self._things)
        self._free_at = self._last_at = 0.0

    def clear(self) -> None:
        self._things.clear()
        self.size_bytes = 0
