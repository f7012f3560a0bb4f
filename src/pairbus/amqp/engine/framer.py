"""Cutting a stream of bytes into AMQP frames, and vetting those that Proton takes on trust.

Proton keeps channels and handles in tables of bare pointers: a peer that maps one session to two
channels, or two links to one handle, makes it touch freed memory. So every frame but the frequent
ones (transfer, flow, disposition) is decoded here first, strictly, and a peer that breaks a rule is
named before Proton sees the frame. Knows nothing of events, links or Proton.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pairbus.amqp.codec.types import Symbol, UInt, UShort
from pairbus.amqp.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    FrameError,
    decode_performative,
    u32,
)

_SMALL_DISPOSITION: Final = 160  # larger ones carry maps, whose nesting Proton does not check
_head = struct.Struct(">IHHHB").unpack_from


class Framer:
    """Takes bytes as they come, gives whole frames that are safe to hand to Proton."""

    __slots__ = (
        "_answered",
        "_channels",
        "_client",
        "_ended",
        "_frame_size_max",
        "_held",
        "_held_size",
        "_link_count",
        "_links_max",
        "_needed",
        "_opened",
    )

    def __init__(self, *, client: bool, frame_size_max: int, links_max: int) -> None:
        self._client = client
        self._frame_size_max = frame_size_max
        self._links_max = links_max
        self._held: list[bytes] = []  # the beginning of a frame whose end has not come yet
        self._held_size = 0
        self._needed = 0
        self._opened = False
        self._channels: dict[int, set[int]] = {}  # the peer's channels, each with its handles
        self._answered: dict[int, int] = {}  # our channel -> the peer's, for sessions we began
        self._link_count = 0
        self._ended = False

    def has_ended(self) -> bool:
        """A close frame was seen: whatever comes after it is ignored."""
        return self._ended

    def feed(self, data: bytes) -> bytes:
        """All frames that are complete, checked.

        On a broken rule the good frames before it are lost with the bad one: the connection
        ends anyway, and nothing of them was acknowledged.
        """
        if self.has_ended():
            return b""
        if self._held:
            self._held.append(data)
            self._held_size += len(data)
            if self._held_size < self._needed:
                return b""
            data = b"".join(self._held)
            self._held.clear()
        pos, end, limit = 0, len(data), self._frame_size_max
        while pos + 11 <= end:
            size, shape, channel, constructor, code = _head(data, pos)
            # A plain frame (offset 2, type 0, small descriptor) with a frequent performative.
            if (
                shape == 0x0200
                and constructor == 0x0053
                and FLOW <= code <= DISPOSITION
                and 12 <= size <= limit
                and (code != DISPOSITION or size <= _SMALL_DISPOSITION)
            ):
                after = pos + size
                if after > end:
                    break
                pos = after
                continue
            after = self._vet(data, pos, size, shape, channel)
            if after > end:
                break
            pos = after
            if self.has_ended():
                return data[:pos]
        if pos == end:
            return data
        return self._hold(data, pos, end)

    def _hold(self, data: bytes, pos: int, end: int) -> bytes:
        if end - pos >= 4:
            size = u32(data, pos)
            if not 8 <= size <= self._frame_size_max:
                raise self._bad_size(size)
            if pos + size <= end:  # an empty frame at the very end: a heartbeat
                if end - pos >= 8 and data[pos + 4 : pos + 6] != b"\x02\x00":
                    raise FrameError("amqp:connection:framing-error", "a malformed empty frame")
                return data[: pos + size] + self._hold(data[pos + size :], 0, end - pos - size)
            self._needed = size
        elif end == pos:
            return data[:pos]
        else:
            self._needed = 8
        self._held.append(data[pos:])
        self._held_size = end - pos
        return data[:pos]

    def _bad_size(self, size: int) -> FrameError:
        return FrameError(
            "amqp:connection:framing-error",
            f"a frame of {size} bytes; 8 to {self._frame_size_max} are allowed",
        )

    def _vet(self, data: bytes, pos: int, size: int, shape: int, channel: int) -> int:
        """Check one frame that is not a plain frequent one; returns where it ends.

        The end may lie beyond the data: then nothing was checked but the size.
        """
        if not 8 <= size <= self._frame_size_max:
            raise self._bad_size(size)
        after = pos + size
        if after > len(data):
            return after
        offset, kind = (shape >> 8) * 4, shape & 0xFF
        if kind != 0 or not 8 <= offset <= size:
            raise FrameError(
                "amqp:connection:framing-error",
                f"a frame of type {kind} with its body at {offset} of {size} bytes; "
                "type 0 and a body inside the frame are expected",
            )
        if offset == size:
            return after  # a heartbeat
        try:
            code, fields = decode_performative(data[pos + offset : after])
        except ValueError as error:
            raise FrameError("amqp:decode-error", f"an unreadable frame: {error}") from error
        if code not in _RULES:
            raise FrameError("amqp:not-implemented", f"unknown performative 0x{code:x}")
        if self._opened == (code == OPEN):
            said = "a second open" if self._opened else f"performative 0x{code:x} before open"
            raise FrameError("amqp:illegal-state", said)
        _RULES[code](self, channel, fields)
        return after

    # -- one rule per performative ------------------------------------------------------------

    def _open(self, channel: int, fields: list[Any]) -> None:
        if not fields or not isinstance(fields[0], str) or isinstance(fields[0], Symbol):
            raise FrameError("amqp:invalid-field", "open without a container-id")
        self._opened = True

    def _begin(self, channel: int, fields: list[Any]) -> None:
        ours = _field(fields, 0, UShort, "begin", "remote-channel", optional=True)
        if channel in self._channels:
            raise FrameError("amqp:not-allowed", f"begin on channel {channel}, which is in use")
        if self._client != (ours is not None):
            raise FrameError(
                "amqp:not-allowed",
                f"begin on channel {channel} answers channel {ours}, which was not asked for",
            )
        if ours is not None:
            if ours in self._answered:
                raise FrameError("amqp:not-allowed", f"channel {ours} was answered twice")
            self._answered[ours] = channel
        self._channels[channel] = set()

    def _attach(self, channel: int, fields: list[Any]) -> None:
        name = _field(fields, 0, str, "attach", "name")
        handle = _field(fields, 1, UInt, "attach", "handle")
        _field(fields, 2, bool, "attach", "role")
        handles = self._handles(channel)
        if handle in handles:
            raise FrameError(
                "amqp:session:handle-in-use", f"link {name!r} asks for handle {handle}, in use"
            )
        if self._link_count >= self._links_max:
            raise FrameError(
                "amqp:resource-limit-exceeded",
                f"link {name!r} is one too many: a connection may have {self._links_max}",
            )
        handles.add(handle)
        self._link_count += 1

    def _detach(self, channel: int, fields: list[Any]) -> None:
        handle = _field(fields, 0, UInt, "detach", "handle")
        handles = self._handles(channel)
        if handle not in handles:
            raise FrameError(
                "amqp:session:unattached-handle", f"detach of handle {handle}, which is not in use"
            )
        handles.discard(handle)
        self._link_count -= 1

    def _end(self, channel: int, fields: list[Any]) -> None:
        self._link_count -= len(self._handles(channel))
        del self._channels[channel]
        self._answered = {ours: peer for ours, peer in self._answered.items() if peer != channel}

    def _close(self, channel: int, fields: list[Any]) -> None:
        self._ended = True

    def _on_channel(self, channel: int, fields: list[Any]) -> None:
        self._handles(channel)

    def _handles(self, channel: int) -> set[int]:
        try:
            return self._channels[channel]
        except KeyError:
            raise FrameError(
                "amqp:not-allowed", f"a frame on channel {channel}, which has no session"
            ) from None


_RULES: Final = {
    OPEN: Framer._open,
    BEGIN: Framer._begin,
    ATTACH: Framer._attach,
    FLOW: Framer._on_channel,
    TRANSFER: Framer._on_channel,
    DISPOSITION: Framer._on_channel,
    DETACH: Framer._detach,
    END: Framer._end,
    CLOSE: Framer._close,
}


def _field(
    fields: list[Any], index: int, kind: type, frame: str, name: str, *, optional: bool = False
) -> Any:
    """A field of exactly the type that Proton would read it as: else the two would disagree."""
    value = fields[index] if index < len(fields) else None
    if value is None and optional:
        return None
    if not isinstance(value, kind) or isinstance(value, Symbol):
        raise FrameError(
            "amqp:invalid-field", f"{name} of {frame} is {value!r}, not of type {kind.__name__}"
        )
    return value
