"""The connection to one namespace, and what is made on it: receivers, senders, management.

A connection that was lost is opened anew by the next call that needs one; whatever was on the way
is told as an error, and nothing is sent twice. For one thread at a time; `cut` is for any.
"""

from __future__ import annotations

import contextlib
import math
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

import certifi

from pairbus import amqp as _amqp  # noqa: F401
from pairbus.amqp.client import ClientError, Connection
from pairbus.servicebus.fast.cbs import Cbs, source_of
from pairbus.servicebus.fast.errors import of_client
from pairbus.servicebus.fast.management import Management
from pairbus.servicebus.fast.receiver import Receiver
from pairbus.servicebus.fast.sender import Sender
from pairbus.servicebus.fast.settings import parse_connection_string

Mode = Literal["peekLock", "receiveAndDelete"]
_PRODUCT = {"product": "pairbus"}


class FastClient:
    def __init__(
        self,
        namespace: str,
        credential: Any,
        *,
        use_tls: bool = True,
        port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_seconds: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`timeout_seconds`: for connecting, and then for each answer of the service."""
        host, _, given = namespace.partition(":")
        if use_tls:
            namespace, given = host, ""
        self.namespace = namespace
        self.timeout_seconds = timeout_seconds
        self._host = host
        self._port = port or (int(given) if given else 5671 if use_tls else 5672)
        self._source = source_of(credential)
        self._clock = clock
        self._tls = _tls(ca_file) if use_tls else None
        self._connection: Connection | None = None
        self._cbs: Cbs | None = None
        self._closed = False

    @classmethod
    def from_connection_string(
        cls,
        text: str,
        *,
        port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_seconds: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        settings = parse_connection_string(text)
        return cls(
            settings.namespace,
            settings.credential,
            use_tls=not settings.is_emulator,
            port=port,
            ca_file=ca_file,
            timeout_seconds=timeout_seconds,
            clock=clock,
        )

    # -- its life ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<FastClient {self.namespace}{'' if self.is_open else ' not open'}>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_over

    def open(self) -> None:
        """Not needed: the first call opens. But it tells early whether anybody is there."""
        with self.telling(f"connecting to {self.namespace}"):
            self.connected()

    def close(self) -> None:
        """Buffered messages of receivers that were not closed stay locked until their time."""
        self._closed = True
        connection, self._connection, self._cbs = self._connection, None, None
        if connection is not None:
            connection.upkeep = None
            connection.close()

    def cut(self) -> None:
        """From any thread: ends whatever is waited for, with ServiceBusConnectionError."""
        connection = self._connection
        if connection is not None:
            connection.cut()

    # -- what is made on it -----------------------------------------------------------------

    def receiver(self, path: str, *, credit: int, mode: Mode = "peekLock") -> Receiver:
        """`credit`: how many messages may be on the way or waiting to be taken."""
        return Receiver(self, path, credit=credit, mode=mode)

    def sender(self, path: str) -> Sender:
        return Sender(self, path)

    def management(self, path: str) -> Management:
        return Management(self, path)

    # -- for these --------------------------------------------------------------------------

    def connected(self) -> Connection:
        """The connection, opened if there is none (any more)."""
        if self._closed:
            raise ValueError(f"the client of {self.namespace} is closed")
        connection = self._connection
        if connection is not None and not connection.is_over:
            return connection
        connection = Connection(
            self._host,
            self._port,
            hostname=self._host,
            tls=self._tls,
            silence_seconds=max(self.timeout_seconds, 2.0),
            properties=_PRODUCT,
        )
        connection.open(self.timeout_seconds)
        self._cbs = Cbs(connection, self._source, clock=self._clock)
        connection.upkeep = self._upkeep
        self._connection = connection
        return connection

    def authorized(self, path: str) -> Connection:
        """The connection, on which a token for this entity is valid."""
        connection = self.connected()
        assert self._cbs is not None
        self._cbs.authorize(self._audience(path), until=self.until())
        return connection

    def until(self) -> float:
        """When an answer is overdue that is asked for now."""
        return time.monotonic() + self.timeout_seconds

    def address(self, path: str) -> str:
        return f"amqps://{self.namespace}/{path}"

    def _audience(self, path: str) -> str:
        return f"sb://{self.namespace}/{path}"

    def _upkeep(self) -> float:
        """While something is waited for: tokens are renewed. Answers when to come again."""
        cbs = self._cbs
        if cbs is None:
            return math.inf
        if cbs.seconds_left <= 0:
            cbs.renew(until=self.until())
        # The clock may be another than the one that is waited by, so look again now and then.
        return time.monotonic() + min(max(cbs.seconds_left, 0.0), 1.0)

    @contextlib.contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Whatever the AMQP client raises is told as the SDK would."""
        try:
            yield
        except ClientError as error:
            raise of_client(error, what) from error


def _tls(ca_file: str | Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(str(ca_file) if ca_file else certifi.where())
    return context
