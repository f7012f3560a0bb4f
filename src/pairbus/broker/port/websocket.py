"""AMQP over WebSocket: its frames on one side, the bytes of an AMQP connection on the other.

The `websockets` library does the handshake and the framing, without I/O. The AMQP connection sees a
transport like any other, with the back-pressure of the socket underneath. AMQP bytes may be split
and joined across frames in any way, so nothing is reassembled here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import unquote

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pairbus.broker.connection_limit import Slot
from pairbus.broker.hosts import HostNames, host_of
from pairbus.broker.links.amqp_connection import AmqpConnection

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOL: Final = Subprotocol("AMQPWSB10")
# The library collects the whole frame before we see any of it.
_FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
_UNAUTHENTICATED_FRAME_BYTES_MAX: Final = 128 * 1024
# Pongs are the only output that AMQP's own flow control does not limit.
_PINGS_UNREAD_MAX: Final = 1000
_CLOSE_SECONDS: Final = 2.0


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """The library logs every connection at level info; here that is level debug."""

    def info(self, msg: object, *args: Any, **kwargs: Any) -> None:
        self.debug(msg, *args, **kwargs)


_QUIET: Final = _Quiet(logging.getLogger(__name__))


class WebSocketConnection(asyncio.Protocol):
    """One upgraded HTTP connection, until its socket is closed."""

    def __init__(
        self, slot: Slot, open_amqp: Callable[[Slot], AmqpConnection], hosts: HostNames
    ) -> None:
        self._slot = slot
        self._hosts = hosts
        self._open_amqp = open_amqp
        self._wire = ServerProtocol(
            subprotocols=[SUBPROTOCOL],
            max_size=(None, _UNAUTHENTICATED_FRAME_BYTES_MAX),
            logger=_QUIET,
        )
        self._transport: asyncio.Transport | None = None
        self._amqp: AmqpConnection | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._is_writable = True
        self._pings_unread = 0

    # --- from the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._slot.occupy(self, transport)

    def data_received(self, data: bytes) -> None:
        if self._slot.is_authenticated:
            self._wire.max_fragment_size = _FRAME_BYTES_MAX
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame):
                self._take(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self._amqp is not None:
            self._amqp.connection_lost(exc)
        self._slot.free()

    def pause_writing(self) -> None:
        self._is_writable = False
        if self._amqp is not None:
            self._amqp.pause_writing()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._pings_unread = 0
        if self._amqp is not None:
            self._amqp.resume_writing()

    # --- from the server and the AMQP connection

    def shutdown(self) -> None:
        if self._amqp is not None:
            self._amqp.shutdown()
        elif self._transport is not None:
            self._transport.close()

    def send(self, data: bytes) -> None:
        if self._wire.state is State.OPEN:
            self._wire.send_binary(data)
            self.flush()

    def close(self) -> None:
        """Send a close frame, and give the peer a moment to answer before the socket closes."""
        assert self._transport is not None
        if self._wire.state is State.OPEN:
            self._wire.send_close(CloseCode.NORMAL_CLOSURE)
            self.flush()
        if self._close_timer is None:
            loop = asyncio.get_running_loop()
            self._close_timer = loop.call_later(_CLOSE_SECONDS, self._transport.close)

    def flush(self) -> None:
        transport = self._transport
        assert transport is not None
        for chunk in self._wire.data_to_send():
            if chunk:
                transport.write(chunk)
            else:  # the library's sign for the end
                transport.close()

    # --- one event each

    def _answer(self, request: Request) -> None:
        path = unquote(request.path.partition("?")[0]).rstrip("/").lower()
        if path != PATH:
            text = f"There is no WebSocket at {path[:200]!r}; AMQP is at {PATH}.\n"
            self._wire.send_response(self._wire.reject(HTTPStatus.NOT_FOUND, text))
            return
        if (refusal := self._refusal(request)) is not None:
            self._wire.send_response(self._wire.reject(HTTPStatus.FORBIDDEN, refusal))
            return
        self._wire.send_response(self._wire.accept(request))
        if self._wire.state is State.OPEN:
            self.flush()
            self._amqp = self._open_amqp(self._slot)
            self._amqp.connection_made(_WebSocketTransport(self, self._transport))

    def _refusal(self, request: Request) -> str | None:
        """Browsers send the page's origin, and let any page connect. Only the broker can refuse."""
        host = ", ".join(request.headers.get_all("Host"))
        if not self._hosts.has(host_of(host)):
            return f"This broker is not {host[:200]!r}.\n"
        for origin in request.headers.get_all("Origin"):
            if origin.partition("://")[2].lower() != host.lower():
                return f"A page of {origin[:200]!r} may not connect to this broker.\n"
        return None

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT) and self._amqp is not None:
            self._amqp.data_received(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:
            self._wire.fail(CloseCode.UNSUPPORTED_DATA, "send AMQP in binary frames")
        elif frame.opcode is Opcode.PING and not self._is_writable:
            self._pings_unread += 1
            if self._pings_unread > _PINGS_UNREAD_MAX:
                assert self._transport is not None
                self._transport.abort()


class _WebSocketTransport(asyncio.Transport):
    """The transport of an AMQP connection inside a WebSocket."""

    def __init__(self, connection: WebSocketConnection, below: asyncio.Transport | None) -> None:
        super().__init__()
        assert below is not None
        self._connection = connection
        self._below = below
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_closing:
            self._connection.send(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.close()

    def abort(self) -> None:
        self._is_closing = True
        self._below.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._below.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._below.pause_reading()

    def resume_reading(self) -> None:
        self._below.resume_reading()
