"""Which backlog queues the next round takes, and when: decided from the results of earlier rounds.

Looking at waiting messages means receiving each of them, which costs operations. So while a
destination is down, the destination is asked and not the backlog. A queue from which nothing could
be brought home rests. It is looked at again when it is known to hold a message that can go home:

- A link that can be attached shows that a destination may be back (`link_probes.py`). If a link
  cannot show it, its pause ends. Then one message is sent there, as a probe.
- Peeks show which destinations the messages of a resting queue have (`backlog_peek.py`).

If the primary as a whole does not answer, it is treated like a destination of its own: nothing is
received for it, except one message as a probe.

Pure: `now` (UTC, in seconds) is an argument, and tasks are only described.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.policy import Condition, Destination, Destinations, Failure
from pairbus.syphon.queue_state import BLIND_SECONDS, QueueState
from pairbus.syphon.receipts import Drained, Receipt

REST_SECONDS_MAX = 60.0
# How often to peek at what has arrived in a resting queue.
PEEK_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    primary: str
    queues: tuple[str, ...]
    at_most: int | None = None
    """A probe: receive no more messages than this, to see whether a destination is available."""
    is_deep: bool = False
    """Messages that can go home are behind others that wait: hold as many of those as possible."""


class Schedule:
    """Schedules the backlog queues of all primaries that share the secondary."""

    def __init__(self, primaries: Iterable[str], *, shares: int = 1) -> None:
        """`shares`: how many tasks may receive from one queue at once. With more than one, the
        order of messages for a destination is not kept."""
        self.rest_seconds_max = REST_SECONDS_MAX
        self._shares = shares
        self._destinations = {name: Destinations() for name in primaries}
        self._primaries = {name: Destination("") for name in self._destinations}
        """The primaries as a whole: whether they answer at all."""
        self._queues: dict[str, QueueState] = {}
        self.newly_full: list[str] = []
        """Queues that the last round found full, and the round before did not."""

    # --- queues -----------------------------------------------------------------------------------

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._queues)

    @property
    def pending(self) -> tuple[str, ...]:
        """The queues that may hold messages."""
        return tuple(name for name, queue in self._queues.items() if queue.is_pending)

    def primary_of(self, queue: str) -> str | None:
        """A single primary owns all queues. With several, the queue's name says which one does."""
        if len(self._destinations) == 1:
            return next(iter(self._destinations))
        owner = (namespace_of(queue) or "").lower()
        return next((name for name in self._destinations if name.lower() == owner), None)

    def found(self, names: Iterable[str], *, are_pending: bool = True) -> tuple[str, ...]:
        """These queues exist now; returns the new ones. With `are_pending`, new ones may hold
        messages."""
        states: list[QueueState] = []
        for name in names:
            primary = self.primary_of(name)
            if primary is not None:
                known = self._queues.get(name)
                states.append(known or QueueState(name, primary, is_pending=are_pending))
        new = tuple(state.name for state in states if state.name not in self._queues)
        order = list(self._destinations)
        states.sort(key=lambda state: order.index(state.primary))
        self._queues = {state.name: state for state in states}
        return new

    def arrived(self, names: Iterable[str]) -> None:
        """A message was seen in each of these queues."""
        for name in names:
            if name in self._queues:
                self._queues[name].is_pending = True

    # --- destinations -----------------------------------------------------------------------------

    @property
    def destinations(self) -> tuple[tuple[str, Destination], ...]:
        """All that are known, each with the name of its primary."""
        return tuple((name, each) for name, some in self._destinations.items() for each in some)

    def destinations_of(self, primary: str) -> tuple[Destination, ...]:
        """The destinations that a task gets. If the primary did not answer at all, its own pause
        counts, and not those of the entities that were not reached."""
        known = tuple(self._destinations[primary])
        if not self._primaries[primary].is_failing:
            return known
        return tuple(
            replace(each, until=0.0) if each.failure is Failure.UNREACHABLE else each
            for each in known
        )

    @property
    def forbidden_everywhere(self) -> tuple[str, Destination] | None:
        """A destination that refuses the credentials, if none on any primary is known to be up.

        Then the credentials are wrong, and the run must end. Continuing would only hide that. If
        some destination is up, the forbidden one waits like one that is down.
        """
        known = self.destinations
        if any(each.condition is Condition.UP for _, each in known):
            return None
        return next((one for one in known if one[1].condition is Condition.FORBIDDEN), None)

    @property
    def failing(self) -> list[str]:
        """The primaries and destinations that are not up, what they are instead, and why."""
        has_several = len(self._destinations) > 1
        return [
            f"the primary {name} is {state.condition.value}: {state.detail}"
            for name, state in self._primaries.items()
            if state.is_failing
        ] + [
            f"{f'{primary}: ' if has_several else ''}{each.path} is {each.condition.value}"
            f"{f': {each.detail}' if each.detail else ''}"
            for primary, each in self.destinations
            if each.condition is not Condition.UP and not self._primaries[primary].is_failing
        ]

    def waiting_for(self) -> list[tuple[str, str, Destination]]:
        """What messages wait for: the primary, a name for people, and what is known of it."""
        has_several = len(self._destinations) > 1
        found: list[tuple[str, str, Destination]] = []
        for name, primary in self._primaries.items():
            pending = [queue for queue in self._of(name) if queue.is_pending]
            if primary.is_failing:
                if pending:
                    found.append((name, f"the primary {name}", primary))
                continue
            awaited = {path for queue in pending if queue.rest for path in queue.rest.destinations}
            for each in self._destinations[name]:
                if each.is_failing and each.path.lower() in awaited:
                    found.append((name, f"{name}: {each.path}" if has_several else each.path, each))
        return found

    # --- links --------------------------------------------------------------------------------

    def to_probe(self, *, now: float) -> dict[str, tuple[str, ...]]:
        """The primaries to connect to, and the entities there to attach a link to. For a primary
        that does not answer at all, there are none."""
        wanted: dict[str, tuple[str, ...]] = {}
        for name, primary in self._primaries.items():
            resting = [queue for queue in self._of(name) if queue.is_pending]
            if primary.is_failing:
                if resting and primary.is_back_by_link and not primary.is_open(now=now):
                    wanted[name] = ()
                continue
            awaited = {path for queue in resting if queue.rest for path in queue.rest.destinations}
            paths = tuple(
                each.path
                for each in self._destinations[name]
                if each.path.lower() in awaited
                and each.is_back_by_link
                and not each.is_open(now=now)
            )
            if paths:
                wanted[name] = paths
        return wanted

    def answered(self, primary: str, paths: Iterable[str], *, now: float) -> None:
        """A primary has accepted a connection, and links to these entities."""
        if self._primaries[primary].is_failing:
            self._primaries[primary].reopened(now=now)
        for path in paths:
            self._destinations[primary][path].reopened(now=now)

    def primary_lost(self, primary: str, detail: str, *, now: float) -> None:
        self._primaries[primary].failed(Failure.UNREACHABLE, now=now, detail=detail)

    # --- the next round ---------------------------------------------------------------------------

    def pause(self, *, now: float) -> float:
        """Seconds until the next round is due; 0 if it is, or if nothing is pending."""
        pending = [queue for queue in self._queues.values() if queue.is_pending]
        dues = [at for queue in pending for at in self._due_times(queue)]
        return max(min(dues, default=now + PEEK_SECONDS if pending else now) - now, 0.0)

    def _due_times(self, queue: QueueState) -> Iterator[float]:
        """When a look at this queue, or a probe of it, is due."""
        primary, rest = self._primaries[queue.primary], queue.rest
        if primary.is_failing:
            yield max(primary.until, rest.probe_at if rest else 0.0)
        elif rest is None:
            yield 0.0
        else:
            yield rest.forced_at
            for path in rest.destinations:
                each = self._destinations[queue.primary].find(path)
                yield max(each.until, rest.probe_at) if each.is_failing else rest.until

    def tasks(self, slots: int, *, now: float) -> list[TaskPlan]:
        """The tasks of the next round: each queue that is due in one of them, or in its shares.

        No more than can run at once, because a round must be short and each task needs its time.
        Queues that have waited longest come first.
        """
        looks = {name: self._looks(name, now=now) for name in self._destinations}
        count = sum(map(len, looks.values()))
        plans: list[TaskPlan] = []
        for primary, own in looks.items():
            room = max(1, slots * len(own) // count) if own else 0
            is_deep = any(queue.is_deep for queue in own)
            plans += [
                TaskPlan(primary=primary, queues=queues, is_deep=is_deep)
                for queues in _dealt([queue.name for queue in own], room, self._shares)
            ]
            plans += self._probes(primary, own, now=now)
        if len(plans) > slots:
            plans.sort(
                key=lambda plan: min(self._queues[name].last_round_at for name in plan.queues)
            )
        return plans[: max(1, slots)]

    def _of(self, primary: str) -> list[QueueState]:
        return [queue for queue in self._queues.values() if queue.primary == primary]

    def _looks(self, primary: str, *, now: float) -> list[QueueState]:
        if self._primaries[primary].is_failing:
            return []
        due = [
            queue
            for queue in self._of(primary)
            if queue.is_pending
            and (
                queue.rest is None
                or queue.rest.forced_at <= now
                or (queue.rest.until <= now and queue.has_deliverable(self._destinations[primary]))
            )
        ]
        for queue in due:
            queue.is_deep |= queue.rest is not None
        return due

    def _probes(self, primary: str, looks: Sequence[QueueState], *, now: float) -> list[TaskPlan]:
        """One message for each destination whose pause has ended, from the queue in which it has
        the fewest others ahead."""
        free = [
            queue
            for queue in self._of(primary)
            if queue.is_pending and (queue.rest is None or queue.rest.probe_at <= now)
        ]
        if self._primaries[primary].is_failing:
            if not free or not self._primaries[primary].is_open(now=now):
                return []
            first = min(free, key=lambda queue: queue.last_round_at)
            return [TaskPlan(primary=primary, queues=(first.name,), at_most=1)]
        sizes: dict[str, int] = {}
        tried = {path for queue in looks if queue.rest for path in queue.rest.destinations}
        for each in self._destinations[primary]:
            path = each.path.lower()
            if path in tried or not each.is_failing or not each.is_open(now=now):
                continue
            ahead = {
                queue.name: queue.rest.destinations[path]
                for queue in free
                if queue not in looks and queue.rest and path in queue.rest.destinations
            }
            if ahead:
                best = min(ahead, key=lambda name: ahead[name])
                sizes[best] = max(sizes.get(best, 0), ahead[best] + 1)
        return [
            TaskPlan(primary=primary, queues=(name,), at_most=size) for name, size in sizes.items()
        ]

    # --- peeks --------------------------------------------------------------------------------

    def to_peek(self, *, now: float) -> dict[str, bool]:
        """The queues to peek at, and whether to begin with what has arrived since the last time.

        If the primary does not answer, nothing in them can go home, so none is of interest."""
        return {
            queue.name: queue.rest.is_peeked
            for queue in self._queues.values()
            if queue.is_pending
            and queue.rest is not None
            and queue.rest.peek_at <= now
            and not self._primaries[queue.primary].is_failing
        }

    def peeked(
        self, name: str, ahead: Mapping[str, int] | None, *, is_complete: bool = True, now: float
    ) -> None:
        """`ahead`: the destinations that were seen in the queue, in lower case, and how many
        messages are ahead of the first one for each. None if peeks cannot show that."""
        rest = self._queues[name].rest
        assert rest is not None
        rest.is_peeked = True
        if ahead is None:
            rest.peek_at, rest.forced_at = math.inf, now + BLIND_SECONDS
            return
        rest.peek_at = now + PEEK_SECONDS if is_complete else now
        rest.destinations |= ahead

    def peek_failed(self, name: str, *, now: float) -> None:
        """The secondary did not answer. Peek again later."""
        rest = self._queues[name].rest
        if rest is not None:
            rest.peek_at = now + PEEK_SECONDS

    # --- the last round ---------------------------------------------------------------------------

    def round_ended(self, results: Iterable[tuple[TaskPlan, Drained]], *, now: float) -> None:
        by_primary: dict[str, list[tuple[TaskPlan, Drained]]] = {}
        for plan, result in results:
            by_primary.setdefault(plan.primary, []).append((plan, result))
        self.newly_full = []
        for primary, some in by_primary.items():
            self._learn(primary, [result for _, result in some], now=now)
            receipts = [each for _, result in some for each in result.receipts]
            plans = {name: plan for plan, _ in some for name in plan.queues}
            for name, plan in plans.items():
                queue = self._queues.get(name)
                if queue is None:
                    continue  # it was deleted meanwhile
                queue.last_round_at = now
                own = [each for each in receipts if each.queue == name]
                if any(name in result.emptied for _, result in some):
                    queue.emptied()
                else:
                    self._turn_ended(queue, plan, own, [result for _, result in some], now=now)

    def _turn_ended(
        self,
        queue: QueueState,
        plan: TaskPlan,
        receipts: Sequence[Receipt],
        results: Sequence[Drained],
        *,
        now: float,
    ) -> None:
        known, seconds_max = self._destinations[queue.primary], self.rest_seconds_max
        has_failed = any(queue.name in dict(result.errors) for result in results)
        if plan.at_most is not None:
            queue.probe_ended(
                receipts, known, has_failed=has_failed, now=now, rest_seconds_max=seconds_max
            )
            return
        is_full = plan.is_deep and any(queue.name in result.full for result in results)
        if is_full and not queue.is_full:
            self.newly_full.append(queue.name)
        queue.look_ended(
            receipts,
            known,
            is_lost=self._primaries[queue.primary].is_failing,
            has_failed=has_failed,
            is_full=is_full,
            now=now,
            rest_seconds_max=seconds_max,
        )

    def _learn(self, primary: str, results: Sequence[Drained], *, now: float) -> None:
        known, state = self._destinations[primary], self._primaries[primary]
        news: set[str] = set()
        for each in [each for result in results for each in result.destinations]:
            if known.learn(each):
                news.add(each.path.lower())
        if any(result.has_reached_primary for result in results):
            if state.is_failing:
                for each in known:
                    if each.failure is Failure.UNREACHABLE and each.path.lower() not in news:
                        each.may_be_up(now=now)
            state.sent(now=now)
        elif error := next((each.primary_error for each in results if each.primary_error), None):
            self.primary_lost(primary, error, now=now)


def _dealt(queues: Sequence[str], slots: int, shares: int) -> list[tuple[str, ...]]:
    """Distribute queues over tasks in turn: each queue `shares` times, but only once per task."""
    if not queues:
        return []
    count = min(max(1, slots), len(queues) * shares)
    places = [queue for queue in queues for _ in range(min(shares, count))]
    hands: list[list[str]] = [[] for _ in range(count)]
    for place, queue in enumerate(places):
        if queue not in hands[place % count]:
            hands[place % count].append(queue)
    return [tuple(hand) for hand in hands if hand]
