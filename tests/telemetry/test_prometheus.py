"""What Prometheus scrapes after some events, as prometheus_client prints it."""

import gc
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Gauge, generate_latest

from pairbus.errors import PairbusError
from pairbus.telemetry.prometheus import PrometheusObserver
from tests.telemetry import sample_events as sample

ENTITY = '{entity="orders",namespace="contoso"}'
QUEUE = '{backlog_queue="contoso/x-servicebus-transfer/1",namespace="contoso"}'

# What the whole history of an outage adds up to.
TOTALS = {
    f"pairbus_diverted_messages_total{ENTITY}": 41,
    f"pairbus_primary_failures_total{ENTITY}": 2,
    f"pairbus_recoveries_total{ENTITY}": 1,
    f"pairbus_failovers_total{ENTITY}": 2,
    f"pairbus_failback_delays_total{ENTITY}": 1,
    f"pairbus_flaps_total{ENTITY}": 1,
    f"pairbus_flapping{ENTITY}": 0,
    'pairbus_failbacks_total{entity="orders",namespace="contoso",reason="ping"}': 1,
    'pairbus_failbacks_total{entity="orders",namespace="contoso",reason="by hand"}': 1,
    f"pairbus_failed_over_seconds_total{ENTITY}": 304.5,
    f"pairbus_pings_total{ENTITY}": 2,
    f"pairbus_pings_answered_total{ENTITY}": 1,
    f"pairbus_throttles_total{ENTITY}": 1,
    f"pairbus_send_failures_total{ENTITY}": 1,
    f"pairbus_backlog_messages_total{QUEUE}": 41,
    f"pairbus_backlog_withdrawals_total{QUEUE}": 1,
    f"pairbus_backlog_readmissions_total{QUEUE}": 1,
    f"pairbus_backlog_throttles_total{QUEUE}": 1,
    f"pairbus_divert_seconds_count{QUEUE}": 2,
    f"pairbus_divert_seconds_sum{QUEUE}": pytest.approx(0.32),
    f"pairbus_outbox_stored_messages_total{ENTITY}": 3,
    f"pairbus_outbox_sent_messages_total{ENTITY}": 4,
    f"pairbus_outbox_held_messages_total{ENTITY}": 1,
    f"pairbus_outbox_stalls_total{ENTITY}": 1,
    'pairbus_outbox_messages{namespace="contoso"}': 0,
    'pairbus_syphon_failures_total{namespace="contoso"}': 2,
    'pairbus_syphon_restarts_total{namespace="contoso"}': 1,
    'pairbus_syphons_down{namespace="contoso"}': 0,
    'pairbus_pairings{namespace="contoso"}': 0,
    f"pairbus_failed_over{ENTITY}": 0,
    f"pairbus_backlog_withdrawn{QUEUE}": 0,
}


@pytest.fixture
def registry():
    return CollectorRegistry()


def scraped(registry):
    """The value of each series, except of the buckets and of the times at which series began."""
    lines = generate_latest(registry).decode().splitlines()
    series = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {
        name: float(value)
        for name, value in series.items()
        if "_created{" not in name and "_bucket{" not in name
    }


def notify(observer, *events):
    for event in events:
        observer(event)


def test_the_history_of_an_outage_adds_up(registry):
    notify(PrometheusObserver(registry), *sample.HISTORY)

    seen = scraped(registry)
    assert {name: seen[name] for name in TOTALS} == TOTALS


def test_all_other_series_are_zeros_of_the_other_queues(registry):
    notify(PrometheusObserver(registry), *sample.HISTORY)

    others = {name: value for name, value in scraped(registry).items() if name not in TOTALS}
    assert all("/x-servicebus-transfer/" in name for name in others)
    assert set(others.values()) == {0}


def test_backlog_queues_have_zeros_from_the_pairing_on(registry):
    notify(PrometheusObserver(registry), sample.paired)

    seen = scraped(registry)
    assert seen.pop('pairbus_pairings{namespace="contoso"}') == 1
    assert seen[f"pairbus_backlog_withdrawn{QUEUE}"] == 0
    assert seen[f"pairbus_backlog_messages_total{QUEUE}"] == 0
    assert seen['pairbus_syphon_failures_total{namespace="contoso"}'] == 0
    assert set(seen.values()) == {0}


def test_gauges_rise_and_fall(registry):
    observer = PrometheusObserver(registry)
    notify(observer, sample.paired, sample.failed_over, sample.withdrawn)

    seen = scraped(registry)
    assert seen['pairbus_pairings{namespace="contoso"}'] == 1
    assert seen[f"pairbus_failed_over{ENTITY}"] == 1
    assert seen[f"pairbus_backlog_withdrawn{QUEUE}"] == 1

    notify(observer, sample.closed)

    seen = scraped(registry)
    assert seen['pairbus_pairings{namespace="contoso"}'] == 0
    assert seen[f"pairbus_failed_over{ENTITY}"] == 0
    assert seen[f"pairbus_backlog_withdrawn{QUEUE}"] == 0


def test_an_outage_adds_series_for_entities_and_queues_and_not_for_pairs_or_errors(registry):
    observer = PrometheusObserver(registry)
    notify(observer, sample.paired)

    def outage(number):
        for entity in range(5):
            for queue in sample.QUEUES:
                error = type(f"Error{number}", (Exception,), {})(f"{number}")
                for event in sample.HISTORY[1:-1]:
                    changes = {"path": f"q{entity}", "backlog_queue": queue, "error": error}
                    fields = {k: v for k, v in changes.items() if hasattr(event, k)}
                    observer(replace(event, **fields))
        return len(scraped(registry))

    assert outage(1) == outage(2)
    by_entity = [name for name in scraped(registry) if 'entity="q3"' in name]
    assert not [name for name in by_entity if "backlog_queue" in name]


def test_two_observers_report_to_one_registry(registry):
    first, second = PrometheusObserver(registry), PrometheusObserver(registry)
    for observer in (first, second):
        notify(observer, sample.paired, sample.failed_over, sample.diverted)

    seen = scraped(registry)
    assert seen['pairbus_pairings{namespace="contoso"}'] == 2
    assert seen[f"pairbus_failed_over{ENTITY}"] == 2
    assert seen[f"pairbus_diverted_messages_total{ENTITY}"] == 2

    notify(first, sample.failed_back)
    notify(first, sample.closed)

    assert scraped(registry)[f"pairbus_failed_over{ENTITY}"] == 1


def test_two_clients_share_one_observer(registry):
    observer = PrometheusObserver(registry)
    elsewhere = [replace(event, namespace="fabrikam") for event in sample.HISTORY]
    for ours, theirs in zip(sample.HISTORY, elsewhere, strict=True):
        notify(observer, ours, theirs)

    seen = scraped(registry)
    assert {name: seen[name] for name in TOTALS} == TOTALS
    theirs = {name.replace('"contoso"', '"fabrikam"'): value for name, value in TOTALS.items()}
    assert {name: seen[name] for name in theirs} == theirs


def test_two_clients_of_one_primary_share_one_observer(registry):
    observer = PrometheusObserver(registry)
    for event in sample.HISTORY:
        notify(observer, event, event)

    seen = scraped(registry)
    assert {name: seen[name] / 2 for name in TOTALS} == TOTALS


def test_the_default_registry_is_the_usual_one():
    program = """
from prometheus_client import generate_latest
from pairbus.events import Recovered
from pairbus.telemetry.prometheus import PrometheusObserver
PrometheusObserver()(Recovered(namespace="contoso", path="orders"))
PrometheusObserver()(Recovered(namespace="contoso", path="orders"))
print([line for line in generate_latest().decode().splitlines() if "recoveries_total{" in line])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == f"""['pairbus_recoveries_total{ENTITY} 2.0']\n""", done.stderr


def test_another_registry_leaves_the_default_one_alone(registry):
    PrometheusObserver(registry)

    assert not [family for family in REGISTRY.collect() if family.name.startswith("pairbus")]


def test_an_unused_registry_is_not_kept_alive():
    registry = CollectorRegistry()
    notify(PrometheusObserver(registry), *sample.HISTORY)
    reference = weakref.ref(registry)
    del registry
    gc.collect()

    assert reference() is None


def test_a_metric_name_that_is_taken_is_an_error(registry):
    Gauge("pairbus_pairings", "of the application", registry=registry)

    with pytest.raises(ValueError, match="pairbus_pairings"):
        PrometheusObserver(registry)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    with pytest.raises(PairbusError, match=r"pip install 'pairbus\[prometheus\]'"):
        PrometheusObserver()
