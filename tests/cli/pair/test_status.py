"""`pairbus status` with two brokers: reachable, silent or gone; and with what processes publish."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client import CollectorRegistry, start_http_server

from pairbus.broker import Broker, Policy, Right
from pairbus.cli.pair.status import measure_rate
from pairbus.telemetry.prometheus import PrometheusObserver
from pairbus.testing import ManualClock
from tests.cli.conftest import Run
from tests.cli.process import SECONDS, started
from tests.cost.pair import paired

QUEUES = [f"localhost/x-servicebus-transfer/{number}" for number in range(2)]


class Pair(NamedTuple):
    east: Broker
    west: Broker


@pytest.fixture(scope="module")
def brokers() -> Iterator[Pair]:
    others = ["other/x-servicebus-transfer/0", "orders"]
    with Broker(queues=["orders"]) as east, Broker(queues=[*QUEUES, *others]) as west:
        yield Pair(east, west)


@pytest.fixture
def pair(brokers: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("PAIRBUS_PRIMARY", brokers.east.connection_string)
    monkeypatch.setenv("PAIRBUS_SECONDARY", brokers.west.connection_string)
    return brokers


@pytest.fixture
def publish() -> Iterator[Callable[[Callable[[], str]], str]]:
    """Serves what a function says as metrics; answers the URL."""
    servers: list[HTTPServer] = []

    def serve(content: Callable[[], str]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = content().encode()
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(HTTPServer(("localhost", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://localhost:{servers[-1].server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def status(pairbus: Run, *words: str, code: int = 0) -> dict[str, Any]:
    done = pairbus("status", "--json", *words)
    assert (done.code, done.err) == (code, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_both_namespaces_and_the_backlog_are_shown(pairbus: Run, pair: Pair) -> None:
    west = ("-c", pair.west.connection_string)
    for path in ("orders", "orders", "bills"):
        pairbus("send", QUEUES[0], "x", "-p", f"x-ms-path={path}", *west)
    pairbus("send", QUEUES[1], "no envelope", *west)
    pairbus("receive", QUEUES[1], "--dead-letter", *west)

    found = status(pairbus)

    for role, broker in zip(("primary", "secondary"), pair, strict=True):
        one = found["namespaces"][role]
        assert (one["address"], one["reachable"]) == (f"localhost:{broker.port}", True)
        assert one["error"] is None
        assert one["connectSeconds"] > 0
        assert one["roundTripSeconds"] > 0
    first, second = found["backlog"]["queues"]
    assert (first["queue"], first["waiting"], first["peeked"]) == (QUEUES[0], 3, 3)
    assert first["destinations"] == {"orders": 2, "bills": 1}
    assert 0 <= first["oldestSeconds"] < 60
    assert (second["waiting"], second["deadLetters"], second["oldestSeconds"]) == (0, 1, None)
    assert found["backlog"]["others"] == {"other": 1}
    assert found["syphon"]["left"] == 3
    unknown = ("failedOver", "withdrawn", "clients", "sent", "diverted")
    assert [found[name] for name in unknown] == [None] * 5
    assert (found["syphon"]["running"], found["syphon"]["refusing"]) == (None, None)

    text = pairbus("status", "--peek", "1").out
    rows = [line.split() for line in text.splitlines()]
    assert ["primary", f"localhost:{pair.east.port}", "reachable"] in [row[:3] for row in rows]
    [queue] = [" ".join(row) for row in rows if row[:1] == [QUEUES[0]]]
    assert queue.startswith(f"{QUEUES[0]} orders 1 (of the first 1) 3 0 ")
    assert "Backlog queues of other primaries: other (see --primary-name)" in text
    assert "are unknown: see --metrics" in text


def test_the_name_of_the_primary_selects_its_queues_and_without_a_name_all_are_shown(
    pairbus: Run, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = status(pairbus, "--primary-name", "OTHER")
    assert [one["queue"] for one in named["backlog"]["queues"]] == ["other/x-servicebus-transfer/0"]

    monkeypatch.delenv("PAIRBUS_PRIMARY")
    found = status(pairbus)
    assert len(found["backlog"]["queues"]) == 3
    assert "primary" not in found["namespaces"]

    text = pairbus("status").out
    assert "The primary is not given: put its connection string or host name into " in text
    assert "The secondary is not given" not in text

    monkeypatch.delenv("PAIRBUS_SECONDARY")
    alone = status(pairbus, "--primary", pair.east.connection_string)
    assert (list(alone["namespaces"]), alone["backlog"]) == (["primary"], None)
    text = pairbus("status", "--primary", pair.east.connection_string).out
    assert "into PAIRBUS_SECONDARY, or give it with --secondary.\n" in text
    assert "no backlog queues" in pairbus("status", "--secondary", pair.east.connection_string).out


def test_several_primaries_may_share_a_secondary(
    pairbus: Run, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = pair.east.connection_string
    monkeypatch.setenv("PAIRBUS_PRIMARY", f"{text} {text}")

    found = status(pairbus, "--primary-name", "localhost", "--primary-name", "other")

    assert list(found["namespaces"]) == ["primary localhost", "primary other", "secondary"]
    assert len(found["backlog"]["queues"]) == 3
    assert "give each its own --primary-name" in pairbus("status").err
    assert "2 primaries but 1 time --primary-name" in pairbus("status", "--primary-name", "a").err
    assert "found 2 namespaces" in pairbus("peek", "orders").err


def test_an_unreachable_namespace_is_reported_with_exit_code_1(pairbus: Run, pair: Pair) -> None:
    with pair.east.faults.unreachable():
        done = pairbus("status")
        assert (done.code, done.err) == (1, "")
        assert "unreachable: Connection refused" in done.out

    with pair.west.faults.unreachable():
        found = status(pairbus, code=1)
    assert found["namespaces"]["primary"]["reachable"]
    assert not found["namespaces"]["secondary"]["reachable"]
    assert ": Connection refused" in found["backlog"]["error"]


@pytest.mark.parametrize("silent", ["primary", "secondary"])
def test_a_namespace_that_hangs_does_not_hang_the_command(
    pairbus: Run, pair: Pair, silent: str
) -> None:
    broker = pair.east if silent == "primary" else pair.west
    before = time.monotonic()
    with broker.faults.hang():
        found = status(pairbus, "--timeout", "4s", code=1)

    assert time.monotonic() - before < 30
    # Whichever of the two clocks is first.
    assert found["namespaces"][silent]["error"] in ("no answer within 4s", "it does not answer")
    other = ({"primary", "secondary"} - {silent}).pop()
    assert found["namespaces"][other]["reachable"]


def test_a_policy_without_access_to_the_backlog_is_reported(pairbus: Run, pair: Pair) -> None:
    policy = Policy(name="few", key="k", rights=frozenset({Right.LISTEN}))
    with Broker(policies=[policy]) as broker:
        found = status(pairbus, "--secondary", broker.connection_string, code=1)

    assert found["namespaces"]["secondary"]["reachable"]
    assert "rejected policy 'few'" in found["backlog"]["error"]


def test_clients_report_failed_over_entities(pairbus: Run, pair: Pair) -> None:
    registry = CollectorRegistry()
    server, thread = start_http_server(0, registry=registry)
    with (
        Broker(queues=["orders"]) as east,
        Broker() as west,
        paired(
            east, west, backlog_queue_count=1, observers=[PrometheusObserver(registry)]
        ) as primary,
    ):
        words = ("--primary", east.connection_string, "--secondary", west.connection_string)
        words += ("--metrics", f"localhost:{server.server_port}")
        with primary.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("sent"))
            with east.faults.unreachable():
                sender.send_messages(ServiceBusMessage("diverted"))
                found = status(pairbus, *words, code=1)
                text = pairbus("status", *words).out
    server.shutdown()
    thread.join()
    server.server_close()

    assert found["failedOver"] == [{"namespace": "localhost", "entity": "orders", "clients": 1}]
    assert (found["clients"], found["sent"], found["diverted"]) == (1, 1, 1)
    assert "Clients: 1 sent to the primary, 1 diverted." in text
    [queue] = found["backlog"]["queues"]
    assert (queue["waiting"], queue["destinations"]) == (1, {"orders": 1})
    assert ["orders", "localhost", "1", "of", "1"] in [line.split() for line in text.splitlines()]


def test_the_rate_of_a_syphon_is_measured(
    pairbus: Run,
    pair: Pair,
    publish: Callable[[Callable[[], str]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairbus("send", QUEUES[1], "left", "-c", pair.west.connection_string)
    began = time.monotonic()

    def metrics() -> str:
        rounds = int((time.monotonic() - began) / 0.3)
        return (
            'pairbus_syphon_messages_total{destination="a",outcome="brought_home"} '
            f"{rounds * 30}\n"
            'pairbus_syphon_destination_up{primary="",destination="b"} 0\n'
        )

    everything = status(pairbus, "--metrics", publish(metrics))
    found = everything["syphon"]
    pairbus("receive", QUEUES[1], "-c", pair.west.connection_string)

    assert found["running"]
    assert (everything["clients"], everything["failedOver"]) == (0, None)
    assert 10 < found["perSecond"] < 1000  # a busy machine measures badly
    assert found["left"] > 0
    assert found["refusing"] == [{"primary": "", "destination": "b"}]


@pytest.mark.parametrize(
    ("numbers", "rate"),
    [
        ([0, 0, 10, 10, 10, 30, 30], 20 / 0.75),
        ([5] * 100, 0),
        ([0, 10, *[10] * 100], 10 / 6.0),
        ([10, 5], None),
        ([None], None),
        ([5, None], None),
    ],
)
def test_a_rate_is_measured_between_two_rounds(
    numbers: list[int | None], rate: float | None
) -> None:
    answers, clock = iter(numbers), ManualClock(0)

    found = measure_rate(lambda: next(answers), sleep=clock.advance, clock=clock)

    assert found == (None if rate is None else pytest.approx(rate))


def test_a_process_without_metrics_is_reported_and_is_no_failure(
    pairbus: Run, pair: Pair, monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[Callable[[], str]], str],
) -> None:  # fmt: skip
    url = publish(lambda: "pairbus_pairings 2\n")
    odd = publish(lambda: "pairbus_pairings NaN\n")
    monkeypatch.setenv("PAIRBUS_METRICS", f"{url} {url}/é localhost:1 {odd}")

    found = status(pairbus, "--timeout", "100d")  # longer than a socket can wait
    assert [one["error"] for one in found["processes"]] == [
        None,
        "it answers with 404 Not Found",
        "Connection refused",
        "one of its metrics is not a number: cannot convert float NaN to integer",
    ]
    text = pairbus("status").out
    assert "No entity is failed over, according to 2 clients." in text
    assert "http://localhost:1/metrics: Connection refused" in text
    monkeypatch.setenv("PAIRBUS_METRICS", "localhost:1")
    assert "rate are unknown." in pairbus("status").out
    monkeypatch.setenv("PAIRBUS_METRICS", publish(lambda: "pairbus_syphon_rounds_total 5\n"))
    assert "Failed-over entities are unknown: no client publishes" in pairbus("status").out


# -- again and again ----------------------------------------------------------------------------


def test_watch_repeats_until_it_is_interrupted(pair: Pair) -> None:
    with started("status", "--watch", "--interval", "0.1s", "--json") as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)

    assert seen[0]["at"] < seen[1]["at"] < seen[2]["at"]
    assert [one["event"] for one in seen] == ["status"] * 3
    assert (process.returncode, err) == (130, "")


def test_on_a_terminal_the_view_is_redrawn(pair: Pair) -> None:
    master, slave = pty.openpty()
    terminal = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with started(
        *("status", "--watch", "--interval", "0.1s"), stdout=slave, stderr=slave, env=terminal
    ) as process:
        os.close(slave)
        text = b""
        until = time.monotonic() + SECONDS
        while text.count(b"secondary") < 3 and time.monotonic() < until:
            if select.select([master], [], [], 1)[0]:
                text += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    os.close(master)

    assert b"\x1b[1A" in text  # up again, over the last one
    assert b"Traceback" not in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--primary", ""], "which namespaces? Put their connection strings"),
        (["--primary", "x"], "the primary: expected a connection string"),
        (["--secondary", "Endpoint=sb://h"], "the secondary: the connection string has neither"),
        (["--metrics", "ftp://h"], "--metrics 'ftp://h' is not a URL"),
        (["--metrics", "h:1", "--timeout", "0s"], "--timeout 0s: must be more than 0s"),
        (["--metrics", "h:1", "--interval", "1s"], "--interval needs --watch"),
        (
            ["--metrics", "h:1", "--watch", "--interval", "now"],
            "--interval 'now' is not a duration",
        ),
        (["--metrics", "h:1", "--peek", "-1"], "--peek -1: must be at least 0"),
    ],
)
def test_a_mistake_is_one_clear_line(pairbus: Run, words: list[str], complaint: str) -> None:
    done = pairbus("status", *words)

    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert complaint in done.err
