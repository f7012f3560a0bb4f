"""What the next round does, and when it is due: decided from what the last ones have told.

A look at messages that have to wait is a receive of each of them, which costs. So a backlog queue
of which nothing went home rests until one of its destinations may be tried again, and then a probe
takes a handful of messages first. All of it is looked at when another of its destinations may be
there, and once a minute, unless it is known that nothing has come since.

Pure: `now` (UTC, in seconds) is handed in, and tasks are only described.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.policy import Condition, Destination, Destinations
from pairbus.syphon.receipts import Outcome, Receipt

REST_SECONDS_MIN = 0.5
REST_SECONDS_MAX = 60.0
# Where no destination says when to try again, a queue rests twice as long each time.
_DOUBLINGS_MAX = 5
# A queue of which little went home, among much that has to wait, rests in proportion to that.
_LITTLE = 0.1
_WAITING_A_SECOND = 200
# So long probes are enough; then something else may have come.
WHOLE_LOOK_SECONDS = 60.0
# ... and so long it may be enough to know that nothing has.
STALE_SECONDS_MAX = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The queues of one task."""

    primary: str = ""
    queues: tuple[str, ...]
    is_probe: bool = False
    """Only a handful of each is to be taken, to see whether its destinations are there again."""


@dataclass(slots=True)
class _Rest:
    """Of a queue of which nothing, or little, went home when it was last looked at."""

    until: float
    whole_at: float
    """From then on all of it is to be looked at."""
    looked_at: float
    """When that was done last."""
    is_forced: bool = False
    """Because something could go; else only for what may have come since."""
    seen: frozenset[str] = frozenset()
    """The destinations that the last such look saw waiting."""
    vain: int = 0


@dataclass(slots=True)
class Backlog:
    """The backlog queues of one primary that are known, and which of them may hold something."""

    shares: int = 1
    """How many tasks may receive from one queue at once. With more than one, the order of messages
    for one destination is not kept."""
    rest_seconds_max: float = REST_SECONDS_MAX
    destinations: Destinations = field(default_factory=Destinations)
    _queues: list[str] = field(default_factory=list)
    _pending: set[str] = field(default_factory=set)
    _rests: dict[str, _Rest] = field(default_factory=dict)

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._queues)

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(queue for queue in self._queues if queue in self._pending)

    def due(self, *, now: float) -> tuple[str, ...]:
        """Those of them that do not rest."""
        rests = self._rests
        return tuple(each for each in self.pending if each not in rests or rests[each].until <= now)

    def found(self, queues: Iterable[str], *, are_pending: bool = True) -> tuple[str, ...]:
        """Those that exist now. New ones may hold something, unless that will be seen by other
        means; answers them."""
        now_there = list(queues)
        new = tuple(queue for queue in now_there if queue not in self._queues)
        self._queues = now_there
        self._pending = {queue for queue in self._pending if queue in now_there}
        if are_pending:
            self._pending.update(new)
        return new

    def arrived(self, queues: Iterable[str]) -> None:
        """A message was seen in each of these."""
        self._pending.update(queue for queue in queues if queue in self._queues)

    def groups(self, slots: int, *, now: float) -> list[Group]:
        """The tasks of the next round: each queue in one of them, or in its shares."""
        due = self.due(now=now)
        probed = [each for each in due if each in self._rests and now < self._rests[each].whole_at]
        whole = [each for each in due if each not in probed]
        groups = [Group(queues=queues) for queues in _dealt(whole, slots, self.shares)]
        probes = _dealt(probed, slots - len(groups), 1)
        return groups + [Group(queues=queues, is_probe=True) for queues in probes]

    def stale(self, *, now: float) -> tuple[str, ...]:
        """Queues that are to be looked at as a whole only because something may have come."""
        return tuple(
            queue
            for queue in self.due(now=now)
            if (rest := self._rests.get(queue)) is not None
            and rest.whole_at <= now < rest.looked_at + STALE_SECONDS_MAX
            and not rest.is_forced
        )

    def nothing_new(self, queues: Iterable[str], *, now: float) -> None:
        for queue in queues:
            if queue in self._rests:
                self._rests[queue].whole_at = now + WHOLE_LOOK_SECONDS

    def ended(
        self,
        looked_at: Mapping[str, bool],
        receipts: Sequence[Receipt],
        destinations: Iterable[Destination],
        emptied: Collection[str],
        *,
        troubled: Collection[str] = (),
        now: float,
    ) -> None:
        """A round is over. `looked_at`: the queues that were in it, and whether by a probe."""
        heard = {one.path.lower(): one.heard for one in self.destinations}
        for destination in destinations:
            self.destinations.learn(destination)
        news = [one for one in self.destinations if one.heard != heard.get(one.path.lower())]
        is_failing = any(one.condition is not Condition.UP for one in news)
        self._pending.difference_update(emptied)
        for queue, was_probed in looked_at.items():
            own = [each for each in receipts if each.queue == queue]
            waiting = sum(each.count for each in own if each.outcome is Outcome.WAITING)
            moved = sum(each.count for each in own) - waiting
            is_little = 0 < moved < _LITTLE * waiting and not was_probed
            # A queue of which nothing is told had no turn, perhaps because the primary was lost.
            is_vain = not moved and (waiting or queue in troubled or is_failing)
            if queue not in self._pending or not (is_little or is_vain):
                self._rests.pop(queue, None)
                continue
            rest = self._rests.setdefault(queue, _Rest(now, now, now))
            if not was_probed:
                rest.looked_at, rest.whole_at = now, now + WHOLE_LOOK_SECONDS
                rest.is_forced = False
                rest.seen = frozenset(each.path.lower() for each in own)
            if is_little:
                seconds = waiting / _WAITING_A_SECOND
            else:
                seconds = self._until_open(rest, now=now, has_news=bool(news))
            if is_little or (was_probed and rest.seen - self._closed(now=now).keys()):
                # Behind what the probe saw, there is something that could go.
                rest.whole_at, rest.is_forced = now, True
            rest.until = now + min(max(seconds, REST_SECONDS_MIN), self.rest_seconds_max)

    def _closed(self, *, now: float) -> dict[str, float]:
        """Destinations that are left alone, and until when."""
        return {
            one.path.lower(): one.until for one in self.destinations if not one.is_open(now=now)
        }

    def _until_open(self, rest: _Rest, *, now: float, has_news: bool) -> float:
        closed = self._closed(now=now)
        own = [until for path, until in closed.items() if path in rest.seen]
        if own and len(own) < len(rest.seen):
            if has_news:
                return 0.0  # one of them may go, and was not tried
        elif closed:
            return min(own or closed.values()) - now
        rest.vain += 1
        return float(REST_SECONDS_MIN * 2 ** min(rest.vain - 1, _DOUBLINGS_MAX))

    def pause(self, *, now: float) -> float:
        """How long the next round is to wait."""
        if self.due(now=now):
            return 0.0
        return min((self._rests[each].until - now for each in self.pending), default=0.0)


def _dealt(queues: Sequence[str], slots: int, shares: int) -> list[tuple[str, ...]]:
    if not queues:
        return []
    count = min(max(1, slots), len(queues) * shares)
    places = [queue for queue in queues for _ in range(min(shares, count))]
    groups: list[list[str]] = [[] for _ in range(count)]
    for place, queue in enumerate(places):
        if queue not in groups[place % count]:
            groups[place % count].append(queue)
    return [tuple(group) for group in groups if group]


class Backlogs:
    """Those of all primaries that share the secondary, by the names of the primaries."""

    def __init__(self, primaries: Iterable[str], *, shares: int = 1) -> None:
        """With one primary, all queues are its own; else their names say whose they are."""
        self._of = {name: Backlog(shares=shares) for name in primaries}
        self._names = {name.lower(): name for name in self._of}
        self._looked_at: dict[str, float] = {}

    def hurry(self, rest_seconds_max: float) -> None:
        for one in self._of.values():
            one.rest_seconds_max = rest_seconds_max

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

    def found(self, queues: Iterable[str], *, are_pending: bool = True) -> tuple[str, ...]:
        """Those that exist now; answers the new ones."""
        by_primary: dict[str, list[str]] = {name: [] for name in self._of}
        for queue in queues:
            owner = self.primary_of(queue)
            if owner is not None:
                by_primary[owner].append(queue)
        return tuple(
            new
            for name, own in by_primary.items()
            for new in self._of[name].found(own, are_pending=are_pending)
        )

    def arrived(self, queues: Iterable[str]) -> None:
        for one in self._of.values():
            one.arrived(queues)

    def stale(self, *, now: float) -> tuple[str, ...]:
        return tuple(queue for one in self._of.values() for queue in one.stale(now=now))

    def nothing_new(self, queues: Collection[str], *, now: float) -> None:
        for one in self._of.values():
            one.nothing_new(queues, now=now)

    def groups(self, slots: int, *, now: float) -> list[Group]:
        """The tasks of the next round, each of one primary. No more than can run at once: a round
        is to be short, and each task is to have its time. Those that had no turn come first."""
        due = {name: one.due(now=now) for name, one in self._of.items()}
        total = sum(map(len, due.values()))
        groups = [
            replace(group, primary=name)
            for name, queues in due.items()
            if queues
            for group in self._of[name].groups(max(1, slots * len(queues) // total), now=now)
        ]
        if len(groups) > slots:
            groups.sort(key=lambda group: min(self._looked_at.get(q, 0.0) for q in group.queues))
        return groups[: max(1, slots)]

    def ended(
        self,
        primary: str,
        looked_at: Mapping[str, bool],
        receipts: Sequence[Receipt],
        destinations: Iterable[Destination],
        emptied: Collection[str],
        *,
        troubled: Collection[str] = (),
        now: float,
    ) -> None:
        """A round is over, for one of the primaries that were in it."""
        self._looked_at.update(dict.fromkeys(looked_at, now))
        self._of[primary].ended(
            looked_at, receipts, destinations, emptied, troubled=troubled, now=now
        )

    def pause(self, *, now: float) -> float:
        """How long the next round is to wait."""
        return min((one.pause(now=now) for one in self._of.values() if one.pending), default=0.0)
