"""Where the syphon runs, the two clients of a pair end together.

When one has closed or faulted and the other has not within five seconds, the other is faulted.
The syphon is stopped as soon as one of them ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pairbus.client.blocking.pairing import Pairing
from pairbus.client.route.partners import Partners, Which
from pairbus.client.syphon import STOP_SECONDS_MAX, Syphon, SyphonContext

logger = logging.getLogger("pairbus.client")


class Partnership:
    def __init__(self, primary: Any, pairing: Pairing, syphon: Syphon) -> None:
        self._clients: dict[Which, Any] = {
            "primary": primary,
            "secondary": pairing.options.messaging_factory,
        }
        self._pairing = pairing
        self._syphon = syphon
        self._clock: Callable[[], float] = pairing.clock
        self._lock = threading.Lock()
        self._partners = Partners()
        self._both_ended = threading.Event()
        self._ended: set[Which] = set()
        self._is_abandoned = False
        self._is_started = False

    def start(self) -> None:
        """What the syphon raises at its start surfaces from here; `stop` is to be called then."""
        self._is_started = True
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
        for which, client in self._clients.items():
            client._state.listen(self, lambda reason, which=which: self._has_ended(which, reason))

    def abandon(self) -> None:
        """The pairing came to nothing: the syphon is stopped, and nobody is faulted."""
        with self._lock:
            self._is_abandoned = True
        self._forget()
        self.stop()

    def stop(self) -> None:
        """The syphon, once."""
        with self._lock:
            is_first, self._is_started = self._is_started, False
        if is_first:
            try:
                self._syphon.stop(timeout_seconds=STOP_SECONDS_MAX)
            except Exception:
                logger.exception("the syphon of %s did not stop well", self._pairing.namespace)

    def _has_ended(self, which: Which, reason: str) -> None:
        with self._lock:
            if self._is_abandoned:
                return
            is_first = not self._ended
            self._ended.add(which)
            self._partners.ended(which, now=self._clock(), reason=reason)
            if not is_first:
                self._both_ended.set()
        self.stop()
        if is_first:
            threading.Thread(target=self._watch, name="pairbus-partner", daemon=True).start()

    def _watch(self) -> None:
        deadline = self._partners.deadline
        if deadline is not None and not self._both_ended.wait(max(0.0, deadline - self._clock())):
            with self._lock:
                fault = self._partners.due(now=max(self._clock(), deadline))
            if fault is not None and not self._is_abandoned:
                self._fault(fault.which, fault.reason)
        self._forget()

    def _forget(self) -> None:
        for client in self._clients.values():
            client._state.forget(self)

    def _fault_both(self, reason: str) -> None:
        """In a thread of its own: it is the syphon's that asks, and the syphon is stopped here."""

        def fault_both() -> None:
            for which in self._clients:
                self._fault(which, reason)

        threading.Thread(target=fault_both, name="pairbus-fault", daemon=True).start()

    def _fault(self, which: Which, reason: str) -> None:
        logger.warning("faulting the %s client of %s: %s", which, self._pairing.namespace, reason)
        self._clients[which].fault(reason)
