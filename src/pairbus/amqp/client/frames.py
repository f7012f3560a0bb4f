"""The frames that a client reads and writes for every message, by hand; and those in between.

Transfers are read without decoding them into a list of fields, and dispositions are written from a
template: these two are what receiving costs. Everything else goes through `frames`. Knows no state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from pairbus.amqp.codec.types import Described, Symbol, UInt, ULong
from pairbus.amqp.codec.values import encode, skip
from pairbus.amqp.frames import ERROR, FLOW, FrameError, encode_frame
from pairbus.amqp.outcomes import ACCEPTED, RELEASED, AmqpError, Outcome, OutcomeKind

_u32 = struct.Struct(">I").unpack_from
_disposition = struct.Struct(">IHH4sIIBBIBIB").pack

WINDOW: Final = 0x7FFFFFFF
"""Of transfers: credit is what bounds them here, so that the window never does."""

HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

Transfer = tuple[int, int | None, bytes | None, bool, bool, int]
"""Handle, delivery-id, delivery-tag, more, aborted, and where the payload begins."""


def _uint(data: bytes, at: int) -> tuple[int | None, int]:
    code = data[at]
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x70:
        return _u32(data, at + 1)[0], at + 5
    if code == 0x43:
        return 0, at + 1
    if code == 0x40:
        return None, at + 1
    raise FrameError("amqp:decode-error", f"0x{code:02x} where a transfer has a uint")


def _flag(data: bytes, at: int) -> tuple[bool, int]:
    code = data[at]
    if code == 0x56:
        return data[at + 1] == 1, at + 2
    if code not in (0x40, 0x41, 0x42):
        raise FrameError("amqp:decode-error", f"0x{code:02x} where a transfer has a boolean")
    return code == 0x41, at + 1


def read_transfer(data: bytes, at: int) -> Transfer:
    """The transfer whose list begins at `at`, behind the descriptor."""
    code = data[at]
    if code == 0xC0:
        payload, count, at = at + 2 + data[at + 1], data[at + 2], at + 3
    elif code == 0xD0:
        payload, count, at = at + 5 + _u32(data, at + 1)[0], _u32(data, at + 5)[0], at + 9
    else:
        raise FrameError("amqp:decode-error", "a transfer that is no list, or an empty one")
    handle, at = _uint(data, at)
    if handle is None:
        raise FrameError("amqp:invalid-field", "a transfer without a handle")
    delivery_id: int | None = None
    tag: bytes | None = None
    more = aborted = False
    if count > 1:
        delivery_id, at = _uint(data, at)
    if count > 2:
        code = data[at]
        if code == 0xA0:
            after = at + 2 + data[at + 1]
            tag, at = data[at + 2 : after], after
        elif code == 0x40:
            at += 1
        else:
            raise FrameError("amqp:decode-error", f"0x{code:02x} where a delivery-tag is expected")
    if count > 5:
        at = skip(data, skip(data, at))  # message-format, settled
        more, at = _flag(data, at)
    if count > 9:
        for _ in range(3):  # rcv-settle-mode, state, resume
            at = skip(data, at)
        aborted, at = _flag(data, at)
    return handle, delivery_id, tag, more, aborted, payload


def transfer_frames(
    *,
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    payload: bytes,
    message_format: int,
    frame_size_max: int,
) -> Iterator[bytes]:
    """One message as transfers that the peer's frames can hold; unsettled."""
    start = b"\x70%b\x70%b\xa0%b%b\x70%b\x42" % (
        handle.to_bytes(4, "big"),
        delivery_id.to_bytes(4, "big"),
        bytes((len(tag),)),
        tag,
        message_format.to_bytes(4, "big"),
    )
    fields = b"\x00\x53\x14\xc0" + bytes((len(start) + 2, 6)) + start
    head_size = 8 + len(fields) + 1
    room = frame_size_max - head_size
    size, at = len(payload), 0
    while size - at > room:
        yield b"".join(
            (
                frame_size_max.to_bytes(4, "big"),
                b"\x02\x00",
                channel.to_bytes(2, "big"),
                fields,
                b"\x41",
                payload[at : at + room],
            )
        )
        at += room
    yield b"".join(
        (
            (head_size + size - at).to_bytes(4, "big"),
            b"\x02\x00",
            channel.to_bytes(2, "big"),
            fields,
            b"\x42",
            payload[at:] if at else payload,
        )
    )


_STATES: Final = {
    OutcomeKind.ACCEPTED: b"\x00\x53\x24\x45",
    OutcomeKind.RELEASED: b"\x00\x53\x26\x45",
}


def encode_outcome(outcome: Outcome) -> bytes:
    """The state of a disposition, encoded."""
    state = _STATES.get(outcome.kind)
    if state is not None:
        return state
    value: list[Any]
    if outcome.kind is OutcomeKind.REJECTED:
        error = outcome.error
        value = []
        if error is not None:
            # Without a tracking id of ours: of a dead letter, the service keeps what is in here.
            info = {Symbol(key): item for key, item in error.info.items()}
            fields = [Symbol(error.condition), error.description, info]
            value = [Described(ULong(ERROR), fields)]
    elif outcome.kind is OutcomeKind.MODIFIED:
        notes = outcome.annotations
        value = [outcome.failed, outcome.undeliverable]
        if notes:
            value.append({Symbol(key): item for key, item in notes.items()})
    else:
        raise ValueError(f"{outcome.kind!r} is no outcome that a receiver can give")
    return encode(Described(ULong(int(outcome.kind)), value))


def disposition(channel: int, first: int, last: int, *, settled: bool, state: bytes) -> bytes:
    """A receiver's word on the deliveries first..last."""
    size = len(state)
    head = _disposition(
        32 + size, 0x0200, channel, b"\x00\x53\x15\xd0", 16 + size, 5,
        0x41, 0x70, first, 0x70, last, 0x41 if settled else 0x42,
    )  # fmt: skip
    return head + state


def flow(
    channel: int,
    *,
    next_incoming_id: int,
    next_outgoing_id: int,
    handle: int | None = None,
    delivery_count: int = 0,
    credit: int = 0,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    fields: list[Any] = [
        UInt(next_incoming_id), UInt(WINDOW), UInt(next_outgoing_id), UInt(WINDOW)
    ]  # fmt: skip
    if handle is not None:
        fields += [UInt(handle), UInt(delivery_count), UInt(credit), None, drain, echo]
    return encode_frame(FLOW, fields, channel=channel)


def read_outcome(state: object) -> Outcome | None:
    """What a disposition's state says; None if it is not the last word on a delivery."""
    if not isinstance(state, Described) or not isinstance(state.value, list):
        return None
    fields = state.value
    match state.descriptor:
        case OutcomeKind.ACCEPTED:
            return ACCEPTED
        case OutcomeKind.RELEASED:
            return RELEASED
        case OutcomeKind.REJECTED:
            return Outcome(OutcomeKind.REJECTED, error=read_error(fields[0] if fields else None))
        case OutcomeKind.MODIFIED:
            failed = bool(fields) and fields[0] is True
            undeliverable = len(fields) > 1 and fields[1] is True
            return Outcome(OutcomeKind.MODIFIED, failed=failed, undeliverable=undeliverable)
    return None


def read_error(value: object) -> AmqpError | None:
    """An error of a rejection, detach, end or close; None if there is none to read."""
    if not isinstance(value, Described) or not isinstance(value.value, list) or not value.value:
        return None
    fields = value.value
    description = fields[1] if len(fields) > 1 and isinstance(fields[1], str) else ""
    info = fields[2] if len(fields) > 2 and isinstance(fields[2], dict) else {}
    named = {str(key): item for key, item in info.items() if isinstance(key, str)}
    return AmqpError(str(fields[0]), description, named)
