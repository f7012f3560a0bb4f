"""AMQP frames as bytes: their codes, how one is written, and how its performative is read.

Knows no state of a connection. The frequent performatives are read and written by hand in
`performatives`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from pairbus.amqp.codec.types import Described, Symbol, ULong
from pairbus.amqp.codec.values import decode, encode
from pairbus.amqp.outcomes import AmqpError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR: Final = 0x1D
SERIAL: Final = 0xFFFFFFFF
"""AMQP's counters have 32 bits and start again at 0."""


class FrameError(Exception):
    """The peer broke a rule of the protocol. The connection cannot continue."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.error = AmqpError(condition, description)


def encode_frame(code: int, fields: Sequence[Any], *, channel: int = 0, kind: int = 0) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def decode_performative(body: bytes) -> tuple[int, list[Any]]:
    """The descriptor and the fields; raises ValueError on anything that is not a performative."""
    value, _ = decode(body)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise ValueError("a performative is a described list")
    if not isinstance(value.descriptor, ULong):
        raise ValueError(f"the descriptor {value.descriptor!r} is not a ulong")
    return int(value.descriptor), value.value


def symbol_map(mapping: Mapping[str, object]) -> dict[Any, object]:
    return {Symbol(key): value for key, value in mapping.items()}


def string_map(value: object) -> dict[str, object]:
    """A map with its symbol or string keys as `str`; anything else reads as an empty one."""
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(key, str)}


def encode_error(error: AmqpError) -> Described:
    """With a tracking id, so that the info map is never empty: see `AmqpError`."""
    info = symbol_map(error.info)
    info.setdefault(Symbol("com.microsoft:tracking-id"), str(uuid4()))
    return Described(ULong(ERROR), [Symbol(error.condition), error.description, info])


def read_error(value: object) -> AmqpError | None:
    """The error of a rejection, detach, end or close; None if there is none to read."""
    if not isinstance(value, Described) or not isinstance(value.value, list) or not value.value:
        return None
    fields = value.value
    description = fields[1] if len(fields) > 1 and isinstance(fields[1], str) else ""
    info = string_map(fields[2] if len(fields) > 2 else None)
    return AmqpError(str(fields[0]), str(description), info)
