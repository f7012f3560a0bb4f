"""A peer that takes connections and says nothing, and goes as far as a test wants.

This is what a namespace looks like behind a network that drops packets, or one that hangs.
"""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from typing import Self

from tests.client.fakes import KEY

_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class SilentPeer:
    """`tls`: it does its part of the handshake first. `websocket`: it agrees to one first."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, websocket: bool = False) -> None:
        self._tls = tls
        self._websocket = websocket
        self._listener = socket.create_server(("localhost", 0))
        self.port: int = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        self.has_taken = threading.Event()
        """A connection was made, and what was to be said on it was said."""
        self._thread = threading.Thread(target=self._run, name="silent-peer", daemon=True)

    def connection_string(self) -> str:
        """Without TLS."""
        return f"Endpoint=sb://localhost:{self.port};{KEY};UseDevelopmentEmulator=true"

    @property
    def address(self) -> str:
        return f"sb://localhost:{self.port}"

    @property
    def count(self) -> int:
        """The number of connections that it has accepted."""
        return len(self._taken)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone would not wake the thread that waits on it.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for taken in self._taken:
            taken.close()

    def _run(self) -> None:
        while True:  # until the listener is closed
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self._taken.append(taken)
            with suppress(OSError):
                if self._tls is not None:
                    taken = self._tls.wrap_socket(taken, server_side=True)
                    self._taken[-1] = taken
                if self._websocket:
                    self._agree(taken)
            self.has_taken.set()

    def _agree(self, taken: socket.socket) -> None:
        asked = b""
        while not asked.endswith(b"\r\n\r\n"):
            asked += taken.recv(4096)
        headers = dict(
            line.lower().split(b": ", 1) for line in asked.split(b"\r\n")[1:] if b": " in line
        )
        key = next(
            line.split(b": ", 1)[1]
            for line in asked.split(b"\r\n")
            if line.lower().startswith(b"sec-websocket-key")
        )
        accept = base64.b64encode(hashlib.sha1(key + _WEBSOCKET_GUID.encode()).digest())
        taken.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: "
            + accept
            + b"\r\nSec-WebSocket-Protocol: "
            + headers[b"sec-websocket-protocol"]
            + b"\r\n\r\n"
        )
