"""Which backlog queues the next round takes, and when: decided from the results of earlier rounds.

Looking at waiting messages means receiving each of them, which costs operations. So a backlog queue
from which nothing could be brought home rests until one of its destinations may be tried again.
Then a probe takes a handful of messages first. A full look, at all of the queue, follows when
another of its destinations may be available. It also follows once a minute, except when it is known
that no message has arrived.

Pure: `now` (UTC, in seconds) is an argument, and tasks are only described.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.policy import Condition, Destination, Destinations
from pairbus.syphon.receipts import Drained, ReceiptOutcome

REST_SECONDS_MIN = 0.5
REST_SECONDS_MAX = 60.0
# If no destination says when to try again, each rest is twice as long as the last.
_DOUBLINGS_MAX = 5
# If fewer than this fraction of the messages were settled, the queue rests for a second for each
# 200 messages that wait: receiving them repeatedly to deliver a few is too expensive.
_LITTLE = 0.1
_WAITING_A_SECOND = 200
# Probes are enough for this long. Then other messages may have arrived.
FULL_LOOK_SECONDS = 60.0
# If it is known that none have arrived, probes are enough for this long.
STALE_SECONDS_MAX = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    primary: str
    queues: tuple[str, ...]
    is_probe: bool = False
    """Take only a few messages from each queue, to see whether its destinations are available
    again.
    """


@dataclass(slots=True)
class _Rest:
    """A queue from which nothing, or little, could be brought home."""

    until: float
    full_look_at: float
    """From this time on, a task takes all of the queue. Before, it takes only a probe."""
    last_full_look: float
    is_forced: bool = False
    """The full look is due because messages could be delivered, not only because some may have
    arrived.
    """
    destinations: frozenset[str] = frozenset()
    """The destinations of the messages in the last full look, in lower case."""
    attempts: int = 0


@dataclass(slots=True, eq=False)
class QueueState:
    """What is known about one backlog queue."""

    name: str
    primary: str
    is_pending: bool
    """It may hold messages."""
    last_turn: float = 0.0
    is_full: bool = False
    """The last task to take all of it held too many messages to see what is behind them."""
    rest: _Rest | None = None

    def is_due(self, *, now: float) -> bool:
        return self.is_pending and (self.rest is None or self.rest.until <= now)

    def needs_probe(self, *, now: float) -> bool:
        return self.rest is not None and now < self.rest.full_look_at


class Schedule:
    """Schedules the backlog queues of all primaries that share the secondary."""

    def __init__(self, primaries: Iterable[str], *, shares: int = 1) -> None:
        """`shares`: how many tasks may receive from one queue at once. With more than one, the
        order of messages for a destination is not kept."""
        self.rest_seconds_max = REST_SECONDS_MAX
        self._shares = shares
        self._destinations = {name: Destinations() for name in primaries}
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
        return tuple(self._destinations[primary])

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
        """The destinations that are not up, and what they are instead."""
        has_several = len(self._destinations) > 1
        return [
            f"{f'{primary}: ' if has_several else ''}{each.path} is {each.condition.value}"
            for primary, each in self.destinations
            if each.condition is not Condition.UP
        ]

    # --- the next round ---------------------------------------------------------------------------

    def pause(self, *, now: float) -> float:
        """Seconds until the next round is due; 0 if it is, or if nothing is pending."""
        pending = [queue for queue in self._queues.values() if queue.is_pending]
        if any(queue.is_due(now=now) for queue in pending):
            return 0.0
        return min((queue.rest.until - now for queue in pending if queue.rest), default=0.0)

    def tasks(self, slots: int, *, now: float) -> list[TaskPlan]:
        """The tasks of the next round: each queue that is due in one of them, or in its shares.

        No more than can run at once, because a round must be short and each task needs its time.
        Queues that have waited longest come first.
        """
        due = self._due(now=now)
        plans: list[TaskPlan] = []
        for primary in self._destinations:
            own = [queue for queue in due if queue.primary == primary]
            if own:
                plans += self._tasks_of(primary, own, max(1, slots * len(own) // len(due)), now=now)
        if len(plans) > slots:
            plans.sort(key=lambda plan: min(self._queues[name].last_turn for name in plan.queues))
        return plans[: max(1, slots)]

    def _tasks_of(
        self, primary: str, due: Sequence[QueueState], slots: int, *, now: float
    ) -> list[TaskPlan]:
        probed = [queue.name for queue in due if queue.needs_probe(now=now)]
        full = [queue.name for queue in due if queue.name not in probed]
        dealt = _dealt(full, slots, self._shares)
        plans = [TaskPlan(primary=primary, queues=queues) for queues in dealt]
        return plans + [
            TaskPlan(primary=primary, queues=queues, is_probe=True)
            for queues in _dealt(probed, slots - len(plans), 1)
        ]

    def _due(self, *, now: float) -> list[QueueState]:
        return [queue for queue in self._queues.values() if queue.is_due(now=now)]

    def stale(self, *, now: float) -> tuple[str, ...]:
        """Queues that are due for a full look only because messages may have arrived."""
        return tuple(
            queue.name
            for queue in self._due(now=now)
            if (rest := queue.rest) is not None
            and rest.full_look_at <= now < rest.last_full_look + STALE_SECONDS_MAX
            and not rest.is_forced
        )

    def nothing_new(self, names: Iterable[str], *, now: float) -> None:
        """No message has arrived in these queues since their last full look: a probe is enough."""
        for name in names:
            rest = self._queues[name].rest
            if rest is not None:
                rest.full_look_at = now + FULL_LOOK_SECONDS

    # --- the last round ---------------------------------------------------------------------------

    def round_ended(self, results: Iterable[tuple[TaskPlan, Drained]], *, now: float) -> None:
        by_primary: dict[str, list[tuple[TaskPlan, Drained]]] = {}
        for plan, result in results:
            by_primary.setdefault(plan.primary, []).append((plan, result))
        self.newly_full = []
        for primary, some in by_primary.items():
            self._round_ended(primary, some, now=now)

    def _round_ended(
        self, primary: str, results: Sequence[tuple[TaskPlan, Drained]], *, now: float
    ) -> None:
        known = self._destinations[primary]
        learned = [each for _, result in results for each in result.destinations]
        news = [known[path] for path in {each.path for each in learned if known.learn(each)}]
        is_failing = any(one.condition is not Condition.UP for one in news)
        emptied = {name for _, result in results for name in result.emptied}
        failed = {name for _, result in results for name, _ in result.errors}
        receipts = [each for _, result in results for each in result.receipts]
        full = {name for _, result in results for name in result.full}
        probed = {name: plan.is_probe for plan, _ in results for name in plan.queues}
        for name, was_probe in probed.items():
            queue = self._queues.get(name)
            if queue is None:
                continue  # it was deleted meanwhile
            queue.last_turn = now
            queue.is_pending = queue.is_pending and name not in emptied
            if not was_probe:  # a probe sees only a handful
                if name in full and not queue.is_full:
                    self.newly_full.append(name)
                queue.is_full = name in full
            own = [each for each in receipts if each.queue == name]
            waiting = sum(each.count for each in own if each.outcome is ReceiptOutcome.WAITING)
            settled = sum(each.count for each in own) - waiting
            is_little = 0 < settled < _LITTLE * waiting and not was_probe
            # A queue without receipts had no turn, perhaps because the primary was lost.
            is_futile = not settled and (waiting or name in failed or is_failing)
            if not queue.is_pending or not (is_little or is_futile):
                queue.rest = None
                continue
            rest = queue.rest = queue.rest or _Rest(now, now, now)
            if not was_probe:
                rest.last_full_look, rest.full_look_at = now, now + FULL_LOOK_SECONDS
                rest.is_forced = False
                rest.destinations = frozenset(each.path.lower() for each in own)
            closed = _closed(known, now=now)
            if is_little:
                seconds = waiting / _WAITING_A_SECOND
            else:
                seconds = _rest_seconds(rest, closed, now=now, has_news=bool(news))
            if is_little or (was_probe and rest.destinations - closed.keys()):
                # Behind what the probe received, there are messages that could go home.
                rest.full_look_at, rest.is_forced = now, True
            rest.until = now + min(max(seconds, REST_SECONDS_MIN), self.rest_seconds_max)


def _closed(destinations: Destinations, *, now: float) -> dict[str, float]:
    """The destinations that nothing is sent to now, and until when."""
    return {one.path.lower(): one.until for one in destinations if not one.is_open(now=now)}


def _rest_seconds(rest: _Rest, closed: dict[str, float], *, now: float, has_news: bool) -> float:
    """The seconds until one of the queue's destinations may be tried again."""
    own = [until for path, until in closed.items() if path in rest.destinations]
    if own and len(own) < len(rest.destinations):
        if has_news:
            return 0.0  # one of them is open, and was not tried
    elif closed:
        return min(own or closed.values()) - now
    rest.attempts += 1
    return float(REST_SECONDS_MIN * 2 ** min(rest.attempts - 1, _DOUBLINGS_MAX))


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
