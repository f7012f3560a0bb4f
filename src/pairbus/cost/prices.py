"""A price list, read from TOML: what operations and connections cost in a month.

Every error names the file, the entry, its value and a valid form. A validation library would not,
so the checks are written by hand. `example_prices.toml` beside this module is the default.
"""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pairbus.cost.meter import KINDS
from pairbus.errors import OptionsError

_MILLION: Final = 1_000_000
_NAMES: Final = frozenset(
    {
        *("name", "as_of", "currency", "source", "base_per_hour"),
        *("operations", "connections", "billed"),
    }
)


@dataclass(frozen=True, slots=True)
class Tier:
    up_to: float
    """The upper bound, counted from the first of the month; infinite for the last tier."""
    each: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    name: str
    as_of: datetime.date
    currency: str
    source: str = ""
    base_per_hour: float = 0.0
    operations: tuple[Tier, ...]
    connections: tuple[Tier, ...] = ()
    unbilled: frozenset[str] = field(default_factory=frozenset)
    """Kinds of operations that are free."""

    def for_operations(self, count: float, *, after: float = 0) -> float:
        """The price of `count` operations that follow `after` others in the same month."""
        return _price(self.operations, after + count) - _price(self.operations, after)

    def for_connections(self, count: float) -> float:
        return _price(self.connections, count)

    @property
    def first_price(self) -> float:
        """The price of one operation in the first tier that is not free."""
        return next((tier.each for tier in self.operations if tier.each), 0.0)


def _price(tiers: Sequence[Tier], count: float) -> float:
    total, begin = 0.0, 0.0
    for tier in tiers:
        if count <= begin:
            break
        total += (min(count, tier.up_to) - begin) * tier.each
        begin = tier.up_to
    return total


def load(path: Path | None = None) -> PriceList:
    """Reads the file, or the example if there is none. Raises OptionsError."""
    if path is None:
        text = resources.files("pairbus.cost").joinpath("example_prices.toml").read_text("utf-8")
        return parse(text, "the example")
    try:
        return parse(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise OptionsError(f"cannot read the price list {path}: {reason}") from None


def parse(text: str, where: str) -> PriceList:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionsError(f"price list {where} is not TOML: {error}") from None
    reader = _Reader(where)
    reader.known("", values, _NAMES)
    billed = reader.table(values, "billed")
    reader.known("billed.", billed, frozenset(KINDS))
    for kind, is_billed in billed.items():
        if not isinstance(is_billed, bool):
            raise reader.wrong(f"billed.{kind}", is_billed, "true or false")
    return PriceList(
        name=reader.text(values, "name"),
        as_of=reader.date(values, "as_of"),
        currency=reader.text(values, "currency"),
        source=reader.text(values, "source", default=""),
        base_per_hour=reader.number("base_per_hour", values.get("base_per_hour", 0)),
        operations=reader.tiers(values, "operations", "per_million", _MILLION),
        connections=reader.tiers(values, "connections", "each", 1, is_needed=False),
        unbilled=frozenset(kind for kind, is_billed in billed.items() if not is_billed),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    where: str

    def wrong(self, name: str, value: object, right: str) -> OptionsError:
        return OptionsError(f"price list {self.where}: {name} is {value!r}, but must be {right}")

    def known(self, prefix: str, values: Mapping[str, Any], names: frozenset[str]) -> None:
        for name in values:
            if name not in names:
                raise OptionsError(
                    f"price list {self.where}: unknown entry {prefix}{name}; the entries are "
                    f"{', '.join(sorted(names))}"
                )

    def text(self, values: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
        value = values.get(name, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.wrong(name, value, "text")
        return value

    def date(self, values: Mapping[str, Any], name: str) -> datetime.date:
        value = values.get(name)
        if type(value) is not datetime.date:
            raise self.wrong(name, value, "a date, such as 2026-11-16 without quotes")
        return value

    def number(self, name: str, value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:  # type: ignore[operator, arg-type]
            raise self.wrong(name, value, "a number of at least 0")
        return float(value)  # type: ignore[arg-type]

    def table(self, values: Mapping[str, Any], name: str) -> dict[str, Any]:
        value = values.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, value, f"a table [{name}]")
        return value

    def tiers(
        self, values: Mapping[str, Any], name: str, price: str, per: int, *, is_needed: bool = True
    ) -> tuple[Tier, ...]:
        entries = values.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            raise self.wrong(name, entries, f"tables [[{name}]]")
        if is_needed and not entries:
            raise OptionsError(f"price list {self.where}: [[{name}]] is missing")
        found: list[Tier] = []
        for place, entry in enumerate(entries):
            shown = f"{name}[{place}]"
            self.known(f"{shown}.", entry, frozenset({"up_to", price}))
            each = self.number(f"{shown}.{price}", entry.get(price)) / per
            if place == len(entries) - 1:
                if "up_to" in entry:
                    raise self.wrong(f"{shown}.up_to", entry["up_to"], "omitted in the last tier")
                found.append(Tier(math.inf, each))
                continue
            bound = self.number(f"{shown}.up_to", entry.get("up_to"))
            before = found[-1].up_to if found else 0.0
            if bound <= before:
                raise self.wrong(f"{shown}.up_to", entry["up_to"], f"above {before:,.0f}")
            found.append(Tier(bound, each))
        return tuple(found)
