"""The status of a pair at one moment, as tables and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pairbus.cli.messages.table import escape_control
from pairbus.cli.output import format_duration, format_milliseconds, make_table
from pairbus.cli.pair.status_sources import Backlog, BacklogState, NamespaceState, ProcessMetrics
from pairbus.cli.pair.syphon_progress import unproven
from pairbus.cli.pair.targets import SECONDARY
from pairbus.json_style import utc_text

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    url: str
    metrics: ProcessMetrics | None = None
    error: str | None = None
    """Why there are no metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSnapshot:
    at: float
    namespaces: tuple[NamespaceState, ...] = ()
    backlog: Backlog | None = None
    backlog_error: str | None = None
    processes: tuple[Process, ...] = ()
    metrics: ProcessMetrics = field(default_factory=ProcessMetrics)
    """The sum of all processes."""
    rate: float | None = None
    """Messages that all syphons bring home per second."""

    @property
    def has_secondary(self) -> bool:
        return any(one.role == SECONDARY for one in self.namespaces)

    @property
    def has_metrics(self) -> bool:
        return any(one.metrics is not None for one in self.processes)

    @property
    def is_ok(self) -> bool:
        is_backlog_known = self.backlog is not None or not self.has_secondary
        return is_backlog_known and all(
            one.is_reachable and not one.error for one in self.namespaces
        )

    @property
    def left(self) -> int | None:
        """The number of messages that wait in the backlog."""
        if self.backlog is None:
            return None
        return sum(one.waiting for one in self.backlog.queues)


# -- as JSON ------------------------------------------------------------------------------------


def to_json(status: PairSnapshot) -> dict[str, Any]:
    """A value that no process publishes is None: unknown."""
    return {
        "at": utc_text(status.at),
        "namespaces": {
            one.role: {
                "address": one.address,
                "reachable": one.is_reachable,
                "error": one.error,
                "checked": one.checked,
                "connectSeconds": _rounded(one.connect_seconds, 4),
                "roundTripSeconds": _rounded(one.round_trip_seconds, 4),
            }
            for one in status.namespaces
        },
        "backlog": _backlog_json(status),
        **_clients_json(status),
        "syphon": _syphon_json(status),
        "processes": [{"url": one.url, "error": one.error} for one in status.processes],
    }


def _clients_json(status: PairSnapshot) -> dict[str, Any]:
    metrics = status.metrics
    if not metrics.has_clients:
        clients = 0 if status.has_metrics else None
        names = ("failedOver", "withdrawn", "clients", "sent", "diverted")
        return {**dict.fromkeys(names), "clients": clients}
    return {
        "failedOver": [
            {"namespace": namespace, "entity": entity, "clients": clients}
            for (namespace, entity), clients in sorted(metrics.failed_over.items())
        ],
        "withdrawn": [
            {"namespace": namespace, "backlogQueue": queue, "clients": clients}
            for (namespace, queue), clients in sorted(metrics.withdrawn.items())
        ],
        "clients": metrics.pairings,
        "sent": metrics.sent,
        "diverted": metrics.diverted,
    }


def _syphon_json(status: PairSnapshot) -> dict[str, Any]:
    metrics = status.metrics
    is_running = metrics.brought_home is not None
    refusing = [
        {"primary": primary, "destination": destination}
        for primary, destination in sorted(metrics.refusing)
    ]
    return {
        "running": is_running if status.has_metrics else None,
        "broughtHome": metrics.brought_home,
        "perSecond": _rounded(status.rate, 1),
        "left": status.left,
        "refusing": refusing if is_running else None,
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _backlog_json(status: PairSnapshot) -> dict[str, Any] | None:
    if not status.has_secondary:
        return None
    if status.backlog is None:
        return {"error": status.backlog_error, "queues": None}
    return {
        "error": None,
        "queues": [
            {
                "queue": one.queue,
                "waiting": one.waiting,
                "deadLetters": one.dead_letters,
                "oldestSeconds": _rounded(one.oldest_seconds, 1),
                "peeked": one.peeked,
                "destinations": dict(one.destinations),
            }
            for one in status.backlog.queues
        ],
        "others": dict(status.backlog.others),
    }


# -- for people ---------------------------------------------------------------------------------


def to_tables(status: PairSnapshot) -> list[Table | str]:
    """Tables, and lines of text."""
    parts: list[Table | str] = []
    if status.namespaces:
        parts.append(_namespaces(status))
        rights = {one.role: one.checked for one in status.namespaces if one.checked is not None}
        parts += unproven(rights)
        for role in ("primary", SECONDARY):
            if not any(one.role.startswith(role) for one in status.namespaces):
                parts.append(
                    f"The {role} is not given: put its connection string or host name into "
                    f"PAIRBUS_{role.upper()}, or give it with --{role}."
                )
    if status.has_secondary:
        parts += ["", *_backlog(status)]
    return [*parts, "", *_processes(status)]


def _namespaces(status: PairSnapshot) -> Table:
    table = make_table("namespace", "address", "state", right=("connect", "round trip"))
    for one in status.namespaces:
        state = "reachable" if one.is_reachable else "unreachable"
        state = f"{state}: {one.error}" if one.error else state
        times = (one.connect_seconds, one.round_trip_seconds)
        table.add_row(one.role, one.address, state, *map(format_milliseconds, times))
    return table


def _backlog(status: PairSnapshot) -> list[Table | str]:
    if status.backlog is None:
        return [f"The backlog is unknown: {status.backlog_error}"]
    others = ", ".join(sorted(status.backlog.others))
    more = [f"Backlog queues of other primaries: {others} (see --primary-name)"]
    more = more if others else []
    if not status.backlog.queues:
        return ["There are no backlog queues.", *more]
    table = make_table("backlog queue", "destinations", right=("waiting", "dead letters", "oldest"))
    for one in status.backlog.queues:
        oldest = "-" if one.oldest_seconds is None else format_duration(one.oldest_seconds)
        row = (f"{one.waiting:,}", f"{one.dead_letters:,}", oldest)
        table.add_row(one.queue, _destinations(one), *row)
    if len(status.backlog.queues) > 1:
        dead = sum(one.dead_letters for one in status.backlog.queues)
        table.add_row("total", "", f"{status.left:,}", f"{dead:,}", "")
    return [table, *more]


def _destinations(one: BacklogState) -> str:
    if not one.destinations:
        return "-"
    text = ", ".join(
        f"{escape_control(path)} {count:,}" for path, count in one.destinations.items()
    )
    is_part = one.peeked < one.waiting
    return f"{text} (of the first {one.peeked:,})" if is_part else text


def _processes(status: PairSnapshot) -> list[Table | str]:
    errors = [f"{one.url}: {one.error}" for one in status.processes if one.error]
    if not status.has_metrics:
        hint = "" if errors else ": see --metrics"
        return [f"Failed-over entities and the syphon's rate are unknown{hint}.", *errors]
    return [*_clients(status.metrics), *_syphon(status), *errors]


def _clients(metrics: ProcessMetrics) -> list[Table | str]:
    if not metrics.has_clients:
        return ["Failed-over entities are unknown: no client publishes metrics."]
    if metrics.failed_over or metrics.withdrawn:
        table = make_table("failed over", "primary", right=("clients",))
        for (namespace, entity), clients in sorted(metrics.failed_over.items()):
            table.add_row(entity, namespace, f"{clients} of {metrics.pairings}")
        for (namespace, queue), clients in sorted(metrics.withdrawn.items()):
            table.add_row(f"{queue} (out of the rotation)", namespace, str(clients))
        return [table, *_sends(metrics)]
    who = "1 client" if metrics.pairings == 1 else f"{metrics.pairings} clients"
    return [f"No entity is failed over, according to {who}.", *_sends(metrics)]


def _sends(metrics: ProcessMetrics) -> list[str]:
    if metrics.sent is None:
        return []
    return [f"Clients: {metrics.sent:,} sent to the primary, {metrics.diverted:,} diverted."]


def _syphon(status: PairSnapshot) -> list[str]:
    metrics = status.metrics
    if metrics.brought_home is None:
        texts = ["No syphon publishes metrics."]
    else:
        rate = "" if status.rate is None else f", {status.rate:,.1f} per second"
        left = "" if status.left is None else f", {status.left:,} left"
        texts = [f"Syphon: {metrics.brought_home:,} brought home{rate}{left}."]
    if metrics.refusing:
        names = sorted("/".join(filter(None, key)) for key in metrics.refusing)
        texts.append(escape_control(f"The syphon waits for these destinations: {', '.join(names)}"))
    return texts
