"""What `pairbus report` does: reads the ledger, and shows what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pairbus.cli.output import make_table, print_json, print_table
from pairbus.cost.estimate import Estimate, estimate_ledger
from pairbus.cost.prices import load
from pairbus.syphon.ledger import read_ledger, totals_of
from pairbus.syphon.report import OPERATIONS, Report, report_of


def run(folder: Path, *, gap_minutes: float, as_json: bool) -> None:
    receipts = read_ledger(folder)
    report = report_of(receipts, gap=timedelta(minutes=gap_minutes))
    cost = estimate_ledger(totals_of(receipts), load())
    if as_json:
        print_json({"ledger": str(folder), **report.as_dict(), "cost": _cost(cost)})
    else:
        _show(report)
        _show_cost(cost, folder)


def _cost(estimate: Estimate) -> dict[str, Any]:
    return {
        "operations": estimate.operations,
        "money": round(estimate.money_for_operations, 8),
        "beyond_the_included": round(_beyond(estimate), 8),
        "currency": estimate.prices.currency,
        "prices": estimate.prices.name,
        "as_of": estimate.prices.as_of.isoformat(),
    }


def _beyond(estimate: Estimate) -> float:
    return estimate.prices.first_price * estimate.operations


def _show_cost(estimate: Estimate, folder: Path) -> None:
    prices = estimate.prices
    _section(
        f"Cost, by {prices.name} of {prices.as_of}",
        ("",),
        ("operations", prices.currency),
        (
            (
                "with settlements and idle polls, in a month with nothing else",
                f"{estimate.operations:,}",
                f"{estimate.money_for_operations:,.2f}",
            ),
            ("... with the included ones used up", "", f"{_beyond(estimate):,.2f}"),
        ),
    )
    print(f"\nPart by part, and by your own prices: pairbus cost --ledger {folder}")


def _show(report: Report) -> None:
    print(
        f"{report.brought_home:,} messages brought home ({size_text(report.bytes)}), "
        f"{report.dead_lettered:,} dead-lettered, {report.expired:,} expired, "
        f"in {report.runs:,} runs from "
        f"{_minute(report.first)} to {_minute(report.last)} (UTC)"
    )
    if report.duplicates_possible:
        print(f"{report.duplicates_possible:,} of them may have arrived twice")
    _section(
        "By destination and hour",
        ("hour", "destination"),
        ("messages", "bytes"),
        ((_minute(h.hour), h.path, f"{h.messages:,}", f"{h.bytes:,}") for h in report.hours),
    )
    _section(
        "How long they waited in the backlog",
        ("destination",),
        ("messages", "median", "99 %", "longest"),
        (
            (
                w.path,
                f"{w.messages:,}",
                *map(duration_text, (w.median_seconds, w.p99_seconds, w.longest_seconds)),
            )
            for w in report.waits
        ),
    )
    _section(
        "Outages, as the backlog has seen them",
        ("begin", "end", "destination"),
        ("lasted", "messages"),
        (
            (
                _second(o.begin),
                _second(o.end),
                o.path,
                duration_text((o.end - o.begin).total_seconds()),
                f"{o.messages:,}",
            )
            for o in report.outages
        ),
    )
    _section(
        "Dead letters",
        ("reason", "destination"),
        ("messages",),
        ((d.reason, d.path or "(unknown)", f"{d.messages:,}") for d in report.dead_letters),
    )
    operations = report.operations
    _section(
        f"Operations: {OPERATIONS} for each message that came home",
        ("operation",),
        ("count",),
        (
            ("into the backlog", f"{operations.into_backlog:,}"),
            ("out of the backlog", f"{operations.out_of_backlog:,}"),
            ("to the primary", f"{operations.to_primary:,}"),
            ("out of the primary, by your receivers", f"{operations.out_of_primary:,}"),
            ("out of the backlog, and back for now", f"{operations.released:,}"),
            ("all", f"{operations.total:,}"),
        ),
    )


def _section(
    title: str, columns: Sequence[str], right: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    table = make_table(*columns, right=right)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        print(f"\n{title}")
        print_table(table)


def size_text(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def duration_text(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours / 24:.1f} days"


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


def _second(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"
