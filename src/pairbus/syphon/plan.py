"""What the next round does, and when it is due: decided from what the last ones have told.

Pure: `now` (UTC, in seconds) is handed in, and tasks are only described.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pairbus.syphon.destinations import Condition, Destination, Destinations
from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.receipts import Outcome, Receipt

# A round that moved nothing is followed by a pause, so that a primary that is down costs little: a
# look at messages that wait is a receive of each. Twice as long each time, if no destination is to
# blame, and so none says when to try again.
PAUSE_SECONDS_MIN = 0.5
PAUSE_SECONDS_MAX = 60.0
_DOUBLINGS_MAX = 5


@dataclass(slots=True)
class Backlog:
    """The backlog queues that are known, and which of them may hold something."""

    shares: int = 1
    """How many tasks may receive from one queue at once. With more than one, the order of messages
    for one destination is not kept."""
    pause_seconds_max: float | None = None
    """None: PAUSE_SECONDS_MAX."""
    destinations: Destinations = field(default_factory=Destinations)
    _queues: list[str] = field(default_factory=list)
    _pending: set[str] = field(default_factory=set)
    _pause_until: float = 0.0
    _vain: int = 0

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
        """A message was seen in each of these. It may be for somebody who is there: no pause."""
        new = {queue for queue in queues if queue in self._queues} - self._pending
        if new:
            self._pending |= new
            self._pause_until = 0.0

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
        if has_moved or not self._pending:
            self._vain = 0
        else:
            opens = self.destinations.opens_next(now=now)
            doublings = min(self._vain, _DOUBLINGS_MAX)
            pause = PAUSE_SECONDS_MIN * 2**doublings if opens is None else opens - now
            self._vain += 1
            most = PAUSE_SECONDS_MAX if self.pause_seconds_max is None else self.pause_seconds_max
            self._pause_until = now + min(max(pause, PAUSE_SECONDS_MIN), most)

    def pause(self, *, now: float) -> float:
        """How long the next round is to wait."""
        return max(0.0, self._pause_until - now)


class Backlogs:
    """Those of all primaries that share the secondary, by the names of the primaries."""

    def __init__(self, primaries: Iterable[str], *, shares: int = 1) -> None:
        """With one primary, all queues are its own; else their names say whose they are."""
        self._of = {name: Backlog(shares=shares) for name in primaries}
        self._names = {name.lower(): name for name in self._of}

    def hurry(self, pause_seconds_max: float) -> None:
        for one in self._of.values():
            one.pause_seconds_max = pause_seconds_max

    def primary_of(self, queue: str) -> str | None:
        if len(self._of) == 1:
            return next(iter(self._of))
        return self._names.get((namespace_of(queue) or "").lower())

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(queue for one in self._of.values() for queue in one.queues)

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(queue for one in self._of.values() for queue in one.pending)

    @property
    def destinations(self) -> tuple[tuple[str, Destination], ...]:
        """All that are known, each with its primary."""
        return tuple((name, each) for name, one in self._of.items() for each in one.destinations)

    @property
    def stopper(self) -> tuple[str, Destination] | None:
        """See `Destinations`: forbidden, while nothing is known to be up on any primary."""
        found = [(name, one.destinations.stopper) for name, one in self._of.items()]
        if any(each.condition is Condition.UP for _, each in self.destinations):
            return None
        return next(((name, each) for name, each in found if each is not None), None)

    def found(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Those that exist now; answers the new ones."""
        by_primary: dict[str, list[str]] = {name: [] for name in self._of}
        for queue in queues:
            owner = self.primary_of(queue)
            if owner is not None:
                by_primary[owner].append(queue)
        return tuple(new for name, own in by_primary.items() for new in self._of[name].found(own))

    def arrived(self, queues: Iterable[str]) -> None:
        for one in self._of.values():
            one.arrived(queues)

    def groups(self, slots: int, *, now: float) -> list[tuple[str, tuple[str, ...]]]:
        """The primary and the queues of each task of the next round: of those primaries for which
        it is time. More than `slots` only if there are more primaries than that."""
        due = {
            name: one for name, one in self._of.items() if one.pending and not one.pause(now=now)
        }
        total = sum(len(one.pending) for one in due.values())
        return [
            (name, group)
            for name, one in due.items()
            for group in one.groups(max(1, slots * len(one.pending) // total))
        ]

    def ended(
        self,
        primary: str,
        receipts: Sequence[Receipt],
        destinations: Iterable[Destination],
        emptied: Iterable[str],
        *,
        now: float,
    ) -> None:
        """A round is over, for one of the primaries that were in it."""
        self._of[primary].ended(receipts, destinations, emptied, now=now)

    def pause(self, *, now: float) -> float:
        """How long the next round is to wait."""
        return min((one.pause(now=now) for one in self._of.values() if one.pending), default=0.0)
