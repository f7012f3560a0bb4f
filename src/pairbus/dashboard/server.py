"""Serves the page, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from errno import EADDRNOTAVAIL
from pathlib import Path
from typing import Any, Final

from pairbus.cli.signals import stop_on_signal
from pairbus.dashboard.live import Live
from pairbus.dashboard.security import Access, Guard, LoginSessions
from pairbus.errors import StartError

_CLOSE_SECONDS: Final = 1
RECONNECT_SECONDS: Final = 30.0


def bind(host: str, port: int) -> socket.socket:
    """Raises StartError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, TypeError) as error:  # TypeError: it can be no host name
        listener.close()
        reason = getattr(error, "strerror", None) or error
        remedy = "choose another with --port, or 0 to let the system choose"
        is_no_address = isinstance(error, socket.gaierror | TypeError)
        if is_no_address or getattr(error, "errno", 0) == EADDRNOTAVAIL:
            remedy = "give an address of this machine with --host"
        raise StartError(f"cannot listen on {host} port {port}: {reason}; {remedy}") from None
    return listener


def serve(
    live: Live,
    sessions: LoginSessions,
    access: Access,
    listener: socket.socket,
    *,
    certificate: Path | None,
    key: Path | None,
    on_ready: Callable[[], None],
) -> None:
    import uvicorn

    app = make_app(live, access, sessions)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
        proxy_headers=False,
        ssl_certfile=None if certificate is None else str(certificate),
        ssl_keyfile=None if key is None else str(key),
        ws="websockets-sansio",
        http="h11",  # it limits the head of a request; httptools would keep all of an endless one
    )
    try:
        config.load()
    except OSError as error:  # includes ssl.SSLError
        raise StartError(
            f"cannot use --certificate {certificate} and --key {key} ({error}): give a certificate "
            "chain and its key, as PEM files without a password"
        ) from error
    server = uvicorn.Server(config)
    # This process handles the signals: uvicorn would raise them again after it has ended.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    asyncio.run(_run(server, listener, on_ready))


async def _run(server: Any, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(_: object) -> None:
        server.should_exit = True

    stop_on_signal(loop, on_signal)
    loop.call_soon(on_ready)  # the socket listens already, so a browser only waits a moment
    await server.serve([listener])


def make_app(live: Live, access: Access, sessions: LoginSessions) -> Any:
    """The page behind its guard, as an ASGI application."""
    from nicegui import ui
    from starlette.applications import Starlette
    from starlette.middleware.gzip import GZipMiddleware

    from pairbus.dashboard.page import make_page

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(live.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    app: Any = Starlette(lifespan=lifespan)  # nicegui asks for FastAPI, and needs no more
    make_page(live)
    ui.run_with(
        app,
        title="pairbus dashboard",
        dark=None,
        language="en-US",
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_SECONDS,
        show_welcome_message=False,
        gzip_middleware_factory=None,  # below: the guard must see the text of the page
    )
    return GZipMiddleware(Guard(app, access, sessions))
