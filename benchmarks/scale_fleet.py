"""A simulated fleet of paired clients in an outage: the real router, a clock that is passed in, and
a seeded random choice. Nothing is sent.

A sender is one entity of one client. Its messages are a rate; its failures, pings, failovers and
failbacks are single events, and the client's own `Router` decides each of them. A ping or a send
takes no time, except that a send fails only after the SDK's retries.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pairbus import events
from pairbus.client.route.plans import Ping, ToPrimary
from pairbus.client.route.router import Router
from pairbus.client.timing import FIRST_PING_PHASE_MIN, QUEUE_REST_SECONDS

DOWN = ConnectionError("the primary is down")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    outages: tuple[tuple[float, float], ...]
    """From, to: in seconds."""
    ends_at: float
    clients: int = 10_000
    entities: int = 1_000
    entities_per_client: int = 10
    backlog_queues: int = 10
    send_period: float = 10.0
    """Each sender sends one message in this time."""
    retry_seconds: float = 11.0
    """How long the SDK retries before a send fails."""
    failover_seconds: float = 60.0
    ping_seconds: float = 60.0
    is_namespace_scope: bool = False
    fail_back_pings: int = 1
    has_random_phase: bool = True
    seed: int = 1

    @property
    def senders(self) -> int:
        return self.clients * self.entities_per_client

    def is_down(self, now: float) -> bool:
        return any(start <= now < end for start, end in self.outages)


@dataclass
class Outcome:
    scenario: Scenario
    pings: Counter[int] = field(default_factory=Counter)
    """By second, as the three others."""
    failovers: Counter[int] = field(default_factory=Counter)
    failbacks: Counter[int] = field(default_factory=Counter)
    pings_answered: int = 0
    rates: dict[str, Counter[int]] = field(default_factory=dict)
    """By backlog queue: by how much the number of senders that use it changes in a second."""
    diverted: Counter[str] = field(default_factory=Counter)
    """By backlog queue: messages."""
    pings_of_sender_max: int = 0

    def arrivals(self, queue: str, until: float) -> Iterator[float]:
        """Messages that reach a backlog queue, second by second."""
        senders = 0
        for second in range(int(until)):
            senders += self.rates.get(queue, Counter())[second]
            yield senders / self.scenario.send_period


def simulate(scenario: Scenario) -> Outcome:
    return _Fleet(scenario).run()


class _Fleet:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._random = random.Random(scenario.seed)
        self._outcome = Outcome(scenario)
        queues = [f"contoso/x-servicebus-transfer/{n}" for n in range(scenario.backlog_queues)]
        paths = [f"entity-{number}" for number in range(scenario.entities)]
        self._routers = [self._router(queues) for _ in range(scenario.clients)]
        self._paths = [
            self._random.sample(paths, scenario.entities_per_client) for _ in self._routers
        ]
        for router, own in zip(self._routers, self._paths, strict=True):
            for path in own:
                router.register(path, now=0.0)
        self._queue: list[tuple[float, int, str]] = []
        """Due times: of a client's background (an empty path), or of a send that may fail."""
        self._due: list[float | None] = [None] * scenario.clients
        self._failed_over: dict[tuple[int, str], tuple[float, str]] = {}
        self._pings_of: Counter[tuple[int, str]] = Counter()

    def _router(self, queues: list[str]) -> Router:
        scenario = self._scenario

        def phase() -> float:
            return self._random.uniform(FIRST_PING_PHASE_MIN, 1.0)

        return Router(
            "contoso",
            queues,
            failover_seconds=scenario.failover_seconds,
            ping_seconds=scenario.ping_seconds,
            rest_seconds=QUEUE_REST_SECONDS,
            choose=self._random.choice,
            fails_over_together=scenario.is_namespace_scope,
            fail_back_pings=scenario.fail_back_pings,
            phase=phase if scenario.has_random_phase else lambda: 1.0,
        )

    def run(self) -> Outcome:
        scenario = self._scenario
        for start, _ in scenario.outages:
            for number, paths in enumerate(self._paths):
                for path in paths:
                    first = start + self._random.uniform(0.0, scenario.send_period)
                    self._queue.append((first + scenario.retry_seconds, number, path))
        heapq.heapify(self._queue)
        while self._queue:
            now, number, path = heapq.heappop(self._queue)
            if now > scenario.ends_at:
                break
            if path:
                self._send(number, path, now)
            elif self._due[number] == now:
                self._work(number, now)
            else:
                continue  # something else was due earlier
            self._listen(number, now)
            self._schedule(number)
        for since, queue in self._failed_over.values():
            self._outcome.diverted[queue] += self._messages(since, scenario.ends_at)
        self._outcome.pings_of_sender_max = max(self._pings_of.values(), default=0)
        return self._outcome

    def _send(self, number: int, path: str, now: float) -> None:
        """A send that began while the primary was down: it fails, or the last retry succeeds."""
        scenario, router = self._scenario, self._routers[number]
        plan = router.plan(path, now=now)
        if not isinstance(plan, ToPrimary):
            return
        if not scenario.is_down(now):
            router.sent(path, plan, count=1, now=now)
        elif not router.failed(path, plan, DOWN, now=now, is_unreachable=True):
            again = now + scenario.send_period + scenario.retry_seconds
            heapq.heappush(self._queue, (again, number, path))

    def _work(self, number: int, now: float) -> None:
        router, is_down = self._routers[number], self._scenario.is_down(now)
        for task in router.take_due_tasks(now=now):
            assert isinstance(task, Ping)
            self._outcome.pings[int(now)] += 1
            self._pings_of[number, task.path] += 1
            if is_down:
                router.ping_failed(task, DOWN, now=now)
            else:
                self._outcome.pings_answered += 1
                router.ping_answered(task, now=now)

    def _schedule(self, number: int) -> None:
        due = self._routers[number].next_due
        if due is not None and due != self._due[number]:
            heapq.heappush(self._queue, (due, number, ""))
        self._due[number] = due

    def _listen(self, number: int, now: float) -> None:
        outcome = self._outcome
        for event in self._routers[number].take_events():
            if isinstance(event, events.FailedOver):
                assert event.backlog_queue is not None
                outcome.failovers[int(now)] += 1
                self._failed_over[number, event.path] = (now, event.backlog_queue)
                outcome.rates.setdefault(event.backlog_queue, Counter())[int(now)] += 1
            elif isinstance(event, events.FailedBack):
                outcome.failbacks[int(now)] += 1
                since, queue = self._failed_over.pop((number, event.path))
                outcome.rates[queue][int(now)] -= 1
                outcome.diverted[queue] += self._messages(since, now)

    def _messages(self, since: float, until: float) -> int:
        return round((until - since) / self._scenario.send_period)
