"""The last hour, in memory: curves, outages and failovers. Pure: the caller passes readings and
`now`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from pairbus.cli.pair.status_sources import NamespaceState
from pairbus.cli.pair.targets import SECONDARY
from pairbus.dashboard.readings import Readings

HOUR_SECONDS: Final = 3600.0
SAMPLE_SECONDS: Final = 2.0
OPERATIONS_SECONDS: Final = 10.0
"""Between two counts of billed operations."""
POINTS_MAX: Final = 180
"""The number of points of a curve on the page."""
RATE_SECONDS: Final = 10.0
SLOPE_SECONDS: Final = 30.0
DESTINATIONS_MAX: Final = 20
"""Curves by destination: the largest ones, and one for all others."""
OTHERS: Final = "(others)"
INTERVALS_MAX: Final = 2000
_STEPS: Final = (2.0, 5.0, 10.0, 15.0, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An outage of a namespace, or a failover of an entity at one client."""

    begin: float
    end: float | None = None
    """None: it lasts."""
    is_begin_known: bool = True
    """False: it was so when the dashboard first looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverKey:
    namespace: str
    entity: str
    client: str


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    values: Mapping[str, float]


class CounterRates:
    """Changes per second of counters that several processes publish, each from its own start."""

    def __init__(self) -> None:
        self._points: dict[str, deque[tuple[float, float]]] = {}

    def add(self, source: str, at: float, value: float) -> None:
        points = self._points.setdefault(source, deque(maxlen=128))
        if points and at <= points[-1][0]:
            return  # the same answer as before
        if points and value < points[-1][1]:
            points.clear()  # the process has started again
        points.append((at, value))

    def rate(self, *, now: float, seconds: float = RATE_SECONDS) -> float | None:
        """The sum over all sources; None if none has two recent values."""
        found = [self._rate(points, now - seconds) for points in self._points.values()]
        known = [one for one in found if one is not None]
        return sum(known) if known else None

    def increase(self, *, now: float, seconds: float) -> float:
        """By how much the counters have grown in the last `seconds`."""
        return (self.rate(now=now, seconds=seconds) or 0.0) * seconds

    @staticmethod
    def _rate(points: deque[tuple[float, float]], since: float) -> float | None:
        if len(points) < 2 or points[-1][0] <= since:
            return None
        before = [one for one in points if one[0] <= since]
        first = before[-1] if before else points[0]
        last = points[-1]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else None


@dataclass(slots=True)
class Rates:
    """The counters that the flows are computed from."""

    sent: CounterRates = field(default_factory=CounterRates)
    """By clients."""
    primary_sends: CounterRates = field(default_factory=CounterRates)
    """As brokers on this machine count them."""
    diverted: CounterRates = field(default_factory=CounterRates)
    brought_home: CounterRates = field(default_factory=CounterRates)
    send_failures: CounterRates = field(default_factory=CounterRates)
    throttles: CounterRates = field(default_factory=CounterRates)
    rounds: CounterRates = field(default_factory=CounterRates)
    round_seconds: CounterRates = field(default_factory=CounterRates)

    def add(self, readings: Readings) -> None:
        for role in readings.primaries:
            broker = readings.brokers.get(role)
            if broker is None or not broker.is_current:
                continue
            if broker.value is not None and broker.at is not None:
                self.primary_sends.add(role, broker.at, broker.value.get("send", 0))
        for url, answer in readings.processes.items():
            if not answer.is_current or answer.value is None or answer.at is None:
                continue
            one, at = answer.value, answer.at
            if one.status.has_clients:
                if one.status.sent is not None:
                    self.sent.add(url, at, one.status.sent)
                self.diverted.add(url, at, one.status.diverted)
                self.send_failures.add(url, at, one.send_failures)
                self.throttles.add(url, at, one.throttles)
            if one.status.brought_home is not None:
                self.brought_home.add(url, at, one.status.brought_home)
            if one.rounds is not None:
                self.rounds.add(url, at, one.rounds)
                self.round_seconds.add(url, at, one.round_seconds)

    def home(self, readings: Readings, *, now: float) -> float | None:
        """Messages that syphons bring home per second. Without their metrics, from the ledger."""
        ledger = readings.syphon_ledger()
        return self.brought_home.rate(now=now) if ledger is None else ledger.brought_home_rate

    def sends(self, readings: Readings, *, now: float) -> float | None:
        """Messages that applications send to the primary, per second.

        A broker counts the sends of all, also those of a syphon. Clients know better, but not all
        of them may be among the processes, and they may be too old to publish it.
        """
        sent = self.sent.rate(now=now)
        if sent is not None:
            return sent
        counted = self.primary_sends.rate(now=now)
        home = self.home(readings, now=now) or 0.0
        return None if counted is None else max(counted - home, 0.0)


class History:
    def __init__(self, *, now: float) -> None:
        self.started_at = now
        self.rates = Rates()
        self.outages: dict[str, list[Interval]] = {}
        """By the role of the namespace, oldest first."""
        self.failovers: dict[FailoverKey, list[Interval]] = {}
        self.operations: deque[tuple[float, float]] = deque(
            maxlen=int(HOUR_SECONDS / OPERATIONS_SECONDS)
        )
        """Billed operations over time, for the cost at this rate."""
        self._points: deque[_Point] = deque(maxlen=int(HOUR_SECONDS / SAMPLE_SECONDS))
        self._names: dict[str, float] = {}
        """The curves, and when each had its last value."""
        self._seen_clients: set[str] = set()

    def add(self, readings: Readings, *, now: float, operations: float | None = None) -> None:
        """Call it about once per second."""
        self.rates.add(readings)
        self._add_outages(readings, now)
        self._add_failovers(readings, now)
        if operations is not None and (
            not self.operations or now - self.operations[-1][0] >= OPERATIONS_SECONDS
        ):
            if self.operations and operations < self.operations[-1][1]:
                self.operations.clear()  # a process has started again
            self.operations.append((now, operations))
        if not self._points or now - self._points[-1].at >= SAMPLE_SECONDS * 0.9:
            point = _Point(now, _values(readings, self.rates, now))
            self._points.append(point)
            self._names |= dict.fromkeys(point.values, now)
            old = [name for name, at in self._names.items() if at < now - HOUR_SECONDS]
            for name in old:
                del self._names[name]
        while self._points and self._points[0].at < now - HOUR_SECONDS:
            self._points.popleft()

    # -- curves ----------------------------------------------------------------------------------

    def names(self, prefix: str) -> list[str]:
        """The curves with this prefix that have a value in the last hour."""
        return sorted(name for name in self._names if name.startswith(prefix))

    def curve(self, name: str, *, now: float) -> list[tuple[float, float | None]]:
        """At most POINTS_MAX points; None where nothing was known."""
        first = max(self.started_at, now - HOUR_SECONDS)
        least = (now - first) / POINTS_MAX
        step = next((one for one in _STEPS if one >= least), _STEPS[-1])
        found: dict[float, float | None] = {}
        for point in self._points:
            value = point.values.get(name)
            bucket = point.at - point.at % step
            if value is not None or bucket not in found:
                found[bucket] = value
        return list(found.items())

    def slope(self, name: str, *, now: float, seconds: float = SLOPE_SECONDS) -> float | None:
        """The change per second over the last `seconds`; None if too little is known.

        After a peak, only what came after it counts: a backlog that has just begun to shrink would
        otherwise seem to grow.
        """
        recent = takewhile(lambda point: point.at >= now - seconds, reversed(self._points))
        known = [(one.at, one.values[name]) for one in recent if name in one.values][::-1]
        if len(known) < 3:
            return None
        peak = max(range(len(known)), key=lambda index: (known[index][1], index))
        first_at, first = known[peak if len(known) - peak >= 3 else 0]
        last_at, last = known[-1]
        return (last - first) / (last_at - first_at)

    # -- outages and failovers -------------------------------------------------------------------

    def _add_outages(self, readings: Readings, now: float) -> None:
        for role in readings.namespaces:
            is_up = readings.is_up(role, now)
            if is_up is None:
                continue
            is_first = role not in self.outages
            intervals = self.outages.setdefault(role, [])
            self.outages[role] = _continued(
                intervals, is_on=not is_up, is_begin_known=not is_first, now=now
            )

    def _add_failovers(self, readings: Readings, now: float) -> None:
        on: set[FailoverKey] = set()
        silent: set[str] = set()
        new: set[str] = set()
        for url, answer in readings.processes.items():
            if not answer.is_current or answer.value is None:
                silent.add(url)
                continue
            if url not in self._seen_clients:
                new.add(url)
            for namespace, entity in answer.value.status.failed_over:
                on.add(FailoverKey(namespace=namespace, entity=entity, client=url))
        for key in on | set(self.failovers):
            if key.client in silent:
                continue  # nothing is known: leave it as it was
            intervals = _continued(
                self.failovers.get(key, []),
                is_on=key in on,
                is_begin_known=key.client not in new,
                now=now,
            )
            if intervals:
                self.failovers[key] = intervals
            else:
                del self.failovers[key]
        self._seen_clients |= new
        if len(self.failovers) > INTERVALS_MAX:
            ended = [key for key, some in self.failovers.items() if some[-1].end is not None]
            for key in ended[: len(self.failovers) - INTERVALS_MAX]:
                del self.failovers[key]


def _continued(
    intervals: list[Interval], *, is_on: bool, is_begin_known: bool, now: float
) -> list[Interval]:
    """The intervals of the last hour, after one more look."""
    kept = [one for one in intervals if one.end is None or one.end > now - HOUR_SECONDS]
    lasts = bool(kept) and kept[-1].end is None
    if is_on and not lasts:
        kept.append(Interval(begin=now, is_begin_known=is_begin_known))
    elif not is_on and lasts:
        kept[-1] = replace(kept[-1], end=now)
    return kept[-INTERVALS_MAX:]


def _values(readings: Readings, rates: Rates, now: float) -> dict[str, float]:
    """One point of every curve. A name is a kind, a colon and what it is of."""
    values: dict[str, float] = {}
    secondary = readings.entities.get(SECONDARY)
    counts = readings.backlog_counts()
    if counts is not None and secondary is not None and secondary.is_current:
        values["waiting:"] = sum(one.active or 0 for one in counts)
        values |= {f"queue:{one.path}": one.active or 0 for one in counts}
        values |= _by_destination(readings, values["waiting:"])
    for role, answer in readings.namespaces.items():
        if answer.is_current and answer.value is not None and readings.is_up(role, now):
            values |= _latencies(role, answer.value)
    flows = {
        "sends": rates.sends(readings, now=now),
        "diverted": rates.diverted.rate(now=now),
        "home": rates.home(readings, now=now),
    }
    values |= {f"flow:{name}": max(rate, 0.0) for name, rate in flows.items() if rate is not None}
    return values


def _latencies(role: str, state: NamespaceState) -> dict[str, float]:
    found = {"connect": state.connect_seconds, "round trip": state.round_trip_seconds}
    return {
        f"latency:{role} {name}": seconds * 1000
        for name, seconds in found.items()
        if seconds is not None
    }


def _by_destination(readings: Readings, waiting: float) -> dict[str, float]:
    """The counts, shared out by what was peeked. Without a peek, nothing is known."""
    backlog = readings.backlog
    if backlog is None or backlog.value is None or not backlog.is_current:
        return {}
    counts = {one.path: one.active or 0 for one in readings.backlog_counts() or ()}
    totals: dict[str, float] = {}
    for queue in backlog.value.queues:
        left = counts.get(queue.queue, queue.waiting)
        for path, peeked in queue.destinations.items():
            totals[path] = totals.get(path, 0.0) + left * peeked / (queue.peeked or 1)
    largest = sorted(totals, key=lambda path: -totals[path])
    kept = {f"to:{path}": round(totals[path]) for path in largest[:DESTINATIONS_MAX]}
    if len(largest) > DESTINATIONS_MAX:
        kept[f"to:{OTHERS}"] = round(sum(totals[path] for path in largest[DESTINATIONS_MAX:]))
    return {name: float(value) for name, value in kept.items()}
