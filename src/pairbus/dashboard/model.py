"""What the dashboard shows: from readings, the last hour and `now`, to a picture of the pair. Pure.

A value that no source has reported is None: the page shows "unknown".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.cli.output import format_count, format_duration
from pairbus.cli.pair.targets import SECONDARY
from pairbus.cost.prices import PriceList
from pairbus.dashboard.alerts import Alert, Severity, find_alerts, since
from pairbus.dashboard.costs import Cost, cost_of
from pairbus.dashboard.history import History
from pairbus.dashboard.readings import LEDGER_RATE_SECONDS, Readings
from pairbus.dashboard.rows import (
    EntityRow,
    Row,
    backlog_rows,
    client_rows,
    entity_rows,
    outbox_text,
    syphon_rows,
)
from pairbus.dashboard.texts import Sentence, about, names

SLOW_RATE: Final = 0.05
"""Messages per second. Below it, the backlog counts as standing still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureNode:
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
class Picture:
    at: float
    sentence: Sentence
    severity: Severity | None
    """None: not known yet."""
    nodes: tuple[PictureNode, ...] = ()
    flows: Flows
    waiting: int | None = None
    seconds_to_empty: float | None = None
    alerts: tuple[Alert, ...] = ()
    backlog: tuple[Row, ...] | None = None
    backlog_error: str | None = None
    entities: tuple[EntityRow, ...] = ()
    clients: tuple[Row, ...] = ()
    syphons: tuple[Row, ...] = ()
    cost: Cost | None = None
    outbox: str = ""
    unknown: tuple[str, ...] = ()
    """What the dashboard cannot know, and how it could."""


def describe(readings: Readings, history: History, prices: PriceList, *, now: float) -> Picture:
    alerts = find_alerts(readings, history, now=now)
    waiting = _waiting(readings)
    flows = _flows(readings, history, now)
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
        backlog=backlog_rows(readings),
        backlog_error=None if backlog_answer is None else backlog_answer.error,
        entities=entity_rows(readings),
        clients=client_rows(readings),
        syphons=syphon_rows(readings, history, now),
        cost=cost_of(readings, history, prices, now=now),
        outbox=outbox_text(readings),
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
        first = min((one for _, one in open_failovers), key=lambda one: one.begin)
        nowhere = ", and the secondary does not answer" if SECONDARY in down else ""
        return (f"{names(entities)} {verb} failed over", *since(first), nowhere)
    if down:
        verb = "does" if len(down) == 1 else "do"
        who = names([f"the {role}" for role in down])
        some = history.outages.get(down[0]) or []
        begin = since(some[-1]) if some else ()
        return (f"{who[0].upper()}{who[1:]} {verb} not answer", *begin)
    unknown = [role for role in readings.namespaces if readings.is_up(role, now) is None]
    if unknown:
        return (f"Asking {names([f'the {role}' for role in unknown])}",)
    who = "Both namespaces answer" if len(readings.namespaces) == 2 else "All namespaces answer"
    if len(readings.namespaces) == 1:
        who = f"The {next(iter(readings.namespaces))} answers"
    if any(one.status.has_clients for one in readings.published().values()):
        return (f"{who}; no entity is failed over",)
    return (who,)


def _backlog_part(
    readings: Readings, waiting: int | None, left: float | None, now: float
) -> Sentence:
    if SECONDARY not in readings.namespaces:
        return ("; there is no --secondary, so the backlog is unknown.",)
    if waiting is None:
        return ("; the backlog is not known yet.",)
    counted = readings.entities.get(SECONDARY)
    if counted is not None and counted.error is not None:
        number = format_count(waiting) if waiting else "nothing"
        return (f"; {number} waited when the secondary was last counted.",)
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


def _nodes(readings: Readings, now: float) -> tuple[PictureNode, ...]:
    nodes = []
    for role, answer in readings.namespaces.items():
        is_up = readings.is_up(role, now)
        value = answer.value
        nodes.append(
            PictureNode(
                key=role,
                title=role.capitalize(),
                state="unknown" if is_up is None else "up" if is_up else "down",
                detail=(value.address if value else "")
                if is_up is not False
                else answer.error or (value.error if value else None) or "no answer",
                connect_seconds=value.connect_seconds if value and is_up else None,
                round_trip_seconds=value.round_trip_seconds if value and is_up else None,
            )
        )
    published = readings.published()
    nodes.append(_syphon_node(readings, now))
    clients = [one for one in published.values() if one.status.has_clients]
    pairings = sum(one.status.pairings for one in clients)
    processes = format_count(len(clients), "process", "processes")
    over = sum(bool(one.status.failed_over) for one in clients)
    nodes.append(
        PictureNode(
            key="clients",
            title="Clients",
            state=("failed over" if over else "up") if clients else "unknown",
            detail=f"{format_count(pairings, 'client')} in {processes}"
            if clients
            else "none publishes metrics here",
        )
    )
    return tuple(nodes)


def _syphon_node(readings: Readings, now: float) -> PictureNode:
    syphons = [one for one in readings.published().values() if one.rounds is not None]
    title = "Syphon" if len(syphons) < 2 else f"{len(syphons)} syphons"
    if syphons:
        is_refused = any(one.status.refusing or one.failing_queues for one in syphons)
        return PictureNode(key="syphon", title=title, state="waits" if is_refused else "up")
    ledger = readings.syphon_ledger()
    if ledger is None or ledger.last_at is None:
        detail = "none publishes metrics here"
        return PictureNode(key="syphon", title=title, state="unknown", detail=detail)
    # A syphon that finds nothing writes nothing, so silence does not mean that it is down.
    ago = max(now - ledger.last_at, 0.0)
    return PictureNode(
        key="syphon",
        title=title,
        state="up" if ago < LEDGER_RATE_SECONDS else "unknown",
        detail=f"wrote to the ledger {format_duration(ago)} ago",
    )


def _flows(readings: Readings, history: History, now: float) -> Flows:
    rates = history.rates
    return Flows(
        sends=rates.sends(readings, now=now),
        diverted=rates.diverted.rate(now=now),
        brought_home=rates.home(readings, now=now),
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
