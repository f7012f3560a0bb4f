"""What the pair has cost so far, and what it costs in a month at this rate. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.cost.meter import KINDS
from pairbus.cost.prices import PriceList
from pairbus.dashboard.history import HOUR_SECONDS, History
from pairbus.dashboard.readings import Readings

MONTH_SECONDS: Final = 30 * 86_400.0
RATE_SECONDS_MIN: Final = 60.0
"""A rate over less than this says nothing about a month."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    source: str
    operations: float
    money: float
    currency: str
    price_list: str
    month_operations: float | None
    month_money: float | None


def billed_operations(readings: Readings) -> tuple[str, dict[str, int]] | None:
    """Where the operations are counted, and their number by kind.

    A broker counts all that Azure would bill. Otherwise there is what the pairing itself adds:
    diverted messages, pings, and the operations of the syphons.
    """
    brokers = [one.value for one in readings.brokers.values() if one.is_current]
    if counts := [one for one in brokers if one is not None]:
        return "all operations, as the local brokers count them", _summed(counts)
    published = readings.published().values()
    counted = [dict(one.operations) for one in published if one.operations]
    sends = sum(one.status.diverted for one in published)
    pings = sum(one.pings for one in published)
    if counted or sends or pings:
        return "what pairing adds, as clients and syphons count it", _summed(
            [*counted, {"send": sends, "ping": pings}]
        )
    ledger = readings.ledger
    if ledger is not None and ledger.value is not None:
        totals = ledger.value.totals
        home, all_ = totals.brought_home, totals.brought_home + totals.other
        return "what the ledger shows", {
            "send": all_ + home,
            "receive": all_ + totals.waiting + home,
            "settle": all_ + totals.waiting + home,
        }
    return None


def _summed(several: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {kind: sum(one.get(kind, 0) for one in several) for kind in KINDS}


def billed_count(readings: Readings, prices: PriceList) -> float | None:
    found = billed_operations(readings)
    if found is None:
        return None
    return float(sum(count for kind, count in found[1].items() if kind not in prices.unbilled))


def cost_of(readings: Readings, history: History, prices: PriceList, *, now: float) -> Cost | None:
    found, billed = billed_operations(readings), billed_count(readings, prices)
    if found is None or billed is None:
        return None
    points = [one for one in history.operations if one[0] >= now - HOUR_SECONDS]
    per_month = None
    if points and now - points[0][0] >= RATE_SECONDS_MIN:
        per_month = (billed - points[0][1]) / (now - points[0][0]) * MONTH_SECONDS
    return Cost(
        source=found[0],
        operations=billed,
        money=prices.for_operations(billed),
        currency=prices.currency,
        price_list=f"{prices.name}, as of {prices.as_of.isoformat()}",
        month_operations=per_month,
        month_money=None
        if per_month is None
        else prices.for_operations(per_month) + prices.base_per_hour * 24 * 30,
    )
