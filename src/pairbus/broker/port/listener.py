"""One namespace's port: accepts sockets and picks the protocol by the first bytes.

`0x16` starts TLS, and the first bytes inside it are looked at again. `AMQP` is AMQP. Everything
else is HTTP, which may become AMQP over WebSocket. A peer that sends nothing, or sends too slowly,
loses its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pairbus.broker.connection_limit import ConnectionLimit, Slot
from pairbus.broker.entities.namespace_options import Limits
from pairbus.broker.links.amqp_connection import AmqpConnection
from pairbus.broker.port.certificates import Certificates
from pairbus.broker.port.sockets import close_all, listen_again, reserve
from pairbus.broker.refusals import peer_name
from pairbus.errors import StartError

if TYPE_CHECKING:
    from pairbus.broker.namespace import Namespace
    from pairbus.broker.port.web import Web

logger = logging.getLogger(__name__)

_TLS_HANDSHAKE: Final = 0x16
_AMQP: Final = b"AMQP"
# The answer of a server that requires TLS (AMQP 1.0, 5.2.1).
_AMQP_TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
_HTTP_NEEDS_TLS: Final = (
    b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 36\r\n"
    b"Connection: close\r\n\r\nThis broker takes only TLS (https).\n"
)
# A flood of new connections must not delay the others.
_ACCEPTS_AT_ONCE: Final = 64
# Without file descriptors, accepting again at once would only spin the loop.
_ACCEPT_PAUSE_SECONDS: Final = 0.2
_TLS_CLOSE_SECONDS: Final = 2.0
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        namespace: Namespace,
        certificates: Certificates,
        limits: Limits,
        is_tls_only: bool,
        clock: Callable[[], float],
    ) -> None:
        self.namespace = namespace
        self.limits = limits
        self.is_tls_only = is_tls_only
        self.connections = ConnectionLimit(limits, on_replaced=self._log_replaced)
        self._sockets = list(sockets)
        self._certificates = certificates
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._web: Web | None = None
        self._web_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    # --- life cycle

    def start(self) -> None:
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def stop(self, *, patience_seconds: float) -> None:
        # Stop accepting new connections.
        self._is_stopped = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        close_all(self._sockets)
        self._sockets.clear()
        await self.connections.close_all(patience_seconds=patience_seconds)
        # The remaining tasks have no socket any more.
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._web is not None:
            await self._web.stop()

    # --- faults on demand

    def refuse(self) -> None:
        """Refuse new connections, but keep the port."""
        for index, listening in enumerate(self._sockets):
            self._loop.remove_reader(listening)
            self._sockets[index] = reserve(listening)

    def admit(self) -> None:
        for reserved in self._sockets:
            listen_again(reserved)
        self.start()

    def shut_down_all(self) -> None:
        for slot in self.connections:
            slot.shutdown()

    # --- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    logger.warning(
                        "namespace %s cannot accept connections: %s",
                        self.namespace.name,
                        error.strerror,
                    )
                    self.connections.replace_unauthenticated()
                    self._loop.remove_reader(listening)
                    self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._resume, listening)
                    return
                continue  # the peer went away before it was accepted
            self._open(accepted, address)

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_stopped and listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _open(self, accepted: socket.socket, address: tuple[Any, ...]) -> None:
        slot = self.connections.acquire(address)
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # already closed; the first read finds out
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.spawn(UnknownProtocol(self, slot, accepted).arrive())

    def _log_replaced(self, slot: Slot) -> None:
        reason = "it had shown no valid token, and a new connection took its place"
        self.namespace.refusals.add(peer_name(slot.peer), reason)

    # --- for accepted sockets

    def open_amqp(self, slot: Slot) -> AmqpConnection:
        return AmqpConnection(self.namespace, slot, limits=self.limits)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def tls_context(self) -> ssl.SSLContext:
        now = self._clock()
        if self._certificates.is_ready(now=now):
            return self._certificates.context(now=now)
        # The first one reads files, makes keys and imports a large library: not on the loop.
        return await self._loop.run_in_executor(None, lambda: self._certificates.context(now=now))

    async def web(self) -> Web:
        async with self._web_lock:
            if self._web is None:
                web_class = await self._loop.run_in_executor(None, _import_web)
                self._web = web_class(
                    self.namespace,
                    open_amqp=self.open_amqp,
                    request_seconds=self.limits.handshake_seconds,
                )
            return self._web


def _import_web() -> type[Web]:
    from pairbus.broker.port.web import Web

    return Web


class UnknownProtocol(asyncio.Protocol):
    """An accepted socket whose protocol is not known yet."""

    def __init__(self, listener: Listener, slot: Slot, accepted: socket.socket) -> None:
        self._listener = listener
        self._slot = slot
        self._socket = accepted
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_encrypted = False
        self._pending = b""
        self._arrival: asyncio.Task[None] | None = None
        self._is_shut = False
        """Before it arrived: another connection got its slot."""
        self._deadline = self._loop.call_later(listener.limits.handshake_seconds, self.shutdown)
        slot.occupy(self)

    async def arrive(self) -> None:
        """Run TLS if the peer starts it. `data_received` gets the application's first bytes."""
        self._arrival = asyncio.current_task()
        try:
            if self._is_shut:
                return
            first = await self._peek()
            if not first:
                return
            self._is_encrypted = first[0] == _TLS_HANDSHAKE
            if self._is_encrypted:
                await self._loop.connect_accepted_socket(
                    lambda: self,
                    self._socket,
                    ssl=await self._listener.tls_context(),
                    ssl_handshake_timeout=self._listener.limits.handshake_seconds,
                    ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
                )
            else:
                await self._loop.connect_accepted_socket(lambda: self, self._socket)
        except (OSError, ssl.SSLError) as error:
            logger.debug("a connection failed before its first request: %s", error)
        except StartError as error:
            logger.error("cannot use TLS: %s", error)
        finally:
            self._arrival = None
            if self._transport is None:
                self._deadline.cancel()
                self._socket.close()
                self._slot.free()

    async def _peek(self) -> bytes:
        """The first byte, which stays in the socket: TLS must read it as well."""
        ready: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        self._loop.add_reader(self._socket, wake)
        try:
            await ready
        finally:
            self._loop.remove_reader(self._socket)
        return self._socket.recv(1, socket.MSG_PEEK)

    def shutdown(self) -> None:
        """The peer is too slow, or the broker stops. Just close: the protocol is not known yet."""
        if self._transport is not None:
            self._transport.abort()
        elif self._arrival is not None:
            self._arrival.cancel()
        else:
            self._is_shut = True

    # --- asyncio's Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._slot.occupy(self, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        is_first, self._pending = not self._pending, self._pending + data
        # No HTTP method starts with a prefix of "AMQP", so even its first letter decides.
        is_amqp = self._pending.startswith(_AMQP) or _AMQP.startswith(self._pending)
        if self._listener.is_tls_only and not self._is_encrypted:
            peer = peer_name(self._transport.get_extra_info("peername"))
            self._listener.namespace.refusals.add(peer, "this broker accepts only TLS")
            self._transport.write(_AMQP_TLS_HEADER if is_amqp else _HTTP_NEEDS_TLS)
            self._transport.close()
        elif not is_first:
            return  # it waits already
        elif not is_amqp:
            self._transport.pause_reading()
            self._listener.spawn(self._give_to_web())
        elif delay := self._listener.namespace.bad_tokens.delay_seconds(self._slot.network):
            self._transport.pause_reading()
            self._loop.call_later(delay, self._give_to_amqp)
        else:
            self._give_to_amqp()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._slot.free()

    def _give_to_amqp(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._give_to(self._listener.open_amqp(self._slot))

    async def _give_to_web(self) -> None:
        try:
            web = await self._listener.web()
        except Exception:
            logger.exception("cannot serve HTTP")
            if self._transport is not None:
                self._transport.abort()  # close, so that the client does not wait
            return
        if self._transport is not None and not self._transport.is_closing():
            self._give_to(web.connect(self._slot))
            self._transport.resume_reading()

    def _give_to(self, protocol: Any) -> None:
        assert self._transport is not None
        self._deadline.cancel()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._pending)
