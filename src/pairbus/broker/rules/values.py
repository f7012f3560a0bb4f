"""AMQP values as the Python values that rules compute with, and back; conversions among them.

Rules know integers, doubles, decimals, strings, booleans, uuids, times, durations and bytes. Any
other value (a list, a map, an unknown described value) stays as it is: it exists, is not null, and
compares to nothing. Conversions, for `+` on strings and for SET, follow what .NET does with the
same values, as far as that is documented. None is never converted.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.types import (
    EPOCH,
    MILLISECOND,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pairbus.broker.rules.filters import RuleError

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_TYPES: Final = (str, bool, int, float, Decimal, datetime, timedelta, UUID, bytes)
_YEAR_1: Final = datetime(1, 1, 1, tzinfo=UTC)
_MS_MIN: Final = (_YEAR_1 - EPOCH) // MILLISECOND
_MS_MAX: Final = (datetime(9999, 12, 31, 23, 59, 59, 999000, UTC) - EPOCH) // MILLISECOND


def from_ms(milliseconds: int) -> datetime:
    """Times outside Python's calendar become the nearest one inside."""
    return EPOCH + timedelta(milliseconds=min(max(int(milliseconds), _MS_MIN), _MS_MAX))


def to_ms(moment: datetime) -> int:
    return (utc(moment) - EPOCH) // MILLISECOND


def utc(moment: datetime) -> datetime:
    """A time without a zone is UTC, as all times of Service Bus are."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def to_python(value: Any) -> object:
    convert = _TO_PYTHON.get(value.__class__)
    return value if convert is None else convert(value)


def check_values(expression: str, values: Mapping[str, object]) -> dict[str, object]:
    """Parameters, or a correlation filter's properties, as Python values by lower-case name.

    Raises RuleError for a type that rules do not have.
    """
    found: dict[str, object] = {}
    for name, given in values.items():
        value = to_python(given)
        if value is not None and not isinstance(value, _TYPES):
            kinds = "a string, number, boolean, time, duration, uuid or bytes"
            raise RuleError(expression, f"the value of {name} must be {kinds}, not {value!r}")
        if isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            raise RuleError(expression, f"the value of {name} exceeds 64 bits: {value}")
        if isinstance(value, datetime):
            try:
                value = utc(value)
            except OverflowError as error:
                reason = f"the value of {name} is outside the calendar in UTC: {value}"
                raise RuleError(expression, reason) from error
        found[name.lower()] = value
    return found


# -- decimals: IEEE 754, in the binary encoding that AMQP asks for -----------------------------

# Bytes of a decimal -> bits of its exponent, the exponent's bias, its largest coefficient.
_DECIMALS: Final = {4: (8, 101, 10**7), 8: (10, 398, 10**16), 16: (14, 6176, 10**34)}


def decimal_of(raw: bytes) -> Decimal | float:
    exponent_bits, bias, limit = _DECIMALS[len(raw)]
    bits = int.from_bytes(raw)
    size = 8 * len(raw) - 1
    negative = bits >> size
    bits &= (1 << size) - 1
    if bits >> (size - 4) == 0b1111:
        if bits >> (size - 5) == 0b11111:
            return nan
        return -inf if negative else inf
    if bits >> (size - 2) == 0b11:  # the coefficient has an implied 0b100 in front
        shift = size - 2 - exponent_bits
        coefficient = 0b100 << shift | bits & (1 << shift) - 1
        exponent = bits >> shift & (1 << exponent_bits) - 1
    else:
        shift = size - exponent_bits
        coefficient, exponent = bits & (1 << shift) - 1, bits >> shift
    if coefficient >= limit:
        coefficient = 0  # not canonical: the standard reads it as zero
    digits = tuple(map(int, str(coefficient)))
    return Decimal((negative, digits, exponent - bias))


def decimal_128(number: Decimal) -> Decimal128:
    """`number` must be finite; Python's 28 digits always fit into the 34."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    coefficient = int("".join(map(str, digits)))
    exponent_bits, bias, limit = _DECIMALS[16]
    biased = exponent + bias
    if coefficient >= limit or not 0 <= biased < 3 << (exponent_bits - 2):
        raise OverflowError(f"{number} does not fit into a decimal of 128 bits")
    shift = 127 - exponent_bits
    return Decimal128((sign << 127 | biased << shift | coefficient).to_bytes(16))


# -- described values, as Microsoft's clients send them ---------------------------------------


def _described(value: Described) -> object:
    expected, convert = _DESCRIBED.get(str(value.descriptor), (None, None))
    if expected is None or convert is None or not isinstance(value.value, expected):
        return value
    return convert(value.value)


def _moment_of_ticks(ticks: Any) -> datetime:
    return from_ms(int(ticks) // 10_000 + _MS_MIN) + timedelta(microseconds=ticks % 10_000 // 10)


_DESCRIBED: Final[dict[str, tuple[type, Callable[[Any], object]]]] = {
    "com.microsoft:timespan": (int, lambda ticks: timedelta(microseconds=int(ticks) // 10)),
    "com.microsoft:datetime-offset": (int, _moment_of_ticks),
    "com.microsoft:uri": (str, str),
}

_TO_PYTHON: Final[dict[type, Callable[[Any], object]]] = {
    **dict.fromkeys((Byte, Short, Int, Long, UByte, UShort, UInt, ULong), int),
    Float: float,
    Symbol: str,
    Char: str,
    Timestamp: from_ms,
    Decimal32: decimal_of,
    Decimal64: decimal_of,
    Decimal128: decimal_of,
    Described: _described,
}


def to_amqp(value: Any) -> Any:
    """The AMQP value of a Python value. A value that came in as AMQP stays as it is."""
    kind = value.__class__
    if kind is datetime:
        return Timestamp(to_ms(value))
    if kind is timedelta:
        return Described(Symbol("com.microsoft:timespan"), value // timedelta(microseconds=1) * 10)
    if kind is Decimal:
        return decimal_128(value)
    return value


# -- conversions ------------------------------------------------------------------------------

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
    """The value as `'' + value` shows it. None if its type has no text."""
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
    """`value` in the type that a property has already, if no information is lost.

    A receiver that reads `quantity` as an int32 can still do so after SET quantity = quantity / 2.
    """
    kind, new = existing.__class__, to_python(value)
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
