"""AMQP values as a type and a text, and back, without loss.

Application properties have types that no column of a table can hold side by side. So in a row each
is a pair: the name of the AMQP type, and the value as text, as docs/spark.md lists them. A value
without such a text (a list, a map, a described value) stays encoded. Pure.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from pairbus.amqp.codec.values import MalformedMessage, decode, encode

Typed = tuple[str, str | None]
"""The name of the type, and the text of the value, which is None for null only."""

ENCODED: Final = "encoded"


def _moment_text(value: int) -> str:
    """The number of milliseconds, if the time is outside the calendar."""
    try:
        moment = EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return str(int(value))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z".rjust(24, "0")


def _moment(text: str) -> Timestamp:
    try:
        return Timestamp(int(text))
    except ValueError:
        pass
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Timestamp((moment - EPOCH) // MILLISECOND)


def _number_text(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _char(text: str) -> Char:
    if len(text) != 1:
        raise ValueError
    return Char(text)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _binary(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    python: type
    to_text: Callable[[Any], str]
    from_text: Callable[[str], Any]
    expected: str
    """The texts that are valid, for an error."""


def _integer(name: str, python: type, bits: int, *, signed: bool) -> _Type:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    expected = f"a whole number from {low} to {high}"
    return _Type(name, python, int.__repr__, lambda text: python(int(text)), expected)


def _float(name: str, python: type) -> _Type:
    expected = "a number, Infinity or NaN"
    return _Type(name, python, _number_text, lambda text: python(float(text)), expected)


def _decimal(name: str, python: type, size: int) -> _Type:
    def from_text(text: str) -> bytes:
        raw = bytes.fromhex(text)
        if len(raw) != size:
            raise ValueError
        made: bytes = python(raw)
        return made

    return _Type(name, python, bytes.hex, from_text, f"{size} bytes in hexadecimal")


_TYPES: Final = (
    _Type("boolean", bool, lambda value: "true" if value else "false", _boolean, "true or false"),
    _integer("ubyte", UByte, 8, signed=False),
    _integer("ushort", UShort, 16, signed=False),
    _integer("uint", UInt, 32, signed=False),
    _integer("ulong", ULong, 64, signed=False),
    _integer("byte", Byte, 8, signed=True),
    _integer("short", Short, 16, signed=True),
    _integer("int", Int, 32, signed=True),
    _integer("long", int, 64, signed=True),
    _float("float", Float),
    _float("double", float),
    _decimal("decimal32", Decimal32, 4),
    _decimal("decimal64", Decimal64, 8),
    _decimal("decimal128", Decimal128, 16),
    _Type("char", Char, str, _char, "one character"),
    _Type(
        "timestamp",
        Timestamp,
        _moment_text,
        _moment,
        "a time such as 2026-01-31T12:00:00.000Z, or milliseconds since 1970",
    ),
    _Type("uuid", UUID, str, UUID, "a uuid"),
    _Type("binary", bytes, _base64, _binary, "base64"),
    _Type("string", str, str, str, "a text"),
    _Type("symbol", Symbol, str, Symbol, "a text"),
)
_BY_PYTHON_TYPE: Final = {one.python: one for one in _TYPES}
_BY_NAME: Final = {one.name: one for one in _TYPES}
TYPES: Final = ("null", *_BY_NAME, ENCODED)


def to_typed(raw: bytes, value: Any) -> Typed:
    """`value` is what `raw` decodes to."""
    kind = type(value)
    known = _BY_PYTHON_TYPE.get(kind)
    if known is None:
        return ("null", None) if value is None else (ENCODED, _base64(raw))
    if (kind is float or kind is Float) and math.isnan(value):
        return ENCODED, _base64(raw)  # NaN has many encodings, but only one text
    if kind is Char and "\ud800" <= value <= "\udfff":
        return ENCODED, _base64(raw)  # half of a character, as .NET can send it: no UTF-8 text
    return known.name, known.to_text(value)


def from_typed(kind: str | None, text: str | None) -> bytes:
    """The encoded value. Raises ValueError, which says what is expected."""
    if kind is None:
        kind = "null" if text is None else "string"
    if kind == "null":
        return encode(None)
    if kind == ENCODED:
        return _checked_encoding(text)
    known = _BY_NAME.get(kind)
    if known is None:
        raise ValueError(f"the type is {kind!r}; expected one of {', '.join(TYPES)}")
    if text is None:
        raise ValueError(f"the value is null; expected {known.expected} for the type {kind}")
    try:
        return encode(known.from_text(text))
    except (ValueError, KeyError, OverflowError):
        raise ValueError(
            f"the value {_shortened(text)} is not a valid {kind}; expected {known.expected}"
        ) from None


def _checked_encoding(text: str | None) -> bytes:
    try:
        raw = _binary(text or "")
        _, end = decode(raw)
    except (binascii.Error, ValueError, MalformedMessage, IndexError):
        end = -1
        raw = b""
    if end != len(raw) or not raw:
        raise ValueError(
            f"the value {_shortened(text)} is not valid; expected the base64 of one AMQP value"
        )
    return raw


def _shortened(text: str | None) -> str:
    """For an error message."""
    return repr(text) if text is None or len(text) <= 60 else f"{text[:60]!r}..."
