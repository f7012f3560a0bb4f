"""Estimates what a pair costs: its operations item by item, their price, and possible savings.

Pure. An estimate is made from `Usage`, before the fact, or from `LedgerTotals`, afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from pairbus.cost.meter import UNIT_BYTES
from pairbus.cost.prices import PriceList
from pairbus.cost.usage import Usage, idle_polls_per_hour

DIVERTED_STEPS: Final = (
    "send to the backlog",
    "receive from the backlog",
    "send to the primary",
    "receive from the primary",
)
"""The operations of one diverted message. Billed settlements are added to them."""
DIVERTED_SETTLEMENTS: Final = 2
_PING_SECONDS_MAX: Final = 1800.0


@dataclass(frozen=True, slots=True)
class CostItem:
    name: str
    description: str
    kind: str
    """The kind of its operations, as in `meter.KINDS`."""
    operations: int
    is_for_pairing: bool = True
    """False for operations that a single namespace would have as well. A diverted message would
    still be sent to the primary and received from there, once.
    """
    is_billed: bool = True
    money: float = 0.0
    """Its share of the bill for operations."""


_any_namespace_item = partial(CostItem, is_for_pairing=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    change: str
    drawback: str
    operations: int
    money: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    prices: PriceList
    items: tuple[CostItem, ...]
    days: float
    connections: int = 0
    other_operations: int = 0

    @property
    def operations(self) -> int:
        """The number of billed operations."""
        return sum(item.operations for item in self.items if item.is_billed)

    @property
    def pairing_operations(self) -> int:
        """The number of billed operations that a single namespace would not have."""
        return sum(i.operations for i in self.items if i.is_billed and i.is_for_pairing)

    @property
    def money_for_operations(self) -> float:
        return self.prices.for_operations(self.operations, after=self.other_operations)

    @property
    def money_for_pairing(self) -> float:
        """By how much the bill for operations would be lower with a single namespace."""
        rest = self.other_operations + self.operations - self.pairing_operations
        return self.prices.for_operations(self.pairing_operations, after=rest)

    @property
    def money_for_connections(self) -> float:
        return self.prices.for_connections(self.connections)

    @property
    def base(self) -> float:
        return self.prices.base_per_hour * self.days * 24

    @property
    def money(self) -> float:
        return self.base + self.money_for_operations + self.money_for_connections


def _priced(
    items: Iterable[CostItem], prices: PriceList, *, other_operations: int
) -> tuple[CostItem, ...]:
    """Returns the items with their share of the bill. All billed operations cost the same on
    average.
    """
    marked = [replace(item, is_billed=item.kind not in prices.unbilled) for item in items]
    operations = sum(item.operations for item in marked if item.is_billed)
    bill = prices.for_operations(operations, after=other_operations)
    each = bill / operations if operations else 0.0
    return tuple(
        replace(item, money=each * item.operations if item.is_billed else 0.0) for item in marked
    )


# -- before the fact --------------------------------------------------------------------------


def estimate_usage(usage: Usage, prices: PriceList) -> Estimate:
    return Estimate(
        prices=prices,
        items=_priced(_usage_items(usage), prices, other_operations=usage.other_operations),
        days=usage.days,
        connections=usage.connections,
        other_operations=usage.other_operations,
    )


def _usage_items(usage: Usage) -> Iterator[CostItem]:
    queues, syphons = _count(usage.backlog_queues, "backlog queue"), _count(usage.syphons, "syphon")
    polls = round(usage.polls_per_hour * (usage.hours - usage.outage_hours))
    yield CostItem("polls", f"idle: long polls of {queues} by {syphons}", "empty_receive", polls)
    direct = usage.messages - usage.diverted
    units = direct * usage.units
    yield _any_namespace_item("sends", "direct: sends to the primary", "send", units)
    yield _any_namespace_item("receives", "direct: receives from the primary", "receive", units)
    settlements = "direct: settlements by your receivers"
    yield _any_namespace_item("settlements", settlements, "settle", direct)
    brought_home = usage.diverted if usage.syphons else 0
    yield from _diverted_items(
        diverted=usage.diverted * usage.diverted_units,
        received=brought_home * usage.diverted_units,
        settled=brought_home,
        brought_home=brought_home,
        brought_home_units=brought_home * usage.units,
    )
    yield from _probe_items(usage.probes, usage.probes * usage.diverted_units)
    peeks = "waiting: peeks at the messages in the backlog, at most"
    yield CostItem("peeks", peeks, "peek", usage.peeks)
    entities, clients = _count(usage.entities, "entity"), _count(usage.clients, "client")
    yield CostItem("pings", f"pings of {entities} by {clients}, at most", "ping", usage.pings)


def _count(count: int, noun: str) -> str:
    if count != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun}"


def _diverted_items(
    *, diverted: int, received: int, settled: int, brought_home: int, brought_home_units: int
) -> Iterator[CostItem]:
    yield CostItem("backlog_sends", "diverted: sends to the backlog", "send", diverted)
    yield CostItem("backlog_receives", "diverted: receives from the backlog", "receive", received)
    yield CostItem("backlog_settlements", "diverted: settlements in the backlog", "settle", settled)
    units = brought_home_units
    yield _any_namespace_item("home_sends", "diverted: sends to the primary", "send", units)
    receives = "diverted: receives from the primary"
    yield _any_namespace_item("home_receives", receives, "receive", units)
    settlements = "diverted: settlements by your receivers"
    yield _any_namespace_item("home_settlements", settlements, "settle", brought_home)


def _probe_items(count: int, units: int) -> Iterator[CostItem]:
    refused = "waiting: receives of messages that the primary did not accept, at most"
    yield CostItem("probes", refused, "receive", units)
    yield CostItem("probe_releases", "waiting: releases of these messages", "settle", count)


# -- afterwards -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """The sums of a syphon's ledger."""

    brought_home: int
    brought_home_bytes: int
    other: int
    """Dead-lettered or expired."""
    other_bytes: int
    waiting: int
    """Received, and released because the destination was down."""
    waiting_bytes: int
    queues: int
    days: float
    """From its first row to its last."""


def estimate_ledger(
    totals: LedgerTotals, prices: PriceList, *, other_operations: int = 0, syphons: int = 1
) -> Estimate:
    """A ledger does not contain pings, nor messages that went directly to the primary."""
    home_units = _units(totals.brought_home, totals.brought_home_bytes)
    backlog_units = home_units + _units(totals.other, totals.other_bytes)
    polls = idle_polls_per_hour(totals.queues, syphons)
    idle = f"idle, computed: long polls of {_count(totals.queues, 'backlog queue')}"
    items = (
        CostItem("polls", idle, "empty_receive", round(polls * totals.days * 24)),
        *_diverted_items(
            diverted=backlog_units,
            received=backlog_units,
            settled=totals.brought_home + totals.other,
            brought_home=totals.brought_home,
            brought_home_units=home_units,
        ),
        *_probe_items(totals.waiting, _units(totals.waiting, totals.waiting_bytes)),
    )
    return Estimate(
        prices=prices,
        items=_priced(items, prices, other_operations=other_operations),
        days=totals.days,
        other_operations=other_operations,
    )


def _units(count: int, size: int) -> int:
    """A lower bound, because the ledger has only the total size of the messages."""
    return max(count, -(-size // UNIT_BYTES))


# -- savings ----------------------------------------------------------------------------------


def find_savings(usage: Usage, prices: PriceList) -> tuple[Saving, ...]:
    """Changes that lower the number of operations, the largest saving first."""
    now = estimate_usage(usage, prices)
    found = []
    for change, drawback, changed in _changes(usage):
        then = estimate_usage(changed, prices)
        operations = now.operations - then.operations
        if operations > 0:
            money = now.money_for_operations - then.money_for_operations
            found.append(
                Saving(change=change, drawback=drawback, operations=operations, money=money)
            )
    return tuple(sorted(found, key=lambda saving: (-saving.money, -saving.operations)))


def _changes(usage: Usage) -> Iterator[tuple[str, str, Usage]]:
    if usage.units > 1:
        yield (
            f"messages of at most 64 KiB instead of {usage.message_bytes / 1024:,.0f} KiB",
            "compress them, or send a reference to their content",
            replace(usage, message_bytes=UNIT_BYTES - 1024),
        )
    if usage.syphons > 1:
        yield (
            f"1 syphon instead of {usage.syphons}",
            "it is slower, and no other syphon takes over if it fails",
            replace(usage, syphons=1),
        )
    if usage.backlog_queues > 1:
        half = usage.backlog_queues // 2
        yield (
            f"{_count(half, 'backlog queue')} instead of {usage.backlog_queues}",
            "fewer queues are left when one of them fails",
            replace(usage, backlog_queues=half),
        )
    if usage.syphons and usage.always_on:
        yield (
            "`pairbus syphon --once` after an outage instead of a syphon that always runs",
            "messages stay in the backlog until you start it",
            replace(usage, always_on=False),
        )
    if usage.pings and usage.ping_seconds < _PING_SECONDS_MAX:
        longer = min(usage.ping_seconds * 5, _PING_SECONDS_MAX)
        yield (
            f"a ping every {longer:g}s instead of every {usage.ping_seconds:g}s",
            "the end of an outage is noticed later, and more messages are diverted",
            replace(usage, ping_seconds=longer),
        )
