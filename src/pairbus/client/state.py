"""The state that a client shares with its senders, including those made before the pairing. Used by
both shells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from azure.servicebus.exceptions import ServiceBusConnectionError

from pairbus.client.sdk import private
from pairbus.client.sdk.pairing_errors import ClientFaulted, PairingError

Pairing = TypeVar("Pairing", bound=Any)
PairedSender = TypeVar("PairedSender", bound=Any)

Listener = Callable[[str], Any]
"""Called with the reason when a client ends; an awaitable result is awaited in the asyncio
shell."""


class ClientState(Generic[Pairing]):
    def __init__(self, client: Any) -> None:
        self._host = client.fully_qualified_namespace
        # Held between a check and the change that depends on it. Never held during a wait.
        # Reentrant: a signal handler may close the client while its thread holds it.
        self._lock = threading.RLock()
        self._senders: WeakSet[Any] = WeakSet()
        self._listeners: list[tuple[object, Listener]] = []
        self._fault: tuple[str, str] | None = None
        self.pairing: Pairing | None = None
        self.is_closed = False

    def check(self, error: Exception | None = None) -> None:
        """Raise ClientFaulted if the client has faulted. `error` is what a call of it raised."""
        if self._fault is not None and not isinstance(error, ClientFaulted):
            which, reason = self._fault
            raise ClientFaulted(which=which, reason=reason, error=error) from error

    def check_unpaired(self) -> None:
        self.check()
        if self.is_closed:
            raise self._closed()
        if self.pairing is not None:
            raise PairingError(
                f"this client is already paired, with {self.pairing.secondary!r}; "
                "a client pairs once",
                namespace=self._host,
            )

    def install(self, pairing: Pairing) -> list[str]:
        """Marks the client as paired. Returns the entities of its senders."""
        with self._lock:
            if self.is_closed:
                raise self._closed()
            self.pairing = pairing
            return [sender.entity_name for sender in self._senders]

    def adopt(
        self, get: Callable[..., Any], name: str, options: dict[str, Any], kind: type[PairedSender]
    ) -> PairedSender:
        """Make a sender with the SDK's own method, and turn it into a paired sender."""
        self.check()
        if self.pairing is not None and self.is_closed:
            self.check()  # again: it may have faulted since
            raise ValueError(
                f"cannot make a sender for {name!r}: this paired client has been closed; "
                "make a new one"
            )
        sender = private.adopt(get(name, **options), kind)
        sender.bind(self)
        with self._lock:
            self._senders.add(sender)
            pairing = self.pairing
        if pairing is not None:
            pairing.register(sender.entity_name)
        return sender

    def paths(self) -> list[str]:
        """The entities of the senders that are still referenced."""
        with self._lock:
            return [sender.entity_name for sender in self._senders]

    def senders_of(self, path: str) -> list[Any]:
        """The senders of an entity that are still referenced."""
        with self._lock:
            senders = list(self._senders)
        return [each for each in senders if each.entity_name.lower() == path.lower()]

    # --- the end ----------------------------------------------------------------------------------

    def listen(self, owner: object, listener: Listener) -> Any:
        """Call the listener, with the reason, when this client closes or faults; at once if it
        already has. Returns what the listener returned in that case."""
        with self._lock:
            if not self.is_closed:
                self._listeners.append((owner, listener))
                return None
        return listener("closed")

    def forget(self, owner: object) -> None:
        """Remove the listeners of this owner."""
        with self._lock:
            self._listeners = [each for each in self._listeners if each[0] is not owner]

    def has_other_listeners(self, *owners: object) -> bool:
        with self._lock:
            return any(all(each[0] is not one for one in owners) for each in self._listeners)

    def set_fault(self, reason: str) -> None:
        self._fault = ("primary" if self.pairing is not None else "secondary", reason)

    def take_listener(self) -> Listener | None:
        """Removes and returns a listener to notify of the end. Set `is_closed` first. One at a
        time: if one is interrupted, the next call of `close` notifies the others.
        """
        with self._lock:
            return self._listeners.pop(0)[1] if self._listeners else None

    def _closed(self) -> PairingError:
        self.check()
        return PairingError(
            "this client has been closed; make a new one to pair", namespace=self._host
        )


def state_of(client: Any) -> ClientState[Any] | None:
    """The state of a pairbus client. None for a client of the SDK."""
    state: ClientState[Any] | None = getattr(client, "_state", None)
    return state


def check_open(client: Any) -> None:
    """Raise if the secondary's client is a pairbus client and is closed. The SDK's own clients do
    not record that.
    """
    state = state_of(client)
    if state is not None and state.is_closed:
        raise ServiceBusConnectionError(message="the secondary's client has been closed")
