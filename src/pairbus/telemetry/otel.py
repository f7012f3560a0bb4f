"""Metrics and traces through OpenTelemetry's API, following its messaging conventions.

The API is an extra, so it is imported only when an observer is created. If the application has not
set up OpenTelemetry, the API quickly discards what it gets. Sends to a healthy primary cause no
event, so that they cost nothing: their number is read from the pairings when metrics are collected.

A failover is a span of zero length and not an event on the span of a send. It can happen where no
span is open, later spans can link to it, and OpenTelemetry is phasing span events out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from pairbus.errors import one_line
from pairbus.events import Closed, Diverted, Event, FailedBack, FailedOver, Observer, PingSent
from pairbus.telemetry.otel_metrics import (
    AFTER_SECONDS,
    ANSWERED,
    BACKLOG_QUEUE,
    CAUSE,
    DESTINATION,
    ENTITY,
    MESSAGE_COUNT,
    NAMESPACE,
    OPERATION_TYPE,
    REASON,
    SCHEMA_URL,
    SENT_TO_PRIMARY,
    Attributes,
    Metrics,
    failure,
    operation,
)
from pairbus.telemetry.sends import SendTotals, WatchSends

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import SpanContext, SpanKind, Tracer, TracerProvider


def observer(
    namespace: str,
    *,
    server_address: str | None = None,
    secondary_address: str | None = None,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Observer | None:
    """An observer for one pairing, or None if OpenTelemetry's API is not installed.

    The addresses are the hosts of the primary and the secondary; None omits the attribute. Without
    providers, it uses the application's, even if the application sets them up later.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        return None
    release = _release()
    meter = metrics.get_meter("pairbus", release, meter_provider, SCHEMA_URL)
    tracer = trace.get_tracer("pairbus", release, tracer_provider, SCHEMA_URL)
    measured = Metrics(meter, namespace, secondary_address=secondary_address)
    spans = _Spans(tracer, namespace, server_address, secondary_address, clock=clock)

    return _Telemetry(measured, spans, _sends_of(meter_provider or metrics, meter))


class _Telemetry:
    """The observer of one pairing."""

    def __init__(self, metrics: Metrics, spans: _Spans, sends: SendTotals) -> None:
        self._metrics, self._spans = metrics, spans
        self.watch_sends: WatchSends = sends.watch_sends

    def __call__(self, event: Event) -> None:
        self._metrics.observe(event)
        self._spans.observe(event)


# All pairings share one instrument of a provider: it would not add up several of one name.
_LOCK: Final = threading.Lock()
_BY_PROVIDER: Final[WeakKeyDictionary[Any, SendTotals]] = WeakKeyDictionary()


def _sends_of(provider: Any, meter: Meter) -> SendTotals:
    """`provider`: the API's module stands for that of the application."""
    from opentelemetry.metrics import Observation

    with _LOCK:
        if provider not in _BY_PROVIDER:
            sends = _BY_PROVIDER[provider] = SendTotals()

            def observe(options: CallbackOptions) -> Iterable[Observation]:
                for (namespace, entity), count in sends.totals().items():
                    yield Observation(count, {NAMESPACE: namespace, ENTITY: entity})

            name, unit, description = SENT_TO_PRIMARY
            meter.create_observable_counter(name, [observe], unit, description)
        return _BY_PROVIDER[provider]


def _release() -> str:
    """Empty where the package runs without its metadata, for example copied next to a program."""
    try:
        return version("pairbus")
    except PackageNotFoundError:
        return ""


class _Spans:
    """A span for each diverted send, ping, failover and failback, linked to the failover."""

    def __init__(
        self,
        tracer: Tracer,
        namespace: str,
        primary_address: str | None,
        secondary_address: str | None,
        *,
        clock: Callable[[], int],
    ) -> None:
        from opentelemetry import context, trace

        self._api, self._no_parent = trace, context.Context()
        self._tracer = tracer
        self._namespace = namespace
        self._clock = clock
        self._divert = operation("send", address=secondary_address) | {OPERATION_TYPE: "send"}
        self._ping = operation("ping", address=primary_address)
        self._failovers: dict[str, SpanContext] = {}

    def observe(self, event: Event) -> None:
        match event:
            case Diverted():
                self._diverted(event)
            case PingSent():
                self._ping_sent(event)
            case FailedOver():
                self._failed_over(event)
            case FailedBack():
                self._failed_back(event)
            case Closed():
                self._failovers.clear()

    def _diverted(self, event: Diverted) -> None:
        attributes = self._divert | {DESTINATION: event.backlog_queue}
        if event.count > 1:
            attributes[MESSAGE_COUNT] = event.count
        kind = self._api.SpanKind.PRODUCER
        self._add(f"send {event.backlog_queue}", event, kind, attributes, seconds=event.seconds)

    def _ping_sent(self, event: PingSent) -> None:
        attributes = self._ping | {DESTINATION: event.path, ANSWERED: event.answered}
        problem = None
        if not event.answered:
            attributes |= failure(event.error)
            problem = one_line(event.error)
        kind = self._api.SpanKind.CLIENT
        # A ping belongs to no request of the application, whichever request started the pings.
        self._add(f"ping {event.path}", event, kind, attributes, has_parent=False, problem=problem)

    def _failed_over(self, event: FailedOver) -> None:
        attributes = failure(event.error) | {
            AFTER_SECONDS: event.after_seconds,
            CAUSE: one_line(event.error),
        }
        if event.backlog_queue is not None:
            attributes[BACKLOG_QUEUE] = event.backlog_queue
        kind = self._api.SpanKind.INTERNAL
        span = self._add(f"failover {event.path}", event, kind, attributes)
        if span.is_valid:
            self._failovers[event.path] = span

    def _failed_back(self, event: FailedBack) -> None:
        attributes: Attributes = {
            AFTER_SECONDS: event.after_seconds,
            REASON: event.reason,
        }
        kind = self._api.SpanKind.INTERNAL
        by_ping = event.reason == "ping"
        self._add(f"failback {event.path}", event, kind, attributes, has_parent=not by_ping)
        self._failovers.pop(event.path, None)

    def _add(
        self,
        name: str,
        event: Any,
        kind: SpanKind,
        attributes: Attributes,
        *,
        seconds: float = 0.0,
        has_parent: bool = True,
        problem: str | None = None,
    ) -> SpanContext:
        """A span that ends now: an event reports something that is over."""
        now = self._clock()
        failover = self._failovers.get(event.path)
        span = self._tracer.start_span(
            name,
            context=None if has_parent else self._no_parent,
            kind=kind,
            attributes=attributes | {NAMESPACE: self._namespace, ENTITY: event.path},
            links=None if failover is None else [self._api.Link(failover)],
            start_time=now - round(seconds * 1e9),
        )
        if problem is not None:
            span.set_status(self._api.StatusCode.ERROR, problem)
        span.end(now)
        return span.get_span_context()
