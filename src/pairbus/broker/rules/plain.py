"""AMQP's values as the plain Python values that rules compute with, and back.

Rules know integers, doubles, decimals, strings, booleans, uuids, times, durations and bytes. What
is none of these (a list, a map, a described value nobody told us of) stays what it was: it exists,
is not null, and compares to nothing.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any, Final

from pairbus.amqp.codec.types import (
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

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1: Final = datetime(1, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MS_MIN: Final = (_YEAR_1 - EPOCH) // _MILLISECOND
_MS_MAX: Final = (datetime(9999, 12, 31, 23, 59, 59, 999000, UTC) - EPOCH) // _MILLISECOND


def from_ms(milliseconds: int) -> datetime:
    """Times that Python's calendar does not have become the nearest that it has."""
    return EPOCH + timedelta(milliseconds=min(max(int(milliseconds), _MS_MIN), _MS_MAX))


def to_ms(moment: datetime) -> int:
    return (utc(moment) - EPOCH) // _MILLISECOND


def utc(moment: datetime) -> datetime:
    """A time without a zone is UTC, as everything in Service Bus is."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def plain(value: Any) -> object:
    convert = _PLAIN.get(value.__class__)
    return value if convert is None else convert(value)


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
        coefficient = 0  # not canonical; the standard has it read as zero
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

_PLAIN: Final[dict[type, Callable[[Any], object]]] = {
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


def wire(value: Any) -> Any:
    """The AMQP value for a plain one; what came from the wire stays as it is."""
    kind = value.__class__
    if kind is datetime:
        return Timestamp(to_ms(value))
    if kind is timedelta:
        return Described(Symbol("com.microsoft:timespan"), value // timedelta(microseconds=1) * 10)
    if kind is Decimal:
        return decimal_128(value)
    return value
