"""`FastClient`: one namespace, and what is made on it. See the package for what it is for."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Self

from pairbus.errors import OptionsError
from pairbus.fast.address import check_entity_path, split_host
from pairbus.fast.connection import Access, tls_context
from pairbus.fast.management import Management
from pairbus.fast.receiver import Receiver, stop_all
from pairbus.fast.sender import Sender

Mode = Literal["peekLock", "receiveAndDelete"]
_SILENCE_SECONDS_MIN: Final = 30.0


class FastClient:
    """For one thread at a time, all that is made on it included; only `cut` is for any thread.

    A lost connection is opened anew by the next call. What was on its way is told as an error of
    the call that it belonged to, and nothing is sent twice.
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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`credential`: what the SDK takes: a named key, a signature, or an object with get_token.

        `timeout_seconds` is for connecting, and then for each answer of the service. A connection
        on which nothing at all was heard for `silence_seconds` is given up while something is
        waited for. `entity_path` is the only entity that may be used, as with EntityPath.
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
        self._access = Access(
            name,
            host,
            credential,
            port=port or default,
            tls=tls,
            timeout_seconds=timeout_seconds,
            silence_seconds=silence_seconds or max(timeout_seconds, _SILENCE_SECONDS_MIN),
            clock=clock,
        )
        self._entity_path = entity_path
        self._receivers: list[Receiver] = []
        self._managements: dict[str, Management] = {}

    # -- its life ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<FastClient {self.namespace}{'' if self.is_open else ' not open'}>"

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def namespace(self) -> str:
        return self._access.namespace

    @property
    def is_open(self) -> bool:
        return self._access.is_open

    def open(self) -> None:
        """Not needed: the first call opens. But it tells early whether anybody is there."""
        with self._access.telling(f"connecting to {self.namespace}"):
            self._access.connection()

    def close(self) -> None:
        """Receivers release what waits in them, if the service takes it back soon. Never raises."""
        stop_all([one for one in self._receivers if not one.is_closed])
        self._receivers.clear()
        self._access.close()

    def wait_until(self, limit: float) -> None:
        """From now on, no answer is waited for beyond this (monotonic), nor is a farewell."""
        self._access.limit = limit

    def cut(self) -> None:
        """From any thread: whatever is waited for ends, with ServiceBusConnectionError."""
        self._access.cut()

    # -- what is made on it -----------------------------------------------------------------

    def receiver(
        self, path: str, *, credit: int, mode: Mode = "peekLock", at_most: int | None = None
    ) -> Receiver:
        """`credit`: how many messages may be on their way or wait here, all of them locked.

        `at_most`: so many in all are ever asked for.
        """
        management = self.management(path)
        receiver = Receiver(
            self._access, path, management, credit=credit, mode=mode, at_most=at_most
        )
        self._receivers = [one for one in self._receivers if not one.is_closed]
        self._receivers.append(receiver)
        return receiver

    def sender(self, path: str) -> Sender:
        return Sender(self._access, self._checked(path))

    def management(self, path: str) -> Management:
        known = self._managements.get(self._checked(path))
        if known is None:
            known = self._managements[path] = Management(self._access, path)
        return known

    def _checked(self, path: str) -> str:
        if not path:
            raise OptionsError(
                "the path is empty; give one like orders or events/Subscriptions/audit"
            )
        check_entity_path(path, self._entity_path)
        return path


def _host_and_port(namespace: str) -> tuple[str, int | None]:
    """Split a namespace with or without a scheme, as copied from a portal."""
    try:
        host, port = split_host(namespace.strip())
    except ValueError:
        host = ""
    if not host:
        raise OptionsError(f"namespace {namespace!r}: expected a host, with or without a port")
    return host, port
