"""What `pairbus status` reads from the metrics of clients and syphons."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from pairbus.cli.http import parse_metrics
from pairbus.cli.pair.status_sources import ProcessMetrics, read_metrics, sum_metrics
from pairbus.events import Diverted, FailedOver, Paired
from pairbus.syphon.metrics import SyphonMetrics
from pairbus.telemetry.prometheus import PrometheusObserver


def test_the_metrics_of_a_client_are_read() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    queue = "east/x-servicebus-transfer/0"
    here = {"namespace": "east", "path": "orders", "backlog_queue": queue}
    observer(Paired(namespace="east", backlog_queues=(queue,), made=()))
    observer(FailedOver(**here, error=None, after_seconds=0))  # type: ignore[arg-type]
    observer(Diverted(**here, count=3, seconds=0.1))  # type: ignore[arg-type]

    metrics = read_metrics(parse_metrics(generate_latest(registry).decode()))

    assert metrics == ProcessMetrics(pairings=1, failed_over={("east", "orders"): 1}, diverted=3)


def test_the_metrics_of_a_syphon_are_read() -> None:
    metrics = read_metrics(
        parse_metrics(
            'pairbus_syphon_messages_total{destination="orders",outcome="brought_home"} 40\n'
            'pairbus_syphon_messages_total{destination="bills",outcome="brought_home"} 2\n'
            'pairbus_syphon_messages_total{destination="orders",outcome="waiting"} 7\n'
            'pairbus_syphon_destination_up{primary="",destination="orders"} 1\n'
            'pairbus_syphon_destination_up{primary="east",destination="bills"} 0\n'
        )
    )

    assert metrics == ProcessMetrics(brought_home=42, refusing=frozenset({("east", "bills")}))


def test_a_syphon_that_has_brought_nothing_home_yet_is_seen() -> None:
    text = generate_latest(SyphonMetrics().registry).decode()

    assert read_metrics(parse_metrics(text)) == ProcessMetrics(brought_home=0)


def test_several_processes_are_added_up() -> None:
    key, refusing = ("east", "orders"), frozenset({("", "bills")})
    total = sum_metrics(
        [
            ProcessMetrics(pairings=1, failed_over={key: 1}, diverted=2),
            ProcessMetrics(pairings=2, failed_over={key: 1, ("east", "bills"): 1}, brought_home=5),
            ProcessMetrics(brought_home=1, refusing=refusing),
        ]
    )

    assert total == ProcessMetrics(
        pairings=3,
        failed_over={key: 2, ("east", "bills"): 1},
        diverted=2,
        brought_home=6,
        refusing=refusing,
    )
