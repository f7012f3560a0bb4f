"""Prometheus metrics: read, and what clients and syphons report, added up."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pairbus.cli.http import metrics_url, parse_metrics
from pairbus.cli.pair.status_metrics import Told, together, told_by
from pairbus.errors import NamespaceError, UsageError
from pairbus.events import Diverted, FailedOver, Paired
from pairbus.syphon.metrics import SyphonMetrics
from pairbus.telemetry.prometheus import PrometheusObserver

TEXT = r"""
# HELP a What it is.
# TYPE a counter
a_total 5.0
b{x="1",y="a \"b\" \\ c\nd, e}"} 1e3 1700000000000
c{} +Inf
"""


def test_samples_are_read() -> None:
    first, second, third = parse_metrics(TEXT)

    assert (first.name, first.labels, first.value) == ("a_total", {}, 5.0)
    assert (second.name, second.value) == ("b", 1000.0)
    assert second.labels == {"x": "1", "y": 'a "b" \\ c\nd, e}'}
    assert (third.name, third.value) == ("c", float("inf"))


@pytest.mark.parametrize("text", ["<html>no metrics</html>", 'a{x="1" 7', "a five"])
def test_what_is_not_prometheus_text_is_refused(text: str) -> None:
    with pytest.raises(NamespaceError, match="it does not answer with Prometheus metrics: "):
        list(parse_metrics(text))


def test_what_a_client_publishes_is_understood() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    queue = "east/x-servicebus-transfer/0"
    here = {"namespace": "east", "path": "orders", "backlog_queue": queue}
    observer(Paired(namespace="east", backlog_queues=(queue,), made=()))
    observer(FailedOver(**here, error=None, after_seconds=0))  # type: ignore[arg-type]
    observer(Diverted(**here, count=3, seconds=0.1))  # type: ignore[arg-type]

    told = told_by(parse_metrics(generate_latest(registry).decode()))

    assert told == Told(pairings=1, failed_over={("east", "orders"): 1}, diverted=3)


def test_what_a_syphon_publishes_is_understood() -> None:
    told = told_by(
        parse_metrics(
            'pairbus_syphon_messages_total{destination="orders",outcome="brought_home"} 40\n'
            'pairbus_syphon_messages_total{destination="bills",outcome="brought_home"} 2\n'
            'pairbus_syphon_messages_total{destination="orders",outcome="waiting"} 7\n'
            'pairbus_syphon_destination_up{primary="",destination="orders"} 1\n'
            'pairbus_syphon_destination_up{primary="east",destination="bills"} 0\n'
        )
    )

    assert told == Told(moved=42, refusing=frozenset({("east", "bills")}))


def test_a_syphon_that_has_moved_nothing_yet_is_seen() -> None:
    text = generate_latest(SyphonMetrics().registry).decode()

    assert told_by(parse_metrics(text)) == Told(moved=0)


def test_several_processes_are_added_up() -> None:
    key, refusing = ("east", "orders"), frozenset({("", "bills")})
    both = together(
        [
            Told(pairings=1, failed_over={key: 1}, diverted=2),
            Told(pairings=2, failed_over={key: 1, ("east", "bills"): 1}, moved=5),
            Told(moved=1, refusing=refusing),
        ]
    )

    assert both == Told(
        pairings=3,
        failed_over={key: 2, ("east", "bills"): 1},
        diverted=2,
        moved=6,
        refusing=refusing,
    )


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:9100", "http://localhost:9100/metrics"),
        ("http://h:1/", "http://h:1/metrics"),
        ("https://h/own?x=1", "https://h/own?x=1"),
    ],
)
def test_an_address_means_its_metrics(text: str, url: str) -> None:
    assert metrics_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://h:x", "http://[h"])
def test_what_is_not_a_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a URL: use http://HOST:PORT/metrics"):
        metrics_url(text)
