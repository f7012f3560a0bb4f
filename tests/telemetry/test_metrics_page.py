"""docs/metrics.md lists exactly the metrics, spans and loggers that exist."""

import logging
import re
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics.export import Histogram, Sum
from prometheus_client import CollectorRegistry

from pairbus.telemetry.prometheus import PrometheusObserver
from tests.telemetry import sample_events as sample
from tests.telemetry.test_log import LINES
from tests.telemetry.test_otel import Recorder

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")
CONVENTIONAL = "see the conventions"


def rows(title, first):
    """The cells of the table in this section whose first column is `first`."""
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    table = re.search(rf"^\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def words(cell):
    return set(re.findall(r"`([^`]+)`", cell))


@pytest.fixture
def recorder():
    seen = Recorder(server_address="contoso.example", secondary_address="spare.example")
    seen(*sample.HISTORY)
    seen.observer.watch_sends("contoso", lambda: {"orders": 1})
    yield seen
    seen.close()


def test_the_page_has_the_metrics_of_opentelemetry(recorder):
    def kind(data):
        if isinstance(data, Histogram):
            return "histogram"
        assert isinstance(data, Sum)
        return "counter" if data.is_monotonic else "up-down counter"

    def attributes(metric):
        names = {name for point in metric.data.data_points for name in point.attributes}
        if metric.name.startswith("pairbus"):
            assert "pairbus.namespace" in names
        return names - {"pairbus.namespace"}

    there = {
        (metric.name, kind(metric.data), metric.unit): attributes(metric)
        for metric in recorder.metrics().values()
    }
    listed = {
        (name.strip("`"), kind, unit.strip("`")): there.get(
            (name.strip("`"), kind, unit.strip("`"))
        )
        if cell == CONVENTIONAL
        else words(cell)
        for name, kind, unit, cell, _ in rows("Turn on OpenTelemetry", "metric")
    }

    assert listed == there


def test_only_conventional_metrics_refer_to_the_conventions():
    for name, _, _, attributes, _ in rows("Turn on OpenTelemetry", "metric"):
        assert (attributes == CONVENTIONAL) == name.startswith("`messaging.")


def test_the_page_has_the_spans(recorder):
    there = {(span.name.split()[0], span.kind.name.lower()) for span in recorder.spans()}
    listed = rows("Turn on OpenTelemetry", "span")

    assert {(name.strip("`").split()[0], kind) for name, kind, *_ in listed} == there


def test_the_page_has_the_metrics_of_prometheus():
    registry = CollectorRegistry()
    for event in sample.HISTORY:
        PrometheusObserver(registry)(event)
    PrometheusObserver(registry).watch_sends("contoso", lambda: {"orders": 1})

    there = {}
    for family in registry.collect():
        labels = {label for sample in family.samples for label in sample.labels}
        suffix = "_total" if family.type == "counter" else ""
        assert "namespace" in labels
        there[family.name + suffix, family.type] = labels - {"namespace", "le"}
    listed = {
        (name.strip("`"), kind): words(labels)
        for name, kind, labels, _ in rows("Turn on Prometheus", "metric")
    }

    assert listed == there


def test_the_page_has_the_loggers_and_their_levels():
    there = {(f"pairbus.{topic}", logging.getLevelName(level)) for _, topic, level, _ in LINES}
    listed = rows("Turn on logging", "logger")

    assert {(name.strip("`"), level.upper()) for name, level, _ in listed} == there
    assert len(listed) == len(there)
