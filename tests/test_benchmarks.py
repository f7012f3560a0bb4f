"""The benchmark runs, and what it runs on can be trusted. Its figures are not tested here."""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BROKER = [sys.executable, str(ROOT / "benchmarks" / "broker.py"), "--quick"]
TOPICS = [sys.executable, str(ROOT / "benchmarks" / "topics.py"), "--quick"]
PAIRING = [sys.executable, str(ROOT / "benchmarks" / "pairing.py"), "--quick"]
DISTANCE = [sys.executable, str(ROOT / "benchmarks" / "distance.py"), "--quick"]
SYPHON = [sys.executable, str(ROOT / "benchmarks" / "syphon.py"), "--quick"]
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
ROWS = {"single", "batch", "receive", "both"}


@pytest.fixture
def benchmark_module(monkeypatch):
    """Modules of benchmarks/, which is a folder of scripts and not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def quick(folder, *options, command=BROKER):
    done = subprocess.run(
        [*command, "--json", "--folder", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == [], "the benchmark left files behind"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def queues_run(tmp_path_factory):
    """One run for two tests: with RabbitMQ where that is installed."""
    options = ["--deep"] if RABBITMQ.exists() else ["--deep", "--alone"]
    return quick(tmp_path_factory.mktemp("queues"), *options)


def test_a_quick_run_measures_every_row_and_a_deep_queue(queues_run):
    assert {row["key"] for row in queues_run["rows"]} == ROWS
    for row in queues_run["rows"]:
        assert row["figures"]["pairbus"]["rate"] > 0
    assert [step["depth"] for step in queues_run["deep"]["steps"]] == [1_000, 3_000]
    assert queues_run["deep"]["restart"]["startup_seconds"] > 0
    assert queues_run["process"]["pairbus"]["idle_mb"] > 0
    assert queues_run["floors"]
    assert queues_run["machine"]["processor"]


@pytest.mark.skipif(
    not RABBITMQ.exists(),
    reason="Debian's rabbitmq-server is not installed; `make bench` would install it",
)
def test_rabbitmq_is_measured_in_the_same_run_through_both_protocols(queues_run, benchmark_module):
    kinds = ("1.0, classic", "0-9-1, classic", "1.0, quorum", "0-9-1, quorum")
    peers = {f"RabbitMQ {kind} queue" for kind in kinds}
    for row in queues_run["rows"]:
        assert row["ratios"].keys() == peers
    text = benchmark_module("report").markdown(queues_run)
    assert all(peer in text for peer in peers)


def test_a_quick_run_measures_topics_next_to_a_queue_and_filters_and_lists(
    tmp_path, benchmark_module
):
    result = quick(tmp_path, command=TOPICS)
    assert [row["key"] for row in result["fanout"]] == ["single", "batch", "receive"]
    shapes = {"queue", "plain-1", "plain-10", "plain-50", "sql-1", "sql-10", "sql-50"}
    for row in result["fanout"]:
        assert {figure["shape"] for figure in row["figures"]} == shapes | {"one-of-10", "one-of-50"}
        assert row["figures"][0]["ratio"] == 1
        assert all(figure["ratio"] > 0 for figure in row["figures"])
    for found in result["filters"]:
        assert found["rate"] > 0
        assert found["rate_with_decoding"] > 0
    assert len(result["listing"]["kinds"]) == 4
    assert all(found["seconds"] > 0 for found in result["listing"]["kinds"].values())
    text = benchmark_module("report").markdown(result, benchmark_module("topics").tables)
    assert "50 with SQL filters, one matches" in text
    assert "subscriptions of a topic" in text


def test_a_quick_run_measures_a_paired_sender_next_to_a_plain_one_and_an_outage(
    tmp_path, benchmark_module
):
    result = quick(tmp_path, command=PAIRING)
    rows = {(row["situation"], row["key"], row["shell"]): row for row in result["speed"]}
    keys = {"single", "list-10", "list-100", "batch-100"}
    shells = {"blocking", "asyncio"}
    assert rows.keys() == set(itertools.product(("healthy", "diverted"), keys, shells))
    for row in rows.values():
        assert row["figures"]["plain"]["ratio"] == row["figures"]["plain"]["p99_ratio"] == 1
        assert row["figures"]["paired"]["ratio"] > 0
        assert row["figures"]["plain again"]["ratio"] > 0
    assert all(line["shells"].keys() == shells for line in result["times"])
    assert all(0 < time < 60 for line in result["times"] for [time] in line["shells"].values())
    for held in result["memory"]["shells"].values():
        assert 0 < held["state"] < held["paired_sender"]
    text = benchmark_module("report").markdown(result, benchmark_module("pairing").tables)
    assert "kill -9 of the primary to the first diverted message, retry_total=0" in text
    assert "an entity whose senders are gone" in text


@pytest.mark.spark
def test_a_quick_run_measures_the_syphon_next_to_a_loop_on_the_sdk_and_shovels(
    tmp_path, benchmark_module
):
    has_peer = RABBITMQ.exists()
    result = quick(tmp_path, *([] if has_peer else ["--alone"]), command=SYPHON)
    titles = [figure["title"] for figure in result["ways"]]
    assert len(titles) == (5 if has_peer else 3)
    for figure in result["ways"]:
        assert figure["rate"] > 0
        assert figure["ratio"] > 0
        assert sum(figure["cost_us"].values()) > 0
    assert result["ways"][0]["ratio"] == 1
    [sample] = result["counts"]
    kinds = {"driver", "java", "workers", "primary", "secondary"}
    assert sample["cost_us"].keys() == sample["peak_mb"].keys() == kinds
    assert all(peak > 10 for peak in sample["peak_mb"].values())
    assert len(result["wakes"]) == 1
    text = benchmark_module("report").markdown(result, benchmark_module("syphon").tables)
    assert all(title in text for title in titles)


def test_the_syphons_benchmark_goes_on_without_rabbitmq_and_says_so(
    benchmark_module, monkeypatch, tmp_path
):
    syphon, rabbitmq = benchmark_module("syphon"), benchmark_module("rabbitmq")
    monkeypatch.setattr(rabbitmq, "SCRIPT", tmp_path / "rabbitmq-server")
    monkeypatch.setattr(rabbitmq.os, "geteuid", lambda: 1000)
    result = {"notes": [], "machine": {}}
    with contextlib.ExitStack() as stack:
        assert syphon._shovels(stack, tmp_path, result, lambda text: None) is None
    assert result["notes"] == [
        "measured without RabbitMQ's Shovel. RabbitMQ is not installed: install Debian's package "
        "'rabbitmq-server'"
    ]


@pytest.mark.parametrize("count", ["5", "101", "0"])
def test_a_count_that_backlog_queues_cannot_share_evenly_is_refused(benchmark_module, count):
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{count} is not a multiple"):
        benchmark_module("syphon")._count(count)


def test_messages_for_the_backlog_are_numbered_and_belong_to_all_targets_in_turn(
    benchmark_module, monkeypatch
):
    stage = benchmark_module("syphon_stage")
    monkeypatch.setattr(stage, "AT_ONCE", 3)
    chunks = list(stage.backlog_messages(18, 7))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    for number, message in enumerate(itertools.chain(*chunks), 18):
        assert message == stage.backlog_message(f"{number:09}", f"orders-{number % 5}")
        assert stage._number(message) == number


def test_a_process_is_found_with_its_children_and_so_are_its_time_and_memory(benchmark_module):
    processes = benchmark_module("syphon_processes")
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input(2)']); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.read(1) == b"2"
            pids = processes.family(process.pid)
            assert pids["driver"] == [process.pid]
            assert len(pids["workers"]) == 1
            assert pids["java"] == []
            assert processes.cpu_seconds(pids)["java"] == 0
            assert all(processes.resident_mb(pids)[kind] > 3 for kind in ("driver", "workers"))
        finally:
            process.kill()
    processes.end(pids)
    assert not Path(f"/proc/{pids['workers'][0]}").exists()


def test_a_turn_is_compared_with_the_plain_turn_beside_it(benchmark_module):
    speed = benchmark_module("pairing_speed")
    row = speed.Row("single", "one message a call", per_call=1, calls=2, bare_calls=0)
    # The machine is ten times as slow in the second turn; the third has a call that hung.
    plain = {"calls": [[1.0, 1.0], [10.0, 10.0], [1.0, 1.0]], "cpu": [1.0, 1.0, 1.0]}
    paired = {"calls": [[1.25, 1.25], [12.5, 12.5], [1.25, 61.25]], "cpu": [1.5, 1.5, 1.5]}
    subjects = {"plain": plain, "paired": paired, "plain again": plain}

    found = speed._figures("healthy", "blocking", row, [{"subjects": subjects, "bare": None}])

    assert found["turns"] == 3
    assert found["figures"]["paired"]["ratio"] == 0.8
    assert found["figures"]["paired"]["extra_cpu_us"] == 250_000
    assert found["figures"]["paired"]["p99_ratio"] == 6.125
    assert found["figures"]["plain again"]["ratio"] == 1


def test_quantiles_and_the_interval_of_a_median_are_taken_from_the_values_themselves(
    benchmark_module,
):
    speed = benchmark_module("pairing_speed")
    values = [float(number) for number in range(1, 101)]
    assert speed.quantile(values, 0.99) == 99
    assert speed.quantile(values, 0.5) == 50
    assert speed.quantile([7.0], 0.99) == 7
    assert speed.interval(values) == (41, 61)
    assert speed.interval([7.0]) == (7, 7)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*BROKER, "--alone"], id="benchmark-of-queues"),
        pytest.param(TOPICS, id="benchmark-of-topics"),
        pytest.param(PAIRING, id="benchmark-of-pairing"),
        pytest.param([*SYPHON, "--alone"], id="benchmark-of-the-syphon", marks=pytest.mark.spark),
    ],
)
def test_an_interrupted_run_leaves_neither_processes_nor_files(tmp_path, command):
    process = subprocess.Popen(
        [*command, "--rounds", "1000", "--folder", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    progress = next(line for line in process.stderr if line.startswith("round 1"))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, progress + said
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in running_commands()


def running_commands():
    commands = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended meanwhile
            continue
    return "\n".join(commands)


# --- calls for each message


@pytest.fixture
def calls(benchmark_module):
    return benchmark_module("calls")


def test_calls_that_are_more_than_the_table_says_are_complained_of(calls):
    table = {"a send": 100.0, "a receive": 10.0}
    assert calls.complaints({"a send": 109.0, "a receive": 9.5}, table, 0.1) == []
    assert calls.complaints({"a send": 80.0, "a receive": 9.5}, table, 0.1) == [
        "a send: 80.0 calls, and 100.0 would allow an increase"
    ]
    assert calls.complaints({"a send": 120.0, "a drain": 1.0}, table, 0.1) == [
        "a receive: not measured any more",
        "a send: 120.0 calls, 20% more than 100.0",
        "a drain: 1.0 calls, and calls.json does not have it",
    ]


def test_the_brokers_calls_are_those_of_the_table(calls):
    found = calls.broker_calls()
    kept = json.loads(calls.TABLE.read_text())
    table = {name: count for name, count in kept["calls"].items() if name in found}
    assert calls.complaints(found, table, kept["margin"]) == []


def test_a_broker_that_completes_messages_one_by_one_again_is_noticed(calls, monkeypatch):
    from pairbus.broker.messages.queue import Queue

    complete = Queue.complete

    def one_by_one(self, mailbox, messages, done, *arguments, now_ms):
        for message in messages:
            complete(self, mailbox, [message], done, *arguments, now_ms=now_ms)

    monkeypatch.setattr(Queue, "complete", one_by_one)
    found = calls.broker_calls()
    kept = json.loads(calls.TABLE.read_text())
    table = {name: count for name, count in kept["calls"].items() if name in found}
    [complaint] = calls.complaints(found, table, kept["margin"])
    assert complaint.startswith("broker: deliver and complete a message")


# --- distance, and the page


@pytest.mark.parametrize("round_trip_ms", [0, 200])
def test_bytes_pass_the_proxy_unchanged_after_a_round_trip(benchmark_module, round_trip_ms):
    delay = benchmark_module("delay")
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        with (
            delay.line(server.getsockname()[1], round_trip_ms) as port,
            socket.create_connection(("127.0.0.1", port), 30) as client,
            client.makefile("rb") as answers,
        ):
            data = os.urandom(300_000)
            client.sendall(data)
            assert answers.read(len(data)) == data
            begun = time.monotonic()
            client.sendall(b"x")
            assert answers.read(1) == b"x"
            assert time.monotonic() - begun >= round_trip_ms / 1000
            client.shutdown(socket.SHUT_WR)
            assert answers.read(1) == b""
        thread.join(30)


def echo(server):
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(65_536):
            connection.sendall(data)


def test_a_quick_run_measures_diverted_sends_over_a_distance(tmp_path, benchmark_module):
    distance = benchmark_module("distance")
    result = quick(tmp_path, "--only", "sends", command=DISTANCE)
    assert [row["shell"] for row in result["sends"]] == ["blocking", "asyncio"]
    for row in result["sends"]:
        for subject in ("paired", "plain"):
            assert row[subject]["p99_ms"] >= distance.SEND_ROUND_TRIP_MS
    assert "3 threads" in benchmark_module("report").markdown(result, distance.tables)


def test_the_page_is_made_of_results_without_measuring(tmp_path, benchmark_module):
    bench = benchmark_module("bench")
    both = {"rate": 7.5, "rates": [7.5]}
    result = {
        "count": 10,
        "size": 500,
        "notes": ["a note"],
        "machine": {"processor": "an abacus"},
        "syphon": [
            {"way": way, "ms": ms, "rate": 1000.0 / (1 + ms), "rates": [500.0, 1000.0 / (1 + ms)]}
            for way in ("plain", "tls", "sdk")
            for ms in (0, 30)
        ],
        "sends": [],
        "sizes": [{"title": "1 KB", "bytes": 1000, "syphon": both, "copy": both}],
        "source": [],
    }
    (tmp_path / "distance.json").write_text(json.dumps(result))

    bench.write_page(tmp_path, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()

    assert "| syphon, TLS | 1,000 | 500 (1.00; 0.03 - 1.00) |" in page
    assert "{{" not in page
    assert "Not measured yet." in page
    plots = {name: (tmp_path / name).read_text() for name in re.findall(r"\((\S+\.svg)\)", page)}
    assert plots.keys() == {"benchmarks-distance.svg", "benchmarks-size.svg"}
    bench.write_page(tmp_path, tmp_path)
    assert plots == {name: (tmp_path / name).read_text() for name in plots}


def test_the_published_page_is_that_of_the_results(tmp_path, benchmark_module):
    bench = benchmark_module("bench")
    for image in bench.DOCS.glob("benchmarks-*.svg"):
        shutil.copy(image, tmp_path)
    bench.write_page(bench.RESULTS, tmp_path)
    assert (tmp_path / bench.PAGE).read_text() == (bench.DOCS / bench.PAGE).read_text()


def test_confirms_in_any_order_free_just_their_own_places(benchmark_module):
    native = benchmark_module("native")

    class Channel:
        sock = None

        def call(self, *arguments):
            pass

    def confirm(tag, multiple=0):
        return native.method(1, (60, 80), tag.to_bytes(8, "big") + bytes([multiple]))

    publisher = native.Publisher(Channel(), b"q", b"body", count=10, window=4)
    one = len(publisher.output()) // 4
    assert publisher.output() == b""
    stream = confirm(3) + confirm(1)
    publisher.received(stream[:30])
    publisher.received(stream[30:])
    assert len(publisher.output()) == 2 * one
    publisher.received(confirm(6, multiple=1))
    assert len(publisher.output()) == 4 * one
    publisher.received(confirm(10, multiple=1))
    assert publisher.done
