"""An AMQP 1.0 connection in the client role without any I/O: bytes in, state, bytes out.

Pure Python, unlike `engine`, for two reasons: it runs where no C library can be shipped to, and a
message costs it a third, because a client does not need an object of C's for each of them. The
caller moves the bytes. Whatever the peer sends, `receive` does not raise: one that breaks a rule
gets a close with the reason, and `is_over` says so.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from pairbus.amqp.client.frames import read_error
from pairbus.amqp.client.session import Session
from pairbus.amqp.codec.types import Symbol, UInt, UShort
from pairbus.amqp.frames import (
    AMQP_HEADER,
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
    encode_error,
    encode_frame,
)
from pairbus.amqp.handshake import Handshake
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import SaslClient

FRAME_SIZE_MAX: Final = 1024 * 1024
_CHANNEL_MAX: Final = 65535
_BROKEN: Final = "amqp:connection:framing-error"
_head = struct.Struct(">IHHHB").unpack_from
_plain = struct.Struct(">IHH4sB3sI2s16s").unpack_from
_PLAIN_SIZE: Final = 38
"""The transfer that nearly all are: a short list of handle 0, a delivery-id, a tag of 16 bytes and
a message-format, hence of a whole message. Its fields are read in one go."""


class Core:
    __slots__ = (
        "_by_remote_channel",
        "_frame_size_max",
        "_handshake",
        "_held",
        "_held_size",
        "_needed",
        "_open",
        "_remote_channel_max",
        "closing",
        "error",
        "is_over",
        "message_size_max",
        "opened",
        "out",
        "remote_frame_size_max",
        "remote_idle_ms",
        "sessions",
    )  # fmt: skip

    def __init__(
        self,
        *,
        container_id: str,
        hostname: str,
        sasl: SaslClient | None = None,
        idle_timeout_ms: int | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        message_size_max: int = 128 * 1024 * 1024,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.out: list[bytes] = []
        """What the peer is to get; whoever sends it clears the list."""
        self.opened = False
        self.closing = False
        self.is_over = False
        self.error: AmqpError | None = None
        """Why it is over, by the peer's word or ours."""
        self.remote_idle_ms = 0
        """After so long a silence the peer gives us up; 0: never."""
        self.remote_frame_size_max = 512
        self._remote_channel_max = 0
        self.message_size_max = message_size_max
        self.sessions: dict[int, Session] = {}
        self._by_remote_channel: dict[int, Session] = {}
        self._frame_size_max = frame_size_max
        self._held: list[bytes] = []
        self._held_size = self._needed = 0
        fields: list[Any] = [
            container_id,
            hostname,
            UInt(frame_size_max),
            UShort(_CHANNEL_MAX),
            UInt(idle_timeout_ms) if idle_timeout_ms else None,
        ]
        if properties:
            named = {Symbol(key): value for key, value in properties.items()}
            fields += [None, None, None, None, named]
        self._open = AMQP_HEADER + encode_frame(OPEN, fields)
        self._handshake: Handshake | None = Handshake(sasl)
        self._greet()

    def write(self, frame: bytes) -> None:
        self.out.append(frame)

    # -- ours to say ------------------------------------------------------------------------

    def begin(self, *, is_shared: bool = False) -> Session:
        """A session of its own channel. Only once `opened`."""
        channel = 0
        while channel in self.sessions:
            channel += 1
        if channel > self._remote_channel_max:
            said = f"all {self._remote_channel_max + 1} sessions that the peer allows are in use"
            raise FrameError("amqp:resource-limit-exceeded", said)
        self.sessions[channel] = session = Session(self, channel, is_shared=is_shared)
        return session

    def close(self, error: AmqpError | None = None) -> None:
        """Say goodbye; `is_over` when the peer has answered."""
        if self.is_over or self.closing:
            return
        self.closing = True
        if self._handshake is not None:  # the peer has not met us: there is nothing to say
            self.end(error)
            return
        self.write(encode_frame(CLOSE, [encode_error(error)] if error else []))
        self._end_sessions(error)

    def end(self, error: AmqpError | None) -> None:
        """It is over, for whatever reason: a closed socket, a broken rule, a close."""
        if not self.is_over:
            self.is_over = True
            self.error = error
            self._end_sessions(error)

    def _end_sessions(self, error: AmqpError | None) -> None:
        for session in self.sessions.values():
            if not session.is_over:
                session.end(error)

    # -- bytes in ---------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self.is_over:
            return
        try:
            if self._handshake is not None:
                data = self._shake_hands(data)
            if data:
                self._frames(data)
        except FrameError as error:
            self._fail(error.error)
        except (ValueError, IndexError, struct.error) as error:
            self._fail(AmqpError("amqp:decode-error", f"an unreadable frame: {error}"))

    def _fail(self, error: AmqpError) -> None:
        """The peer broke a rule. It is told which; to ourselves, it is the peer that is broken."""
        if self._handshake is None and not self.closing:
            self.write(encode_frame(CLOSE, [encode_error(error)]))
        self.end(AmqpError(_BROKEN, f"the peer broke a rule: {error}"))

    def _shake_hands(self, data: bytes) -> bytes:
        handshake = self._handshake
        assert handshake is not None
        data = handshake.receive(data)
        self._greet()
        if handshake.failure is not None:
            if handshake.failure.condition == "amqp:unauthorized-access":
                self.end(handshake.failure)
            else:
                self._fail(handshake.failure)
        elif handshake.done:
            self._handshake = None
        return data

    def _greet(self) -> None:
        handshake = self._handshake
        assert handshake is not None
        if handshake.output:
            self.write(handshake.output)
            handshake.output = b""
        if self._open and not handshake.speaking_sasl:
            self.write(self._open)
            self._open = b""

    def _frames(self, data: bytes) -> None:
        """Read all whole frames. A loop as bare as it can be: every message passes here."""
        if self._held:
            self._held.append(data)
            self._held_size += len(data)
            if self._held_size < self._needed:
                return
            data = b"".join(self._held)
            self._held.clear()
        sessions = self._by_remote_channel
        at, end = 0, len(data)
        while end - at >= 11:
            if end - at >= _PLAIN_SIZE:
                size, shape, channel, start, length, fields, number, form, tag = _plain(data, at)
                after = at + size
                if (
                    fields == b"\x04\x43\x70"
                    and form == b"\xa0\x10"
                    and start == b"\x00\x53\x14\xc0"
                    and shape == 0x0200
                    and at + 13 + length <= after <= end
                    and channel in sessions
                    and sessions[channel].on_message(number, tag, data[at + 13 + length : after])
                ):
                    at = after
                    continue
            size, shape, channel, constructor, code = _head(data, at)
            after = at + size
            if after > end:
                break
            if code == TRANSFER and shape == 0x0200 and constructor == 0x0053:
                if size < 12 or channel not in sessions:
                    raise FrameError("amqp:not-allowed", f"a transfer on channel {channel}")
                sessions[channel].on_transfer(data, at + 11, after)
            else:
                self._frame(data, at, size)
                if self.is_over:
                    return
            at = after
        if at < end:
            self._hold(data, at, end)

    def _hold(self, data: bytes, at: int, end: int) -> None:
        left, limit = end - at, self._frame_size_max
        if left >= 4:
            size = int.from_bytes(data[at : at + 4], "big")
            if not 8 <= size <= limit:
                raise FrameError(
                    "amqp:connection:framing-error",
                    f"a frame of {size} bytes; 8 to {limit} are allowed",
                )
            if size <= left:  # a heartbeat at the very end
                self._frame(data, at, size)
                self._hold(data, at + size, end)
                return
        elif left == 0:
            return
        else:
            size = 8
        self._held.append(data[at:])
        self._held_size, self._needed = left, size

    def _frame(self, data: bytes, at: int, size: int) -> None:
        """Any frame but a plain transfer."""
        offset, kind = data[at + 4] * 4, data[at + 5]
        if kind != 0 or not 8 <= offset <= size <= self._frame_size_max:
            raise FrameError(
                "amqp:connection:framing-error",
                f"a frame of type {kind} with its body at {offset} of {size} bytes",
            )
        if offset == size:
            return  # a heartbeat
        channel = int.from_bytes(data[at + 6 : at + 8], "big")
        code, fields = decode_performative(data[at + offset : at + size])
        if self.opened == (code == OPEN):
            raise FrameError("amqp:illegal-state", f"performative 0x{code:x} at a wrong time")
        if code == OPEN:
            self._on_open(fields)
        elif code == CLOSE:
            self._on_close(fields)
        elif code == BEGIN:
            self._on_begin(channel, fields)
        else:
            session = self._by_remote_channel.get(channel)
            if session is None:
                raise FrameError("amqp:not-allowed", f"a frame on channel {channel}: no session")
            if code == END:
                self._on_end(channel, session, fields)
            elif not session.is_over:
                self._on_session(session, code, fields)

    def _on_session(self, session: Session, code: int, fields: list[Any]) -> None:
        if code == DISPOSITION:
            session.on_disposition(fields)
        elif code == FLOW:
            session.on_flow(fields)
        elif code == ATTACH:
            session.on_attach(fields)
        elif code == DETACH:
            session.on_detach(fields)
        else:
            raise FrameError("amqp:not-implemented", f"unknown performative 0x{code:x}")

    def _on_open(self, fields: list[Any]) -> None:
        self.opened = True
        size, channels, idle = (
            fields[index] if len(fields) > index and isinstance(fields[index], int) else default
            for index, default in ((2, 0xFFFFFFFF), (3, 65535), (4, 0))
        )
        self.remote_frame_size_max = max(512, min(int(size), FRAME_SIZE_MAX))
        self._remote_channel_max = int(channels)
        self.remote_idle_ms = int(idle)

    def _on_close(self, fields: list[Any]) -> None:
        if not self.closing:
            self.write(encode_frame(CLOSE, []))
        self.end(read_error(fields[0] if fields else None))

    def _on_begin(self, channel: int, fields: list[Any]) -> None:
        ours = fields[0] if fields else None
        session = self.sessions.get(ours) if isinstance(ours, int) else None
        if session is None or session.begun or channel in self._by_remote_channel:
            raise FrameError("amqp:not-allowed", f"a begin that answers channel {ours}")
        self._by_remote_channel[channel] = session
        session.on_begin(fields)

    def _on_end(self, channel: int, session: Session, fields: list[Any]) -> None:
        del self._by_remote_channel[channel], self.sessions[session.channel]
        if not session.is_over:
            session.end(read_error(fields[0] if fields else None))
            self.write(encode_frame(END, [], channel=session.channel))
