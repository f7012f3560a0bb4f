"""What the dashboard shows: from readings, the last hour and `now`, to a picture of the pair. Pure.

Whatever nobody has said is None: the page says "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pairbus.cli.output import format_count
from pairbus.cost.prices import PriceList
from pairbus.dashboard.alerts import Alert, Severity, find_alerts
from pairbus.dashboard.costs import Cost, cost_of
from pairbus.dashboard.history import FailoverKey, History, Interval
from pairbus.dashboard.readings import SECONDARY, Readings
from pairbus.dashboard.texts import Moment, Sentence, about, client_name, names

SLOW_RATE: Final = 0.05
"""Messages per second. Below it, the backlog counts as standing still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A namespace, the syphons, or the clients in the picture of the pair."""

    key: str
    title: str
    state: str
    """up, down, unknown, failed over."""
    detail: str = ""
    connect_seconds: float | None = None
    round_trip_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """Messages per second on the arrows; None: unknown."""

    sends: float | None
    diverted: float | None
    brought_home: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogRow:
    queue: str
    waiting: int
    dead_letters: int
    oldest_seconds: float | None
    destinations: Mapping[str, int]
    """Shares of what was peeked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRow:
    role: str
    kind: str
    path: str
    active: int | None
    dead_letters: int | None
    scheduled: int | None
    size_bytes: int | None
    is_backlog: bool
    failed_over_clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    url: str
    name: str
    state: str
    """failed over, healthy, syphon, no answer, waiting."""
    clients: int
    failed_over: tuple[str, ...]
    diverted: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonRow:
    url: str
    name: str
    primaries: tuple[str, ...]
    rounds: int
    round_seconds: float | None
    """The mean of the recent rounds."""
    brought_home: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    at: float
    sentence: Sentence
    severity: Severity | None
    """None: not known yet."""
    nodes: tuple[Node, ...] = ()
    flows: Flows
    waiting: int | None = None
    seconds_to_empty: float | None = None
    alerts: tuple[Alert, ...] = ()
    backlog: tuple[BacklogRow, ...] | None = None
    backlog_error: str | None = None
    entities: tuple[EntityRow, ...] = ()
    clients: tuple[ClientRow, ...] = ()
    syphons: tuple[SyphonRow, ...] = ()
    failovers: Mapping[FailoverKey, tuple[Interval, ...]] = field(default_factory=dict)
    outages: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    cost: Cost | None = None
    outbox: Mapping[str, float] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    """What the dashboard cannot know, and how it could."""


def describe(readings: Readings, history: History, prices: PriceList, *, now: float) -> Picture:
    alerts = find_alerts(readings, history, now=now)
    waiting = _waiting(readings)
    flows = _flows(history, now)
    left = seconds_to_empty(waiting, flows, history.slope("waiting:", now=now))
    states = [readings.is_up(role, now) for role in readings.namespaces]
    is_unknown = all(state is None for state in states) and not readings.published()
    backlog_answer = readings.entities.get(SECONDARY)
    return Picture(
        at=now,
        sentence=_sentence(readings, history, waiting, left, now, is_unknown=is_unknown),
        severity=None if is_unknown else _severity(alerts, waiting),
        nodes=_nodes(readings, now),
        flows=flows,
        waiting=waiting,
        seconds_to_empty=left,
        alerts=tuple(alerts),
        backlog=_backlog(readings),
        backlog_error=None if backlog_answer is None else backlog_answer.error,
        entities=_entities(readings),
        clients=_clients(readings),
        syphons=_syphons(readings, history, now),
        failovers={key: tuple(some) for key, some in history.failovers.items()},
        outages={role: tuple(some) for role, some in history.outages.items()},
        cost=cost_of(readings, history, prices, now=now),
        outbox=_outbox(readings),
        unknown=_unknown(readings, flows),
    )


def _severity(alerts: Sequence[Alert], waiting: int | None) -> Severity:
    """That of the worst alert. As long as messages wait, not all is well."""
    worst = max((one.severity for one in alerts), default=Severity.INFO)
    return max(worst, Severity.WARNING) if waiting else worst


# -- the sentence --------------------------------------------------------------------------------


def _sentence(
    readings: Readings,
    history: History,
    waiting: int | None,
    left: float | None,
    now: float,
    *,
    is_unknown: bool,
) -> Sentence:
    if is_unknown:
        return ("Asking both namespaces.",)
    return (*_state_part(readings, history, now), *_backlog_part(readings, waiting, left, now))


def _state_part(readings: Readings, history: History, now: float) -> Sentence:
    open_failovers = [
        (key, some[-1]) for key, some in history.failovers.items() if some[-1].end is None
    ]
    entities = sorted({key.entity for key, _ in open_failovers})
    down = [role for role in readings.namespaces if readings.is_up(role, now) is False]
    if entities:
        verb = "is" if len(entities) == 1 else "are"
        since = min((one for _, one in open_failovers), key=lambda one: one.begin)
        return (f"{names(entities)} {verb} failed over", *_since(since))
    if down:
        verb = "does" if len(down) == 1 else "do"
        who = names([f"the {role}" for role in down])
        some = history.outages.get(down[0]) or []
        since_parts = _since(some[-1]) if some else ()
        return (f"{who[0].upper()}{who[1:]} {verb} not answer", *since_parts)
    unknown = [role for role in readings.namespaces if readings.is_up(role, now) is None]
    if unknown:
        return (f"Asking {names([f'the {role}' for role in unknown])}",)
    who = "Both namespaces answer" if len(readings.namespaces) == 2 else "All namespaces answer"
    if len(readings.namespaces) == 1:
        who = f"The {next(iter(readings.namespaces))} answers"
    if any(one.status.has_clients for one in readings.published().values()):
        return (f"{who}; no entity is failed over",)
    return (who,)


def _since(interval: Interval) -> Sentence:
    word = " since " if interval.is_begin_known else " since before "
    return (word, Moment(at=interval.begin, is_exact=interval.is_begin_known))


def _backlog_part(
    readings: Readings, waiting: int | None, left: float | None, now: float
) -> Sentence:
    if SECONDARY not in readings.namespaces:
        return ("; there is no --secondary, so the backlog is unknown.",)
    if waiting is None:
        return ("; the backlog is not known yet.",)
    if waiting == 0:
        return ("; nothing waits.",)
    verb = "waits" if waiting == 1 else "wait"
    start = f"; {format_count(waiting)} {verb}"
    if left is not None:
        return (f"{start}; home in {about(left)}.",)
    if any(readings.is_up(role, now) is False for role in readings.primaries):
        return (f"{start} for the primary.",)
    return (f"{start}; the number does not go down.",)


# -- the picture ---------------------------------------------------------------------------------


def _nodes(readings: Readings, now: float) -> tuple[Node, ...]:
    nodes = []
    for role, answer in readings.namespaces.items():
        is_up = readings.is_up(role, now)
        state, value = answer.value, answer.value
        nodes.append(
            Node(
                key=role,
                title=role.capitalize(),
                state="unknown" if is_up is None else "up" if is_up else "down",
                detail=(value.address if value else "")
                if is_up is not False
                else answer.error or (state.error if state else None) or "no answer",
                connect_seconds=value.connect_seconds if value and is_up else None,
                round_trip_seconds=value.round_trip_seconds if value and is_up else None,
            )
        )
    published = readings.published()
    syphons = [one for one in published.values() if one.rounds is not None]
    is_refused = any(one.status.refusing or one.failing_queues for one in syphons)
    nodes.append(
        Node(
            key="syphon",
            title="Syphon" if len(syphons) < 2 else f"{len(syphons)} syphons",
            state=("waits" if is_refused else "up") if syphons else "unknown",
            detail="" if syphons else "none publishes metrics here",
        )
    )
    clients = [one for one in published.values() if one.status.has_clients]
    pairings = sum(one.status.pairings for one in clients)
    processes = format_count(len(clients), "process", "processes")
    over = sum(bool(one.status.failed_over) for one in clients)
    nodes.append(
        Node(
            key="clients",
            title="Clients",
            state=("failed over" if over else "up") if clients else "unknown",
            detail=f"{format_count(pairings, 'client')} in {processes}"
            if clients
            else "none publishes metrics here",
        )
    )
    return tuple(nodes)


def _flows(history: History, now: float) -> Flows:
    rates = history.rates
    return Flows(
        sends=rates.sends(now=now),
        diverted=rates.diverted.rate(now=now),
        brought_home=rates.brought_home.rate(now=now),
    )


def seconds_to_empty(waiting: int | None, flows: Flows, slope: float | None) -> float | None:
    """How long until nothing waits, at the present rate; None: unknown, or it does not go down.

    The change of the number itself counts everything, so it is preferred to the processes' rates.
    """
    if waiting is None:
        return None
    if waiting == 0:
        return 0.0
    speed = None if slope is None else -slope
    if speed is None and flows.brought_home is not None:
        speed = flows.brought_home - (flows.diverted or 0.0)
    return waiting / speed if speed is not None and speed > SLOW_RATE else None


def _waiting(readings: Readings) -> int | None:
    counts = readings.backlog_counts()
    return None if counts is None else sum(one.active or 0 for one in counts)


def _backlog(readings: Readings) -> tuple[BacklogRow, ...] | None:
    counts = readings.backlog_counts()
    if counts is None:
        return None
    peeked = {}
    if readings.backlog is not None and readings.backlog.value is not None:
        peeked = {one.queue: one for one in readings.backlog.value.queues}
    rows = []
    for one in sorted(counts, key=lambda each: each.path):
        seen = peeked.get(one.path) if one.active else None
        rows.append(
            BacklogRow(
                queue=one.path,
                waiting=one.active or 0,
                dead_letters=one.dead_letters or 0,
                oldest_seconds=None if seen is None else seen.oldest_seconds,
                destinations={} if seen is None else dict(seen.destinations),
            )
        )
    return tuple(rows)


def _entities(readings: Readings) -> tuple[EntityRow, ...]:
    failed_over: dict[str, int] = {}
    for one in readings.published().values():
        for (_, entity), clients in one.status.failed_over.items():
            failed_over[entity.lower()] = failed_over.get(entity.lower(), 0) + clients
    return tuple(
        EntityRow(
            role=role,
            kind=one.kind,
            path=one.path,
            active=one.active,
            dead_letters=one.dead_letters,
            scheduled=one.scheduled,
            size_bytes=one.size_bytes,
            is_backlog=one.is_backlog,
            failed_over_clients=0 if role == SECONDARY else failed_over.get(one.path.lower(), 0),
        )
        for role, answer in readings.entities.items()
        for one in answer.value or ()
    )


def _clients(readings: Readings) -> tuple[ClientRow, ...]:
    rows = []
    for url, answer in readings.processes.items():
        value = answer.value
        entities: tuple[str, ...] = ()
        state, detail = "waiting", "asked, no answer yet"
        if answer.error is not None:
            state, detail = "no answer", answer.error
        elif value is not None:
            entities = tuple(sorted({key[1] for key in value.status.failed_over}))
            is_client = value.status.has_clients
            state = "failed over" if entities else "healthy" if is_client else "syphon"
            if not is_client and value.rounds is None:
                state = "no pairbus metrics"
            detail = ", ".join(entities)
        rows.append(
            ClientRow(
                url=url,
                name=client_name(url),
                state=state,
                clients=0 if value is None else value.status.pairings,
                failed_over=entities,
                diverted=None
                if value is None or not value.status.has_clients
                else value.status.diverted,
                detail=detail,
            )
        )
    return tuple(rows)


def _syphons(readings: Readings, history: History, now: float) -> tuple[SyphonRow, ...]:
    rounds = history.rates.rounds.rate(now=now, seconds=60.0)
    busy = history.rates.round_seconds.rate(now=now, seconds=60.0)
    mean = busy / rounds if rounds and busy is not None else None
    return tuple(
        SyphonRow(
            url=url,
            name=client_name(url),
            primaries=one.running,
            rounds=one.rounds,
            round_seconds=mean,
            brought_home=one.status.brought_home or 0,
        )
        for url, one in readings.published().items()
        if one.rounds is not None
    )


def _outbox(readings: Readings) -> dict[str, float]:
    totals: dict[str, float] = {}
    for one in readings.published().values():
        for name, value in one.outbox.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _unknown(readings: Readings, flows: Flows) -> tuple[str, ...]:
    found = []
    if not readings.processes:
        found.append(
            "Which entities are failed over, and how fast a syphon is, only the processes know: "
            "give the URLs of their metrics with --metrics."
        )
    if flows.sends is None and readings.primaries:
        found.append(
            "How many messages go to the primary: only clients and brokers on this machine publish "
            "that."
        )
    return tuple(found)
