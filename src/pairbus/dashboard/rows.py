"""The rows of the page's tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.cli.output import format_count
from pairbus.cli.pair.status_sources import BacklogState
from pairbus.dashboard.history import History
from pairbus.dashboard.readings import SECONDARY, DeadLetterReasons, EntityCounts, Readings
from pairbus.dashboard.texts import client_name, cut

REASONS_MAX: Final = 3
REASON_CHARACTERS_MAX: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRow(EntityCounts):
    role: str
    failed_over_clients: int
    reasons: str
    """Of its dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    url: str
    name: str
    state: str
    """failed over, healthy, syphon, no answer, waiting."""
    clients: int
    failed_over: tuple[str, ...]
    sent: int | None
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


def backlog_rows(readings: Readings) -> tuple[BacklogState, ...] | None:
    """The counts, with what the last peek found of the queues that have messages."""
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
            BacklogState(
                queue=one.path,
                waiting=one.active or 0,
                dead_letters=one.dead_letters or 0,
                oldest_seconds=None if seen is None else seen.oldest_seconds,
                peeked=0 if seen is None else seen.peeked,
                destinations={} if seen is None else seen.destinations,
            )
        )
    return tuple(rows)


def entity_rows(readings: Readings) -> tuple[EntityRow, ...]:
    failed_over: dict[str, int] = {}
    for one in readings.published().values():
        for (_, entity), clients in one.status.failed_over.items():
            failed_over[entity.lower()] = failed_over.get(entity.lower(), 0) + clients
    reasons = {
        (role, one.path): one
        for role, answer in readings.dead_letters.items()
        for one in answer.value or ()
    }
    return tuple(
        EntityRow(
            role=role,
            kind=one.kind,
            path=one.path,
            active=one.active,
            dead_letters=one.dead_letters,
            scheduled=one.scheduled,
            size_bytes=one.size_bytes,
            reasons=reasons_text(reasons.get((role, one.path))) if one.dead_letters else "",
            failed_over_clients=0 if role == SECONDARY else failed_over.get(one.path.lower(), 0),
        )
        for role, answer in readings.entities.items()
        for one in answer.value or ()
    )


def reasons_text(found: DeadLetterReasons | None) -> str:
    """`MaxDeliveryCountExceeded 3, TTLExpiredException 1`, for the first dead letters."""
    if found is None:
        return "not read yet, or not among those with the most dead letters"
    if found.error is not None:
        return f"unknown: {found.error}"
    shown = [
        f"{cut(reason, REASON_CHARACTERS_MAX)} {count:,}"
        for reason, count in list(found.reasons.items())[:REASONS_MAX]
    ]
    if len(found.reasons) > REASONS_MAX:
        shown.append(format_count(len(found.reasons) - REASONS_MAX, "more reason"))
    part = f" (of the first {found.peeked:,})" if 0 < found.peeked < found.count else ""
    return ", ".join(shown) + part


def client_rows(readings: Readings) -> tuple[ClientRow, ...]:
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
                sent=None if value is None else value.status.sent,
                diverted=None
                if value is None or not value.status.has_clients
                else value.status.diverted,
                detail=detail,
            )
        )
    return tuple(rows)


def syphon_rows(readings: Readings, history: History, now: float) -> tuple[SyphonRow, ...]:
    rounds = history.rates.rounds.rate(now=now, seconds=60.0)
    busy = history.rates.round_seconds.rate(now=now, seconds=60.0)
    mean = busy / rounds if rounds and busy is not None else None
    ledger = readings.syphon_ledger()
    if ledger is not None:
        return tuple(
            SyphonRow(
                url=one.run,
                name=f"run {one.run[:8]}, from the ledger",
                primaries=one.primaries,
                rounds=one.rounds,
                round_seconds=None,
                brought_home=one.brought_home,
            )
            for one in ledger.runs
        )
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


def outbox_totals(readings: Readings) -> dict[str, float]:
    totals: dict[str, float] = {}
    for one in readings.published().values():
        for name, value in one.outbox.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals
