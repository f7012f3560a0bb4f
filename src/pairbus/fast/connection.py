"""The connection to one namespace, its tokens, and the links to entities on it.

All are opened on first use. A lost connection or link is opened again by the next call that needs
it. Only the error of the call that was using the lost one reports the state of its messages.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

import certifi
from azure.core.exceptions import AzureError

from pairbus.amqp.client.blocking import (
    ClientError,
    ClientReceiverLink,
    ClientSenderLink,
    Connection,
    LinkLost,
    PeerSilent,
)
from pairbus.fast.errors import from_client_error
from pairbus.fast.tokens import TokenAuthority, source_of

L = TypeVar("L", ClientReceiverLink, ClientSenderLink)

_PROPERTIES: Final = {"product": "pairbus"}
_CHECK_SECONDS: Final = 1.0
_AT_ONCE_MAX: Final = 200
"""Maximum number of links to attach at the same time. A connection may have 256."""
_GROUP_SIZE: Final = 80
"""How many links to try at once if there are more. The sessions of the last two groups may not have
ended yet, and a connection may have 256 sessions, too.
"""
CLOSE_SECONDS: Final = 2.0
"""The longest time that closing waits for an answer. The answer is not needed, and the peer may be
gone.
"""


class NamespaceConnection:
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
        """`namespace`: its name in addresses, with the port if without TLS, as in the SDK."""
        self.namespace = namespace
        self.timeout_seconds = timeout_seconds
        self._silence_seconds = silence_seconds
        self._host = host
        self._port = port
        self._tls = tls
        self._source = source_of(credential)
        self._clock = clock
        self._connection: Connection | None = None
        self._tokens: TokenAuthority | None = None
        self._is_closed = False
        self.latest_deadline = math.inf
        """No call waits for an answer after this time (monotonic)."""

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_over

    def connection(self) -> Connection:
        """The open connection, or a new one. Tokens that expire soon are renewed."""
        if self._is_closed:
            raise ValueError(f"the client of {self.namespace!r} is closed")
        connection = self._connection
        if connection is None or connection.is_over:
            connection = self._open()
        self._renew_tokens()
        return connection

    def _open(self) -> Connection:
        connection = Connection(
            self._host,
            self._port,
            tls=self._tls,
            properties=_PROPERTIES,
            silence_seconds=self._silence_seconds,
        )
        tokens = TokenAuthority(connection, self._source, clock=self._clock)
        connection.open(max(self.deadline() - time.monotonic(), 0.0), early=tokens.start)
        self._connection, self._tokens = connection, tokens
        connection.upkeep = self._upkeep
        return connection

    def use_credential(self, credential: Any) -> None:
        """For tokens from now on."""
        self._source = source_of(credential)
        if self._tokens is not None:
            self._tokens.source = self._source

    def authorize(self, paths: Sequence[str]) -> tuple[Connection, list[Exception | None]]:
        """Returns the connection, and for each entity the error if the service did not accept a
        token for it. The requests run at the same time.
        """
        connection = self.connection()
        assert self._tokens is not None
        audiences = [f"sb://{self.namespace}/{path}" for path in paths]
        return connection, self._tokens.authorize(audiences, until=self.deadline())

    def authorized(self, path: str) -> Connection:
        """Returns the connection after the service has accepted a token for this entity."""
        connection, [error] = self.authorize([path])
        if error is not None:
            raise error
        return connection

    def _renew_tokens(self) -> bool:
        tokens = self._tokens
        if tokens is None or self._clock() < tokens.renew_at:
            return False
        tokens.renew(until=self.deadline())
        return True

    def _upkeep(self) -> float:
        """Called while a call waits. Returns when (monotonic) to call again."""
        if self._renew_tokens():
            return time.monotonic()  # the awaited answer may have arrived in the meantime
        # Check again soon: tokens expire by the wall clock, which may be changed.
        return time.monotonic() + _CHECK_SECONDS

    def close(self) -> None:
        self._is_closed = True
        connection, self._connection, self._tokens = self._connection, None, None
        if connection is not None:
            connection.upkeep = None
            connection.close(max(self.deadline(CLOSE_SECONDS) - time.monotonic(), 0.0))

    @property
    def current(self) -> Connection | None:
        """The connection if there is one, open or not. It opens none."""
        return self._connection

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    # -- small things -----------------------------------------------------------------------

    def deadline(self, seconds_max: float = math.inf) -> float:
        """When an answer to a request made now is overdue."""
        return min(time.monotonic() + min(self.timeout_seconds, seconds_max), self.latest_deadline)

    def address(self, path: str) -> str:
        """The address as the SDK writes it: with the TLS scheme even without TLS."""
        return f"amqps://{self.namespace}/{path}"

    @contextlib.contextmanager
    def translating_errors(self, what: str) -> Iterator[None]:
        """Raise the errors of the AMQP client as those of the SDK."""
        try:
            yield
        except ClientError as error:
            raise from_client_error(error, what) from error


def tls_context(ca_file: str | Path | None) -> ssl.SSLContext:
    """Trusts the authorities in this file, in the file that SSL_CERT_FILE names, or those that the
    SDK trusts.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    name = "SSL_CERT_FILE" if ca_file is None else "ca_file"
    file = str(ca_file or os.environ.get("SSL_CERT_FILE") or certifi.where())
    if not Path(file).is_file():
        raise FileNotFoundError(errno.ENOENT, f"there is no such {name}", file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise ValueError(f"the {name} {file!r} holds no certificates: {error}") from error
    return context


# -- links ------------------------------------------------------------------------------------


class Attachment(ABC, Generic[L]):
    """What receivers and senders have in common: a link to one entity, attached when needed."""

    def __init__(self, namespace: NamespaceConnection, path: str) -> None:
        self.path = path
        self.is_closed = False
        self._namespace = namespace
        self._link: L | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r} of {self._namespace.namespace}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _new_link(self, connection: Connection) -> L:
        """A link that the service has not answered yet."""

    def _ready(self) -> tuple[Connection, L]:
        """The link, attached again if it was lost. Raises ClientError."""
        if self.is_closed:
            raise ValueError(f"{self!r} is closed")
        self._check_link()
        if self._alive() is None:
            self._link = None
            [error] = _attach([self])
            if error is not None:
                raise error
        assert self._namespace.current is not None
        assert self._link is not None
        return self._namespace.current, self._link

    def _check_link(self) -> None:
        """Renew tokens if it is time. That waits for an answer, and the link may end in the
        meantime.
        """
        if self._alive() is not None:
            self._namespace.connection()
        if self._alive() is None:
            self._keep_received()

    def _keep_received(self) -> None:
        """Called when the link is lost: keep the messages that it delivered."""

    def _alive(self) -> L | None:
        """The link, if it and its connection are alive. Attaches nothing."""
        return self._link if self._link is not None and self._link.alive else None

    def take_over(self, other: Self) -> None:
        """Use the link of another one that nobody uses any more."""
        self._link, other._link = other._link, None

    @property
    def is_attached(self) -> bool:
        return self._alive() is not None

    def detach(self) -> None:
        """Does not wait for the answer. The next call that needs a link attaches another one."""
        if self._link is not None:
            self._link.detach()
            self._link = None

    def close(self) -> object:
        """Detach. Never raises."""
        link, connection = self._alive(), self._namespace.current
        if link is not None and connection is not None:
            with contextlib.suppress(ClientError):
                connection.detach(link, self._namespace.deadline(CLOSE_SECONDS))
        self.is_closed = True
        self._link = None
        return None


Attachments = Sequence[Attachment[ClientReceiverLink] | Attachment[ClientSenderLink]]


def attach_all(attachments: Attachments) -> None:
    """Attach several links of one client at the same time, for the first time.

    Never raises: a later call that needs a failed link tries again and raises the error.
    """
    new = [one for one in attachments if one._link is None and not one.is_closed]
    if len(new) > 1:
        with contextlib.suppress(ClientError, AzureError):
            _attach(new)


def attach_each(attachments: Attachments) -> list[Exception | None]:
    """Attach several links of one client at the same time, to see which ones the service accepts.

    No credit is granted and nothing is sent, so nothing is billed. Returns the error of each link,
    or None. Raises AzureError if the namespace does not answer. If there are more than a connection
    may have, they are attached and detached in groups.
    """
    namespace = attachments[0]._namespace
    errors: list[Exception | None] = []
    with namespace.translating_errors(f"connecting to {namespace.namespace}"):
        size = _AT_ONCE_MAX if len(attachments) <= _AT_ONCE_MAX else _GROUP_SIZE
        for first in range(0, len(attachments), size):
            some = attachments[first : first + size]
            errors += _attach(some)
            if len(some) < len(attachments):
                for one in some:
                    one.detach()
    return [
        from_client_error(error, f"a link of {one.path!r}")
        if isinstance(error, ClientError)
        else error
        for one, error in zip(attachments, errors, strict=True)
    ]


def _attach(attachments: Attachments) -> list[Exception | None]:
    """Attach them all at once. Returns the error of each, or None."""
    namespace = attachments[0]._namespace
    connection, errors = namespace.authorize([one.path for one in attachments])
    links: list[ClientReceiverLink | ClientSenderLink | None] = []
    for index, one in enumerate(attachments):
        link = None
        if errors[index] is None:
            try:
                link = one._new_link(connection)
            except ClientError as error:
                errors[index] = error
        links.append(link)
    connection.wait_quietly(
        lambda: all(link is None or link.attached or link.is_over for link in links),
        namespace.deadline(),
    )
    for index, (one, link) in enumerate(zip(attachments, links, strict=True)):
        if link is None:
            continue
        what = f"a link of {one.path!r}"
        if link.attached:
            one._link = link
        elif link.is_over:
            errors[index] = LinkLost(f"{what} was refused", link.error)
        else:
            link.detach()
            errors[index] = PeerSilent(
                f"{namespace.namespace} did not answer within {namespace.timeout_seconds:g} s: "
                f"waited for {what}"
            )
    return errors
