"""The current values behind gauges, computed from events that report only changes.

Counts open pairings, failed-over and flapping entities, withdrawn backlog queues, failed syphons,
and messages in outboxes. An event does not say which client it comes from, and clients may share an
observer. So an entity counts at most once for each open client of its primary, and not at all after
the last of them has closed. An outbox is identified by its file.
Independent of any metrics library.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum, auto

from pairbus import events
from pairbus.events import Event


class Gauge(Enum):
    PAIRINGS = auto()
    ENTITIES_FAILED_OVER = auto()
    ENTITIES_FLAPPING = auto()
    QUEUES_WITHDRAWN = auto()
    SYPHONS_DOWN = auto()
    OUTBOX_MESSAGES = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeChange:
    gauge: Gauge
    namespace: str
    name: str
    """The entity or the backlog queue; empty for pairings, syphons and outboxes."""
    delta: int


class GaugeTracker:
    def __init__(self) -> None:
        # Events arrive on the threads of all senders. Reentrant: a signal handler may close the
        # client while its thread is in here.
        self._lock = threading.RLock()
        self._open_pairings: dict[str, int] = {}
        self._values: dict[tuple[Gauge, str, str], int] = {}
        self._outboxes: dict[tuple[str, str], int] = {}
        """By namespace and file: how many messages wait."""
        self._events: list[Event] = []
        self._is_changing = False

    def changes(self, event: Event) -> list[GaugeChange]:
        """Returns the changes that an event causes. Events of a closed client change nothing.

        A signal handler's event waits until the one that it interrupts is counted. The interrupted
        call then returns the changes of both.
        """
        with self._lock:
            self._events.append(event)
            if self._is_changing:
                return []
            changes: list[GaugeChange] = []
            while self._events:
                self._is_changing = True
                try:
                    # Before the line above, a signal handler may have counted all of them.
                    if self._events:
                        changes += self._changes(self._events.pop(0))
                finally:
                    self._is_changing = False
            return changes

    def _changes(self, event: Event) -> list[GaugeChange]:
        match event:
            case events.Paired():
                return self._opened(event.namespace)
            case events.FailedOver():
                return self._add(Gauge.ENTITIES_FAILED_OVER, event.namespace, event.path, +1)
            case events.FailedBack():
                return self._add(Gauge.ENTITIES_FAILED_OVER, event.namespace, event.path, -1)
            case events.Flapping(times=1):
                return self._add(Gauge.ENTITIES_FLAPPING, event.namespace, event.path, +1)
            case events.Calmed():
                return self._add(Gauge.ENTITIES_FLAPPING, event.namespace, event.path, -1)
            case events.BacklogWithdrawn():
                queue = event.backlog_queue
                return self._add(Gauge.QUEUES_WITHDRAWN, event.namespace, queue, +1)
            case events.BacklogReadmitted():
                queue = event.backlog_queue
                return self._add(Gauge.QUEUES_WITHDRAWN, event.namespace, queue, -1)
            case events.SyphonFailed(down_seconds=0):
                return self._add(Gauge.SYPHONS_DOWN, event.namespace, "", +1)
            case events.SyphonRestarted():
                return self._add(Gauge.SYPHONS_DOWN, event.namespace, "", -1)
            case events.OutboxEvent():
                return self._wait_in_outbox(event.namespace, event.file, event.waiting)
            case events.Closed():
                return self._closed(event.namespace)
        return []

    def _opened(self, namespace: str) -> list[GaugeChange]:
        self._open_pairings[namespace] = self._open_pairings.get(namespace, 0) + 1
        return [GaugeChange(gauge=Gauge.PAIRINGS, namespace=namespace, name="", delta=+1)]

    def _closed(self, namespace: str) -> list[GaugeChange]:
        before = self._open_pairings.get(namespace, 0)
        self._open_pairings[namespace] = max(0, before - 1)
        changes = []
        if before:
            pairings = GaugeChange(gauge=Gauge.PAIRINGS, namespace=namespace, name="", delta=-1)
            changes.append(pairings)
        for key in list(self._values):
            changes += self._add(*key, 0)  # lowers it to the number of clients still open
        if not self._open_pairings[namespace]:
            for each, file in list(self._outboxes):
                if each == namespace:
                    changes += self._wait_in_outbox(namespace, file, 0)
        return changes

    def _wait_in_outbox(self, namespace: str, file: str, waiting: int) -> list[GaugeChange]:
        delta = waiting - self._outboxes.pop((namespace, file), 0)
        if waiting:
            self._outboxes[namespace, file] = waiting
        if not delta:
            return []
        gauge = Gauge.OUTBOX_MESSAGES
        return [GaugeChange(gauge=gauge, namespace=namespace, name="", delta=delta)]

    def _add(self, gauge: Gauge, namespace: str, name: str, delta: int) -> list[GaugeChange]:
        key = (gauge, namespace, name)
        before = self._values.get(key, 0)
        # The default of 1 is for an observer that was added after the pairing was opened.
        after = min(max(0, before + delta), self._open_pairings.get(namespace, 1))
        if after == before:
            return []
        if after:
            self._values[key] = after
        else:
            del self._values[key]
        return [GaugeChange(gauge=gauge, namespace=namespace, name=name, delta=after - before)]
