"""uvicorn's HTTP protocol on a socket that was already accepted, with limits of our own.

Imported with the first HTTP connection, because uvicorn and Starlette take longer to load than the
rest of a broker takes to start. Uses only uvicorn's protocol class: no server, no signals, no
lifespan, no logging set-up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pairbus.broker.connection_limit import Slot
from pairbus.broker.hosts import host_of
from pairbus.broker.links.amqp_connection import AmqpConnection
from pairbus.broker.namespace import Namespace
from pairbus.broker.port.http import make_app
from pairbus.broker.port.websocket import WebSocketConnection
from pairbus.broker.refusals import network_of, peer_name

logger = logging.getLogger(__name__)
# uvicorn warns of each bad request, and anybody can send as many as they like.
logger.addFilter(lambda record: record.levelno != logging.WARNING)

_HEAD_BYTES_MAX: Final = 64 * 1024
# Decoding an address takes long for its size, and is done before the token is looked at.
_URL_BYTES_MAX: Final = 8 * 1024
_KEEP_ALIVE_SECONDS: Final = 30
_PIPELINED_MAX: Final = 16


class Web:
    """HTTP for one namespace: one application, one connection object per socket."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        open_amqp: Callable[[Slot], AmqpConnection],
        request_seconds: float,
    ) -> None:
        self.open_amqp = open_amqp
        self.request_seconds = request_seconds
        self.namespace = namespace
        self.state = ServerState()
        self.config = Config(
            _Gate(make_app(namespace), namespace),
            interface="asgi3",
            http=HttpToolsProtocol,
            # uvicorn only checks that there is one; HttpConnection makes it (see below).
            ws=WebSocketConnection,
            lifespan="off",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self.config.load()

    def connect(self, slot: Slot) -> HttpConnection:
        return HttpConnection(self, slot)

    async def stop(self) -> None:
        """Cancel requests that outlived their connection."""
        tasks = tuple(self.state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Gate:
    """Refuses requests for hosts that are not ours, and slows down floods of bad tokens."""

    def __init__(self, app: ASGIApp, namespace: Namespace) -> None:
        self._app = app
        self._namespace = namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host and not self._namespace.hosts.has(host_of(host)):
            response = PlainTextResponse(f"This broker is not {host[:200]!r}.\n", 421)
            await response(scope, receive, send)
            return
        if "authorization" in headers:
            network = network_of(scope.get("client"))
            await asyncio.sleep(self._namespace.bad_tokens.delay_seconds(network))
        await self._app(scope, receive, send)


class HttpConnection(HttpToolsProtocol):
    """uvicorn's protocol, with a deadline for each request and limits for its head."""

    def __init__(self, web: Web, slot: Slot) -> None:
        super().__init__(web.config, web.state, {})
        # A local broker does not log every request.
        self.access_log = False
        self.logger = logger
        self._web = web
        self._slot = slot
        # Per request
        self._deadline: asyncio.TimerHandle | None = None
        self._is_in_head = True
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._slot.occupy(self, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)
        self._slot.free()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._web.request_seconds, self.transport.abort)
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES_MAX and not self.transport.is_closing():
                self.send_400_response(
                    f"The head of a request has at most {_HEAD_BYTES_MAX} bytes."
                )

    def send_400_response(self, msg: str) -> None:
        self._web.namespace.refusals.add(peer_name(self.client), msg)
        super().send_400_response(msg)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _PIPELINED_MAX:
            # One packet may hold thousands. The parser stops, and the client gets status 400.
            raise ValueError(f"at most {_PIPELINED_MAX} requests may wait for their answers")
        self._is_in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > _URL_BYTES_MAX:
            raise ValueError(f"an address may have {_URL_BYTES_MAX} bytes")

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end_deadline()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._end_deadline()
        self.connections.discard(self)
        head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.scope["headers"]:
            head += [name, b": ", value, b"\r\n"]
        head.append(b"\r\n")
        delay = self._web.namespace.bad_tokens.delay_seconds(self._slot.network)
        self.transport.pause_reading()
        self.loop.call_later(delay, self._upgrade, b"".join(head))

    def _upgrade(self, head: bytes) -> None:
        if self.transport.is_closing():
            return
        hosts = self._web.namespace.hosts
        connection = WebSocketConnection(self._slot, self._web.open_amqp, hosts)
        self.transport.resume_reading()
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        connection.data_received(head)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
