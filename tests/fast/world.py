"""Helpers for tests of the fast client: encoded messages of all kinds, and ways to see a queue.

The other side is always the real broker, or, where it must misbehave, a socket that says what a
test tells it to.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from pairbus.amqp.codec.sections import read_property, slice_message
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
from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.fast.client import FastClient
from pairbus.fast.columns import NAMES, reader_of
from pairbus.fast.errors import SendIncomplete
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.receiver import Receiver
from pairbus.fast.rows import read
from pairbus.fast.sender import Sender

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
    "half a char": (Char("\ud83d"), "encoded", "cwAA2D0="),
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
    body: bytes = b"body",
    sections: bytes = b"",
    header: Sequence[Any] = (),
    annotations: dict[str, Any] | None = None,
    properties: dict[int, Any] | None = None,
    application: dict[str, Any] | None = None,
) -> bytes:
    """A message with this id, encoded as by a sender. `sections` replaces the body."""
    fields = {0: name, **(properties or {})}
    parts = [described(0x70, list(header))] if header else []
    if annotations:
        parts.append(described(0x72, {Symbol(key): one for key, one in annotations.items()}))
    parts.append(described(0x73, [fields.get(index) for index in range(max(fields) + 1)]))
    if application is not None:
        parts.append(described(0x74, application))
    return b"".join(parts) + (sections or described(0x75, body))


def messages(count: int, *, first: int = 0, **more: Any) -> list[bytes]:
    return [message(f"m-{number}", **more) for number in range(first, first + count)]


def bearer_broker(*queues: str, clock: Callable[[], float] = time.time) -> Broker:
    """It accepts tokens of an identity, and keys."""
    described = [QueueDescription(name=name) for name in queues]
    options = NamespaceOptions(name="local", port=0, queues=described, accepts_bearer=True)
    return Broker(namespaces=[options], clock=clock)


def send_one(sender: Sender, data: bytes) -> None:
    """Send a single message, and raise what the SDK would."""
    try:
        sender.send([data])
    except SendIncomplete as failed:
        raise failed.error from failed


def name_of(data: bytes) -> str:
    parts = slice_message(data)
    return str(read_property(parts.bare, parts.properties, 0))


def names(received: Iterable[ReceivedMessage | bytes]) -> list[str]:
    return [name_of(one if isinstance(one, bytes) else one.data) for one in received]


def as_row(data: bytes, **more: Any) -> dict[str, Any]:
    values = reader_of(NAMES)(read(data, entity="q", **more))
    return dict(zip(NAMES, values, strict=True))


def delivery_counts(received: Iterable[ReceivedMessage]) -> list[int]:
    return [as_row(one.data)["deliveryCount"] for one in received]


def peeked(client: FastClient, path: str) -> list[dict[str, Any]]:
    """All messages of an entity, locked or not, as rows."""
    found: list[dict[str, Any]] = []
    management = client.management(path)
    while page := management.peek(found[-1]["sequenceNumber"] + 1 if found else 0, 250):
        found += [as_row(data) for data in page]
    return found


def left(client: FastClient, path: str = "q") -> list[str]:
    """Their ids."""
    return [row["messageId"] for row in peeked(client, path)]


def bare(data: bytes) -> bytes:
    """Without the sections that the broker adds."""
    return slice_message(data).bare


def take(receiver: Receiver, count: int, *, seconds: float = 30.0) -> list[ReceivedMessage]:
    """Receive exactly `count` messages."""
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        some = receiver.receive(count - len(taken), max_wait_seconds=seconds)
        assert some, f"only {len(taken)} of {count} messages came"
        taken += some
    return taken


def exhaust(receiver: Receiver) -> None:
    """Receive until it fails, which it must."""
    while receiver.receive(1000, max_wait_seconds=30):
        pass


@contextmanager
def listening(script: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a peer that runs the script for each connection, then closes it."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)

        def serve() -> None:
            while not done.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.settimeout(10)
                    with suppress(OSError):
                        script(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            thread.join()
