"""OpenTelemetry's own SDK receives the events; the tests look at what it would export."""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as convention
from opentelemetry.trace import SpanKind, StatusCode

from pairbus.telemetry import otel, otel_metrics
from tests.telemetry import sample_events as sample

ROOT = Path(__file__).parents[2]
NOW = 1_800_000_000_000_000_000
WHOSE = {"pairbus.namespace": "contoso", "pairbus.entity": "orders"}


class Recorder:
    """An observer, and the spans and metrics that it reports."""

    def __init__(self, **addresses):
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self._tracers = TracerProvider(shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self._tracers.get_tracer("the application")
        self.observer = self.another(**addresses)

    def another(self, **addresses):
        return otel.observer(
            "contoso",
            tracer_provider=self._tracers,
            meter_provider=self._meters,
            clock=lambda: NOW,
            **addresses,
        )

    def __call__(self, *events):
        for event in events:
            self.observer(event)

    def spans(self):
        return list(self._exporter.get_finished_spans())

    def span(self, *events):
        """The span of the last event."""
        self(*events)
        return self.spans()[-1]

    def metrics(self):
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, name):
        """Attributes and value of each point; for a histogram, its sum."""
        metric = self.metrics().get(name)
        points = metric.data.data_points if metric else []
        return [
            (dict(point.attributes), getattr(point, "value", getattr(point, "sum", None)))
            for point in points
        ]

    def close(self):
        self._tracers.shutdown()
        self._meters.shutdown()


@pytest.fixture
def recorder():
    seen = Recorder(server_address="contoso.example", secondary_address="spare.example")
    yield seen
    seen.close()


# --- spans ----------------------------------------------------------------------------------------


def test_a_diverted_message_is_a_span_in_the_trace_of_its_sender(recorder):
    with recorder.tracer.start_as_current_span("place an order") as request:
        span = recorder.span(sample.diverted)

    assert span.name == "send contoso/x-servicebus-transfer/1"
    assert span.kind is SpanKind.PRODUCER
    assert span.parent == request.get_span_context()
    assert (span.start_time, span.end_time) == (NOW - 20_000_000, NOW)
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == WHOSE | {
        "messaging.system": "servicebus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "contoso/x-servicebus-transfer/1",
        "server.address": "spare.example",
    }


def test_a_batch_has_its_number_of_messages(recorder):
    span = recorder.span(sample.diverted_batch)

    assert span.attributes["messaging.batch.message_count"] == 40
    assert (span.start_time, span.end_time) == (NOW - 300_000_000, NOW)


def test_an_unanswered_ping_is_a_failed_span_of_its_own(recorder):
    with recorder.tracer.start_as_current_span("what started the pings"):
        span = recorder.span(sample.ping_unanswered)

    assert span.name == "ping orders"
    assert span.kind is SpanKind.CLIENT
    assert span.parent is None
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "ConnectionError: the line is dead"
    assert span.attributes == WHOSE | {
        "messaging.system": "servicebus",
        "messaging.operation.name": "ping",
        "messaging.destination.name": "orders",
        "server.address": "contoso.example",
        "pairbus.answered": False,
        "error.type": "ConnectionError",
    }


def test_an_answered_ping_is_a_span_without_an_error(recorder):
    span = recorder.span(sample.ping_answered)

    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes["pairbus.answered"] is True
    assert "error.type" not in span.attributes


def test_an_unknown_error_has_the_value_of_the_conventions(recorder):
    span = recorder.span(replace(sample.ping_unanswered, error=None))

    assert span.attributes["error.type"] == "_OTHER"


def test_a_failover_has_no_length_and_is_in_the_trace_of_the_send_that_caused_it(recorder):
    with recorder.tracer.start_as_current_span("place an order") as request:
        span = recorder.span(sample.failed_over)

    assert span.name == "failover orders"
    assert span.kind is SpanKind.INTERNAL
    assert span.parent == request.get_span_context()
    assert span.start_time == span.end_time == NOW
    assert not span.events
    assert span.attributes == WHOSE | {
        "pairbus.backlog_queue": "contoso/x-servicebus-transfer/1",
        "pairbus.after_seconds": 60.0,
        "pairbus.cause": "ConnectionError: the line is dead",
        "error.type": "ConnectionError",
    }


def test_a_failover_without_a_queue_names_none(recorder):
    span = recorder.span(replace(sample.failed_over, backlog_queue=None))

    assert "pairbus.backlog_queue" not in span.attributes


def test_later_spans_link_to_the_failover(recorder):
    recorder(sample.failed_over, sample.diverted, sample.ping_answered, sample.failed_back)

    failover, *rest = recorder.spans()
    assert len(rest) == 3
    for span in rest:
        assert [link.context for link in span.links] == [failover.get_span_context()]


@pytest.mark.parametrize("end", [sample.failed_back, sample.closed])
def test_spans_after_the_outage_link_to_nothing(recorder, end):
    span = recorder.span(sample.failed_over, end, sample.diverted)

    assert not span.links


def test_spans_of_another_entity_link_to_nothing(recorder):
    span = recorder.span(sample.failed_over, replace(sample.diverted, path="bills"))

    assert not span.links


@pytest.mark.parametrize(
    ("event", "is_part_of_it"),
    [(sample.failed_back, False), (sample.failed_back_by_hand, True)],
)
def test_a_failback_has_no_length_and_is_in_a_trace_if_done_by_hand(recorder, event, is_part_of_it):
    with recorder.tracer.start_as_current_span("now") as request:
        span = recorder.span(event)

    assert span.name == "failback orders"
    assert span.start_time == span.end_time == NOW
    assert span.parent == (request.get_span_context() if is_part_of_it else None)
    assert span.attributes == WHOSE | {
        "pairbus.after_seconds": event.after_seconds,
        "pairbus.reason": event.reason,
    }


def test_nothing_else_has_a_span(recorder):
    recorder(*sample.HISTORY)

    names = {span.name.split()[0] for span in recorder.spans()}
    assert names == {"send", "ping", "failover", "failback"}
    assert len(recorder.spans()) == 2 + 2 + 2 + 2


def test_an_address_that_is_not_known_is_left_out():
    recorder = Recorder()
    recorder(*sample.HISTORY)

    assert not any("server.address" in span.attributes for span in recorder.spans())
    assert "server.address" not in recorder.points("messaging.client.sent.messages")[0][0]
    recorder.close()


def test_the_names_are_those_of_the_conventions():
    assert otel_metrics.SYSTEM == convention.MESSAGING_SYSTEM
    assert otel_metrics.OPERATION_NAME == convention.MESSAGING_OPERATION_NAME
    assert otel_metrics.OPERATION_TYPE == convention.MESSAGING_OPERATION_TYPE
    assert otel_metrics.DESTINATION == convention.MESSAGING_DESTINATION_NAME
    assert otel_metrics.MESSAGE_COUNT == convention.MESSAGING_BATCH_MESSAGE_COUNT
    assert convention.MessagingSystemValues.SERVICEBUS.value == "servicebus"
    assert convention.MessagingOperationTypeValues.SEND.value == "send"


# --- metrics --------------------------------------------------------------------------------------

OURS = {"pairbus.namespace": "contoso"}
ENTITY = OURS | {"pairbus.entity": "orders"}
QUEUE = OURS | {"pairbus.backlog_queue": "contoso/x-servicebus-transfer/1"}
LOST = {"error.type": "ConnectionError"}
REFUSED = {"error.type": "PermissionError"}
SEND = {
    "messaging.system": "servicebus",
    "messaging.operation.name": "send",
    "messaging.destination.name": "contoso/x-servicebus-transfer/1",
    "server.address": "spare.example",
}

# What the whole history of an outage adds up to.
TOTALS = {
    "messaging.client.sent.messages": [(SEND, 41)],
    "messaging.client.operation.duration": [
        (SEND | {"messaging.operation.type": "send"}, pytest.approx(0.32))
    ],
    "pairbus.diverted.messages": [(ENTITY, 41)],
    "pairbus.primary.failures": [(ENTITY | LOST, 2)],
    "pairbus.recoveries": [(ENTITY, 1)],
    "pairbus.failovers": [(ENTITY | LOST, 2)],
    "pairbus.failback.delays": [(ENTITY, 1)],
    "pairbus.flaps": [(ENTITY, 1)],
    "pairbus.entities.flapping": [(ENTITY, 0)],
    "pairbus.failbacks": [
        (ENTITY | {"pairbus.reason": "ping"}, 1),
        (ENTITY | {"pairbus.reason": "by hand"}, 1),
    ],
    "pairbus.failed_over.duration": [(ENTITY, 304.5)],
    "pairbus.pings": [
        (ENTITY | {"pairbus.answered": False} | LOST, 1),
        (ENTITY | {"pairbus.answered": True}, 1),
    ],
    "pairbus.throttles": [(QUEUE, 1), (ENTITY, 1)],
    "pairbus.backlog.withdrawals": [(QUEUE | REFUSED, 1)],
    "pairbus.backlog.readmissions": [(QUEUE, 1)],
    "pairbus.send.failures": [(ENTITY | REFUSED, 1)],
    "pairbus.outbox.stored": [(ENTITY, 3)],
    "pairbus.outbox.sent": [(ENTITY, 4)],
    "pairbus.outbox.held": [(ENTITY, 1)],
    "pairbus.outbox.stalls": [(ENTITY | REFUSED, 1)],
    "pairbus.outbox.messages": [(OURS, 0)],
    "pairbus.syphon.failures": [(OURS | LOST, 1), (OURS | REFUSED, 1)],
    "pairbus.syphon.restarts": [(OURS, 1)],
    "pairbus.syphons.down": [(OURS, 0)],
    "pairbus.pairings": [(OURS, 0)],
    "pairbus.entities.failed_over": [(ENTITY, 0)],
    "pairbus.backlog.withdrawn": [(QUEUE, 0)],
}


def test_the_history_of_an_outage_adds_up(recorder):
    recorder(*sample.HISTORY)

    assert {name: recorder.points(name) for name in recorder.metrics()} == TOTALS


def test_gauges_rise_and_fall(recorder):
    recorder(sample.paired, sample.failed_over, sample.withdrawn)

    assert recorder.points("pairbus.pairings") == [(OURS, 1)]
    assert recorder.points("pairbus.entities.failed_over") == [(ENTITY, 1)]
    assert recorder.points("pairbus.backlog.withdrawn") == [(QUEUE, 1)]

    recorder(sample.closed)

    assert recorder.points("pairbus.pairings") == [(OURS, 0)]
    assert recorder.points("pairbus.entities.failed_over") == [(ENTITY, 0)]
    assert recorder.points("pairbus.backlog.withdrawn") == [(QUEUE, 0)]


def test_the_duration_of_sends_has_the_buckets_that_the_conventions_advise(recorder):
    recorder(sample.diverted)

    metric = recorder.metrics()["messaging.client.operation.duration"]
    (point,) = metric.data.data_points
    advised = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert metric.unit == "s"
    assert tuple(point.explicit_bounds) == advised


def test_two_clients_of_one_process_add_up_without_warnings(recorder, caplog):
    another = recorder.another()
    recorder(sample.paired, sample.failed_over)
    another(sample.paired)
    another(sample.failed_over)

    assert recorder.points("pairbus.failovers") == [(ENTITY | LOST, 2)]
    assert recorder.points("pairbus.entities.failed_over") == [(ENTITY, 2)]

    another(sample.closed)

    assert recorder.points("pairbus.entities.failed_over") == [(ENTITY, 1)]
    assert not caplog.records


# --- installed or not -----------------------------------------------------------------------------


def test_without_the_api_there_is_no_observer(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)

    assert otel.observer("contoso") is None


def test_a_copy_of_the_package_without_metadata_still_observes(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(otel, "version", missing)

    otel.observer("contoso")(sample.failed_over)


def test_with_the_api_alone_events_go_nowhere_and_nothing_breaks():
    observer = otel.observer("contoso", server_address="contoso.example")

    for event in sample.HISTORY:
        observer(event)


def test_an_application_may_set_opentelemetry_up_after_pairing():
    program = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pairbus.telemetry import otel
from tests.telemetry.sample_events import diverted

observer = otel.observer("contoso")
observer(diverted)  # goes nowhere
reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
observer(diverted)
(resource,) = reader.get_metrics_data().resource_metrics
(scope,) = resource.scope_metrics
print(scope.scope.name, len(scope.metrics), [s.name for s in exporter.get_finished_spans()])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=ROOT
    )

    expected = "pairbus 3 ['send contoso/x-servicebus-transfer/1']\n"
    assert (done.stdout, done.stderr) == (expected, "")


def test_importing_imports_none_of_the_extras():
    program = """
import sys
import pairbus, pairbus.telemetry, pairbus.telemetry.otel, pairbus.telemetry.prometheus
print([name for name in sys.modules if name.startswith(("opentelemetry", "prometheus", "azure"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_sends_to_the_primary_add_up_over_the_clients_of_a_provider(recorder):
    counts = {"orders": 3}
    stop = recorder.observer.watch_sends("contoso", lambda: counts)
    recorder.another().watch_sends("contoso", lambda: {"orders": 10, "bills": 1})
    bills = WHOSE | {"pairbus.entity": "bills"}
    assert recorder.points("pairbus.sent.messages") == [(WHOSE, 13), (bills, 1)]

    counts["orders"] = 5
    stop()
    stop()
    counts["orders"] = 6
    assert recorder.points("pairbus.sent.messages") == [(WHOSE, 15), (bills, 1)]
