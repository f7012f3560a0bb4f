"""What `pairbus cost` does: asks the calculator, and shows the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pairbus.cli.output import make_table, print_json, print_table
from pairbus.cost.estimate import (
    DIVERTED_SETTLEMENTS,
    DIVERTED_STEPS,
    Estimate,
    Saving,
    estimate_ledger,
    estimate_usage,
    find_savings,
    to_json,
)
from pairbus.cost.prices import load
from pairbus.cost.usage import Usage


def run(usage: Usage, *, prices: Path | None, plot: Path | None, as_json: bool) -> None:
    price_list = load(prices)
    estimate = estimate_usage(usage, price_list)
    savings = find_savings(usage, price_list)
    if plot is not None:
        from pairbus.cli.pair.cost_plot import draw

        draw(usage, price_list, plot)
    if as_json:
        print_json(to_json(estimate, usage, savings))
        return
    an_hour = usage.polls_per_hour
    print(
        f"Idle: {an_hour:,.0f} receives an hour, {an_hour * 24:,.0f} a day, "
        f"{an_hour * 24 * 30:,.0f} in 30 days"
    )
    _show(estimate, f"{usage.days} days")
    _show_savings(savings, price_list.currency)
    if plot is not None:
        print(f"\ndrawn: {plot}")


def run_ledger(
    folder: Path, *, prices: Path | None, syphons: int, other_operations: int, as_json: bool
) -> None:
    price_list = load(prices)
    from pairbus.syphon.ledger import read_ledger, totals_of  # which need pyarrow

    estimate = estimate_ledger(
        totals_of(read_ledger(folder)),
        price_list,
        syphons=syphons,
        other_operations=other_operations,
    )
    if as_json:
        print_json({"ledger": str(folder), **to_json(estimate, None)})
    else:
        _show(estimate, f"the {estimate.days:.1f} days of {folder}")


def _show(estimate: Estimate, of_what: str) -> None:
    prices = estimate.prices
    steps = ", ".join(DIVERTED_STEPS)
    print(f"A diverted message: {len(DIVERTED_STEPS)} operations ({steps})")
    if "settle" not in prices.unbilled:
        print(
            f"Settling it is {DIVERTED_SETTLEMENTS} more by this price list: in the backlog, on "
            "the primary"
        )
    print(f"\nOperations of {of_what}; each begun 64 KB of a message is one")
    table = make_table("part", right=("operations", prices.currency))
    for item in estimate.items:
        if item.operations:
            money = f"{item.money:,.2f}" if item.is_billed else "free"
            table.add_row(item.description, f"{item.operations:,}", money)
    table.add_row(
        "all operations", f"{estimate.operations:,}", f"{estimate.money_for_operations:,.2f}"
    )
    table.add_row(
        "of them for the pair alone",
        f"{estimate.pairing_operations:,}",
        f"{estimate.money_for_pairing:,.2f}",
    )
    if estimate.connections:
        words = f"{estimate.connections:,} connections"
        table.add_row(words, "", f"{estimate.money_for_connections:,.2f}")
    table.add_row("base charge of the subscription", "", f"{estimate.base:,.2f}")
    table.add_row("all", "", f"{estimate.money:,.2f}")
    print_table(table)
    print(f"\nPrices: {prices.name}, {prices.currency}, as of {prices.as_of.isoformat()}")


def _show_savings(savings: Sequence[Saving], currency: str) -> None:
    if not savings:
        return
    print("\nCheaper would be")
    table = make_table("instead", right=("fewer operations", f"{currency} less"))
    for saving in savings:
        words = f"{saving.change} ({saving.drawback})"
        table.add_row(words, f"{saving.operations:,}", f"{saving.money:,.2f}")
    print_table(table)
