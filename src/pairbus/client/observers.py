"""Tells events to all who watch: logging, OpenTelemetry where it is installed, an application's own
observers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from pairbus.events import Event, Observer
from pairbus.options import check_observer
from pairbus.telemetry import log, otel

logger = logging.getLogger("pairbus.observers")


class Audience:
    def __init__(
        self, namespace: str, *, primary: str, secondary: str, observers: Iterable[Observer]
    ) -> None:
        traced = otel.observer(namespace, server_address=primary, secondary_address=secondary)
        self._lock = threading.Lock()
        self._is_ended = False
        self._is_traced = traced is not None
        usual: tuple[Observer, ...] = (log.log_event, *([traced] if traced else []))
        self._usual_count = len(usual)
        self._observers: tuple[Observer, ...] = (*usual, *observers)

    def end(self) -> None:
        """Nothing is told from here on."""
        self._is_ended = True

    def observe(self, observer: Observer) -> Callable[[], None]:
        """The result ends it; calling that twice does no harm."""
        check_observer(observer)

        # A wrapper of its own, so that an observer registered twice can be ended once.
        def told(event: Event) -> None:
            observer(event)

        with self._lock:
            self._observers = (*self._observers, told)

        def end() -> None:
            with self._lock:
                self._observers = tuple(each for each in self._observers if each is not told)

        return end

    def hears_each(self) -> bool:
        """Whether anybody wants to know of each diverted message. Asked each time: logging and
        OpenTelemetry may be set up at any moment."""
        return (
            len(self._observers) > self._usual_count
            or log.hears_each()
            or (self._is_traced and otel.hears_each())
        )

    def tell(self, events: Iterable[Event]) -> None:
        if self._is_ended:
            return
        for event in events:
            for observer in self._observers:
                try:
                    observer(event)
                except Exception:
                    # Whoever watches must not be able to make a send fail.
                    logger.exception("observer %r failed on %r", observer, event)
