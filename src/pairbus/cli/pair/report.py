"""`pairbus report`: summarizes a syphon's ledger, as tables or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pairbus.cli.output import (
    format_count,
    format_duration,
    format_size,
    make_table,
    print_json,
    print_table,
)
from pairbus.cli.parse import parse_duration
from pairbus.cli.shared_options import AS_JSON, option
from pairbus.cost.estimate import Estimate, estimate_ledger
from pairbus.cost.prices import load
from pairbus.syphon.report import OPERATIONS, Report, report_of


def report(
    ledger: Path = option("DIR", "The folder of `pairbus syphon --ledger`.", default=...),
    gap: str = option(
        "DURATION",
        "Diverted messages of one destination that are further apart than this belong to "
        "different outages (default: 10m).",
        default="10m",
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Report what a syphon's ledger holds: messages, waiting times, outages and operations.

    It reads the ledger on this machine and changes nothing. A syphon may keep writing meanwhile.

    Exit codes: 0 success, 1 failure, 2 usage error, also if there is no ledger, 130 interrupted.

    \b
    Examples:
      pairbus report --ledger ./ledger
      pairbus report --ledger ./ledger --json
    """
    # Imported here because it loads pyarrow, which --help does not need.
    from pairbus.syphon.ledger import read_ledger, totals_of

    receipts = read_ledger(ledger)
    found = report_of(receipts, gap=parse_duration(gap, "--gap"))
    cost = estimate_ledger(totals_of(receipts), load())
    if as_json:
        print_json({"ledger": str(ledger), **found.as_dict(), "cost": _cost_json(cost)})
    else:
        _print_report(found)
        _print_cost(cost, ledger)


def _cost_json(estimate: Estimate) -> dict[str, Any]:
    return {
        "operations": estimate.operations,
        "money": round(estimate.money_for_operations, 8),
        "moneyBeyondFreeTier": round(_beyond_free_tier(estimate), 8),
        "currency": estimate.prices.currency,
        "prices": estimate.prices.name,
        "asOf": estimate.prices.as_of.isoformat(),
    }


def _beyond_free_tier(estimate: Estimate) -> float:
    return estimate.prices.first_price * estimate.operations


def _print_cost(estimate: Estimate, folder: Path) -> None:
    prices = estimate.prices
    _print_section(
        f"Cost by {prices.name}, as of {prices.as_of}",
        ("",),
        ("operations", prices.currency),
        (
            (
                "with settlements and idle polls, if there are no other operations",
                f"{estimate.operations:,}",
                f"{estimate.money_for_operations:,.2f}",
            ),
            ("if the free operations are used up", "", f"{_beyond_free_tier(estimate):,.2f}"),
        ),
    )
    print(f"\nFor each item, and for your own prices: pairbus cost --ledger {folder}")


def _print_report(report: Report) -> None:
    print(
        f"{format_count(report.brought_home)} brought home ({format_size(report.bytes)}), "
        f"{report.dead_lettered:,} dead-lettered, {report.expired:,} expired, in "
        f"{format_count(report.runs, 'run')} from {_minute(report.first)} to "
        f"{_minute(report.last)} (UTC)"
    )
    if report.duplicates_possible:
        print(f"{report.duplicates_possible:,} of them may have arrived twice")
    _print_section(
        "By destination and hour",
        ("hour", "destination"),
        ("messages", "bytes"),
        ((_minute(h.hour), h.path, f"{h.messages:,}", f"{h.bytes:,}") for h in report.hours),
    )
    _print_section(
        "Time in the backlog",
        ("destination",),
        ("messages", "median", "99 %", "longest"),
        (
            (
                w.path,
                f"{w.messages:,}",
                *map(format_duration, (w.median_seconds, w.p99_seconds, w.longest_seconds)),
            )
            for w in report.waits
        ),
    )
    _print_section(
        "Outages, from the first to the last diverted message",
        ("begin", "end", "destination"),
        ("duration", "messages"),
        (
            (
                _second(o.begin),
                _second(o.end),
                o.path,
                format_duration((o.end - o.begin).total_seconds()),
                f"{o.messages:,}",
            )
            for o in report.outages
        ),
    )
    _print_section(
        "Dead letters",
        ("reason", "destination"),
        ("messages",),
        ((d.reason, d.path or "(unknown)", f"{d.messages:,}") for d in report.dead_letters),
    )
    operations = report.operations
    _print_section(
        f"Operations: {OPERATIONS} for each message that was brought home",
        ("operation",),
        ("count",),
        (
            ("sends to the backlog", f"{operations.into_backlog:,}"),
            ("receives from the backlog", f"{operations.out_of_backlog:,}"),
            ("sends to the primary", f"{operations.to_primary:,}"),
            ("receives from the primary, by your receivers", f"{operations.out_of_primary:,}"),
            ("waiting: receives that were released", f"{operations.released:,}"),
            ("total", f"{operations.total:,}"),
        ),
    )


def _print_section(
    title: str, columns: Sequence[str], right: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    table = make_table(*columns, right=right)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        print(f"\n{title}")
        print_table(table)


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


def _second(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"
