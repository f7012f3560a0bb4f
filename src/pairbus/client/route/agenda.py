"""Who is due next: at most one moment for each key.

A heap, because a namespace that fails takes a thousand entities with it, and the lock under which
somebody asks for the next of them is the one that senders need. Knows nothing of what is due.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

_STALE_MAX: Final = 64


class Agenda:
    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        # Also holds what was changed or cancelled since; `_moments` tells which entries count.
        self._heap: list[tuple[float, str]] = []

    def set(self, key: str, at: float | None) -> None:
        """Its moment from now on; None: it has none."""
        if at is None:
            self._moments.pop(key, None)
        elif self._moments.get(key) != at:
            self._moments[key] = at
            heappush(self._heap, (at, key))
        # An entity that fails and recovers all the time changes its moment each time.
        if len(self._heap) > 2 * len(self._moments) + _STALE_MAX:
            self._heap = [(at, key) for key, at in self._moments.items()]
            heapify(self._heap)

    @property
    def next(self) -> float | None:
        while self._heap:  # bounded: each round takes one away
            at, key = self._heap[0]
            if self._moments.get(key) == at:
                return at
            heappop(self._heap)
        return None

    def take(self, *, now: float) -> list[str]:
        """Those whose moment has come, earliest first; they are off the agenda with that."""
        due = []
        while (at := self.next) is not None and at <= now:
            _, key = heappop(self._heap)
            del self._moments[key]
            due.append(key)
        return due
