"""A pair of namespaces at one moment, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pairbus.cli.messages.table import visible
from pairbus.cli.output import format_duration, make_table
from pairbus.cli.pair.status_metrics import Told
from pairbus.cli.pair.status_sources import Backlog, BacklogState, NamespaceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    url: str
    told: Told
    why: str | None = None
    """It told nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    at: float
    namespaces: tuple[NamespaceState, ...] = ()
    backlog: Backlog | None = None
    backlog_why: str | None = None
    processes: tuple[Process, ...] = ()
    told: Told = field(default_factory=Told)
    rate: float | None = None
    """Of all syphons, in messages a second."""

    @property
    def has_secondary(self) -> bool:
        return any(one.role == "secondary" for one in self.namespaces)

    @property
    def is_well(self) -> bool:
        is_told = self.backlog is not None or not self.has_secondary
        return is_told and all(one.is_reachable for one in self.namespaces)

    @property
    def left(self) -> int | None:
        """What is still to be brought home."""
        if self.backlog is None:
            return None
        return sum(one.waiting for one in self.backlog.queues)


# -- as JSON ------------------------------------------------------------------------------------


def as_form(status: Status) -> dict[str, Any]:
    moment = datetime.fromtimestamp(status.at, UTC).isoformat(timespec="milliseconds")
    return {
        "at": moment.replace("+00:00", "Z"),
        "namespaces": {
            one.role: {
                "address": one.address,
                "reachable": one.is_reachable,
                "why": one.why,
                "connectMs": one.connect_ms,
                "roundTripMs": one.round_trip_ms,
            }
            for one in status.namespaces
        },
        "backlog": _backlog_form(status),
        "failedOver": [
            {"namespace": namespace, "entity": entity, "clients": clients}
            for (namespace, entity), clients in sorted(status.told.failed_over.items())
        ],
        "withdrawn": [
            {"namespace": namespace, "backlogQueue": queue, "clients": clients}
            for (namespace, queue), clients in sorted(status.told.withdrawn.items())
        ],
        "clients": status.told.pairings,
        "diverted": status.told.diverted,
        "syphon": {
            "seen": status.told.moved is not None,
            "moved": status.told.moved,
            "perSecond": None if status.rate is None else round(status.rate, 1),
            "left": status.left,
            "refusing": [
                {"primary": primary, "destination": destination}
                for primary, destination in sorted(status.told.refusing)
            ],
        },
        "processes": [{"url": one.url, "why": one.why} for one in status.processes],
    }


def _backlog_form(status: Status) -> dict[str, Any] | None:
    if not status.has_secondary:
        return None
    if status.backlog is None:
        return {"why": status.backlog_why, "queues": None}
    return {
        "why": None,
        "queues": [
            {
                "queue": one.queue,
                "waiting": one.waiting,
                "deadLetters": one.dead_letters,
                "oldestSeconds": None
                if one.oldest_seconds is None
                else round(one.oldest_seconds, 1),
                "lookedAt": one.looked_at,
                "destinations": dict(one.destinations),
            }
            for one in status.backlog.queues
        ],
        "others": dict(status.backlog.others),
    }


# -- for people ---------------------------------------------------------------------------------


def tables_of(status: Status) -> Group:
    parts: list[Table | Text] = []
    if status.namespaces:
        parts.append(_namespaces(status))
    if status.has_secondary:
        parts += [Text(), *_backlog(status)]
    parts += [Text(), *_processes(status)]
    return Group(*parts)


def _namespaces(status: Status) -> Table:
    table = make_table("Namespace", "Address", "State", right=("Connect", "Round trip"))
    for one in status.namespaces:
        state = "reachable" if one.is_reachable else f"unreachable: {one.why}"
        table.add_row(one.role, one.address, state, _ms(one.connect_ms), _ms(one.round_trip_ms))
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:g} ms"


def _backlog(status: Status) -> list[Table | Text]:
    if status.backlog is None:
        return [Text(f"The backlog is not known: {status.backlog_why}")]
    others = status.backlog.others
    more = [
        Text(f"Other primaries' backlog queues: {', '.join(sorted(others))} (see --namespace)")
    ] if others else []  # fmt: skip
    if not status.backlog.queues:
        return [Text("There are no backlog queues."), *more]
    table = make_table("Backlog queue", "Destinations", right=("Waiting", "Dead letters", "Oldest"))
    for one in status.backlog.queues:
        oldest = "-" if one.oldest_seconds is None else format_duration(one.oldest_seconds)
        row = (str(one.waiting), str(one.dead_letters), oldest)
        table.add_row(one.queue, _destinations(one), *row)
    if len(status.backlog.queues) > 1:
        dead = sum(one.dead_letters for one in status.backlog.queues)
        table.add_row("(all)", "", str(status.left), str(dead), "")
    return [table, *more]


def _destinations(one: BacklogState) -> str:
    if not one.destinations:
        return "-"
    words = ", ".join(f"{visible(path)} {count}" for path, count in one.destinations.items())
    is_part = one.looked_at < one.waiting
    return f"{words} (of the first {one.looked_at})" if is_part else words


def _processes(status: Status) -> list[Table | Text]:
    silent = [Text(f"{one.url}: {one.why}") for one in status.processes if one.why]
    if len(silent) == len(status.processes):
        hint = "" if silent else ": see --metrics"
        words = f"Failed-over entities and the syphon's rate are not known{hint}."
        return [Text(words), *silent]
    told = status.told
    found: list[Table | Text] = []
    if told.failed_over or told.withdrawn:
        table = make_table("Failed over", "Primary", right=("Clients",))
        for (namespace, entity), clients in sorted(told.failed_over.items()):
            table.add_row(entity, namespace, f"{clients} of {told.pairings}")
        for (namespace, queue), clients in sorted(told.withdrawn.items()):
            table.add_row(f"{queue} (out of the rotation)", namespace, str(clients))
        found.append(table)
    elif not told.pairings:
        found.append(Text("Failed-over entities are not known: no client tells of itself."))
    else:
        who = "1 client tells" if told.pairings == 1 else f"{told.pairings} clients tell"
        found.append(Text(f"No entity is failed over, as {who}."))
    if told.moved is None:
        found.append(Text("No syphon tells of itself."))
    else:
        rate = "" if status.rate is None else f", {status.rate:,.1f} a second"
        left = "" if status.left is None else f", {status.left:,} left"
        found.append(Text(f"Syphon: {told.moved:,} brought home{rate}{left}."))
    if told.refusing:
        names = sorted("/".join(filter(None, key)) for key in told.refusing)
        found.append(Text(visible(f"The syphon waits for: {', '.join(names)}")))
    return found + silent
