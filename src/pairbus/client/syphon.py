"""The syphon in the background of a paired client. It brings diverted messages home.

A pairing with `enable_syphon=True` starts it and stops it. If it fails, it is started again after a
wait; the clients are not affected, because sending and receiving need no syphon (X-16). Only the
end of a client ends its partner (C-01): the syphon receives with one client and sends with the
other, so if one of the two has ended and the other has not within five seconds, the other is
faulted.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Literal, Protocol, runtime_checkable

from pairbus.client.pairing import PairingCore
from pairbus.client.reentrant_event import ReentrantEvent
from pairbus.client.route.status import SyphonStatus
from pairbus.client.sdk.pairing_errors import PairingError, SyphonNotInstalled
from pairbus.client.state import ClientState
from pairbus.errors import one_line
from pairbus.events import Event, SyphonFailed, SyphonRestarted
from pairbus.options import SendAvailabilityPairedNamespaceOptions

logger = logging.getLogger("pairbus.client")

# How long the partner of a client that has ended may continue before it is faulted.
PARTNER_SECONDS_MAX: Final = 5.0
# How long a syphon has to stop.
STOP_SECONDS_MAX: Final = 5.0
# How long the end of a client waits for its syphon, which may be starting again.
JOIN_SECONDS_MAX: Final = 10.0
# The wait before a syphon that failed is started again. It doubles with each failure in a row.
RESTART_SECONDS: Final = 1.0
RESTART_SECONDS_MAX: Final = 60.0
# The failure of a syphon that has run for this long counts as the first one.
STEADY_SECONDS: Final = 300.0

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
    entities: tuple[str, ...]
    """The entities of the senders that the primary's client had made before it was paired."""
    failed: Callable[[Exception], None]
    """The syphon calls this, with the cause, when it cannot continue. It is then stopped, on
    another thread, and started again after a wait."""


@runtime_checkable
class Syphon(Protocol):
    """Blocking in both shells, because it runs its own threads or processes."""

    def start(self, context: SyphonContext) -> None:
        """Returns when the syphon runs. `pair_namespace` raises what this raises. Called again,
        with a new context, after a failure.
        """

    def stop(self, *, timeout_seconds: float) -> None:
        """Returns when the syphon has stopped all its work and holds no locks. Called once for each
        start, also if that or the syphon failed.
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
        raise SyphonNotInstalled(
            "enable_syphon=True needs the syphon, which is not installed: run "
            "`pip install 'pairbus[spark]'`, or pair with enable_syphon=False and run `pairbus "
            "syphon` elsewhere",
            namespace=namespace,
        )
    # The only upward import, by name: the paired client also works where the syphon is not
    # installed.
    made = importlib.import_module("pairbus.syphon.background").BackgroundSyphon()
    assert isinstance(made, Syphon)
    return made


class SyphonSupervisor:
    """Starts and stops the syphon of a pair, restarts it, and applies the five-second rule.

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
        self._entities = tuple(primary._state.paths())
        self._fault_client = fault
        # Reentrant: a signal handler may close one client while its thread closes the other.
        self._lock = threading.RLock()
        self._is_abandoned = False
        self._ended: list[Which] = []
        self._both_ended = ReentrantEvent()
        # The thread that gives the partner of a client that has ended its five seconds.
        self._waiting: threading.Thread | None = None
        self._is_faulting = False
        # The thread that restarts the syphon, and its reports: which run failed and why, or
        # None to stop.
        self._thread: threading.Thread | None = None
        self._reports: SimpleQueue[tuple[int, Exception] | None] = SimpleQueue()
        self._stopping = ReentrantEvent()
        self._is_running = False
        self._run = 0
        self._status = SyphonStatus(
            state="running", since=_now(), failures=0, last_error=None, restart_at=None
        )
        # Failures in a row, and when the current run began.
        self._failures_in_a_row = 0
        self._began = 0.0

    def start(self) -> None:
        """Raises what the syphon raises at its start; then call `abandon`."""
        self._start_syphon()
        self._change(since=_now())
        self._thread = threading.Thread(
            target=self._supervise, name="pairbus-syphon-supervisor", daemon=True
        )
        self._thread.start()

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
        self._stop()

    # --- the end of a client ----------------------------------------------------------------------

    def _client_ended(self, which: Which, reason: str) -> None:
        with self._lock:
            if self._is_abandoned or which in self._ended:
                return
            self._ended.append(which)
            if self._ended[0] == which:
                self._waiting = threading.Thread(
                    target=self._wait_for_partner,
                    args=(_PARTNER[which], reason),
                    name="pairbus-partner",
                    daemon=True,
                )
                self._waiting.start()
            else:
                self._both_ended.set()
        self._stop()
        # A thread that faults this client waits for it. One that is not alive yet is being started
        # by the thread that a signal handler has interrupted.
        waiting = self._waiting
        is_over = self._both_ended.is_set() and not self._is_faulting
        if is_over and waiting is not None and waiting.is_alive():
            waiting.join(JOIN_SECONDS_MAX)

    def _wait_for_partner(self, partner: Which, reason: str) -> None:
        if (
            not self._both_ended.wait(PARTNER_SECONDS_MAX)
            and not self._is_abandoned
            and not self._is_shared(partner)
        ):
            reason = (
                f"the client of the {_PARTNER[partner]} namespace ended ({reason}), and its "
                f"partner did not end within {PARTNER_SECONDS_MAX:g} seconds"
            )
            name = self._pairing.namespace
            logger.warning("faulting the %s client of %s: %s", partner, name, reason)
            self._is_faulting = True
            self._fault_client(self._clients[partner], reason)
        self._stop_listening()

    def _is_shared(self, which: Which) -> bool:
        """Whether another pairing uses this client. Several primaries may share a secondary."""
        state: ClientState[Any] = self._clients[which]._state
        return state.has_other_listeners(self, self._pairing)

    def _stop_listening(self) -> None:
        for client in self._clients.values():
            client._state.forget(self)

    # --- the syphon -------------------------------------------------------------------------------

    def _start_syphon(self) -> None:
        self._run += 1
        self._is_running = True
        self._syphon.start(
            SyphonContext(
                namespace=self._pairing.namespace,
                primary=self._clients["primary"],
                secondary=self._clients["secondary"],
                manager=self._pairing.options.secondary_namespace_manager,
                backlog_queues=self._pairing.backlog_queues,
                entities=self._entities,
                failed=partial(self._report, self._run),
            )
        )
        self._began = self._pairing.clock()

    def _report(self, run: int, error: Exception) -> None:
        self._reports.put((run, error))

    def _supervise(self) -> None:
        while (report := self._reports.get()) is not None:
            run, error = report
            # A run may report more than once, or late, when it has already been replaced.
            if run == self._run and not self._stopping.is_set():
                self._restart(error)
        self._stop_syphon()
        self._change(state="stopped", since=_now(), restart_at=None)

    def _restart(self, error: Exception) -> None:
        """Start the syphon again after a wait. If that fails, the failure is the next report."""
        pairing, before = self._pairing, self._status
        if self._is_running and pairing.clock() - self._began >= STEADY_SECONDS:
            self._failures_in_a_row = 0
        self._stop_syphon()
        seconds = min(RESTART_SECONDS * 2**self._failures_in_a_row, RESTART_SECONDS_MAX)
        self._failures_in_a_row += 1
        now = _now()
        since = now if before.state == "running" else before.since
        failed = SyphonFailed(
            namespace=pairing.namespace,
            error=error,
            down_seconds=(now - since).total_seconds(),
            restart_in_seconds=seconds,
        )
        self._change(
            failed,
            state="restarting",
            since=since,
            failures=before.failures + 1,
            last_error=one_line(error),
            restart_at=now + timedelta(seconds=seconds),
        )
        if self._stopping.wait(seconds):
            return
        try:
            self._start_syphon()
        except Exception as again:
            self._report(self._run, again)
            return
        now = _now()
        down_seconds = (now - since).total_seconds()
        restarted = SyphonRestarted(namespace=pairing.namespace, down_seconds=down_seconds)
        self._change(restarted, state="running", since=now, restart_at=None)

    def _change(self, *events: Event, **changes: Any) -> None:
        self._status = replace(self._status, **changes)
        self._pairing.syphon_changed(self._status, *events)

    def _stop(self) -> None:
        """Returns when the syphon has stopped, or does not stop in time."""
        self._stopping.set()
        self._reports.put(None)
        if self._thread is None:
            self._stop_syphon()
        elif self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS_MAX)
            if self._thread.is_alive():
                name = self._pairing.namespace
                logger.warning("the syphon of %s is still stopping, in the background", name)

    def _stop_syphon(self) -> None:
        was_running, self._is_running = self._is_running, False
        if was_running:
            try:
                self._syphon.stop(timeout_seconds=STOP_SECONDS_MAX)
            except Exception:
                logger.exception("the syphon of %s failed to stop", self._pairing.namespace)


def _now() -> datetime:
    return datetime.now(UTC)
