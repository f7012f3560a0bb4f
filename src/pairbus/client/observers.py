"""Everything that is notified of events: logging, OpenTelemetry if it is installed, and the
application's own observers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from pairbus.events import Event, Observer
from pairbus.options import check_observer
from pairbus.telemetry import log, otel
from pairbus.telemetry.sends import ReadSends, WatchSends

logger = logging.getLogger("pairbus.observers")


class Observers:
    def __init__(
        self, namespace: str, *, primary: str, secondary: str, observers: Iterable[Observer]
    ) -> None:
        self._namespace = namespace
        traced = otel.observer(namespace, server_address=primary, secondary_address=secondary)
        self._lock = threading.Lock()  # only to change the observers: `notify` takes the tuple
        self._is_ended = False
        ours: tuple[Observer, ...] = (log.EventLog(), *([traced] if traced else []))
        self._observers: tuple[Observer, ...] = (*ours, *observers)
        self._read_sends: ReadSends | None = None
        self._stop_watching: set[Callable[[], None]] = set()

    def watch_sends(self, read: ReadSends) -> None:
        """Lets observers that publish metrics read the number of sends."""
        self._read_sends = read
        for observer in self._observers:
            self._watch(observer)

    def end(self) -> None:
        """Stop notifying observers."""
        self._is_ended = True
        while self._stop_watching:
            self._stop_watching.pop()()

    def add(self, observer: Observer) -> Callable[[], None]:
        """Returns a function that removes the observer. Calling it twice is safe."""
        check_observer(observer)

        # Each registration gets its own wrapper, so an observer that was added twice can be removed
        # once.
        def notified(event: Event) -> None:
            observer(event)

        with self._lock:
            self._observers = (*self._observers, notified)
        stop_watching = self._watch(observer)

        def remove() -> None:
            stop_watching()
            with self._lock:
                self._observers = tuple(each for each in self._observers if each is not notified)

        return remove

    def _watch(self, observer: Observer) -> Callable[[], None]:
        watch: WatchSends | None = getattr(observer, "watch_sends", None)
        if watch is None or self._read_sends is None or self._is_ended:
            return lambda: None
        try:
            stop = watch(self._namespace, self._read_sends)
        except Exception:
            logger.exception("observer %r cannot watch sends", observer)
            return lambda: None
        self._stop_watching.add(stop)

        def forget() -> None:
            self._stop_watching.discard(stop)
            stop()

        return forget

    def notify(self, events: Iterable[Event]) -> None:
        if self._is_ended:
            return
        for event in events:
            for observer in self._observers:
                try:
                    observer(event)
                except Exception:
                    # An observer must not be able to make a send fail.
                    logger.exception("observer %r failed on %r", observer, event)
