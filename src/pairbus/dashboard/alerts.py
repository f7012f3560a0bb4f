"""The alerts that are true now, and what to do about each. Pure.

They are those of docs/monitoring/pairbus.rules.yml, as far as one look shows them, and a few that
only the dashboard can see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pairbus.cli.output import format_count
from pairbus.cli.pair.targets import SECONDARY
from pairbus.dashboard.history import History, Interval
from pairbus.dashboard.readings import SILENT_SECONDS, Readings
from pairbus.dashboard.texts import Sentence, client_name, names

RECENT_SECONDS: Final = 60.0
STALLED_SECONDS: Final = 60.0


class Severity(IntEnum):
    INFO = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Alert:
    severity: Severity
    text: Sentence
    remedy: str


def find_alerts(readings: Readings, history: History, *, now: float) -> list[Alert]:
    """The most severe first."""
    found = [
        *_namespace_alerts(readings, history, now),
        *_client_alerts(readings, history, now),
        *_syphon_alerts(readings, history, now),
        *_source_alerts(readings),
    ]
    return sorted(found, key=lambda one: -one.severity)


def since(interval: Interval) -> Sentence:
    return (" since " if interval.is_begin_known else " since before ", interval.begin)


def _namespace_alerts(readings: Readings, history: History, now: float) -> Iterator[Alert]:
    for role, answer in readings.namespaces.items():
        if readings.is_up(role, now) is not False:
            continue
        outages = history.outages.get(role)
        begin = since(outages[-1]) if outages and outages[-1].end is None else ()
        error = answer.error or (answer.value.error if answer.value else None)
        reason = error or f"no answer within {SILENT_SECONDS:g}s"
        yield Alert(
            Severity.CRITICAL,
            (f"The {role} does not answer", *begin, f": {reason}."),
            "Restore it. Messages that cannot be sent to the primary go to the backlog."
            if role != SECONDARY
            else "Restore it. Without it, a failover has nowhere to go, and what waits there "
            "cannot come home.",
        )
    for role, entities in readings.entities.items():
        total = sum(one.dead_letters or 0 for one in entities.value or () if not one.is_backlog)
        if total:
            yield Alert(
                Severity.INFO,
                (f"The {role} has {format_count(total, 'dead letter')}.",),
                "Look at their reasons below, then resubmit or purge them.",
            )


def _client_alerts(readings: Readings, history: History, now: float) -> Iterator[Alert]:
    published = readings.published()
    entities = sorted({key[1] for one in published.values() for key in one.status.failed_over})
    if entities:
        verb = "is" if len(entities) == 1 else "are"
        yield Alert(
            Severity.WARNING,
            (f"{names(entities)} {verb} failed over: messages go to the backlog.",),
            "Find out why the primary does not accept them: the clients' logs have the "
            "error. They fail back by themselves when a ping is answered.",
        )
    if (failed := history.rates.send_failures.increase(now=now, seconds=RECENT_SECONDS)) >= 1:
        yield Alert(
            Severity.CRITICAL,
            (
                f"Neither namespace accepted {format_count(round(failed), 'send')} within the last "
                "minute. Applications get errors.",
            ),
            "Restore one of the namespaces.",
        )
    stored = sum(one.outbox.get("pairbus_outbox_messages", 0) for one in published.values())
    if stored:
        yield Alert(
            Severity.CRITICAL,
            (
                f"{format_count(stored)} {'waits' if stored == 1 else 'wait'} in the outbox "
                "of an application: neither namespace has accepted them.",
            ),
            "Restore one of the namespaces. `pairbus outbox` shows what is in the file.",
        )
    if history.rates.throttles.increase(now=now, seconds=RECENT_SECONDS) >= 1:
        yield Alert(
            Severity.WARNING,
            ("The primary throttles. That does not cause a failover.",),
            "Send less, or scale the namespace up.",
        )
    withdrawn = sorted({key[1] for one in published.values() for key in one.status.withdrawn})
    if withdrawn:
        yield Alert(
            Severity.WARNING,
            (f"Out of the rotation: {names(withdrawn)}.",),
            "See whether the backlog queue is full or disabled.",
        )
    if any(one.syphons_down for one in published.values()):
        yield Alert(
            Severity.WARNING,
            ("The syphon in the background of a client failed.",),
            "The log of the client has the error.",
        )


def _syphon_alerts(readings: Readings, history: History, now: float) -> Iterator[Alert]:
    published = readings.published()
    syphons = [one for one in published.values() if one.rounds is not None]
    counts = readings.backlog_counts() or []
    waiting = sum(one.active or 0 for one in counts)
    if waiting and published and not syphons and readings.syphon_ledger() is None:
        yield Alert(
            Severity.WARNING,
            ("Messages wait, and no syphon publishes metrics here.",),
            "Start one with `pairbus syphon --metrics-port 9464`, and name its URL with --metrics.",
        )
    refusing = sorted({key[1] for one in syphons for key in one.status.refusing})
    if refusing:
        yield Alert(
            Severity.WARNING,
            (f"The syphon waits for {names(refusing)}: the last message was not accepted.",),
            "Repair the destination. The syphon tries it again by itself.",
        )
    if any(one.failing_queues for one in syphons):
        yield Alert(
            Severity.WARNING,
            ("The syphon cannot receive from some backlog queues.",),
            "Look at its log; check the secondary.",
        )
    dead = sum(one.dead_letters or 0 for one in counts)
    if dead:
        verb = "was" if dead == 1 else "were"
        yield Alert(
            Severity.WARNING,
            (f"{format_count(dead)} could not be brought home and {verb} dead-lettered.",),
            "Look at the reasons under Dead letters, repair the cause, then resubmit them "
            "to the backlog queue.",
        )
    slope = history.slope("waiting:", now=now, seconds=STALLED_SECONDS)
    is_failed_over = any(one.status.failed_over for one in published.values())
    are_up = all(readings.is_up(role, now) for role in readings.namespaces)
    if waiting and are_up and not is_failed_over and slope is not None and slope >= 0:
        is_old = now - history.started_at >= STALLED_SECONDS
        if is_old:
            yield Alert(
                Severity.WARNING,
                (f"{format_count(waiting)} wait, and the number does not go down.",),
                "Look at the syphon's log, and at `pairbus status`.",
            )


def _source_alerts(readings: Readings) -> Iterator[Alert]:
    """What the dashboard cannot see."""
    silent = [url for url, one in readings.processes.items() if one.error is not None]
    if silent:
        errors = {readings.processes[url].error for url in silent}
        reason = f" ({next(iter(errors))})" if len(errors) == 1 else ""
        who = names([client_name(url) for url in silent])
        yield Alert(
            Severity.WARNING,
            (f"No metrics from {who}{reason}.",),
            "See whether the process runs, and whether --metrics has its URL.",
        )
    for role, answer in readings.entities.items():
        namespace = readings.namespaces.get(role)
        state = namespace.value if namespace is not None and namespace.is_current else None
        if answer.error is not None and state is not None and state.is_reachable:
            yield Alert(
                Severity.WARNING,
                (f"The counts of the {role} are unknown: {answer.error}",),
                "The policy needs Manage for the counts, and Listen to look at messages.",
            )
    ledger = readings.ledger
    if ledger is not None and ledger.error is not None:
        yield Alert(
            Severity.INFO,
            (f"The ledger cannot be read: {ledger.error}",),
            "See whether --ledger names the folder of `pairbus syphon --ledger`.",
        )
