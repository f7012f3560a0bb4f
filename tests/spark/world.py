"""Helpers for tests of the data source: all kinds of messages, and a way to see a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pairbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from pairbus.amqp.codec.values import encode
from pairbus.broker import Broker
from pairbus.fast.columns import NAMES, reader_of
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.rows import read

VARIABLE = "SERVICEBUS_CONNECTION_STRING"
KEY = "bm8tbG9nLW5vLXBsYW4tbm8tZXJyb3Itc2hvd3MtdGhpcw=="
"""Of the broker that Spark knows."""

# Every type that a property can have, with what it is in a row.
EVERY_VALUE: dict[str, tuple[Any, str, str | None]] = {
    "null": (None, "null", None),
    "true": (True, "boolean", "true"),
    "false": (False, "boolean", "false"),
    "ubyte": (UByte(255), "ubyte", "255"),
    "ushort": (UShort(65535), "ushort", "65535"),
    "uint": (UInt(2**32 - 1), "uint", "4294967295"),
    "uint0": (UInt(0), "uint", "0"),
    "ulong": (ULong(2**64 - 1), "ulong", "18446744073709551615"),
    "byte": (Byte(-128), "byte", "-128"),
    "short": (Short(-32768), "short", "-32768"),
    "int": (Int(-(2**31)), "int", "-2147483648"),
    "long": (-(2**63), "long", "-9223372036854775808"),
    "float": (Float(0.5), "float", "0.5"),
    "double": (1e300, "double", "1e+300"),
    "infinity": (float("-inf"), "double", "-Infinity"),
    "nan": (float("nan"), "encoded", "gn/4AAAAAAAA"),
    "decimal32": (Decimal32(b"\x01\x02\x03\x04"), "decimal32", "01020304"),
    "decimal64": (Decimal64(b"\xff" * 8), "decimal64", "ff" * 8),
    "decimal128": (Decimal128(b"\x0a" * 16), "decimal128", "0a" * 16),
    "char": (Char("\N{SNOWMAN}"), "char", "\N{SNOWMAN}"),
    "timestamp": (Timestamp(1_767_225_600_123), "timestamp", "2026-01-01T00:00:00.123Z"),
    "before 1970": (Timestamp(-1), "timestamp", "1969-12-31T23:59:59.999Z"),
    "year 1": (Timestamp(-62_135_596_800_000), "timestamp", "0001-01-01T00:00:00.000Z"),
    "no calendar": (Timestamp(2**62), "timestamp", str(2**62)),
    "uuid": (UUID(int=7), "uuid", str(UUID(int=7))),
    "binary": (b"\x00\xff", "binary", "AP8="),
    "empty binary": (b"", "binary", ""),
    "string": ("gr\u00fc\u00dfe \N{SNOWMAN}", "string", "gr\u00fc\u00dfe \N{SNOWMAN}"),
    "empty": ("", "string", ""),
    "symbol": (Symbol("a-symbol"), "symbol", "a-symbol"),
    "list": ([1, "a"], "encoded", "wAYCVQGhAWE="),
    "map": ({"a": Int(1)}, "encoded", "wQYCoQFhVAE="),
    "array": (Array([Int(1)]), "encoded", "4AYBcQAAAAE="),
    "described": (Described(Symbol("x"), "y"), "encoded", "AKMBeKEBeQ=="),
}


def described(number: int, value: Any) -> bytes:
    return encode(Described(ULong(number), value))


def message(
    name: Any = "m-1",
    *,
    body: bytes | None = b"body",
    sections: bytes = b"",
    header: Sequence[Any] = (),
    annotations: dict[str, Any] | None = None,
    properties: dict[int, Any] | None = None,
    application: dict[str, Any] | None = None,
) -> bytes:
    """Encoded as by a sender. `sections` replaces the body."""
    fields: list[Any] = [name, *[None] * 12]
    for index, value in (properties or {}).items():
        fields[index] = value
    parts = [described(0x70, list(header))] if header else []
    if annotations:
        parts.append(described(0x72, {Symbol(key): one for key, one in annotations.items()}))
    parts.append(described(0x73, fields))
    if application is not None:
        parts.append(described(0x74, application))
    return b"".join(parts) + (sections or described(0x75, body))


def messages(count: int, *, first: int = 0, **more: Any) -> list[bytes]:
    return [message(f"m-{number}", **more) for number in range(first, first + count)]


def as_row(data: bytes, **more: Any) -> dict[str, Any]:
    values = reader_of(NAMES)(read(data, entity="q", **more))
    return dict(zip(NAMES, values, strict=True))


def names(rows: Iterable[Any]) -> list[str]:
    return [row["messageId"] for row in rows]


@dataclass
class Bus:
    broker: Broker

    @property
    def connection_string(self) -> str:
        return self.broker.connection_string

    @property
    def options(self) -> dict[str, str]:
        return {"connectionString": self.connection_string}

    def send(self, path: str, messages: Sequence[bytes]) -> None:
        from pairbus.fast.address import Address

        with Address.from_connection_string(self.connection_string).client() as client:
            client.sender(path).send(messages)

    def peek(self, path: str) -> list[dict[str, Any]]:
        """All messages of a queue, as rows."""
        from pairbus.fast.address import Address

        found: list[dict[str, Any]] = []
        with Address.from_connection_string(self.connection_string).client() as client:
            management = client.management(path)
            while chunk := management.peek(found[-1]["sequenceNumber"] + 1 if found else 0, 250):
                found += [as_row(data) for data in chunk]
        return found

    def use(
        self, path: str, use: Callable[[Any], Any], *, count: int = 100
    ) -> list[ReceivedMessage]:
        """Receive what is there, and let `use` settle it."""
        from pairbus.fast.address import Address

        with Address.from_connection_string(self.connection_string).client() as client:
            receiver = client.receiver(path, credit=count)
            taken = receiver.receive(count, max_wait_seconds=5)
            use((receiver, taken))
            receiver.close()
        return taken

    def dead_letter(self, path: str, reason: str, *, count: int = 100) -> None:
        self.use(path, lambda got: got[0].dead_letter(got[1], reason=reason), count=count)
