"""What a client shares with its senders, those made before it was paired included: both shells'."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from pairbus.client.sdk import private as internals
from pairbus.client.sdk.errors import ClientFaulted, PairingError

Pairing = TypeVar("Pairing", bound=Any)
PairedSender = TypeVar("PairedSender", bound=Any)

Listener = Callable[[str], Any]


class ClientState(Generic[Pairing]):
    def __init__(self, client: Any) -> None:
        self._host = internals.host_of(client)
        # Around what must not change between a look and what follows from it; never while waiting.
        self._lock = threading.Lock()
        self._senders: WeakSet[Any] = WeakSet()
        self._listeners: list[tuple[object, Listener]] = []
        self._fault: tuple[str, str] | None = None
        self.pairing: Pairing | None = None
        self.is_closed = False

    def check(self) -> None:
        if self._fault is not None:
            which, reason = self._fault
            raise ClientFaulted(which=which, reason=reason)

    def check_unpaired(self) -> None:
        self.check()
        if self.is_closed:
            raise self._closed()
        if self.pairing is not None:
            raise PairingError(
                f"this client is paired already, with {self.pairing.secondary!r}; "
                "a client pairs once",
                namespace=self._host,
            )

    def install(self, pairing: Pairing) -> list[str]:
        """The client is paired from here on. Answers the entities of the senders that it has."""
        with self._lock:
            if self.is_closed:
                raise self._closed()
            self.pairing = pairing
            return [sender.entity_name for sender in self._senders]

    def adopt(
        self, get: Callable[..., Any], name: str, options: dict[str, Any], kind: type[PairedSender]
    ) -> PairedSender:
        """A sender that the SDK makes, as one of ours."""
        self.check()
        if self.pairing is not None and self.is_closed:
            raise ValueError(
                f"cannot make a sender for {name!r}: this paired client has been closed; "
                "make a new one"
            )
        sender = internals.adopt(get(name, **options), kind)
        sender.belong_to(self)
        with self._lock:
            self._senders.add(sender)
            pairing = self.pairing
        if pairing is not None:
            pairing.register(sender.entity_name)
        return sender

    def senders_of(self, path: str) -> list[Any]:
        """Those of an entity that somebody still has."""
        with self._lock:
            senders = list(self._senders)
        return [each for each in senders if each.entity_name.lower() == path.lower()]

    # --- the end ----------------------------------------------------------------------------------

    def listen(self, who: object, listener: Listener) -> Any:
        """Have it told, with the reason, when this client closes or faults; at once if it has."""
        with self._lock:
            if not self.is_closed:
                self._listeners.append((who, listener))
                return None
        return listener("closed")

    def forget(self, who: object) -> None:
        with self._lock:
            self._listeners = [each for each in self._listeners if each[0] is not who]

    def set_fault(self, reason: str) -> None:
        self._fault = ("primary" if self.pairing is not None else "secondary", reason)

    def end(self) -> list[Listener]:
        """Whom to tell of the end; the second time, nobody."""
        with self._lock:
            self.is_closed = True
            listeners, self._listeners = self._listeners, []
        return [listener for _, listener in listeners]

    def _closed(self) -> PairingError:
        return PairingError(
            "this client has been closed; make a new one to pair", namespace=self._host
        )
