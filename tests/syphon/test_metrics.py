"""The metrics of a syphon, and how they are scraped."""

import importlib
import re
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pairbus.cost.meter import Meter
from pairbus.errors import MissingExtra
from pairbus.syphon.metrics import SyphonMetrics
from pairbus.syphon.policy import Destination, Failure
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, RoundEnded
from pairbus.syphon.usage import SyphonUsage
from tests.broker.admin.site import Site


def receipt(path="orders", outcome=ReceiptOutcome.BROUGHT_HOME, **more):
    return Receipt(run="r", round=1, queue="q", path=path, outcome=outcome, at_ms=0, **more)


def ended(*receipts, destinations=(), pending=(), errors=()):
    return RoundEnded(
        round=1,
        seconds=0.4,
        receipts=receipts,
        pending=pending,
        destinations=destinations,
        errors=errors,
    )


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return SyphonMetrics(registry)


def test_messages_are_counted_by_destination_and_outcome(metrics, registry):
    waiting = receipt(outcome=ReceiptOutcome.WAITING, count=7, bytes=70)
    for _ in range(2):
        metrics(ended(receipt(count=10, bytes=100), waiting, receipt(path="other", count=1)))

    def value(name, **labels):
        return registry.get_sample_value(f"pairbus_syphon_{name}", labels)

    assert value("messages_total", destination="orders", outcome="brought_home") == 20
    assert value("bytes_total", destination="orders", outcome="brought_home") == 200
    assert value("messages_total", destination="orders", outcome="waiting") == 14
    assert value("messages_total", destination="other", outcome="brought_home") == 2
    assert value("round_seconds_count") == 2


def test_possible_duplicates_are_counted_apart_from_messages(metrics, registry):
    metrics(ended(receipt(duplicates_possible=3)))

    names = {sample.name for metric in registry.collect() for sample in metric.samples}
    labels = {"destination": "orders"}
    assert registry.get_sample_value("pairbus_syphon_duplicates_possible_total", labels) == 3
    assert "pairbus_syphon_messages_total" not in names


def test_gauges_show_destinations_and_queues(metrics, registry):
    up, down = Destination("orders"), Destination("other")
    up.sent(now=1.0)
    down.failed(Failure.UNREACHABLE, now=1.0)
    metrics(ended(destinations=(("", up), ("", down)), pending=("a", "b"), errors=(("a", "lost"),)))

    def up_of(path):
        labels = {"primary": "", "destination": path}
        return registry.get_sample_value("pairbus_syphon_destination_up", labels)

    assert (up_of("orders"), up_of("other")) == (1, 0)
    assert registry.get_sample_value("pairbus_syphon_pending_queues") == 2
    assert registry.get_sample_value("pairbus_syphon_failing_queues") == 1


def test_the_backlog_is_shown_as_long_as_it_is_known(registry):
    metrics = SyphonMetrics(registry, primaries=["contoso", "fabrikam"])
    queue = "contoso/x-servicebus-transfer/0"
    labels = {"namespace": "contoso", "backlog_queue": queue}

    def values():
        return [
            registry.get_sample_value(f"pairbus_syphon_backlog_{name}", labels)
            for name in ("messages", "dead_letters")
        ]

    assert values() == [None, None]
    metrics.set_backlog({queue: (7, 2)})
    assert values() == [7, 2]
    metrics.set_backlog({})
    assert values() == [None, None]
    for primary in ("contoso", "fabrikam"):
        running = registry.get_sample_value("pairbus_syphon_running", {"namespace": primary})
        assert running == 1


@pytest.mark.req("M-01")
def test_operations_are_read_when_they_are_scraped():
    usage = SyphonUsage(since=0.0)
    metrics = SyphonMetrics(usage=usage)
    task = Meter("west", since=0.0)
    task.of("backlog").receive += 5
    port = metrics.serve(0)
    try:
        usage.add([task.read()])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        metrics.close()

    labels = 'entity="backlog",namespace="west",operation="receive"'
    assert f"pairbus_syphon_operations_total{{{labels}}} 5.0\n" in text
    assert "pairbus_syphon_pending_queues 0.0\n" in text
    with socket.socket() as probe:  # the port is free again
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_the_error_without_prometheus_client_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "pairbus.syphon.metrics")
    with pytest.raises(MissingExtra, match=r"pip install 'pairbus\[prometheus\]'"):
        importlib.import_module("pairbus.syphon.metrics")


PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text("utf-8")


def test_the_page_has_the_metrics_of_a_syphon():
    usage = SyphonUsage(since=0.0)
    metrics = SyphonMetrics(usage=usage)
    there = {
        f"{metric.name}_total" if metric.type == "counter" else metric.name: metric.type
        for metric in metrics.registry.collect()
    }

    assert listed("Scrape a syphon") == there


def test_the_page_has_the_metrics_of_a_broker():
    site = Site()
    try:
        text = site.ask("GET", "/$metrics").body.decode()
    finally:
        site.close()

    assert listed("Scrape a broker") == dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def listed(title):
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `(pairbus_\w+)` \| (\w+) \|", section, re.MULTILINE))
