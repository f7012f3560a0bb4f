"""What the next round does, and when it is due: decided from what the last ones have told.

Pure: `now` (UTC, in seconds) is handed in, and tasks are only described.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pairbus.syphon.destinations import Destination, Destinations
from pairbus.syphon.receipts import Outcome, Receipt

# A round that moved nothing is followed by a pause, so that a primary that is down costs little.
PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 5.0


@dataclass(slots=True)
class Backlog:
    """The backlog queues that are known, and which of them may hold something."""

    shares: int = 1
    """How many tasks may receive from one queue at once. With more than one, the order of messages
    for one destination is not kept."""
    destinations: Destinations = field(default_factory=Destinations)
    _queues: list[str] = field(default_factory=list)
    _pending: set[str] = field(default_factory=set)
    _pause_until: float = 0.0

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._queues)

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(queue for queue in self._queues if queue in self._pending)

    def found(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Those that exist now. New ones may hold something; answers them."""
        now_there = list(queues)
        new = tuple(queue for queue in now_there if queue not in self._queues)
        self._queues = now_there
        self._pending = {queue for queue in self._pending if queue in now_there} | set(new)
        return new

    def arrived(self, queues: Iterable[str]) -> None:
        """A message was seen in each of these."""
        self._pending.update(queue for queue in queues if queue in self._queues)

    def groups(self, slots: int) -> list[tuple[str, ...]]:
        """The queues of each task of the next round: each queue in one task, or in its shares."""
        pending = self.pending
        if not pending:
            return []
        count = min(max(1, slots), len(pending) * self.shares)
        places = [queue for queue in pending for _ in range(min(self.shares, count))]
        groups: list[list[str]] = [[] for _ in range(count)]
        for place, queue in enumerate(places):
            if queue not in groups[place % count]:
                groups[place % count].append(queue)
        return [tuple(group) for group in groups if group]

    def ended(
        self,
        receipts: Sequence[Receipt],
        destinations: Iterable[Destination],
        emptied: Iterable[str],
        *,
        now: float,
    ) -> None:
        """A round is over."""
        for destination in destinations:
            self.destinations.learn(destination)
        self._pending.difference_update(emptied)
        has_moved = any(each.outcome is not Outcome.WAITING and each.count for each in receipts)
        self._pause_until = 0.0
        if self._pending and not has_moved:
            opens = self.destinations.opens_next(now=now)
            pause = PAUSE_SECONDS_MIN if opens is None else opens - now
            self._pause_until = now + min(max(pause, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX)

    def pause(self, *, now: float) -> float:
        """How long the next round is to wait."""
        return max(0.0, self._pause_until - now)
