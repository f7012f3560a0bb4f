"""AMQP values as a type and a text, and back, without loss.

Application properties have types that no column of a table can hold side by side, so in a row each
is a pair: the AMQP type's name, and the value as the table in docs/spark.md writes it. A value
that has no text of its own (a list, a map, a described value) is kept encoded. Pure.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.types import (
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
"""The type's name, and the value's text: None for null only."""

ENCODED: Final = "encoded"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _moment_text(value: int) -> str:
    """Milliseconds, if it is no moment of the calendar."""
    try:
        moment = EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return str(int(value))
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z".rjust(24, "0")


def _number_text(value: float) -> str:
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)


_TO_TEXT: Final[dict[type, tuple[str, Callable[[Any], str]]]] = {
    bool: ("boolean", lambda value: "true" if value else "false"),
    UByte: ("ubyte", int.__repr__),
    UShort: ("ushort", int.__repr__),
    UInt: ("uint", int.__repr__),
    ULong: ("ulong", int.__repr__),
    Byte: ("byte", int.__repr__),
    Short: ("short", int.__repr__),
    Int: ("int", int.__repr__),
    int: ("long", int.__repr__),
    Float: ("float", _number_text),
    float: ("double", _number_text),
    Decimal32: ("decimal32", bytes.hex),
    Decimal64: ("decimal64", bytes.hex),
    Decimal128: ("decimal128", bytes.hex),
    Char: ("char", str),
    Timestamp: ("timestamp", _moment_text),
    UUID: ("uuid", str),
    bytes: ("binary", _base64),
    str: ("string", str),
    Symbol: ("symbol", str),
}


def to_typed(raw: bytes, value: Any) -> Typed:
    """`value` is what `raw` decodes to."""
    kind = type(value)
    known = _TO_TEXT.get(kind)
    if known is None:
        return ("null", None) if value is None else (ENCODED, _base64(raw))
    if (kind is float or kind is Float) and math.isnan(value):
        return ENCODED, _base64(raw)  # there are many of these, and one text
    return known[0], known[1](value)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _char(text: str) -> Char:
    if len(text) != 1:
        raise ValueError
    return Char(text)


def _moment(text: str) -> Timestamp:
    try:
        return Timestamp(int(text))
    except ValueError:
        pass
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Timestamp((moment - EPOCH) // _MILLISECOND)


def _hex(kind: type[bytes], size: int) -> Callable[[str], bytes]:
    def parse(text: str) -> bytes:
        raw = bytes.fromhex(text)
        if len(raw) != size:
            raise ValueError
        return kind(raw)

    return parse


def _binary(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


# The name of a type: how its text is read, and what its text should be.
_FROM_TEXT: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "boolean": (_boolean, "true or false"),
    "ubyte": (lambda text: UByte(int(text)), "a whole number from 0 to 255"),
    "ushort": (lambda text: UShort(int(text)), "a whole number from 0 to 65535"),
    "uint": (lambda text: UInt(int(text)), "a whole number from 0 to 4294967295"),
    "ulong": (lambda text: ULong(int(text)), "a whole number from 0 to 18446744073709551615"),
    "byte": (lambda text: Byte(int(text)), "a whole number from -128 to 127"),
    "short": (lambda text: Short(int(text)), "a whole number from -32768 to 32767"),
    "int": (lambda text: Int(int(text)), "a whole number of 32 bits"),
    "long": (int, "a whole number of 64 bits"),
    "float": (lambda text: Float(float(text)), "a number, Infinity or NaN"),
    "double": (float, "a number, Infinity or NaN"),
    "decimal32": (_hex(Decimal32, 4), "4 bytes in hexadecimal"),
    "decimal64": (_hex(Decimal64, 8), "8 bytes in hexadecimal"),
    "decimal128": (_hex(Decimal128, 16), "16 bytes in hexadecimal"),
    "char": (_char, "one character"),
    "timestamp": (_moment, "a time such as 2026-01-31T12:00:00.000Z, or milliseconds since 1970"),
    "uuid": (UUID, "a uuid"),
    "binary": (_binary, "base64"),
    "string": (str, "a text"),
    "symbol": (Symbol, "a text"),
}


TYPES: Final = ("null", *_FROM_TEXT, ENCODED)


def from_typed(kind: str | None, text: str | None) -> bytes:
    """The value, encoded. Raises ValueError, which says what would be right."""
    if kind is None:
        kind = "null" if text is None else "string"
    if kind == "null":
        return encode(None)
    if kind == ENCODED:
        return _checked_encoding(text)
    known = _FROM_TEXT.get(kind)
    if known is None:
        raise ValueError(f"the type {kind!r} is none of {', '.join(TYPES)}")
    parse, right = known
    if text is None:
        raise ValueError(f"the value is null, and {right} is expected for the type {kind}")
    try:
        return encode(parse(text))
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"the value {_shown(text)} is no {kind}: {right} is expected") from None


def _checked_encoding(text: str | None) -> bytes:
    try:
        raw = _binary(text or "")
        _, end = decode(raw)
    except (binascii.Error, ValueError, MalformedMessage, IndexError):
        end = -1
        raw = b""
    if end != len(raw) or not raw:
        raise ValueError(
            f"the value {_shown(text)} is no encoded one: the base64 of one AMQP value is expected"
        )
    return raw


def _shown(text: str | None) -> str:
    """Not all of a long one: it ends in an error message."""
    return repr(text) if text is None or len(text) <= 60 else f"{text[:60]!r}..."
