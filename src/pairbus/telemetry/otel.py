"""Metrics and traces through OpenTelemetry's API, with its messaging conventions.

The API is an extra, and so is imported only when an observer is made. Where the application has
not set OpenTelemetry up, the API does nothing with what it gets, quickly. Knows nothing of sends to
a healthy primary: no event tells of them, for they are to cost nothing.

A failover is a span without a length rather than an event on the span of a send: it may happen
where there is no such span, what follows from it can link to it, and span events are on their way
out of OpenTelemetry.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pairbus.events import Closed, Diverted, Event, FailedBack, FailedOver, Observer, PingSent
from pairbus.telemetry import conventions as names
from pairbus.telemetry.causes import one_line
from pairbus.telemetry.conventions import SCHEMA_URL, Attributes, failure, operation
from pairbus.telemetry.otel_metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
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
    """An observer for one pairing, or None where OpenTelemetry's API is not installed.

    The addresses are the hosts of the primary and of the secondary; one that is not given is left
    out. Without providers it reports to the application's, also if they are set after this call.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        return None
    release = version("pairbus")
    meter = metrics.get_meter("pairbus", release, meter_provider, SCHEMA_URL)
    tracer = trace.get_tracer("pairbus", release, tracer_provider, SCHEMA_URL)
    measured = Metrics(meter, namespace, secondary_address=secondary_address)
    traced = _Spans(tracer, namespace, server_address, secondary_address, clock=clock)

    def observe(event: Event) -> None:
        measured.observe(event)
        # No diverted message pays for a span that nobody gets. Asked each time: an application may
        # set tracing up when it likes. (Where that is kept is not public, and `get_tracer_provider`
        # looks at the environment first; without it, there is a span that nobody gets.)
        if (
            tracer_provider is None
            and isinstance(event, Diverted)
            and getattr(trace, "_TRACER_PROVIDER", trace) is None
        ):
            return
        traced.observe(event)

    return observe


def hears_each() -> bool:
    """Whether the application has set up what a diverted message is reported to. Where that is kept
    is not public; without it, the answer is yes."""
    tracing, measuring = _apis()
    return (
        getattr(tracing, "_TRACER_PROVIDER", _apis) is not None
        or getattr(measuring, "_METER_PROVIDER", _apis) is not None
    )


@cache
def _apis() -> tuple[Any, Any]:
    from opentelemetry import trace
    from opentelemetry.metrics import _internal

    return trace, _internal


class _Spans:
    """What was sent because of an outage, each with a link to the failover that it followed."""

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
        self._divert = operation("send", address=secondary_address) | {names.OPERATION_TYPE: "send"}
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
        what = self._divert | {names.DESTINATION: event.backlog_queue}
        if event.count > 1:
            what[names.MESSAGE_COUNT] = event.count
        kind = self._api.SpanKind.PRODUCER
        self._add(f"send {event.backlog_queue}", event, kind, what, seconds=event.seconds)

    def _ping_sent(self, event: PingSent) -> None:
        what = self._ping | {names.DESTINATION: event.path, names.ANSWERED: event.answered}
        problem = None
        if not event.answered:
            what |= failure(event.error)
            problem = one_line(event.error)
        kind = self._api.SpanKind.CLIENT
        # No part of a request of the application, whichever started the task that pings.
        self._add(f"ping {event.path}", event, kind, what, has_parent=False, problem=problem)

    def _failed_over(self, event: FailedOver) -> None:
        what = failure(event.error) | {
            names.AFTER_SECONDS: event.after_seconds,
            names.CAUSE: one_line(event.error),
        }
        if event.backlog_queue is not None:
            what[names.BACKLOG_QUEUE] = event.backlog_queue
        kind = self._api.SpanKind.INTERNAL
        span = self._add(f"failover {event.path}", event, kind, what)
        if span.is_valid:
            self._failovers[event.path] = span

    def _failed_back(self, event: FailedBack) -> None:
        what: Attributes = {
            names.AFTER_SECONDS: event.after_seconds,
            names.REASON: event.reason,
        }
        kind = self._api.SpanKind.INTERNAL
        by_ping = event.reason == "ping"
        self._add(f"failback {event.path}", event, kind, what, has_parent=not by_ping)
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
        """A span that ends now: events tell of what is over."""
        now = self._clock()
        failover = self._failovers.get(event.path)
        span = self._tracer.start_span(
            name,
            context=None if has_parent else self._no_parent,
            kind=kind,
            attributes=attributes | {names.NAMESPACE: self._namespace, names.ENTITY: event.path},
            links=None if failover is None else [self._api.Link(failover)],
            start_time=now - round(seconds * 1e9),
        )
        if problem is not None:
            span.set_status(self._api.StatusCode.ERROR, problem)
        span.end(now)
        return span.get_span_context()
