"""AMQP frames as bytes: writing the few that are ours to write, reading one, finding batches.

Proton does not tell the message-format of a transfer, and the format is what makes a batch of the
Service Bus. It is read here, exactly, and only where its bytes occur at all. Knows no state of a
connection; `framer` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final
from uuid import uuid4

from pairbus.amqp.codec.types import Described, Symbol, UInt, ULong
from pairbus.amqp.codec.values import decode, encode, skip
from pairbus.amqp.outcomes import AmqpError

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR: Final = 0x1D

BATCH_FORMAT: Final = 0x80013700
BATCH_MARK: Final = b"\x70\x80\x01\x37\x00"  # the only way to encode that number as a uint


def u32(data: bytes, pos: int) -> int:
    size: int = struct.unpack_from(">I", data, pos)[0]
    return size


class FrameError(Exception):
    """The peer broke a rule of the protocol; the connection cannot go on."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.error = AmqpError(condition, description)


def encode_frame(code: int, fields: Sequence[Any], *, channel: int = 0, kind: int = 0) -> bytes:
    body = encode(Described(ULong(code), list(fields)))
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


def encode_error(error: AmqpError) -> Described:
    return Described(ULong(ERROR), [Symbol(error.condition), error.description, error_info(error)])


def error_info(error: AmqpError) -> dict[Any, Any]:
    """Never empty: see `AmqpError`."""
    info: dict[Any, Any] = {Symbol(key): value for key, value in error.info.items()}
    info.setdefault(Symbol("com.microsoft:tracking-id"), str(uuid4()))
    return info


def decode_performative(body: bytes) -> tuple[int, list[Any]]:
    """The descriptor and the fields; raises ValueError on anything that is not a performative."""
    value, _ = decode(body)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise ValueError("a performative is a described list")
    if not isinstance(value.descriptor, ULong):
        raise ValueError(f"the descriptor {value.descriptor!r} is not a ulong")
    return int(value.descriptor), value.value


def message_format(data: bytes, start: int) -> int:
    """Of the transfer frame at `start`; 0 when it says none or is no transfer."""
    pos = start + data[start + 4] * 4
    if data[pos] != 0x00:
        return 0
    code, pos = decode(data, pos + 1)
    if code != TRANSFER:
        return 0
    if data[pos] == 0xC0:
        count, pos = data[pos + 2], pos + 3
    elif data[pos] == 0xD0:
        count, pos = struct.unpack_from(">I", data, pos + 5)[0], pos + 9
    else:
        return 0
    if count < 4:
        return 0
    for _ in range(3):  # handle, delivery-id, delivery-tag
        pos = skip(data, pos)
    value, _ = decode(data, pos)
    return int(value) if isinstance(value, UInt) else 0


def pieces(block: bytes) -> Iterator[tuple[bytes, int]]:
    """The whole frames of `block` as pieces to push one after the other, each with the
    message-format of the transfer in it. Nearly always that is the block itself.
    """
    hit = block.find(BATCH_MARK)
    if hit < 0:
        yield block, 0
        return
    done = pos = 0
    while hit >= 0:
        while (after := pos + u32(block, pos)) <= hit:
            pos = after
        # The mark may as well be part of a body, so the performative decides.
        try:
            found = message_format(block, pos)
        except (ValueError, IndexError, struct.error):
            found = 0  # Proton will say what is wrong with it
        if found == BATCH_FORMAT:
            if done < pos:
                yield block[done:pos], 0
            yield block[pos:after], found
            done = after
        pos = after
        hit = block.find(BATCH_MARK, after)
    if done < len(block):
        yield block[done:], 0
