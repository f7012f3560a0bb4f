"""Values turned into other types where a rule asks for it: `+` on strings, and SET.

Conversions follow what .NET does with the same values, as far as the documents say so. None is
never converted, and what cannot be converted without loss is left to the caller to refuse or keep.
"""

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.types import (
    Byte,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pairbus.broker.rules.plain import plain, to_ms, utc

_UNSIGNED: Final[dict[type, int]] = {UByte: 8, UShort: 16, UInt: 32, ULong: 64}
_SIGNED: Final[dict[type, int]] = {Byte: 8, Short: 16, Int: 32, int: 64}
_RANGES: Final[dict[type, range]] = {
    **{kind: range(1 << bits) for kind, bits in _UNSIGNED.items()},
    **{kind: range(-(1 << bits - 1), 1 << bits - 1) for kind, bits in _SIGNED.items()},
}
# [-][d.]hh:mm[:ss[.fffffff]], as .NET writes and reads a TimeSpan
_DURATION: Final = re.compile(
    r"(-?)(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,7}))?)?"
)
NUMBER_CHARACTERS_MAX: Final = 64


def text(value: object) -> str | None:
    """The value as `'' + value` shows it; None if it is of no type that has a text."""
    match value:
        case str():
            return value
        case bool() | int() | UUID() | Decimal():
            return str(value)
        case float():
            return _number_text(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case timedelta():
            return _duration_text(value)
    return None


def _number_text(value: float) -> str:
    shown = repr(value)
    return shown[:-2] if shown.endswith(".0") else shown.upper() if "e" in shown else shown


def _duration_text(value: timedelta) -> str:
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days = f"{value.days}." if value.days else ""
    fraction = f".{value.microseconds * 10:07}" if value.microseconds else ""
    return f"{sign}{days}{hours:02}:{minutes:02}:{seconds:02}{fraction}"


def duration(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    sign, days, hours, minutes, seconds, fraction = found.groups()
    if int(hours) > 23 or int(minutes) > 59 or int(seconds or 0) > 59:
        return None
    amount = timedelta(
        days=int(days or 0),
        hours=int(hours),
        minutes=int(minutes),
        seconds=int(seconds or 0),
        microseconds=int((fraction or "").ljust(6, "0")[:6]),
    )
    return -amount if sign else amount


def moment(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return utc(value)
    if not isinstance(value, str) or len(value) > NUMBER_CHARACTERS_MAX:
        return None
    try:
        return utc(datetime.fromisoformat(value))
    except (ValueError, OverflowError):
        return None


def integer(value: object) -> int | None:
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case Decimal() if value == value.to_integral_value():
            return int(value)
        case str() if len(value) <= NUMBER_CHARACTERS_MAX:
            try:
                return int(value)
            except ValueError:
                return None
    return None


def double(value: object) -> float | None:
    match value:
        case bool():
            return None
        case int() | float() | Decimal():
            return float(value)
        case str() if len(value) <= NUMBER_CHARACTERS_MAX:
            try:
                return float(value)
            except ValueError:
                return None
    return None


def as_type_of(existing: Any, value: Any) -> Any:
    """`value` in the type that a property has already, if it can be had without loss.

    A receiver that reads `quantity` as an int32 goes on doing so after SET quantity = quantity / 2.
    """
    kind, new = existing.__class__, plain(value)
    if value.__class__ is kind or new is None:
        return value
    converted = _as_kind(kind, new, existing)
    return value if converted is None else converted


def _as_kind(kind: type, new: object, existing: Any) -> Any:
    if kind in _RANGES:
        number = integer(new)
        return None if number is None or number not in _RANGES[kind] else kind(number)
    if kind in (float, Float):
        approximate = double(new)
        return None if approximate is None else kind(approximate)
    if kind is str:
        return text(new)
    if kind is Timestamp:
        when = moment(new)
        return None if when is None else Timestamp(to_ms(when))
    if kind is bool and isinstance(new, str):
        return {"true": True, "false": False}.get(new.lower())
    if kind is UUID and isinstance(new, str):
        try:
            return UUID(new)
        except ValueError:
            return None
    if kind is Described and existing.descriptor == Symbol("com.microsoft:timespan"):
        return duration(new)
    return None
