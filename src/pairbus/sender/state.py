"""What a client shares with its senders, those made before it was paired included: both shells'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from pairbus.servicebus import internals
from pairbus.servicebus.errors import ClientFaulted, PairingError

Pairing = TypeVar("Pairing", bound=Any)
PairedSender = TypeVar("PairedSender", bound=Any)


class ClientState(Generic[Pairing]):
    def __init__(self, client: Any) -> None:
        self._host = internals.host_of(client)
        self.pairing: Pairing | None = None
        self.senders: WeakSet[Any] = WeakSet()
        self.on_end: list[Callable[[str], Any]] = []
        """Told, with the reason, when this client closes or faults."""
        self.fault: tuple[str, str] | None = None
        """Which half of the pair this was, and why it was ended."""
        self.is_closed = False

    def check(self) -> None:
        if self.fault is not None:
            which, reason = self.fault
            raise ClientFaulted(which=which, reason=reason)

    def check_unpaired(self) -> None:
        if self.is_closed:
            raise PairingError(
                "this client has been closed; make a new one to pair", namespace=self._host
            )
        if self.pairing is not None:
            raise PairingError(
                f"this client is paired already, with {self.pairing.secondary!r}; "
                "a client pairs once",
                namespace=self._host,
            )

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
        self.senders.add(sender)
        if self.pairing is not None:
            self.pairing.register(sender.entity_name)
        return sender

    def set_fault(self, reason: str) -> None:
        self.fault = ("primary" if self.pairing is not None else "secondary", reason)

    def end(self) -> list[Callable[[str], Any]]:
        """Whom to tell of the end; the second time, nobody."""
        listeners = [] if self.is_closed else list(self.on_end)
        self.is_closed = True
        return listeners
