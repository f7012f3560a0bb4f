"""What a pair costs: its operations part by part, in money, and what would make it cheaper.

Pure. Either from `Usage`, before, or from what a ledger has added up (`LedgerTotals`), afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pairbus.cost.meter import UNIT_BYTES
from pairbus.cost.prices import PriceList
from pairbus.cost.usage import Usage

DETOUR: Final = (
    "send to the backlog",
    "receive from the backlog",
    "send to the primary",
    "receive from the primary",
)
"""What a message costs that takes the detour; two settlements come on top, if they are billed."""
SETTLEMENTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    words: str
    kind: str
    """Of its operations, as the meter has it."""
    operations: int
    is_extra: bool = True
    """There would be none of it without a pair. A diverted message would still be sent to the
    primary and received from there, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A part with its price."""

    part: Part
    is_billed: bool
    money: float
    """Its share of the bill for operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    change: str
    but: str
    """What that would mean."""
    operations: int
    money: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    prices: PriceList
    parts: tuple[Part, ...]
    days: float
    connections: int = 0
    other_operations: int = 0

    @property
    def billed(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.kind not in self.prices.unbilled)

    @property
    def operations(self) -> int:
        """Those that are billed."""
        return sum(part.operations for part in self.billed)

    @property
    def money_for_operations(self) -> float:
        return self.prices.for_operations(self.operations, after=self.other_operations)

    @property
    def money_for_connections(self) -> float:
        return self.prices.for_connections(self.connections)

    @property
    def base(self) -> float:
        return self.prices.base_per_hour * self.days * 24

    @property
    def money(self) -> float:
        return self.base + self.money_for_operations + self.money_for_connections

    @property
    def pairing_operations(self) -> int:
        """What there would not be without a pair."""
        return sum(part.operations for part in self.billed if part.is_extra)

    @property
    def money_for_pairing(self) -> float:
        """How much less the bill for operations would be."""
        rest = self.other_operations + self.operations - self.pairing_operations
        return self.prices.for_operations(self.pairing_operations, after=rest)

    @property
    def costs(self) -> tuple[Cost, ...]:
        each = self.money_for_operations / self.operations if self.operations else 0.0
        billed = self.billed
        return tuple(
            Cost(
                part=part, is_billed=part in billed, money=each * part.operations * (part in billed)
            )
            for part in self.parts
        )


def account_of(usage: Usage, prices: PriceList) -> Account:
    return Account(
        prices=prices,
        parts=tuple(_parts(usage)),
        days=usage.days,
        # Each client has one to either namespace, and so has a syphon.
        connections=2 * (usage.clients + usage.syphons),
        other_operations=usage.other_operations,
    )


def _parts(usage: Usage) -> Iterator[Part]:
    yield Part(
        name="polls",
        words=f"idle: long polls of {_many(usage.backlog_queues, 'backlog queue')} by "
        f"{_many(usage.syphons, 'syphon')}",
        kind="empty_receive",
        operations=round(usage.polls_an_hour * (usage.hours - usage.outage_hours)),
    )
    straight = usage.messages - usage.diverted
    yield from _traffic(straight, straight * usage.units)
    came_home = usage.diverted if usage.syphons else 0
    yield from _detour(
        diverted=usage.diverted * usage.diverted_units,
        received=came_home * usage.diverted_units,
        settled=came_home,
        home=came_home,
        home_units=came_home * usage.units,
    )
    yield from _again(usage.looks, usage.looks * usage.diverted_units)
    yield Part(
        name="pings",
        words=f"pings of {_many(usage.entities, 'entity')} by {_many(usage.clients, 'client')}",
        kind="ping",
        operations=usage.pings,
    )


def _many(count: int, what: str) -> str:
    if count != 1:
        what = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what}"


def _traffic(count: int, units: int) -> Iterator[Part]:
    for name, words, kind, operations in (
        ("sends", "straight: sends to the primary", "send", units),
        ("receives", "straight: receives from the primary", "receive", units),
        ("settlements", "straight: settled by your receivers", "settle", count),
    ):
        yield Part(name=name, words=words, kind=kind, operations=operations, is_extra=False)


def _detour(
    *, diverted: int, received: int, settled: int, home: int, home_units: int
) -> Iterator[Part]:
    for name, words, kind, operations in (
        ("backlog_sends", "detour: sends to the backlog", "send", diverted),
        ("backlog_receives", "detour: receives from the backlog", "receive", received),
        ("backlog_settlements", "detour: settled in the backlog", "settle", settled),
        ("home_sends", "detour: sends to the primary", "send", home_units),
        ("home_receives", "detour: receives from the primary", "receive", home_units),
        ("home_settlements", "detour: settled by your receivers", "settle", home),
    ):
        is_extra = name.startswith("backlog")
        yield Part(name=name, words=words, kind=kind, operations=operations, is_extra=is_extra)


def _again(count: int, units: int) -> Iterator[Part]:
    yield Part(
        name="looks",
        words="looked at again while the primary was down, at most",
        kind="receive",
        operations=units,
    )
    yield Part(
        name="put_back",
        words="put back after such a look",
        kind="settle",
        operations=count,
    )


# -- afterwards -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotals:
    """What a ledger has added up."""

    brought_home: int
    brought_home_bytes: int
    other: int
    """Dead-lettered or expired."""
    other_bytes: int
    waiting: int
    """Received, and put back for now."""
    waiting_bytes: int
    queues: int
    days: float
    """From its first row to its last."""


def account_of_ledger(
    totals: LedgerTotals, prices: PriceList, *, other_operations: int = 0, syphons: int = 1
) -> Account:
    """A ledger does not know of pings, nor of messages that went straight to the primary."""
    units = _units(totals.brought_home, totals.brought_home_bytes)
    taken = units + _units(totals.other, totals.other_bytes)
    polls = Usage(backlog_queues=max(totals.queues, 1), syphons=syphons).polls_an_hour
    parts = (
        Part(
            name="polls",
            words=f"idle, computed: long polls of {_many(totals.queues, 'backlog queue')}",
            kind="empty_receive",
            operations=round(polls * totals.days * 24),
        ),
        *_detour(
            diverted=taken,
            received=taken,
            settled=totals.brought_home + totals.other,
            home=totals.brought_home,
            home_units=units,
        ),
        *_again(totals.waiting, _units(totals.waiting, totals.waiting_bytes)),
    )
    return Account(prices=prices, parts=parts, days=totals.days, other_operations=other_operations)


def _units(count: int, size: int) -> int:
    """At least one for each message and for each 64 KB: no more is known of their sizes."""
    return max(count, -(-size // UNIT_BYTES))


# -- cheaper ----------------------------------------------------------------------------------


def savings_of(usage: Usage, prices: PriceList) -> tuple[Saving, ...]:
    """What would help, the most first."""
    now = account_of(usage, prices)
    found = []
    for change, but, other in _changes(usage):
        then = account_of(other, prices)
        operations = now.operations - then.operations
        if operations > 0:
            money = now.money_for_operations - then.money_for_operations
            found.append(Saving(change=change, but=but, operations=operations, money=money))
    return tuple(sorted(found, key=lambda one: (-one.money, -one.operations)))


def _changes(usage: Usage) -> Iterator[tuple[str, str, Usage]]:
    if usage.units > 1:
        yield (
            f"messages of at most 64 KB instead of {usage.message_bytes / 1024:,.0f} KB",
            "compress them, or send where their content is",
            replace(usage, message_bytes=UNIT_BYTES - 1024),
        )
    if usage.syphons > 1:
        yield (
            f"1 syphon instead of {usage.syphons}",
            "it is slower, and alone",
            replace(usage, syphons=1),
        )
    if usage.backlog_queues > 1:
        half = usage.backlog_queues // 2
        yield (
            f"{_many(half, 'backlog queue')} instead of {usage.backlog_queues}",
            "fewer to turn to when one of them fails",
            replace(usage, backlog_queues=half),
        )
    if usage.syphons and usage.syphons_wait:
        yield (
            "`pairbus syphon --once` after an outage instead of a syphon that always runs",
            "messages wait in the backlog until somebody starts it",
            replace(usage, syphons_wait=False),
        )
    if usage.pings and usage.ping_seconds < _PING_SECONDS_MAX:
        longer = min(usage.ping_seconds * 5, _PING_SECONDS_MAX)
        yield (
            f"pings every {longer:g} s instead of every {usage.ping_seconds:g} s",
            "it is noticed later that the primary is back, and more goes by the detour",
            replace(usage, ping_seconds=longer),
        )


_PING_SECONDS_MAX: Final = 1800.0


def as_dict(
    account: Account, usage: Usage | None, savings: Sequence[Saving] = ()
) -> dict[str, Any]:
    """For JSON."""
    prices = account.prices
    told: dict[str, Any] = {
        "prices": {
            "name": prices.name,
            "as_of": prices.as_of.isoformat(),
            "currency": prices.currency,
            "source": prices.source,
        },
        "days": account.days,
    }
    if usage is not None:
        told["usage"] = asdict(usage)
        told["idle_receives"] = {
            "an_hour": round(usage.polls_an_hour),
            "a_day": round(usage.polls_an_hour * 24),
            "in_30_days": round(usage.polls_an_hour * 24 * 30),
        }
    told["detour"] = {"operations": len(DETOUR), "steps": list(DETOUR), "settlements": SETTLEMENTS}
    told["parts"] = [
        {
            "name": cost.part.name,
            "words": cost.part.words,
            "kind": cost.part.kind,
            "operations": cost.part.operations,
            "is_billed": cost.is_billed,
            "money": _rounded(cost.money),
        }
        for cost in account.costs
    ]
    told["operations"] = account.operations
    told["pairing_operations"] = account.pairing_operations
    told["money"] = {
        "operations": _rounded(account.money_for_operations),
        "of_pairing": _rounded(account.money_for_pairing),
        "connections": _rounded(account.money_for_connections),
        "base": _rounded(account.base),
        "total": _rounded(account.money),
    }
    told["cheaper"] = [asdict(saving) for saving in savings]
    return told


def _rounded(money: float) -> float:
    """A millionth is what an operation costs; what is beyond that is how computers reckon."""
    return round(money, 8)
