"""The connection to one namespace, opened when it is needed, and the tokens on it.

A connection that was lost is opened anew by the next call that needs one. Nobody is told what
became of what was on the old one but by the error that the call in question raised.
"""

from __future__ import annotations

import contextlib
import errno
import math
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import certifi

from pairbus.amqp.client.connection import ClientError, Connection
from pairbus.fast.errors import of_client
from pairbus.fast.tokens import Cbs, source_of

_PROPERTIES: Final = {"product": "pairbus"}
_LOOK_SECONDS: Final = 1.0
FAREWELL_SECONDS: Final = 2.0
"""How long an ending may take. It is a courtesy, and the other side may be gone."""


class Access:
    def __init__(
        self,
        namespace: str,
        host: str,
        credential: Any,
        *,
        port: int,
        tls: ssl.SSLContext | None,
        timeout_seconds: float,
        silence_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """`namespace`: as the SDK would name it in addresses, so with its port if without TLS."""
        self.namespace = namespace
        self.timeout_seconds = timeout_seconds
        self._silence_seconds = silence_seconds
        self._host = host
        self._port = port
        self._tls = tls
        self._source = source_of(credential)
        self._clock = clock
        self._connection: Connection | None = None
        self._cbs: Cbs | None = None
        self._is_closed = False
        self.limit = math.inf
        """Nothing is waited for beyond this (monotonic)."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_over

    def connection(self) -> Connection:
        """The one there is, or a new one; tokens on it that run out soon are renewed."""
        if self._is_closed:
            raise ValueError(f"the client of {self.namespace!r} is closed")
        connection = self._connection
        if connection is None or connection.is_over:
            connection = self._open()
        cbs = self._cbs
        if cbs is not None and self._clock() >= cbs.renew_at:
            cbs.renew(until=self.until())
        return connection

    def _open(self) -> Connection:
        connection = Connection(
            self._host,
            self._port,
            tls=self._tls,
            properties=_PROPERTIES,
            silence_seconds=self._silence_seconds,
        )
        connection.open(max(self.until() - time.monotonic(), 0.0))
        self._connection = connection
        self._cbs = Cbs(connection, self._source, clock=self._clock)
        connection.upkeep = self._upkeep
        return connection

    def authorized(self, path: str) -> Connection:
        """The connection, on which the service has accepted a token for this entity."""
        connection = self.connection()
        assert self._cbs is not None
        self._cbs.authorize(self._audience(path), until=self.until())
        return connection

    def authorized_all(self, paths: Sequence[str]) -> tuple[Connection, list[bool]]:
        """The same for several entities in the time of one, and for which of them it has."""
        connection = self.connection()
        assert self._cbs is not None
        audiences = [self._audience(path) for path in paths]
        self._cbs.authorize_all(audiences, until=self.until())
        return connection, [self._cbs.is_shown(one) for one in audiences]

    def _audience(self, path: str) -> str:
        return f"sb://{self.namespace}/{path}"

    def _upkeep(self) -> float:
        """While something is waited for. Answers when (monotonic) to come again."""
        cbs = self._cbs
        if cbs is not None and self._clock() >= cbs.renew_at:
            cbs.renew(until=self.until())
            return time.monotonic()  # what is waited for may have come meanwhile
        # Soon: tokens go by another clock than waiting does, and that may be set.
        return time.monotonic() + _LOOK_SECONDS

    def close(self) -> None:
        self._is_closed = True
        connection, self._connection, self._cbs = self._connection, None, None
        if connection is not None:
            connection.upkeep = None
            connection.close(max(self.until(FAREWELL_SECONDS) - time.monotonic(), 0.0))

    def cut(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.cut()

    # -- small things -----------------------------------------------------------------------

    def until(self, seconds_max: float = math.inf) -> float:
        """When an answer that is asked for now is overdue."""
        return min(time.monotonic() + min(self.timeout_seconds, seconds_max), self.limit)

    def address(self, path: str) -> str:
        """As the SDK writes it: with TLS in the scheme even where there is none."""
        return f"amqps://{self.namespace}/{path}"

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Whatever the AMQP client raises is told as the SDK would."""
        try:
            yield
        except ClientError as error:
            raise of_client(error, what) from error


def tls_context(ca_file: str | Path | None) -> ssl.SSLContext:
    """Who is trusted: the authorities in this file, or those that the SDK trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is not None and not Path(ca_file).is_file():
        raise FileNotFoundError(errno.ENOENT, "there is no such ca_file", str(ca_file))
    try:
        context.load_verify_locations(str(ca_file) if ca_file else certifi.where())
    except ssl.SSLError as error:
        raise ValueError(f"the ca_file {str(ca_file)!r} holds no certificates: {error}") from error
    return context
