"""Summarizes a ledger: the messages brought home, their times and waits, and the cost.

Pure: makes a `Report` of receipts, and knows neither files nor tables on a screen. Times are UTC.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pairbus.json_style import camel_case, utc_text
from pairbus.syphon.discovery import namespace_of
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, add_waits, percentile_ms

OPERATIONS: Final = 4
"""The operations of a message brought home: send and receive, in the backlog and on the primary."""
GAP: Final = timedelta(minutes=10)
"""Diverted messages of one destination that are further apart belong to two outages."""
_HOUR_MS: Final = 3_600_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    path: str
    hour: datetime
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    path: str
    messages: int
    median_seconds: float
    p99_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """As the backlog saw it: from its first message for this destination to its last."""

    path: str
    begin: datetime
    end: datetime
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    path: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    into_backlog: int
    out_of_backlog: int
    to_primary: int
    out_of_primary: int
    released: int
    """Receives of messages whose destination was not available, so that they were released."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    runs: int
    first: datetime
    last: datetime
    brought_home: int
    bytes: int
    dead_lettered: int
    expired: int
    duplicates_possible: int
    hours: tuple[Hour, ...]
    waits: tuple[Waits, ...]
    outages: tuple[Outage, ...]
    dead_letters: tuple[DeadLetters, ...]
    operations: Operations

    def as_dict(self) -> dict[str, Any]:
        """For JSON: names in camelCase, times in ISO 8601."""
        found: dict[str, Any] = _json(asdict(self))
        found["operations"]["total"] = self.operations.total
        return found


def report_of(receipts: Sequence[Receipt], *, gap: timedelta = GAP) -> Report:
    """`receipts`: at least one."""
    by_path = _by_path(receipts)
    home = {
        path: [each for each in own if each.outcome is ReceiptOutcome.BROUGHT_HOME]
        for path, own in by_path.items()
    }
    counts: Counter[ReceiptOutcome] = Counter()
    for receipt in receipts:
        counts[receipt.outcome] += receipt.count
    settled = counts.total() - counts[ReceiptOutcome.WAITING]
    return Report(
        runs=len({each.run for each in receipts}),
        first=_time(min(each.at_ms for each in receipts)),
        last=_time(max(each.at_ms for each in receipts)),
        brought_home=counts[ReceiptOutcome.BROUGHT_HOME],
        bytes=sum(each.bytes for own in home.values() for each in own),
        dead_lettered=counts[ReceiptOutcome.DEAD_LETTERED],
        expired=counts[ReceiptOutcome.EXPIRED],
        duplicates_possible=sum(each.duplicates_possible for each in receipts),
        hours=_hours(home),
        waits=_waits(home),
        outages=_outages(by_path, gap),
        dead_letters=_dead_letters(by_path),
        operations=Operations(
            into_backlog=settled,
            out_of_backlog=settled,
            to_primary=counts[ReceiptOutcome.BROUGHT_HOME],
            out_of_primary=counts[ReceiptOutcome.BROUGHT_HOME],
            released=counts[ReceiptOutcome.WAITING],
        ),
    )


def _by_path(receipts: Sequence[Receipt]) -> dict[str, list[Receipt]]:
    """By destination, in the order of their names.

    Paths that differ only in case are one, as they are to the service. If the receipts belong to
    several primaries, as the names of the backlog queues show, each path begins with its primary.
    """
    primaries = {(namespace_of(each.queue) or "").lower() for each in receipts}
    grouped: dict[str, list[Receipt]] = defaultdict(list)
    spelled: dict[str, str] = {}
    for receipt in receipts:
        path = receipt.path
        if path and len(primaries) > 1:
            path = f"{namespace_of(receipt.queue) or ''}: {path}"
        grouped[path.lower()].append(receipt)
        spelled[path.lower()] = min(spelled.get(path.lower(), path), path)
    return dict(sorted((spelled[path], own) for path, own in grouped.items()))


def _hours(home: dict[str, list[Receipt]]) -> tuple[Hour, ...]:
    messages: Counter[tuple[int, str]] = Counter()
    sizes: Counter[tuple[int, str]] = Counter()
    for path, receipts in home.items():
        for receipt in receipts:
            if receipt.count:
                hour = receipt.at_ms // _HOUR_MS
                messages[hour, path] += receipt.count
                sizes[hour, path] += receipt.bytes
    return tuple(
        Hour(path=path, hour=_time(hour * _HOUR_MS), messages=count, bytes=sizes[hour, path])
        for (hour, path), count in sorted(messages.items())
    )


def _waits(home: dict[str, list[Receipt]]) -> tuple[Waits, ...]:
    found: list[Waits] = []
    for path, receipts in home.items():
        buckets: tuple[int, ...] = ()
        for receipt in receipts:
            buckets = add_waits(buckets, receipt.waits)
        if not buckets:
            continue
        longest_ms = max(each.longest_wait_ms for each in receipts)
        # A percentile is the middle of a bucket, which may lie beyond the longest wait in it.
        median_ms, p99_ms = (
            min(percentile_ms(buckets, fraction) or 0, longest_ms) for fraction in (0.5, 0.99)
        )
        found.append(
            Waits(
                path=path,
                messages=sum(buckets),
                median_seconds=median_ms / 1000,
                p99_seconds=p99_ms / 1000,
                longest_seconds=longest_ms / 1000,
            )
        )
    return tuple(found)


def _outages(by_path: dict[str, list[Receipt]], gap: timedelta) -> tuple[Outage, ...]:
    """A receipt covers a span of time. Spans that overlap, or nearly do, are one outage."""
    gap_ms = gap // timedelta(milliseconds=1)
    found: list[Outage] = []
    for path, receipts in by_path.items():
        spans: list[tuple[int, int, int]] = []
        for first_ms, last_ms, count in sorted(_spans(receipts) if path else ()):
            if spans and first_ms <= spans[-1][1] + gap_ms:
                begin_ms, end_ms, messages = spans.pop()
                spans.append((begin_ms, max(end_ms, last_ms), messages + count))
            else:
                spans.append((first_ms, last_ms, count))
        found += [
            Outage(path=path, begin=_time(begin_ms), end=_time(end_ms), messages=messages)
            for begin_ms, end_ms, messages in spans
        ]
    return tuple(sorted(found, key=lambda outage: outage.begin))


def _spans(receipts: Sequence[Receipt]) -> Iterator[tuple[int, int, int]]:
    for receipt in receipts:
        first_ms, last_ms = receipt.first_enqueued_ms, receipt.last_enqueued_ms
        if first_ms is not None and last_ms is not None:
            # What waits is counted by the receipt that brings it home.
            count = 0 if receipt.outcome is ReceiptOutcome.WAITING else receipt.count
            yield first_ms, last_ms, count


def _dead_letters(by_path: dict[str, list[Receipt]]) -> tuple[DeadLetters, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for path, receipts in by_path.items():
        for receipt in receipts:
            if receipt.outcome is ReceiptOutcome.DEAD_LETTERED:
                counts[path, receipt.reason] += receipt.count
    return tuple(
        DeadLetters(path=path, reason=reason, messages=count)
        for (path, reason), count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )


def _time(time_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=time_ms)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, dict):
        return {camel_case(name): _json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    return value
