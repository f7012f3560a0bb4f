"""One AMQP 1.0 connection, in either role: bytes in, events out, bytes out.

Pure Python. It owns no socket, no thread and no clock: the caller moves the bytes and passes the
time to `tick` (monotonic seconds). It knows AMQP, not Service Bus. It never raises on input: a peer
that breaks a rule gets an AMQP error and a closed connection.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from pairbus.amqp import frames
from pairbus.amqp.codec.types import UInt, UShort
from pairbus.amqp.engine import peer
from pairbus.amqp.engine.attach import field
from pairbus.amqp.engine.events import (
    ConnectionClosed,
    Detached,
    Event,
    Opened,
    SessionBegun,
    SessionEnded,
)
from pairbus.amqp.engine.link import Link, LinkClosed, attach
from pairbus.amqp.engine.session import Session
from pairbus.amqp.engine.wire import EngineLimits, IdleTimer, Wire
from pairbus.amqp.frames import CLOSE, DISPOSITION, OPEN, TRANSFER, FrameError
from pairbus.amqp.outcomes import AmqpError
from pairbus.amqp.sasl import Handshake, SaslClient, SaslServer

_EMPTY_DISPOSITIONS_MAX: Final = 10_000
_ATTACH_SIZE_MAX: Final = 16 * 1024
"""Those of the official SDKs have a few hundred bytes."""
_FRAME_SIZE_MAX: Final = 1024 * 1024
"""The maximum size of the frames that we send, even if the peer accepts larger ones."""
_DEFAULT_LIMITS: Final = EngineLimits()
_head = struct.Struct(">IHHHB").unpack_from
_transfer = peer.transfer
_disposition = peer.disposition


class Engine:
    """One AMQP connection; see the module. Use it in one thread at a time."""

    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str | None = None,
        limits: EngineLimits = _DEFAULT_LIMITS,
        sasl: SaslServer | SaslClient | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(sasl, SaslClient if server else SaslServer):
            raise TypeError(f"{type(sasl).__name__} is not for the role server={server}")
        self._wire = Wire(limits, is_server=server)
        self.error: AmqpError | None = None
        """The reason if the connection ended with an error of either side.

        For a client, a server that breaks a rule counts as a broken connection. The error that was
        sent to the server would look like a mistake of the client.
        """

        self._container_id = container_id
        self._hostname = hostname
        self._properties = properties
        self._held = bytearray()  # the start of an incomplete frame
        self._needed = 0
        self._sessions: dict[int, Session] = {}  # by our channel
        self._by_channel: dict[int, Session] = {}  # by the peer's
        self._has_opened = self._peer_has_opened = False
        self._locally_closed = False
        self.is_over = False
        """Nothing more will be read; there may be something left to send."""
        self._remote_channel_max = 65535
        self._empty_dispositions = 0  # deliveries that dispositions repeated without news
        idle_ms = limits.idle_timeout_ms
        self._idle = IdleTimer(idle_ms / 1000 if idle_ms else None)
        handshake = Handshake(sasl)
        self._handshake: Handshake | None = handshake
        self._handshake_output = handshake.take_output()
        self._muted = server or handshake.speaking_sasl  # AMQP output waits for the handshake
        if not server:
            self._wire.out.append(frames.AMQP_HEADER)

    # -- bytes in -----------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Read the peer's bytes and return the events. Never raises on input."""
        events: list[Event] = []
        if self.is_over:
            return events
        self._idle.has_received = True
        try:
            if self._handshake is not None:
                data = self._shake_hands(data, events)
            if data:
                self._frames(data, events)
        except FrameError as error:
            self._fail(error.error, events)
        except (ValueError, IndexError, struct.error) as error:
            self._fail(AmqpError("amqp:decode-error", f"an unreadable frame: {error}"), events)
        return events

    def _shake_hands(self, data: bytes, events: list[Event]) -> bytes:
        handshake = self._handshake
        assert handshake is not None
        data = handshake.receive(data)
        self._handshake_output += handshake.take_output()
        if handshake.failure is not None:
            self._wire.out.clear()
            if handshake.failure.condition != "amqp:unauthorized-access":
                raise FrameError(handshake.failure.condition, handshake.failure.description)
            self._over(handshake.failure, events)
            return b""
        server = self._wire.is_server
        self._muted = not handshake.done if server else handshake.speaking_sasl
        if handshake.done:
            self._handshake = None
            if server:
                self._wire.out.append(frames.AMQP_HEADER)
        return data

    def _frames(self, data: bytes, events: list[Event]) -> None:
        """Read all complete frames. The loop is minimal, because every message passes here."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        sessions, limit = self._by_channel, self._wire.limits.frame_size_max
        at, end = 0, len(data)
        while end - at >= 11:
            size, shape, channel, constructor, code = _head(data, at)
            after = at + size
            # A plain frame (offset 2, type 0, small descriptor) of an open session.
            if (
                shape == 0x0200
                and constructor == 0x0053
                and 12 <= size <= limit
                and channel in sessions
            ):
                if after > end:
                    break
                if code == TRANSFER:
                    session = sessions[channel]
                    if session.alive:
                        _transfer(session, data, at + 11, after, events)
                    at = after
                    continue
                if code == DISPOSITION:
                    session = sessions[channel]
                    if session.alive:
                        self._disposed(_disposition(session, data, at + 11, after, events))
                    at = after
                    continue
            if not 8 <= size <= limit:
                raise self._bad_size(size)
            if after > end:
                break
            self._frame(data, at, size, events)
            if self.is_over:
                return
            at = after
        if at < end:
            self._hold(data, at, end, events)

    def _hold(self, data: bytes, at: int, end: int, events: list[Event]) -> None:
        size = 8
        while end - at >= 4:
            size = int.from_bytes(data[at : at + 4], "big")
            if not 8 <= size <= self._wire.limits.frame_size_max:
                raise self._bad_size(size)
            if at + size > end:
                break
            self._frame(data, at, size, events)  # a heartbeat at the very end
            at, size = at + size, 8
        self._held += data[at:]
        self._needed = size

    def _bad_size(self, size: int) -> FrameError:
        said = f"a frame of {size} bytes; 8 to {self._wire.limits.frame_size_max} are allowed"
        return FrameError("amqp:connection:framing-error", said)

    def _disposed(self, in_vain: int) -> None:
        """One disposition of 30 bytes can name all deliveries repeatedly. A correct peer does not
        repeat itself more often than it sends something new.
        """
        if in_vain:
            self._empty_dispositions = max(0, self._empty_dispositions + in_vain)
            if self._empty_dispositions > _EMPTY_DISPOSITIONS_MAX:
                said = f"more than {_EMPTY_DISPOSITIONS_MAX} dispositions that say nothing new"
                raise FrameError("amqp:not-allowed", said)

    def _frame(self, data: bytes, at: int, size: int, events: list[Event]) -> None:
        """Any frame but a plain transfer or disposition."""
        offset, kind = data[at + 4] * 4, data[at + 5]
        if kind != 0 or not 8 <= offset <= size:
            raise FrameError(
                "amqp:connection:framing-error",
                f"a frame of type {kind} with its body at {offset} of {size} bytes; "
                "type 0 and a body inside the frame are expected",
            )
        if offset == size:
            return  # a heartbeat
        start, end = at + offset, at + size
        if self._locally_closed:
            # Only the peer's close is of interest.
            self.is_over = data[start : start + 3] == b"\x00\x53\x18"
            return
        code, fields = frames.decode_performative(data[start:end])
        if code == frames.ATTACH and size > _ATTACH_SIZE_MAX:
            said = f"an attach of {size} bytes; {_ATTACH_SIZE_MAX} are allowed"
            raise FrameError("amqp:resource-limit-exceeded", said)
        if self._peer_has_opened == (code == OPEN):
            said = "a second open" if code == OPEN else f"performative 0x{code:x} before open"
            raise FrameError("amqp:illegal-state", said)
        channel = int.from_bytes(data[at + 6 : at + 8], "big")
        if code == OPEN:
            self._on_open(fields, events)
        elif code == CLOSE:
            self._say_close(None)
            self._over(frames.read_error(fields[0] if fields else None), events, by_peer=True)
        elif code == frames.BEGIN:
            self._on_begin(channel, fields, events)
        else:
            session = self._by_channel.get(channel)
            if code not in _ON_SESSION and code not in (TRANSFER, DISPOSITION, frames.END):
                raise FrameError("amqp:not-implemented", f"unknown performative 0x{code:x}")
            if session is None:
                said = f"a frame on channel {channel}, which has no session"
                raise FrameError("amqp:not-allowed", said)
            if code == frames.END:
                self._on_end(channel, session, fields, events)
            elif session.alive:
                if code in _ON_SESSION:
                    _ON_SESSION[code](session, fields, events)
                else:  # with a descriptor of eight bytes, or an extended header
                    self._unusual(session, code, data[start:end], events)

    def _unusual(self, session: Session, code: int, body: bytes, events: list[Event]) -> None:
        at = 10 if body[1] == 0x80 else 3
        if code == TRANSFER:
            _transfer(session, body, at, len(body), events)
        else:
            self._disposed(_disposition(session, body, at, len(body), events))

    def _on_open(self, fields: list[Any], events: list[Event]) -> None:
        container_id = field(fields, 0, str, "open", "container-id")
        fields = fields + [None] * (10 - len(fields))
        hostname = fields[1] if isinstance(fields[1], str) else None
        size, channels, idle = (
            int(value) if isinstance(value, int) and not isinstance(value, bool) else default
            for value, default in zip(fields[2:5], (0xFFFFFFFF, 65535, 0), strict=True)
        )
        self._wire.frame_size_max = max(512, min(size, _FRAME_SIZE_MAX))
        self._remote_channel_max = channels
        self._idle.peer_seconds = max(0, idle) / 1000
        self._peer_has_opened = True
        self.open()
        events.append(Opened(container_id, hostname, frames.string_map(fields[9])))

    def _on_begin(self, channel: int, fields: list[Any], events: list[Event]) -> None:
        ours = field(fields, 0, UShort, "begin", "remote-channel", optional=True)
        next_id, window, _ = (
            field(fields, index, UInt, "begin", name)
            for index, name in enumerate(("next-outgoing-id", "incoming-window", "window"), 1)
        )
        if channel in self._by_channel:
            raise FrameError("amqp:not-allowed", f"begin on channel {channel}, which is in use")
        if self._wire.is_server:
            if channel > (limit := self._wire.limits.channel_max):
                said = f"begin on channel {channel}; channel_max is {limit}"
                raise FrameError("amqp:connection:framing-error", said)
            if len(self._sessions) >= (limit := self._wire.limits.sessions_max):
                said = f"session {limit + 1} is one too many: at most {limit} are allowed now"
                raise FrameError("amqp:resource-limit-exceeded", said)
            session = None
            if ours is None:
                self._sessions[channel] = session = Session(self._wire, channel, channel)
        else:
            session = self._sessions.get(ours) if ours is not None else None
        if session is None or session in self._by_channel.values():
            raise FrameError(
                "amqp:not-allowed",
                f"begin on channel {channel} answers channel {ours}, which was not asked for",
            )
        self._by_channel[channel] = session
        session._next_incoming_id = int(next_id)
        session._remote_window = int(window)
        session._unblock()
        if session.alive:
            events.append(SessionBegun(session))

    def _on_end(
        self, channel: int, session: Session, fields: list[Any], events: list[Event]
    ) -> None:
        del self._by_channel[channel], self._sessions[session.channel]
        if session.alive:
            error = frames.read_error(fields[0] if fields else None)
            events += [
                Detached(link, True, error) for link in session._links.values() if link.alive
            ]
            session.end()
            events.append(SessionEnded(session, error))

    # -- bytes out ----------------------------------------------------------------------------

    def data_to_send(self) -> bytes:
        """Take all bytes that are ready for the peer."""
        wire = self._wire
        wire.end_run()
        out = wire.out
        if self._handshake_output or self._muted:
            first, self._handshake_output = self._handshake_output, b""
            if self._muted:
                return first
            out.insert(0, first)
        if not out:
            return b""
        self._idle.has_sent = True
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    @property
    def has_output(self) -> bool:
        self._wire.end_run()
        return bool(self._handshake_output) or (bool(self._wire.out) and not self._muted)

    # -- time ---------------------------------------------------------------------------------

    def tick(self, *, now: float) -> float | None:
        """Let time pass (monotonic seconds): heartbeats, idle time-out.

        Returns when to call it again. It may make output. It may end the connection: then `is_over`
        is true, and `error` has the reason.
        """
        if self.is_over or self._muted or self._locally_closed:
            return None
        if self._idle.is_peer_silent(now):
            said = f"nothing was received for {(self._wire.limits.idle_timeout_ms or 0) / 1000:g} s"
            error = AmqpError("amqp:resource-limit-exceeded", said)
            self._say_close(error)
            self._over(error, [])
            return None
        if self._idle.is_heartbeat_due(now) and not self.has_output:
            self._wire.out.append(frames.HEARTBEAT)
        return self._idle.next_tick(now)

    def set_limits(self, limits: EngineLimits) -> None:
        """Change the limits from now on. Those that were sent in the open frame must not change."""
        self._wire.limits = limits
        self._wire.unsettled_max = limits.unsettled_max

    def peer_is_active(self) -> None:
        """Restart the idle time-out: bytes have arrived that `receive` gets later, or never."""
        self._idle.has_received = True

    # -- endings ------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Nothing more will be read or sent: the socket may be closed."""
        return self.is_over and not self._handshake_output and not self._wire.out

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection. All handles are dead at once; `closed` when the peer has answered.

        A peer may never answer: the caller decides how long to wait.
        """
        if self.is_over or self._locally_closed:
            return
        if error is not None:
            self.error = error
        has_opened = self._has_opened and self._handshake is None
        self._say_close(error)
        self._locally_closed = True
        # Until the handshake has ended, there is no answer to wait for.
        self.is_over = not has_opened
        self._forget_all()

    def free(self) -> None:
        """Discard everything, including pending output. Every handle is dead afterwards."""
        self.is_over = True
        self._forget_all()
        self._wire.out.clear()
        self._handshake_output = b""
        self._held.clear()

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        """The peer broke a rule: send it the error, and ignore all further input."""
        if not self._locally_closed:
            self._say_close(error)
        if not self._wire.is_server:
            error = AmqpError("amqp:connection:framing-error", f"the peer broke a rule: {error}")
        self._over(error, events)

    def _over(self, error: AmqpError | None, events: list[Event], *, by_peer: bool = False) -> None:
        self.is_over = True
        if error is not None:
            self.error = error
        self._forget_all()
        events.append(ConnectionClosed(error, by_peer))

    def _say_close(self, error: AmqpError | None) -> None:
        wire = self._wire
        if self._handshake is not None:
            wire.out.clear()
            return
        self.open()
        wire.end_run()
        wire.out.append(frames.encode_frame(CLOSE, [frames.encode_error(error)] if error else []))

    def _forget_all(self) -> None:
        for session in self._sessions.values():
            if session.alive:
                session._forget_all()
        self._sessions.clear()
        self._by_channel.clear()
        self._held.clear()
        self._wire.forget()

    # -- what a client begins -----------------------------------------------------------------

    def open(self) -> None:
        """Client: send open. (A server answers the peer's.) May be called before SASL is over."""
        if self._has_opened or self.is_over or self._locally_closed:
            return
        self._has_opened = True
        limits = self._wire.limits
        fields: list[Any] = [
            self._container_id,
            self._hostname,
            UInt(limits.frame_size_max),
            UShort(limits.channel_max),
            UInt(limits.idle_timeout_ms // 2) if limits.idle_timeout_ms else None,
        ]
        if self._properties:
            fields += [None, None, None, None, frames.symbol_map(self._properties)]
        self._wire.out.append(frames.encode_frame(OPEN, fields))

    def session(self) -> Session:
        """Client: begin a session. It may be used at once, before the peer has answered."""
        self._check_usable()
        channel = 0
        while channel in self._sessions:
            channel += 1
        if channel > self._remote_channel_max:
            said = f"all {self._remote_channel_max + 1} sessions that the peer allows are in use"
            raise FrameError("amqp:resource-limit-exceeded", said)
        self._sessions[channel] = session = Session(self._wire, channel, None)
        return session

    def attach_sender(self, session: Session, name: str, target: str, **settings: Any) -> Link:
        """Client: attach a link to send to `target`. For the settings see `link.attach`."""
        self._check_usable()
        settings = {"source": name, **settings}
        return attach(session, name, is_sender=True, target=target, **settings)

    def attach_receiver(self, session: Session, name: str, source: str, **settings: Any) -> Link:
        """Client: attach a link to receive from `source`. For the settings see `link.attach`."""
        self._check_usable()
        settings = {"target": name, **settings}
        return attach(session, name, is_sender=False, source=source, **settings)

    def _check_usable(self) -> None:
        if self.is_over or self._locally_closed:
            raise LinkClosed("the connection is over")
        if self._wire.is_server:
            raise ValueError("sessions and links are the client's to begin; this is a server")


_ON_SESSION: Final = {
    frames.ATTACH: peer.attach,
    frames.FLOW: peer.flow,
    frames.DETACH: peer.detach,
}
