"""`FastClient`: one namespace, and the senders and receivers made on it."""

from __future__ import annotations

import contextlib
import math
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

from azure.core.exceptions import AzureError

from pairbus.amqp.client import blocking as amqp
from pairbus.cost.meter import Meter, MeterReading
from pairbus.errors import OptionsError
from pairbus.fast.connection import NamespaceConnection, tls_context
from pairbus.fast.connection_string import check_entity_path, split_host
from pairbus.fast.management import Management, peek_each
from pairbus.fast.receiver import MESSAGE_BYTES_UNKNOWN, Receiver, stop_all
from pairbus.fast.sender import Sender

Mode = Literal["peekLock", "receiveAndDelete"]
_SILENCE_SECONDS_MIN: Final = 30.0
_RESTING_LINKS_MAX: Final = 64
_MANAGED_MAX: Final = 64
"""Maximum number of entities with links for requests, two each. A connection may have 256 links."""


class FastClient:
    """Use a client, and everything made from it, in one thread at a time. Only `interrupt` is safe
    in any thread.

    The next call opens a lost connection again. The call that was using it raises the error, and
    nothing is sent twice.
    """

    def __init__(
        self,
        namespace: str,
        credential: Any,
        *,
        use_tls: bool = True,
        port: int | None = None,
        ca_file: str | Path | None = None,
        timeout_seconds: float = 60.0,
        silence_seconds: float | None = None,
        entity_path: str | None = None,
        meter: Meter | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`credential`: a named key, a signature, or an object with get_token, as in the SDK.

        `timeout_seconds` limits connecting, and then each answer of the service. While a call
        waits, a connection that was silent for `silence_seconds` is closed. `entity_path` is the
        only entity that may be used, as EntityPath in a connection string. `meter` counts the
        operations; without one, the client makes its own.
        """
        if timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds is {timeout_seconds}, but must be above 0")
        host, own_port = _host_and_port(namespace)
        tls: ssl.SSLContext | None = None
        name = f"[{host}]" if ":" in host else host
        if use_tls:
            tls, default = tls_context(ca_file), 5671
        else:
            name, default = f"{name}:{own_port}" if own_port else name, own_port or 5672
        self._connection = NamespaceConnection(
            name,
            host,
            credential,
            port=port or default,
            tls=tls,
            timeout_seconds=timeout_seconds,
            silence_seconds=silence_seconds or max(timeout_seconds, _SILENCE_SECONDS_MIN),
            clock=clock,
        )
        self._meter = meter or Meter(namespace, since=clock())
        self._entity_path = entity_path
        self._receivers: list[Receiver] = []
        self._senders: dict[str, Sender] = {}
        self._resting: dict[str, Receiver | Sender] = {}  # by kind and path
        self._managements: dict[str, Management] = {}

    def __repr__(self) -> str:
        return f"<FastClient {self.namespace}{'' if self.is_open else ' not open'}>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def namespace(self) -> str:
        return self._connection.namespace

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def open(self) -> None:
        """Connect now, to see whether the namespace answers. This is optional: the first call
        connects, too.
        """
        with self._connection.translating_errors(f"connecting to {self.namespace}"):
            self._connection.connection()

    def check_token(self) -> None:
        """Have the service check the key or identity. Rights show when a link is attached."""
        with self._connection.translating_errors(f"logging in to {self.namespace}"):
            self._connection.authorized(self._entity_path or "")

    def close(self) -> None:
        """Close the client. Receivers release their buffered messages if the service answers soon.
        Never raises.
        """
        stop_all([one for one in self._receivers if not one.is_closed])
        self._receivers.clear()
        self._connection.close()

    # -- one user after the other -----------------------------------------------------------

    def rest(self) -> bool:
        """Keep the connection, the tokens and the links for a later user of this client.

        Call it when everything was answered and all receivers were stopped. Returns False if a
        message is still locked, if the connection is lost, or if there are too many links. Then
        close the client.
        """
        used: list[Receiver | Sender] = [*self._receivers, *self._senders.values()]
        self._receivers, self._senders = [], {}
        if not self.is_open or any(isinstance(one, Receiver) and one.has_locks for one in used):
            return False
        found = {_kind_and_path(one): one for one in used if one.is_attached}
        self._resting = {key: one for key, one in self._resting.items() if one.is_attached} | found
        return len(self._resting) <= _RESTING_LINKS_MAX

    def wake(self) -> bool:
        """After `rest`: whether the client can be used again. It reads what the service has said in
        the meantime.
        """
        self.set_deadline(math.inf)
        connection = self._connection.current
        with contextlib.suppress(amqp.ClientError):
            while connection is not None and connection.exchange(0.0):
                pass
        return self.is_open

    def use_credential(self, credential: Any) -> None:
        """For tokens from now on, instead of the one that the client was made with."""
        self._connection.use_credential(credential)

    def set_deadline(self, deadline: float) -> None:
        """From now on, no call and no `close` waits for an answer after this time (monotonic)."""
        self._connection.latest_deadline = deadline

    def interrupt(self) -> None:
        """Make a waiting call raise ServiceBusConnectionError. Safe to call from any thread."""
        self._connection.interrupt()

    def usage(self) -> MeterReading:
        """The operations of this client so far, as they are billed; see `docs/cost.md`.

        It counts like the service: each message that arrives, even if it is released unread; each
        one that is accepted or settled; each poll that ends without a message. An operation whose
        answer was lost with the connection is not counted.
        """
        return self._meter.read()

    # -- entities ---------------------------------------------------------------------------

    def receiver(
        self,
        path: str,
        *,
        credit: int,
        mode: Mode = "peekLock",
        at_most: int | None = None,
        bytes_max: int | None = None,
        message_bytes: int = MESSAGE_BYTES_UNKNOWN,
    ) -> Receiver:
        """`credit`: the maximum number of messages in transit or in the buffer, all of them locked.
        It is less if messages as large as the last ones would be more than `bytes_max`;
        `message_bytes` is their size before the first one has come.

        `at_most`: the total number of messages to request.
        """
        receiver = Receiver(
            self._connection,
            path,
            self.management(path),
            self._meter.of(path),
            credit=credit,
            mode=mode,
            at_most=at_most,
            bytes_max=bytes_max,
            message_bytes=message_bytes,
        )
        self._receivers = [one for one in self._receivers if not one.is_closed]
        self._receivers.append(receiver)
        if mode == "peekLock":
            self._use_resting_link(receiver)
        return receiver

    def sender(self, path: str) -> Sender:
        sender = Sender(self._connection, self._checked(path), self._meter.of(path))
        self._senders[path] = sender
        self._use_resting_link(sender)
        return sender

    def _use_resting_link(self, user: Any) -> None:
        resting: Any = self._resting.pop(_kind_and_path(user), None)
        if resting is not None and resting.is_attached:
            user.take_over(resting)

    def management(self, path: str) -> Management:
        found = self._managements.pop(self._checked(path), None)
        if found is None:
            found = Management(self._connection, path, self._meter.of(path))
        self._managements[path] = found
        if len(self._managements) > _MANAGED_MAX:
            longest_unused = next(iter(self._managements))
            self._managements.pop(longest_unused).detach()
        return found

    def peek_each(self, wanted: Sequence[tuple[str, int, int]]) -> list[list[bytes] | AzureError]:
        """Peek at several entities, each from a sequence number on, at the same time: the service
        may be far away. `wanted`: paths, numbers and counts. If an entity fails, its error is in
        place of its messages. Raises AzureError if the service does not answer.
        """
        found: list[list[bytes] | AzureError] = []
        for at in range(0, len(wanted), _MANAGED_MAX):
            some = wanted[at : at + _MANAGED_MAX]
            found += peek_each(
                [(self.management(path), start, count) for path, start, count in some]
            )
        return found

    def first_messages(self, paths: Sequence[str]) -> list[bytes | None]:
        """The first message of each entity, locked or not; None if it has none. Raises the error of
        an entity that fails.
        """
        firsts: list[bytes | None] = []
        for page in self.peek_each([(path, 0, 1) for path in paths]):
            if isinstance(page, AzureError):
                raise page
            firsts.append(page[0] if page else None)
        return firsts

    def _checked(self, path: str) -> str:
        if not path:
            raise OptionsError(
                "the path is empty; give one like orders or events/Subscriptions/audit"
            )
        check_entity_path(path, self._entity_path)
        return path


def _kind_and_path(one: Receiver | Sender) -> str:
    return f"{type(one).__name__} {one.path}"


def wait_together(clients: Sequence[FastClient], done: Callable[[], object], until: float) -> bool:
    """Exchange bytes with several namespaces at the same time until `done()`. Returns False at the
    time `until` (monotonic), and when no connection is left. Never raises.
    """
    found = [one._connection.current for one in clients]
    return amqp.wait_together([one for one in found if one is not None], done, until)


def _host_and_port(namespace: str) -> tuple[str, int | None]:
    """Split a namespace with or without a scheme, as copied from a portal."""
    try:
        host, port = split_host(namespace.strip())
    except ValueError:
        host = ""
    if not host:
        # The text is not quoted: it may be a connection string.
        raise OptionsError("expected the host of a namespace, with or without a port")
    return host, port
