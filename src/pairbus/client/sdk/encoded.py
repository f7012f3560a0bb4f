"""A message as the AMQP bytes that the SDK would send, and back: what the outbox stores.

The SDK's own decoder forgets types (a long, a timestamp and an int all become an `int`), so a
decoded message would be sent with other types. Here a value whose Python class does not show its
AMQP type becomes the SDK's form that names the type: `{"TYPE": "LONG", "VALUE": 1}`. So a message
that is encoded, decoded and encoded again gives the same bytes.

It does not share the reader of `pairbus.amqp`: the broker, against which the client is tested, is
built on that one. It would also refuse what the SDK sends, such as text that is not UTF-8.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from pairbus.client.sdk import private
from pairbus.client.sdk.private import TYPE, VALUE

_HEADER: Final = ("durable", "priority", "time_to_live", "first_acquirer", "delivery_count")
_PROPERTIES: Final = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)
_SECTIONS: Final = {
    0x70: "header",
    0x71: "delivery_annotations",
    0x72: "annotations",
    0x73: "properties",
    0x74: "application_properties",
    0x75: "data_body",
    0x76: "sequence_body",
    0x77: "value_body",
    0x78: "footer",
}
# The SDK itself names the type of these, and would nest a named one.
_NAMED_BY_SDK: Final = (b"x-opt-enqueued-time", b"x-opt-locked-until")

# By constructor: the type, and how its value is read.
_FIXED: Final = {
    0x43: ("UINT", ""),
    0x44: ("ULONG", ""),
    0x50: ("UBYTE", ">B"),
    0x51: ("BYTE", ">b"),
    0x52: ("UINT", ">B"),
    0x53: ("ULONG", ">B"),
    0x54: ("INT", ">b"),
    0x55: ("LONG", ">b"),
    0x56: ("BOOL", ">?"),
    0x60: ("USHORT", ">H"),
    0x61: ("SHORT", ">h"),
    0x70: ("UINT", ">I"),
    0x71: ("INT", ">i"),
    0x72: ("FLOAT", ">f"),
    0x80: ("ULONG", ">Q"),
    0x81: ("LONG", ">q"),
    0x82: ("DOUBLE", ">d"),
    0x83: ("TIMESTAMP", ">q"),
}
_VARIABLE: Final = {0xA0: "BINARY", 0xA1: "STRING", 0xA3: "SYMBOL"}
_CONSTANTS: Final = {0x40: None, 0x41: True, 0x42: False}
_COMPOUND: Final = {0xC0: "LIST", 0xC1: "MAP", 0xE0: "ARRAY"}
# For these, the SDK derives the type from the Python class.
_PLAIN: Final = frozenset({"BOOL", "INT", "DOUBLE"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMAL_BIAS: Final = 6176


def encode(sender: Any, message: Any) -> bytes:
    """`message` as the sender's SDK encodes it. Raises the SDK's error if it cannot be encoded."""
    raw = getattr(message, "raw_amqp_message", message)
    data = private.encoded(sender, raw)
    if len(private.encoded(sender, decode(data))) != len(data):
        raise ValueError("a message of this kind cannot be stored: it would be sent differently")
    return data


def decode(data: bytes) -> AmqpAnnotatedMessage:
    """Raises ValueError if the bytes are no message."""
    found: dict[str, Any] = {}
    reader = _Reader(data)
    try:
        while not reader.is_at_end:
            name, value = reader.section()
            if name in ("data_body", "sequence_body"):
                found.setdefault(name, []).append(_bare(value))
            else:
                found[name] = value
        return _message(found)
    except (IndexError, KeyError, TypeError, struct.error, UnicodeError) as error:
        raise ValueError(f"not an AMQP message: {error!r}") from error


def _message(found: dict[str, Any]) -> AmqpAnnotatedMessage:
    header = found.pop("header", None)
    properties = found.pop("properties", None)
    if "value_body" in found:
        found["value_body"] = _native(found["value_body"])
    elif not {"data_body", "sequence_body"} & found.keys():
        found["data_body"] = []  # the SDK encodes no section for an empty body
    for name in ("annotations", "delivery_annotations", "footer", "application_properties"):
        if name in found:
            found[name] = {_bare(key): value for key, value in found[name][VALUE]}
    annotations = found.get("annotations", {})
    for key in _NAMED_BY_SDK:
        if key in annotations:
            annotations[key] = _bare(annotations[key])
    message = AmqpAnnotatedMessage(**found)
    if header is not None:
        message.header = AmqpMessageHeader(**_fields(_HEADER, header))
    if properties is not None:
        message.properties = AmqpMessageProperties(**_fields(_PROPERTIES, properties))
    return message


def _fields(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    return dict(zip(names, map(_bare, values), strict=False))


def _bare(value: Any) -> Any:
    """The value where the SDK knows its type by its place."""
    return value[VALUE] if isinstance(value, dict) else value


def _native(value: Any) -> Any:
    """The value of a body, whose type the SDK derives from its class and nothing else."""
    if not isinstance(value, dict):
        return value
    kind, content = value[TYPE], value[VALUE]
    if kind == "TIMESTAMP":
        return _EPOCH + timedelta(milliseconds=content)
    if kind == "MAP":
        return {_native(key): item for key, item in content}
    return content


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def section(self) -> tuple[str, Any]:
        if self._byte() != 0:
            raise ValueError("not an AMQP message: it does not begin with a section")
        return _SECTIONS[_bare(self.value())], self.value()

    def value(self, constructor: int | None = None) -> Any:
        code = self._byte() if constructor is None else constructor
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _FIXED:
            kind, form = _FIXED[code]
            number = self._unpack(form) if form else 0
            return number if kind in _PLAIN else {TYPE: kind, VALUE: number}
        if code & 0xEF in _VARIABLE:
            return self._variable(_VARIABLE[code & 0xEF], self._unpack(_width(code)))
        if code == 0x45:
            return []
        if code & 0xEF in _COMPOUND:
            return self._compound(_COMPOUND[code & 0xEF], _width(code))
        if code == 0x00:
            return (self.value(), self.value())
        if code == 0x98:
            return UUID(bytes=self._take(16))
        if code == 0x94:
            return self._decimal()
        raise ValueError(f"not an AMQP message: unknown type 0x{code:02x}")

    def _variable(self, kind: str, length: int) -> Any:
        content = self._take(length)
        if kind == "STRING":
            try:
                return content.decode()
            except UnicodeDecodeError:  # the SDK sends bytes as a string without a look
                return {TYPE: kind, VALUE: content}
        return {TYPE: kind, VALUE: content}

    def _compound(self, kind: str, width: str) -> Any:
        self._unpack(width)  # the size in bytes
        count = self._unpack(width)
        if kind == "ARRAY":
            code = self._byte() if count else 0
            return {TYPE: kind, VALUE: [self.value(code) for _ in range(count)]}
        values = [self.value() for _ in range(count)]
        if kind == "LIST":
            return values
        return {TYPE: kind, VALUE: [*zip(values[::2], values[1::2], strict=True)]}

    def _decimal(self) -> Decimal:
        high, low = self._unpack(">Q"), self._unpack(">Q")
        digits = tuple(map(int, str(((high & (1 << 49) - 1) << 64) | low)))
        return Decimal((high >> 63, digits, (high >> 49 & 0x3FFF) - _DECIMAL_BIAS))

    def _byte(self) -> int:
        return self._take(1)[0]

    def _unpack(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if len(taken) != length:
            raise ValueError("not an AMQP message: it ends too early")
        self._at += length
        return taken


def _width(code: int) -> str:
    """Of the length or the count behind a constructor: 1 or 4 bytes."""
    return ">I" if code & 0x10 else ">B"
