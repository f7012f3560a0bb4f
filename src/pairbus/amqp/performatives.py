"""The frequent performatives by hand: transfers, dispositions and flows, and the outcomes in them.

Transfers and dispositions are read without decoding them into a list of fields, and written from
templates: these two are what a message costs. All other performatives go through `frames`. Knows no
state. What cannot be read raises FrameError, ValueError, IndexError or struct.error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from pairbus.amqp.codec.types import Described, Symbol, UInt, ULong
from pairbus.amqp.codec.values import decode, encode, skip
from pairbus.amqp.frames import (
    ERROR,
    FLOW,
    FrameError,
    encode_error,
    encode_frame,
    read_error,
    string_map,
    symbol_map,
)
from pairbus.amqp.outcomes import ACCEPTED, NO_OUTCOME, RELEASED, Outcome, OutcomeKind

WINDOW: Final = 0x7FFFFFFF
"""Of transfers: credit and the limits of bytes bound them here, so that the window never does."""

Transfer = tuple[int, int | None, bytes | None, int, bool, bool, bool, int]
"""Handle, delivery-id, delivery-tag, message-format, settled, more, aborted, start of payload."""

Disposition = tuple[bool, int, int, bool, Outcome]
"""The peer is the receiver, first, last, settled, outcome."""

Statement = tuple[int, int, bytes]
"""The content of a disposition: the codes of role and settled, and the encoded state."""

_u32 = struct.Struct(">I").unpack_from
_disposition = struct.Struct(">IHH4sIIBBIBIB").pack
_TRUE, _FALSE = 0x41, 0x42
_ACCEPTED: Final = b"\x00\x53\x24\x45"


def _list(data: bytes, at: int, end: int, name: str) -> tuple[int, int, int]:
    """Where the fields of a list begin, where they end, and how many there are."""
    code = data[at]
    if code == 0xC0:
        after, count, at = at + 2 + data[at + 1], data[at + 2], at + 3
    elif code == 0xD0:
        after, count, at = at + 5 + _u32(data, at + 1)[0], _u32(data, at + 5)[0], at + 9
    else:
        raise FrameError("amqp:decode-error", f"a {name} that is not a list, or is empty")
    if not at <= after <= end:
        raise FrameError("amqp:decode-error", f"a {name} that is longer than its frame")
    return at, after, count


def _uint(data: bytes, at: int, name: str) -> tuple[int | None, int]:
    code = data[at]
    if code == 0x70:
        return _u32(data, at + 1)[0], at + 5
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x43:
        return 0, at + 1
    if code == 0x40:
        return None, at + 1
    raise FrameError("amqp:decode-error", f"0x{code:02x} where a {name} has a uint")


def _flag(data: bytes, at: int, name: str) -> tuple[bool, int]:
    code = data[at]
    if code == _FALSE or code == 0x40:
        return False, at + 1
    if code == _TRUE:
        return True, at + 1
    if code == 0x56 and data[at + 1] < 2:
        return data[at + 1] == 1, at + 2
    raise FrameError("amqp:decode-error", f"0x{code:02x} where a {name} has a boolean")


def read_transfer(data: bytes, at: int, end: int) -> Transfer:
    """The transfer whose list begins at `at`, in a frame that ends at `end`.

    Every message passes through here. It is one long function, because each call would cost time.
    """
    if data[at] == 0xC0:
        payload, count, at = at + 2 + data[at + 1], data[at + 2], at + 3
        if data[at - 1 : at + 2] == b"\x04\x43\x70":
            # As we write it ourselves: handle 0, an id, a tag, and the format 0 as the last field.
            after = at + 8 + data[at + 7]
            if data[at + 6] == 0xA0 and data[after] == 0x43 and after + 1 == payload <= end:
                return (
                    0,
                    _u32(data, at + 2)[0],
                    data[at + 8 : after],
                    0,
                    False,
                    False,
                    False,
                    payload,
                )
    else:
        at, payload, count = _list(data, at, end, "transfer")
    number: int | None = None
    tag: bytes | None = None
    message_format = 0
    settled = more = aborted = False
    code = data[at]
    if code == 0x43:
        handle = 0
        at += 1
    elif code == 0x52:
        handle = data[at + 1]
        at += 2
    elif code == 0x70:
        handle = _u32(data, at + 1)[0]
        at += 5
    else:
        raise FrameError("amqp:invalid-field", "a transfer without a handle")
    if count > 1:
        code = data[at]
        if code == 0x70:
            number = _u32(data, at + 1)[0]
            at += 5
        elif code == 0x52:
            number = data[at + 1]
            at += 2
        else:
            number, at = _uint(data, at, "transfer")
    if count > 2:
        code = data[at]
        if code == 0xA0:
            after = at + 2 + data[at + 1]
            tag = data[at + 2 : after]
            at = after
        elif code == 0x40:
            at += 1
        else:
            raise FrameError("amqp:decode-error", f"0x{code:02x} where a delivery-tag is expected")
    if count > 3:
        if data[at] == 0x43:
            at += 1
        else:
            given, at = _uint(data, at, "transfer")
            message_format = given or 0
    if count > 4:
        if data[at] == _FALSE:
            at += 1
        else:
            settled, at = _flag(data, at, "transfer")
    if count > 5:
        if data[at] == _FALSE:
            at += 1
        else:
            more, at = _flag(data, at, "transfer")
    if count > 9:
        for _ in range(3):  # rcv-settle-mode, state, resume
            at = at + 1 if data[at] == 0x40 else skip(data, at)
        aborted, at = _flag(data, at, "transfer")
    if not at <= payload <= end:
        raise FrameError("amqp:decode-error", "a transfer whose fields outgrow its list or frame")
    return handle, number, tag, message_format, settled, more, aborted, payload


def transfer_head(channel: int, handle: int, tag_size: int) -> tuple[bytes, bytes]:
    """What is always the same in a transfer of handle, delivery-id, tag and message-format 0: from
    behind the frame's size to the delivery-id, and from behind that to the tag."""
    named = b"\x43" if handle == 0 else b"\x70" + handle.to_bytes(4, "big")
    start = b"\x02\x00%b\x00\x53\x14\xc0%b%b\x70" % (
        channel.to_bytes(2, "big"),
        bytes((len(named) + 9 + tag_size, 4)),
        named,
    )
    return start, bytes((0xA0, tag_size))


def transfer_frames(
    *,
    channel: int,
    handle: int,
    number: int,
    tag: bytes,
    message_format: int,
    settled: bool,
    data: bytes,
    frame_size_max: int,
) -> Iterator[bytes]:
    """One message as transfers that the peer's frames can hold."""
    fields = b"\x70%b\x70%b\xa0%b%b\x70%b%b" % (
        handle.to_bytes(4, "big"),
        number.to_bytes(4, "big"),
        bytes((len(tag),)),
        tag,
        message_format.to_bytes(4, "big"),
        b"\x41" if settled else b"\x42",
    )
    head = b"\x02\x00%b\x00\x53\x14\xc0%b%b" % (
        channel.to_bytes(2, "big"),
        bytes((len(fields) + 2, 6)),
        fields,
    )
    head_size = 4 + len(head) + 1
    room = frame_size_max - head_size
    at, end = 0, len(data)
    while end - at > room:
        yield b"%b%b\x41%b" % (frame_size_max.to_bytes(4, "big"), head, data[at : at + room])
        at += room
    yield b"%b%b\x42%b" % ((head_size + end - at).to_bytes(4, "big"), head, data[at:])


def read_disposition(data: bytes, at: int, end: int) -> Disposition:
    """The disposition whose list begins at `at`, in a frame that ends at `end`."""
    at, after, count = _list(data, at, end, "disposition")
    settled, outcome = False, NO_OUTCOME
    is_receiver, at = _flag(data, at, "disposition")
    first, at = _uint(data, at, "disposition") if count > 1 else (None, at)
    if first is None:
        raise FrameError("amqp:invalid-field", "a disposition without a first delivery-id")
    last = first
    if count > 2:
        said, at = _uint(data, at, "disposition")
        last = first if said is None else said
    if count > 3:
        settled, at = _flag(data, at, "disposition")
    if count > 4:
        if data[at : at + 4] == _ACCEPTED:
            outcome = ACCEPTED
            at += 4
        else:
            state, size = decode(data[at:after])
            outcome = read_outcome(state)
            at += size
    if at > after:
        raise FrameError("amqp:decode-error", "a disposition whose fields outgrow its list")
    return is_receiver, first, last, settled, outcome


def read_outcome(state: object) -> Outcome:
    """Reads the outcome from a disposition's state."""
    if state is None:
        return NO_OUTCOME
    if not isinstance(state, Described) or not isinstance(state.value, list):
        raise FrameError("amqp:decode-error", "a delivery state that is not a described list")
    fields = state.value
    match state.descriptor:
        case OutcomeKind.ACCEPTED:
            return ACCEPTED
        case OutcomeKind.RELEASED:
            return RELEASED
        case OutcomeKind.REJECTED:
            return Outcome(OutcomeKind.REJECTED, error=read_error(fields[0] if fields else None))
        case OutcomeKind.MODIFIED:
            return Outcome(
                OutcomeKind.MODIFIED,
                failed=bool(fields) and fields[0] is True,
                undeliverable=len(fields) > 1 and fields[1] is True,
                annotations=string_map(fields[2] if len(fields) > 2 else None) or None,
            )
        case OutcomeKind.RECEIVED:
            return Outcome(OutcomeKind.RECEIVED)
    return Outcome(OutcomeKind.OTHER)


_BARE_STATES: Final = {
    kind: bytes((0x00, 0x53, kind, 0x45))
    for kind in (
        OutcomeKind.ACCEPTED,
        OutcomeKind.REJECTED,
        OutcomeKind.RELEASED,
        OutcomeKind.MODIFIED,
    )
}


def _state(outcome: Outcome, *, tracked: bool) -> bytes:
    """`tracked`: an error gets a tracking id.

    A client leaves it out: the service keeps what is in the error of a dead letter.
    """
    kind, error = outcome.kind, outcome.error
    value: list[Any] = []
    if kind is OutcomeKind.REJECTED and error is not None:
        if tracked:
            value = [encode_error(error)]
        else:
            fields = [Symbol(error.condition), error.description, symbol_map(error.info)]
            value = [Described(ULong(ERROR), fields)]
    elif kind is OutcomeKind.MODIFIED:
        value = [outcome.failed, outcome.undeliverable]
        if outcome.annotations:
            value.append(symbol_map(outcome.annotations))
    elif kind in (OutcomeKind.NONE, OutcomeKind.OTHER):
        return b"\x40"
    elif kind is OutcomeKind.RECEIVED:
        raise ValueError("'received' is not an outcome: it says that more of the message follows")
    return encode(Described(ULong(int(kind)), value)) if value else _BARE_STATES[kind]


def statement(
    outcome: Outcome, *, is_receiver: bool, settled: bool, tracked: bool = True
) -> Statement:
    """An outcome as a disposition says it."""
    if outcome is ACCEPTED and is_receiver:
        return ACCEPTED_BY_RECEIVER if settled else _ASKED_TO_ACCEPT
    state = _state(outcome, tracked=tracked)
    return (_TRUE if is_receiver else _FALSE, _TRUE if settled else _FALSE, state)


# One object for each, so that `Wire.dispose` finds deliveries with the same state by identity.
ACCEPTED_BY_RECEIVER: Final[Statement] = (_TRUE, _TRUE, _ACCEPTED)
_ASKED_TO_ACCEPT: Final[Statement] = (_TRUE, _FALSE, _ACCEPTED)
SETTLED_BY_SENDER: Final[dict[OutcomeKind, Statement]] = {
    kind: (_FALSE, _TRUE, state)
    for kind, state in {**_BARE_STATES, OutcomeKind.NONE: b"\x40"}.items()
}
"""A sender's final state: the kind of outcome that the receiver asked for, without details."""


def disposition(channel: int, said: Statement, first: int, last: int) -> bytes:
    role, settled, state = said
    size = len(state)
    head = _disposition(
        32 + size, 0x0200, channel, b"\x00\x53\x15\xd0", 16 + size, 5,
        role, 0x70, first, 0x70, last, settled,
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
) -> bytes:
    fields: list[Any] = [
        UInt(next_incoming_id), UInt(WINDOW), UInt(next_outgoing_id), UInt(WINDOW)
    ]  # fmt: skip
    if handle is not None:
        fields += [UInt(handle), UInt(delivery_count), UInt(credit), None, drain]
    return encode_frame(FLOW, fields, channel=channel)
