"""The rows of the page's tables. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pairbus.cli.output import format_count, format_duration
from pairbus.cli.pair.targets import SECONDARY
from pairbus.dashboard.history import History
from pairbus.dashboard.readings import DeadLetterReasons, EntityCounts, Readings
from pairbus.dashboard.texts import client_name, count, cut

REASONS_MAX: Final = 3
REASON_CHARACTERS_MAX: Final = 60
_CLIENT_TONES: Final = {"failed over": "warning", "no answer": "critical", "healthy": "ok"}
_OUTBOX: Final = {
    "pairbus_outbox_messages": "waiting",
    "pairbus_outbox_stored_messages_total": "stored",
    "pairbus_outbox_sent_messages_total": "sent",
    "pairbus_outbox_held_messages_total": "not sent any more",
    "pairbus_outbox_stalls_total": "failed attempts",
}


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    title: str = ""
    """Shown on hover."""
    tone: str = ""
    """A class: ok, warning, critical."""


@dataclass(frozen=True, slots=True)
class Row:
    key: Any
    """If the row has a button, JSON can express it: it is sent to the browser and back."""
    cells: Sequence[Cell | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRow(EntityCounts):
    """Not a row of cells yet: the page filters and sorts them."""

    role: str
    failed_over_clients: int
    reasons: str
    """Of its dead letters."""


def backlog_rows(readings: Readings) -> tuple[Row, ...] | None:
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
        oldest = None if seen is None else seen.oldest_seconds
        cells = (
            one.path,
            Cell(f"{one.active or 0:,}", tone="warning" if one.active else ""),
            Cell(f"{one.dead_letters or 0:,}", tone="critical" if one.dead_letters else ""),
            "-" if oldest is None else format_duration(oldest),
            ", ".join(seen.destinations if seen else ()) or "-",
        )
        rows.append(Row(one.path, cells))
    return tuple(rows)


def entity_rows(readings: Readings) -> tuple[EntityRow, ...]:
    failed_over: Counter[str] = Counter()
    for process in readings.published().values():
        for (_, entity), clients in process.status.failed_over.items():
            failed_over[entity.lower()] += clients
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
            failed_over_clients=0 if role == SECONDARY else failed_over[one.path.lower()],
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


def client_rows(readings: Readings) -> tuple[Row, ...]:
    rows = []
    for url, answer in readings.processes.items():
        status = None if answer.value is None else answer.value.status
        state, detail = "waiting", "asked, no answer yet"
        if answer.error is not None:
            state, detail = "no answer", answer.error
        elif answer.value is not None:
            entities = sorted({key[1] for key in answer.value.status.failed_over})
            detail = ", ".join(entities) or "-"
            if answer.value.status.has_clients:
                state = "failed over" if entities else "healthy"
            else:
                state = "no pairbus metrics" if answer.value.rounds is None else "syphon"
        cells = (
            Cell(client_name(url), url),
            Cell(state, tone=_CLIENT_TONES.get(state, "")),
            str(status.pairings if status else 0),
            count(status.sent if status else None),
            count(status.diverted if status and status.has_clients else None),
            detail,
        )
        rows.append(Row(url, cells))
    return tuple(rows)


def syphon_rows(readings: Readings, history: History, now: float) -> tuple[Row, ...]:
    """From their metrics, with the mean duration of the recent rounds; else from the ledger."""
    ledger = readings.syphon_ledger()
    if ledger is not None:
        return tuple(
            _syphon_row(
                one.run,
                f"run {one.run[:8]}, from the ledger",
                one.primaries,
                one.rounds,
                None,
                one.brought_home,
            )
            for one in ledger.runs
        )
    rounds = history.rates.rounds.rate(now=now, seconds=60.0)
    busy = history.rates.round_seconds.rate(now=now, seconds=60.0)
    mean = busy / rounds if rounds and busy is not None else None
    return tuple(
        _syphon_row(
            url, client_name(url), one.running, one.rounds, mean, one.status.brought_home or 0
        )
        for url, one in readings.published().items()
        if one.rounds is not None
    )


def _syphon_row(
    url: str, name: str, primaries: Sequence[str], rounds: int, mean: float | None, home: int
) -> Row:
    seconds = "-" if mean is None else f"{mean:.1f}s"
    cells = (Cell(name, url), ", ".join(primaries) or "-", f"{rounds:,}", seconds, f"{home:,}")
    return Row(url, cells)


def outbox_text(readings: Readings) -> str:
    """`Outbox: waiting 3, stored 5`; empty if no client uses one."""
    totals: Counter[str] = Counter()
    for one in readings.published().values():
        totals.update(one.outbox)
    if not any(totals.values()):
        return ""
    shown = (f"{_OUTBOX[name]} {totals[name]:,}" for name in sorted(totals) if name in _OUTBOX)
    return f"Outbox: {', '.join(shown)}"
