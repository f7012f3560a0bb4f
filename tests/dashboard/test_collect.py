"""The sources: real brokers, and one that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker
from pairbus.cli.pair.status_sources import probe
from pairbus.cli.target import parse_target
from pairbus.dashboard.collect import Collector, Source, make_sources
from pairbus.dashboard.messages import Changes, dead_letter_path, peek_page
from pairbus.dashboard.readings import Readings
from pairbus.errors import PairbusError, UsageError


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(queues=["orders", "contoso/x-servicebus-transfer/0"]) as broker:
        yield broker


@pytest.fixture
def run() -> Iterator[Callable[..., Readings]]:
    """Collects until something is true."""
    running: list[Collector] = []

    def collect(
        sources: list[Source], is_enough: Callable[[Readings], object], seconds: float = 20
    ) -> Readings:
        collector = Collector(sources)
        running.append(collector)
        collector.start()
        deadline = time.monotonic() + seconds
        while not is_enough(readings := collector.readings()):
            assert time.monotonic() < deadline, readings
            time.sleep(0.02)
        return readings

    yield collect
    for one in running:
        one.stop()


def test_a_local_broker_answers_every_question(
    broker: Broker, run: Callable[..., Readings]
) -> None:
    target = parse_target(broker.connection_string)
    sources = make_sources(
        {"primary": target, "secondary": target},
        primary_names=["contoso"],
        urls=[],
        ledger=None,
        timeout_seconds=5,
    )
    kinds = ("namespaces", "entities", "brokers", "faults")
    readings = run(
        sources,
        lambda now: (
            all(one.is_current for kind in kinds for one in getattr(now, kind).values())
            and now.backlog.is_current
        ),
    )
    assert readings.is_up("primary", time.time())
    counts = readings.entities["primary"].value
    assert counts is not None
    assert [one.path for one in counts if not one.is_backlog] == ["orders"]
    assert [one.path for one in readings.backlog_counts() or ()] == [
        "contoso/x-servicebus-transfer/0"
    ]


def test_a_broker_does_not_take_probes_for_bad_tokens(broker: Broker) -> None:
    target = parse_target(broker.connection_string)
    for _ in range(40):  # more than a broker forgives before it slows the address down
        state = probe("primary", target, seconds=5)
    assert state.connect_seconds is not None
    assert state.connect_seconds < 0.9


def test_a_source_that_does_not_answer_blocks_no_other(run: Callable[..., Readings]) -> None:
    released = threading.Event()

    def hang() -> None:
        released.wait(30)

    def source(key: str, ask: Callable[[], object]) -> Source:
        return Source(
            kind="processes", key=key, ask=ask, interval_seconds=0.01, timeout_seconds=0.05
        )

    readings = run(
        [source("dead", hang), source("alive", lambda: "answer")],
        lambda now: now.processes["dead"].error and now.processes["alive"].is_current,
    )
    released.set()
    assert readings.processes["dead"].error == "no answer within 0.05s"
    assert readings.processes["alive"].value == "answer"


def test_a_port_where_nobody_listens_is_an_error_and_not_the_end(
    run: Callable[..., Readings],
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = parse_target(
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=a;SharedAccessKey=b;"
        "UseDevelopmentEmulator=true"
    )
    sources = make_sources(
        {"primary": target}, primary_names=None, urls=[], ledger=None, timeout_seconds=5
    )
    readings = run(
        sources,
        lambda now: now.namespaces["primary"].error and now.entities["primary"].error,
    )
    assert readings.namespaces["primary"].error == "Connection refused"
    assert readings.is_up("primary", time.time()) is False


def test_a_page_of_messages_is_filtered_and_continued(broker: Broker) -> None:
    target = parse_target(broker.connection_string)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(
            [
                ServiceBusMessage(f"body {number}", application_properties={"number": number})
                for number in range(30)
            ]
        )
    path = dead_letter_path("orders")
    assert peek_page(target, path, start=0, where="").messages == ()
    orders = type(path)(entity="orders")
    first = peek_page(target, orders, start=0, where="")
    assert len(first.messages) == 25
    assert first.next_start is not None
    second = peek_page(target, orders, start=first.next_start, where="")
    assert [one.body for one in second.messages] == [f"body {n}".encode() for n in range(25, 30)]
    assert second.next_start is None
    found = peek_page(target, orders, start=0, where="number >= 28")
    assert [one.properties for one in found.messages] == [
        (("number", "int", "28"),),
        (("number", "int", "29"),),
    ]
    with pytest.raises(PairbusError, match="number >="):
        peek_page(target, orders, start=0, where="number >=")


@pytest.mark.req("X-09")
def test_no_change_is_made_unless_changes_are_allowed(broker: Broker) -> None:
    changes = Changes({"primary": parse_target(broker.connection_string)}, are_allowed=False)
    with pytest.raises(UsageError, match="--allow-changes"):
        changes.resubmit("primary", "orders", [1], who="test")
    with pytest.raises(UsageError, match="--allow-changes"):
        changes.purge("primary", "orders", [1], who="test")
    with pytest.raises(UsageError, match="--allow-changes"):
        changes.add_fault("primary", "hang", {}, who="test")
    with pytest.raises(UsageError, match="--allow-changes"):
        changes.clear_fault("primary", 1, who="test")
