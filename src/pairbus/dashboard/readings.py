"""What the dashboard reads: the last answer of each source, and how long a source has been silent.

A source is one question to one namespace, process or folder. Each is asked on its own, so a source
that does not answer leaves the others as they are. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pairbus.cli.pair.status_sources import (
    Backlog,
    NamespaceState,
    ProcessMetrics,
    read_metrics,
)
from pairbus.cli.pair.targets import SECONDARY
from pairbus.cost.estimate import LedgerTotals
from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.receipts import Receipt, ReceiptOutcome

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

SILENT_SECONDS: Final = 2.0
"""A namespace that has not answered a probe for this long counts as down, before the time-out."""

LEDGER_RATE_SECONDS: Final = 60.0
RUN_SECONDS: Final = 3600.0
RUNS_MAX: Final = 10
BROUGHT_HOME: Final = ReceiptOutcome.BROUGHT_HOME

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[Value]):
    """The last answer of a source."""

    value: Value | None = None
    """What it said last, even if it does not answer now."""
    at: float | None = None
    """When it said that."""
    error: str | None = None
    """Why the last question had no answer."""
    asked_at: float | None = None
    """When it was asked, if it has not answered yet."""

    @property
    def is_current(self) -> bool:
        return self.at is not None and self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCounts:
    kind: str
    """queue, topic or subscription."""
    path: str
    """`orders`, or `events/Subscriptions/audit`."""
    active: int | None = None
    dead_letters: int | None = None
    scheduled: int | None = None
    size_bytes: int | None = None

    @property
    def is_backlog(self) -> bool:
        return self.kind == "queue" and namespace_of(self.path) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterReasons:
    """Why the first dead letters of an entity are there."""

    path: str
    count: int
    """How many there were when they were peeked at."""
    peeked: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    """By reason, most frequent first."""
    error: str | None = None
    """Why they could not be peeked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonRun:
    """One syphon, from its start to its stop, as far as the ledger shows."""

    run: str
    primaries: tuple[str, ...]
    rounds: int
    """Those that found messages. The ledger has no others."""
    brought_home: int
    last_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReading:
    totals: LedgerTotals
    runs: tuple[SyphonRun, ...] = ()
    """Those of the last hour, the latest first."""
    brought_home_rate: float = 0.0
    """Messages per second over the last minute."""
    last_at: float | None = None
    """When a syphon wrote to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """What a client or a syphon publishes. docs/metrics.md explains the metrics."""

    status: ProcessMetrics
    send_failures: int = 0
    throttles: int = 0
    pings: int = 0
    syphons_down: int = 0
    failing_queues: int = 0
    rounds: int | None = None
    """None: it is no syphon."""
    round_seconds: float = 0.0
    """The sum over all rounds."""
    running: tuple[str, ...] = ()
    """The primaries whose messages this syphon brings home."""
    operations: Mapping[str, int] = field(default_factory=dict)
    """A syphon's billed operations, by kind."""
    outbox: Mapping[str, int] = field(default_factory=dict)
    """The metrics of an outbox, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Everything that is known at one moment. Namespaces are named by their roles."""

    namespaces: Mapping[str, Answer[NamespaceState]] = field(default_factory=dict)
    entities: Mapping[str, Answer[tuple[EntityCounts, ...]]] = field(default_factory=dict)
    brokers: Mapping[str, Answer[Mapping[str, int]]] = field(default_factory=dict)
    """Operations since the broker's start, by kind. Only brokers on this machine publish them."""
    faults: Mapping[str, Answer[Sequence[Mapping[str, Any]]]] = field(default_factory=dict)
    dead_letters: Mapping[str, Answer[tuple[DeadLetterReasons, ...]]] = field(default_factory=dict)
    backlog: Answer[Backlog] | None = None
    """None: there is no secondary."""
    processes: Mapping[str, Answer[ProcessReading]] = field(default_factory=dict)
    ledger: Answer[LedgerReading] | None = None

    @property
    def primaries(self) -> list[str]:
        return [role for role in self.namespaces if role != SECONDARY]

    def is_up(self, role: str, now: float) -> bool | None:
        """Whether a namespace answers; None: not known yet."""
        answer = self.namespaces[role]
        if answer.asked_at is not None and now - answer.asked_at > SILENT_SECONDS:
            return False
        if answer.error is not None:
            return False
        return None if answer.value is None else answer.value.is_reachable

    def backlog_counts(self) -> list[EntityCounts] | None:
        answer = self.entities.get(SECONDARY)
        if answer is None or answer.value is None:
            return None
        return [one for one in answer.value if one.is_backlog]

    def syphon_ledger(self) -> LedgerReading | None:
        """The ledger, if no syphon publishes metrics: they say the same, and more."""
        if self.ledger is None or not self.ledger.is_current:
            return None
        has_metrics = any(one.rounds is not None for one in self.published().values())
        return None if has_metrics else self.ledger.value

    def published(self) -> dict[str, ProcessReading]:
        """The processes that answer now."""
        return {
            url: one.value
            for url, one in self.processes.items()
            if one.is_current and one.value is not None
        }


_SENT: Final = "pairbus_sent_messages_total"
_WANTED: Final = (
    *("pairbus_pairings", "pairbus_failed_over{", "pairbus_backlog_withdrawn{"),
    *("pairbus_diverted_messages_total", "pairbus_send_failures_total", "pairbus_throttles_total"),
    *("pairbus_pings_total", "pairbus_syphons_down", "pairbus_syphon_messages_total"),
    *("pairbus_syphon_destination_up", "pairbus_syphon_pending_queues", "pairbus_syphon_running"),
    *("pairbus_syphon_failing_queues", "pairbus_syphon_operations_total", "pairbus_outbox_"),
    *("pairbus_syphon_round_seconds_sum", "pairbus_syphon_round_seconds_count"),
    "pairbus_broker_operations_total",
)


def wanted_lines(text: str) -> str:
    """What the dashboard reads of a process's metrics: most of them are buckets of histograms, and
    to parse these takes longer than everything else. The sends of all entities become one line.
    """
    lines: list[str] = []
    sent: float | None = None
    for line in text.splitlines():
        if line.startswith(_SENT):
            sent = (sent or 0.0) + float(line.rpartition("}")[2].split()[0])
        elif line.startswith(_WANTED) and "_bucket{" not in line:
            lines.append(f"{line}\n")
    if sent is not None:
        lines.append(f"{_SENT} {sent}\n")
    return "".join(lines)


def read_process(samples: Iterable[Sample]) -> ProcessReading:
    samples = list(samples)
    sums: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    outbox: Counter[str] = Counter()
    running: list[str] = []
    for sample in samples:
        sums[sample.name] += sample.value  # type: ignore[assignment]
        if sample.name == "pairbus_syphon_running":
            running.append(sample.labels.get("namespace", ""))
        elif sample.name == "pairbus_syphon_operations_total":
            operations[sample.labels.get("operation", "")] += int(sample.value)
        elif sample.name.startswith("pairbus_outbox_") and not sample.name.endswith("_created"):
            outbox[sample.name] += int(sample.value)
    is_syphon = "pairbus_syphon_round_seconds_count" in sums
    return ProcessReading(
        status=read_metrics(samples),
        send_failures=int(sums["pairbus_send_failures_total"]),
        throttles=int(sums["pairbus_throttles_total"]),
        pings=int(sums["pairbus_pings_total"]),
        syphons_down=int(sums["pairbus_syphons_down"]),
        failing_queues=int(sums["pairbus_syphon_failing_queues"]),
        rounds=int(sums["pairbus_syphon_round_seconds_count"]) if is_syphon else None,
        round_seconds=float(sums["pairbus_syphon_round_seconds_sum"]),
        running=tuple(running),
        operations=dict(operations),
        outbox=dict(outbox),
    )


def read_broker(samples: Iterable[Sample]) -> dict[str, int]:
    """The operations that a broker counts, by kind."""
    operations: Counter[str] = Counter()
    for sample in samples:
        if sample.name == "pairbus_broker_operations_total":
            operations[sample.labels.get("operation", "")] += int(sample.value)
    return dict(operations)


def read_receipts(
    receipts: Sequence[Receipt], totals: LedgerTotals, *, now: float
) -> LedgerReading:
    """What the rows of a ledger say about the syphons that wrote them."""
    by_run: dict[str, list[Receipt]] = {}
    for one in receipts:
        if one.at_ms >= (now - RUN_SECONDS) * 1000:
            by_run.setdefault(one.run, []).append(one)
    runs = [
        SyphonRun(
            run=run,
            primaries=tuple(sorted({namespace_of(one.queue) or "" for one in rows} - {""})),
            rounds=len({one.round for one in rows}),
            brought_home=sum(one.count for one in rows if one.outcome == BROUGHT_HOME),
            last_at=max(one.at_ms for one in rows) / 1000,
        )
        for run, rows in by_run.items()
    ]
    recent = [one for one in receipts if one.at_ms >= (now - LEDGER_RATE_SECONDS) * 1000]
    home = sum(one.count for one in recent if one.outcome == BROUGHT_HOME)
    return LedgerReading(
        totals=totals,
        runs=tuple(sorted(runs, key=lambda one: -one.last_at)[:RUNS_MAX]),
        brought_home_rate=home / LEDGER_RATE_SECONDS,
        last_at=max((one.at_ms for one in receipts), default=0) / 1000 if receipts else None,
    )
