"""`pairbus cost`: estimates what a pair of namespaces costs, and shows it as tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import typer

from pairbus.cli.output import format_count, make_table, print_json, print_table
from pairbus.cli.parse import parse_duration
from pairbus.cli.shared_options import (
    AS_JSON,
    flatten_options,
    is_on_command_line,
    option,
    option_group,
)
from pairbus.cost.estimate import (
    DIVERTED_SETTLEMENTS,
    DIVERTED_STEPS,
    Estimate,
    Saving,
    estimate_ledger,
    estimate_usage,
    find_savings,
)
from pairbus.cost.prices import load
from pairbus.cost.usage import IDLE_COUNT_SECONDS, RANGES, Usage
from pairbus.errors import UsageError, requires_extra
from pairbus.json_style import camel_case_keys


def _count(name: str, help: str, metavar: str = "N") -> Any:
    """An option for a number of Usage, with its default and its limits."""
    default, allowed = getattr(Usage(), name), RANGES[name]
    return option(metavar, help, min=int(allowed.least), max=int(allowed.most), default=default)


@option_group
class UsageOptions:
    backlog_queues: int = _count("backlog_queues", "Backlog queues of the pair (default: 10).")
    syphons: int = _count(
        "syphons",
        "Syphons that run all the time (default: 1). With 0, no message is brought home.",
    )
    messages_per_day: int = _count(
        "messages_per_day", "Messages that the application sends per day (default: 0)."
    )
    message_bytes: int = _count(
        "message_bytes",
        "Encoded size of a message (default: 1024). A message counts as one operation for "
        "each started 64 KiB.",
        "BYTES",
    )
    outage: str = option(
        "DURATION",
        "How long the primary is down in the whole period, such as 4h (default: 0s).",
        default="0s",
    )
    ping_interval: str = option(
        "DURATION", "Time between two pings of an entity (default: 60s).", default="60s"
    )
    entities: int = _count(
        "entities",
        "Queues and topics that fail over; each client pings each of them (default: 1).",
    )
    clients: int = _count("clients", "Paired clients (default: 1).")
    period: str = option(
        "DURATION", "Length of the period, in whole days up to 31d (default: 30d).", default="30d"
    )
    other_operations: int = _count(
        "other_operations",
        "Other operations of the Azure subscription in the period (default: 0). They fill "
        "the cheaper price tiers first.",
    )

    def parse(self) -> Usage:
        """Raises UsageError."""
        counts = asdict(self)
        outage, ping_interval, period = map(counts.pop, ("outage", "ping_interval", "period"))
        return Usage(
            **counts,
            outage_hours=_in_range("outage_hours", outage, "--outage", "h"),
            ping_seconds=_in_range("ping_seconds", ping_interval, "--ping-interval", "s"),
            days=_days(period),
        )


@flatten_options
def cost(
    context: typer.Context,
    options: UsageOptions,
    ledger: Path | None = option(
        "DIR",
        "Use the numbers of a syphon's ledger instead: the folder of `pairbus syphon --ledger`.",
    ),
    prices: Path | None = option(
        "FILE.toml", "Your price list (default: an example).", envvar="PAIRBUS_PRICES"
    ),
    plot: Path | None = option(
        "FILE.svg|FILE.png",
        "Also draw the cost by length of the outage and by number of backlog queues.",
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Estimate what a pair of namespaces costs: billed operations, and money by a price list.

    It also shows what would make it cheaper. It connects to nothing.

    Exit codes: 0 success, 1 failure, 2 usage error, 130 interrupted.

    \b
    Examples:
      pairbus cost --backlog-queues 10
      pairbus cost --messages-per-day 1000000 --outage 4h --clients 20
      pairbus cost --messages-per-day 1000000 --outage 4h --plot cost.svg
      pairbus cost --ledger ./ledger --prices our-prices.toml --json
    """
    if ledger is None:
        _run(options.parse(), prices=prices, plot=plot, as_json=as_json)
        return
    _refuse_with_ledger(context)
    _run_ledger(
        ledger,
        prices=prices,
        syphons=options.syphons,
        other_operations=options.other_operations,
        as_json=as_json,
    )


_UNITS: Final = {
    "s": timedelta(seconds=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def _in_range(name: str, text: str, option: str, unit: str) -> float:
    """A duration as a number of these units."""
    value, allowed = parse_duration(text, option) / _UNITS[unit], RANGES[name]
    if not allowed.least <= value <= allowed.most:
        raise UsageError(
            f"{option} {text}: must be from {allowed.least}{unit} to {allowed.most}{unit}"
        )
    return value


def _days(period: str) -> int:
    days = _in_range("days", period, "--period", "d")
    if days != int(days):
        raise UsageError(f"--period {period}: must be whole days, such as 7d or 30d")
    return int(days)


_WITH_LEDGER: Final = ("ledger", "prices", "as_json", "other_operations", "syphons")


def _refuse_with_ledger(context: typer.Context) -> None:
    for name in context.params:
        if name not in _WITH_LEDGER and is_on_command_line(context, name):
            raise UsageError(
                f"--{name.replace('_', '-')} and --ledger cannot be combined: the numbers come "
                "from the ledger"
            )


def _run(usage: Usage, *, prices: Path | None, plot: Path | None, as_json: bool) -> None:
    price_list = load(prices)
    estimate = estimate_usage(usage, price_list)
    savings = find_savings(usage, price_list)
    if plot is not None:
        from pairbus.cli.pair.cost_plot import draw

        draw(usage, price_list, plot)
    if as_json:
        print_json(to_json(estimate, usage, savings))
        return
    per_hour = usage.polls_per_hour
    print(
        f"Idle: {per_hour:,.0f} receives per hour, {per_hour * 24:,.0f} per day, "
        f"{per_hour * 24 * 30:,.0f} in 30 days"
    )
    if usage.syphons:
        counts = round(usage.syphons * 30 * 24 * 3600 / IDLE_COUNT_SECONDS)
        print(
            "Not included: on a terminal or with --metrics-port, syphons count what is left: "
            f"{counts:,} operations in 30 days"
        )
    _print_estimate(estimate, format_count(usage.days, "day"))
    _print_savings(savings, price_list.currency)
    if plot is not None:
        print(f"\nThe plot is in {plot}")


def _run_ledger(
    folder: Path, *, prices: Path | None, syphons: int, other_operations: int, as_json: bool
) -> None:
    price_list = load(prices)
    with requires_extra("--ledger", "spark"):
        from pairbus.syphon.ledger import read_ledger, totals_of

        totals = totals_of(read_ledger(folder))
    estimate = estimate_ledger(
        totals, price_list, syphons=syphons, other_operations=other_operations
    )
    if as_json:
        print_json({"ledger": str(folder), **to_json(estimate, None)})
    else:
        _print_estimate(estimate, f"the {estimate.days:.1f} days in {folder}")


# -- for people -------------------------------------------------------------------------------


def _print_estimate(estimate: Estimate, period: str) -> None:
    prices = estimate.prices
    print(f"A diverted message: {len(DIVERTED_STEPS)} operations ({', '.join(DIVERTED_STEPS)})")
    if "settle" not in prices.unbilled:
        print(
            f"Plus {DIVERTED_SETTLEMENTS} settlements, which this price list bills: in the backlog "
            "and on the primary"
        )
    print(f"\nOperations of {period}; a message counts once for each started 64 KiB")
    table = make_table("item", right=("operations", prices.currency))
    for item in estimate.items:
        if item.operations:
            money = f"{item.money:,.2f}" if item.is_billed else "free"
            table.add_row(item.description, f"{item.operations:,}", money)
    table.add_row(
        "total of operations", f"{estimate.operations:,}", f"{estimate.money_for_operations:,.2f}"
    )
    table.add_row(
        "of which for pairing",
        f"{estimate.pairing_operations:,}",
        f"{estimate.money_for_pairing:,.2f}",
    )
    if estimate.connections:
        name = format_count(estimate.connections, "connection")
        table.add_row(name, "", f"{estimate.money_for_connections:,.2f}")
    table.add_row("base charge of the subscription", "", f"{estimate.base:,.2f}")
    table.add_row("total", "", f"{estimate.money:,.2f}")
    print_table(table)
    print(f"\nPrices: {prices.name}, {prices.currency}, as of {prices.as_of.isoformat()}")


def _print_savings(savings: Sequence[Saving], currency: str) -> None:
    if not savings:
        return
    print("\nPossible savings")
    table = make_table("change", right=("fewer operations", f"{currency} less"))
    for saving in savings:
        text = f"{saving.change} ({saving.drawback})"
        table.add_row(text, f"{saving.operations:,}", f"{saving.money:,.2f}")
    print_table(table)


# -- for programs ----------------------------------------------------------------------------


def to_json(
    estimate: Estimate, usage: Usage | None, savings: Sequence[Saving] = ()
) -> dict[str, Any]:
    prices = estimate.prices
    result: dict[str, Any] = {
        "prices": {
            "name": prices.name,
            "asOf": prices.as_of.isoformat(),
            "currency": prices.currency,
            "source": prices.source,
        },
        "days": estimate.days,
    }
    if usage is not None:
        result["usage"] = camel_case_keys(asdict(usage))
        result["idleReceives"] = {
            "perHour": round(usage.polls_per_hour),
            "perDay": round(usage.polls_per_hour * 24),
            "per30Days": round(usage.polls_per_hour * 24 * 30),
        }
    result["divertedMessage"] = {
        "operations": len(DIVERTED_STEPS),
        "steps": list(DIVERTED_STEPS),
        "settlements": DIVERTED_SETTLEMENTS,
    }
    result["items"] = [
        {
            "name": item.name,
            "description": item.description,
            "kind": item.kind,
            "operations": item.operations,
            "billed": item.is_billed,
            "money": _rounded(item.money),
        }
        for item in estimate.items
    ]
    result["operations"] = estimate.operations
    result["pairingOperations"] = estimate.pairing_operations
    result["money"] = {
        "operations": _rounded(estimate.money_for_operations),
        "pairing": _rounded(estimate.money_for_pairing),
        "connections": _rounded(estimate.money_for_connections),
        "base": _rounded(estimate.base),
        "total": _rounded(estimate.money),
    }
    result["savings"] = [asdict(saving) for saving in savings]
    return result


def _rounded(money: float) -> float:
    """Rounds a price. An operation costs about a millionth; smaller digits are floating-point
    noise.
    """
    return round(money, 8)
