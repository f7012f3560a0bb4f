"""The socket of a client, plain or TLS. No call waits forever.

Writing and reading take turns, so that two peers that both send much do not block each other.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections import deque
from typing import Final

READ_SIZE: Final = 256 * 1024
_WRITE_SIZE: Final = 256 * 1024
_WANT = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TransportClosed(OSError):
    """The peer has ended the connection."""


class Transport:
    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        server_name: str | None = None,
        seconds: float,
    ) -> None:
        """Connects, with TLS if a context is given. Raises OSError, TimeoutError among them."""
        until = time.monotonic() + seconds
        sock = _connect(host, port, until)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if tls is not None:
                sock.settimeout(_left(until))
                sock = tls.wrap_socket(sock, server_hostname=server_name or host)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self._is_tls = tls is not None
        self._out: deque[memoryview] = deque()  # not joined: that would copy it again and again
        self._poll = select.poll()
        self._polled = 0

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    @property
    def wanted(self) -> int:
        """The events to wait for."""
        return select.POLLIN | (select.POLLOUT if self._out else 0)

    def fileno(self) -> int:
        return self._sock.fileno()

    def write(self, data: bytes) -> None:
        """To be written by the next `exchange`."""
        self._out.append(memoryview(data))

    def exchange(self, seconds: float) -> bytes:
        """Write all pending output, then read. Waits up to `seconds`; b"" if nothing came."""
        if self._out:
            self._flush()
        try:
            return self._read()
        except _WANT:
            if seconds <= 0:
                return b""
        wanted = self.wanted
        if wanted != self._polled:
            self._poll.register(self._sock.fileno(), wanted)
            self._polled = wanted
        if not self._poll.poll(seconds * 1000):
            return b""
        if self._out:
            self._flush()
        try:
            return self._read()
        except _WANT:
            return b""

    def _read(self) -> bytes:
        """All that has arrived, up to READ_SIZE. A TLS socket gives it out by records of 16 KB."""
        data = self._sock.recv(READ_SIZE)
        if not data:
            raise TransportClosed("the peer has ended the connection")
        if not self._is_tls:
            return data
        parts, size = [data], len(data)
        with contextlib.suppress(*_WANT, OSError):  # an end, or an error, shows in the next read
            while size < READ_SIZE and (data := self._sock.recv(READ_SIZE - size)):
                parts.append(data)
                size += len(data)
        return b"".join(parts)

    def _flush(self) -> None:
        with contextlib.suppress(*_WANT):
            while self._out:
                sent = self._sock.send(self._out[0][:_WRITE_SIZE])
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]

    def interrupt(self) -> None:
        """Make a call that waits in `exchange` end. Safe to call from any thread."""
        with contextlib.suppress(OSError):
            # For TLS, shut down the plain socket below: the TLS socket's own method would end TLS
            # first.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()


def _connect(host: str, port: int, until: float) -> socket.socket:
    """Connects to the first address that answers. All addresses share the time limit."""
    failure: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host") from error
    for family, kind, protocol, _, address in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # this machine has no such addresses, as without IPv6
            failure = error
            continue
        try:
            sock.settimeout(_left(until))
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure or OSError(f"{host} has no address")


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
