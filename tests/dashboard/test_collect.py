"""The sources: real brokers, and one that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from pairbus.broker import Broker
from pairbus.cli.pair.status_sources import probe
from pairbus.cli.pair.targets import ObservedPair
from pairbus.cli.target import parse_target
from pairbus.dashboard.collect import Collector, DeadLetterReader, PolledSource, make_sources
from pairbus.dashboard.messages import Changes, dead_letter_path, peek_page
from pairbus.dashboard.readings import DeadLetterReasons, EntityCounts, Readings
from pairbus.errors import PairbusError, UsageError
from pairbus.syphon.ledger import ParquetLedger
from pairbus.syphon.receipts import Receipt, ReceiptOutcome


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(queues=["orders", "contoso/x-servicebus-transfer/0"]) as broker:
        yield broker


@pytest.fixture
def run() -> Iterator[Callable[..., Readings]]:
    """Collects until something is true."""
    running: list[Collector] = []

    def collect(
        sources: list[PolledSource], is_enough: Callable[[Readings], object], seconds: float = 60
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
    pair = ObservedPair(
        targets={"primary": target, "secondary": target}, primary_names=("contoso",), urls=()
    )
    sources = make_sources(pair, ledger=None, timeout_seconds=5)
    kinds = ("namespaces", "entities", "brokers", "faults", "dead_letters")
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
        probe("primary", target, seconds=30)
    seconds = [probe("primary", target, seconds=30).connect_seconds for _ in range(5)]
    assert None not in seconds
    assert min(seconds) < 0.9


def test_a_source_that_does_not_answer_blocks_no_other(run: Callable[..., Readings]) -> None:
    released = threading.Event()

    def hang() -> None:
        released.wait(30)

    def source(key: str, ask: Callable[[], object]) -> PolledSource:
        return PolledSource(
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
    pair = ObservedPair(targets={"primary": target}, primary_names=None, urls=())
    sources = make_sources(pair, ledger=None, timeout_seconds=5)
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


def test_a_change_that_fails_is_logged_as_well(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    changes = Changes({"primary": parse_target(broker.connection_string)}, are_allowed=True)
    caplog.set_level("INFO", "pairbus.dashboard")

    with broker.faults.cannot_manage(), pytest.raises(PairbusError):
        changes.resubmit("primary", "orders", [1, 5], who="192.0.2.1")

    assert caplog.messages == [
        "resubmitting 2 messages of the dead-letter queue of 'orders' on the primary, for "
        "192.0.2.1: sequence numbers 1, 5"
    ]


@pytest.mark.req("X-09")
def test_reasons_of_dead_letters_are_read_without_a_lock_and_again_if_their_number_changes(
    broker: Broker,
) -> None:
    target = parse_target(broker.connection_string)

    def dead_letter(reason: str) -> None:
        sender.send_messages(ServiceBusMessage("body"))
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.dead_letter_message(message, reason=reason, error_description="because")

    def read(count: int) -> tuple[DeadLetterReasons, ...]:
        counts = EntityCounts(kind="queue", path="contoso/x-servicebus-transfer/0")
        return reader.read(
            "secondary", {"secondary": (replace(counts, dead_letters=count), missing)}
        )

    missing = EntityCounts(kind="queue", path="gone", dead_letters=1)
    reader = DeadLetterReader(target, 10)
    queue = "contoso/x-servicebus-transfer/0"
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as sdk,
        sdk.get_queue_sender(queue) as sender,
        sdk.get_queue_receiver(queue) as receiver,
    ):
        assert [one.path for one in read(0)] == ["gone"]
        for reason in ("Late", "Late", "<b>Odd"):
            dead_letter(reason)
        found, other = read(3)
        assert (found.peeked, found.reasons) == (3, {"Late": 2, "<b>Odd": 1})
        assert other.error is not None
        assert "gone" in other.error
        dead_letter("New")
        assert read(3)[0] == found, "as many as before: no peek"
        assert read(4)[0].reasons == {"Late": 2, "<b>Odd": 1, "New": 1}
        dead = sdk.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        with dead:
            received = dead.receive_messages(10, max_wait_time=10)
            assert {one.delivery_count for one in received} == {0}
            for one in received:
                dead.complete_message(one)


def test_the_ledger_tells_rounds_and_rate(tmp_path: Path, run: Callable[..., Readings]) -> None:
    now = time.time()
    ledger = ParquetLedger(tmp_path)
    for number, (age, count) in enumerate(((30, 60), (3, 120), (7200, 1000))):
        ledger.append(
            [
                Receipt(
                    run="old" if age > 3600 else "abc",
                    round=number,
                    queue="contoso/x-servicebus-transfer/0",
                    path="orders",
                    outcome=ReceiptOutcome.BROUGHT_HOME,
                    count=count,
                    at_ms=round((now - age) * 1000),
                )
            ]
        )
    pair = ObservedPair(targets={}, primary_names=None, urls=())
    sources = make_sources(pair, ledger=tmp_path, timeout_seconds=5)
    readings = run(sources, lambda now: now.ledger.at is not None)
    assert readings.ledger is not None
    found = readings.ledger.value
    assert found is not None
    assert found.totals.brought_home == 1180
    assert found.brought_home_rate == 3.0
    (syphon,) = found.runs
    assert (syphon.run, syphon.primaries) == ("abc", ("contoso",))
    assert (syphon.rounds, syphon.brought_home) == (2, 180)


@pytest.mark.req("X-09")
def test_a_costly_probe_does_not_delay_the_next_one(run: Callable[..., Readings]) -> None:
    asked: list[float] = []

    def costly() -> str:
        asked.append(time.monotonic())
        end = time.thread_time() + 0.05  # at the most of a core: asked again after 7.5 s
        while time.thread_time() < end:
            pass
        return "answer"

    source = PolledSource(
        kind="processes",
        key="costly",
        ask=costly,
        interval_seconds=0.01,
        timeout_seconds=60,
        pause_seconds_max=0.02,
    )
    run([source], lambda _: len(asked) >= 2, seconds=7)
    target = parse_target("Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b")
    pair = ObservedPair(targets={"primary": target}, primary_names=None, urls=())
    made = make_sources(pair, ledger=None, timeout_seconds=5)
    assert [one.pause_seconds_max for one in made if one.kind == "namespaces"] == [1.0]
