"""The syphon in the background of a paired client. It brings diverted messages home.

A pairing with `enable_syphon=True` starts it, stops it, and applies one rule (C-01): the syphon
receives with one client and sends with the other, so if one of the two has ended and the other has
not within five seconds, the other is faulted.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Protocol, runtime_checkable

from pairbus.client.pairing import PairingCore
from pairbus.client.sdk.errors import PairingError, SyphonNotInstalled
from pairbus.client.state import ClientState
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.client")

# How long the partner of a client that has ended may continue before it is faulted.
PARTNER_SECONDS_MAX: Final = 5.0
# How long a syphon has to stop.
STOP_SECONDS_MAX: Final = 5.0

Which = Literal["primary", "secondary"]
_PARTNER: Final[dict[Which, Which]] = {"primary": "secondary", "secondary": "primary"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonContext:
    """What a syphon works with."""

    namespace: str
    primary: Any
    """The client of the primary namespace, blocking or asyncio like the application's own."""
    secondary: Any
    manager: Any
    backlog_queues: tuple[str, ...]
    fault: Callable[[str], None]
    """The syphon calls this, with the reason, when it cannot continue. It faults both clients."""


@runtime_checkable
class Syphon(Protocol):
    """Blocking in both shells, because it runs its own threads or processes."""

    def start(self, context: SyphonContext) -> None:
        """Returns when the syphon runs. `pair_namespace` raises what this raises."""

    def stop(self, *, timeout_seconds: float) -> None:
        """Returns when the syphon has stopped all its work and holds no locks. Called once, also
        after a fault.
        """


def syphon_for(options: SendAvailabilityPairedNamespaceOptions, namespace: str) -> Syphon | None:
    """Returns the syphon that the options ask for, not yet started, or None."""
    if not options.enable_syphon:
        return None
    if options.syphon is not None:
        if not isinstance(options.syphon, Syphon):
            raise PairingError(
                "the syphon of the options needs the methods start and stop; "
                f"{type(options.syphon).__name__} lacks one of them",
                namespace=namespace,
            )
        return options.syphon
    if importlib.util.find_spec("pyspark") is None:
        raise SyphonNotInstalled(namespace=namespace)
    # The only upward import, by name: the paired client also works where the syphon is not
    # installed.
    made = importlib.import_module("pairbus.syphon.background").BackgroundSyphon()
    assert isinstance(made, Syphon)
    return made


class SyphonSupervisor:
    """Starts and stops the syphon of a pair, and applies the five-second rule.

    Everything here blocks, and runs on threads in both shells; the asyncio shell calls it through
    `asyncio.to_thread`.
    """

    def __init__(
        self,
        syphon: Syphon,
        pairing: PairingCore,
        primary: Any,
        *,
        fault: Callable[[Any, str], None],
    ) -> None:
        """`fault(client, reason)` faults a client, from any thread, and returns when it is done."""
        self._syphon = syphon
        self._pairing = pairing
        self._clients: dict[Which, Any] = {
            "primary": primary,
            "secondary": pairing.options.messaging_factory,
        }
        self._fault_client = fault
        self._lock = threading.Lock()
        self._is_running = False
        self._is_abandoned = False
        self._ended: set[Which] = set()
        self._both_ended = threading.Event()

    def start(self) -> None:
        """Raises what the syphon raises at its start; then call `abandon`."""
        self._is_running = True
        self._syphon.start(
            SyphonContext(
                namespace=self._pairing.namespace,
                primary=self._clients["primary"],
                secondary=self._clients["secondary"],
                manager=self._pairing.options.secondary_namespace_manager,
                backlog_queues=self._pairing.backlog_queues,
                fault=self._fault_both,
            )
        )

    def listeners(self) -> list[tuple[ClientState[Any], Callable[[str], None]]]:
        """Returns the client states to listen to, each with its listener. A listener blocks until
        the syphon has stopped.
        """
        return [
            (client._state, partial(self._client_ended, which))
            for which, client in self._clients.items()
        ]

    def abandon(self) -> None:
        """The pairing failed: stop the syphon, and fault no client."""
        with self._lock:
            self._is_abandoned = True
        self._stop_listening()
        self._stop_syphon()

    def _client_ended(self, which: Which, reason: str) -> None:
        with self._lock:
            if self._is_abandoned or which in self._ended:
                return
            is_first = not self._ended
            self._ended.add(which)
        if is_first:
            thread = threading.Thread(
                target=self._wait_for_partner,
                args=(_PARTNER[which], reason),
                name="pairbus-partner",
                daemon=True,
            )
            thread.start()
        else:
            self._both_ended.set()
        self._stop_syphon()

    def _wait_for_partner(self, partner: Which, reason: str) -> None:
        if not self._both_ended.wait(PARTNER_SECONDS_MAX) and not self._is_abandoned:
            self._fault(
                partner,
                f"the client of the {_PARTNER[partner]} namespace ended ({reason}), and its "
                f"partner did not end within {PARTNER_SECONDS_MAX:g} seconds",
            )
        self._stop_listening()

    def _stop_syphon(self) -> None:
        with self._lock:
            was_running, self._is_running = self._is_running, False
        if was_running:
            try:
                self._syphon.stop(timeout_seconds=STOP_SECONDS_MAX)
            except Exception:
                logger.exception("the syphon of %s failed to stop", self._pairing.namespace)

    def _stop_listening(self) -> None:
        for client in self._clients.values():
            client._state.forget(self)

    def _fault_both(self, reason: str) -> None:
        """Runs on its own thread: the syphon's thread asks for this and is stopped here."""

        def fault_both() -> None:
            for which in self._clients:
                self._fault(which, reason)

        threading.Thread(target=fault_both, name="pairbus-fault", daemon=True).start()

    def _fault(self, which: Which, reason: str) -> None:
        logger.warning("faulting the %s client of %s: %s", which, self._pairing.namespace, reason)
        self._fault_client(self._clients[which], reason)
