"""Prometheus asks brokers, a paired client and a syphon during an outage, each on its own port."""

import threading
import urllib.request

import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from pairbus.broker import Broker
from pairbus.syphon.job import Job
from pairbus.syphon.metrics import SyphonMetrics
from pairbus.syphon.runner import InProcessRunner
from pairbus.telemetry.prometheus import PrometheusObserver
from tests.cost.pair import paired
from tests.syphon.stage import Stage, backlog_names, numbered
from tests.waiting import wait_until


def scraped(port):
    """Values by the name and the labels' values, in the order of the labels."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics") as answer:
        text = answer.read().decode()
    return {
        (sample.name, *dict(sorted(sample.labels.items())).values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def served():
    """An observer, and the port where its metrics are."""
    registry = CollectorRegistry()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    yield PrometheusObserver(registry), server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.req("M-01")
def test_brokers_and_client_are_scraped_during_an_outage(served):
    observer, port = served
    with (
        Broker(queues=["orders"], name="east") as east,
        Broker(name="west") as west,
        paired(east, west, backlog_queue_count=1, observers=[observer]) as primary,
        primary.get_queue_sender("orders") as sender,
    ):
        [backlog] = primary.pairing.status().backlog_queues
        sender.send_messages(ServiceBusMessage("before"))
        with east.faults.cannot_send("orders"):
            sender.send_messages([ServiceBusMessage("in") for _ in range(3)])

            ours, there = scraped(port), scraped(east.port)
            helper = scraped(west.port)

    # By backlog_queue or entity, namespace, and operation or state.
    assert ours["pairbus_failed_over", "orders", "localhost"] == 1
    assert ours["pairbus_diverted_messages_total", "orders", "localhost"] == 3
    assert ours["pairbus_backlog_messages_total", backlog, "localhost"] == 3

    assert there["pairbus_broker_faults", "east"] == 1
    assert there["pairbus_broker_operations_total", "orders", "east", "send"] == 1
    assert there["pairbus_broker_messages", "orders", "east", "active"] == 1

    assert helper["pairbus_broker_faults", "west"] == 0
    assert helper["pairbus_broker_connections", "west"] >= 1
    assert helper["pairbus_broker_operations_total", backlog, "west", "send"] == 3
    assert helper["pairbus_broker_messages", backlog, "west", "active"] == 3
    assert helper["pairbus_broker_size_bytes", backlog, "west"] > 0


@pytest.mark.req("M-01")
def test_a_syphon_is_scraped_while_a_destination_is_down_and_when_it_is_back():
    [backlog] = backlog_names(1)
    with Broker(queues=["orders"]) as east, Broker(queues=[backlog]) as west:
        stage = Stage(east, west, [backlog])
        stage.divert(numbered(3))
        has_ended, watchers = threading.Event(), []

        def round_ended(ended):
            for each in watchers:
                each(ended)
            has_ended.set()

        job = Job(stage.options(), InProcessRunner(), lambda: [backlog], progress=round_ended)
        metrics = SyphonMetrics(usage=job.usage)
        watchers.append(metrics)
        port = metrics.serve(0)
        thread = threading.Thread(target=job.run)
        home = ("pairbus_syphon_messages_total", "orders", "brought_home")
        try:
            with east.faults.cannot_send("orders"):
                thread.start()
                assert has_ended.wait(30)
                down = scraped(port)
            [is_up] = [key for key in down if key[0] == "pairbus_syphon_destination_up"]

            def is_back():
                found = scraped(port)
                return (found.get(home), found[is_up]) == (3, 1)

            wait_until(is_back)
        finally:
            job.stop()
            thread.join(30)
            metrics.close()

    assert down[is_up] == 0
    assert down["pairbus_syphon_messages_total", "orders", "waiting"] >= 1
    assert down["pairbus_syphon_pending_queues",] == 1
    assert home not in down
    assert any(key[0] == "pairbus_syphon_operations_total" for key in down)
