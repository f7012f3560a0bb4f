"""`pairbus syphon` in a real process: on a terminal, under a service manager, and its secrets."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker
from pairbus.broker.entities.policies import Policy, Right
from pairbus.cli.main import main
from pairbus.cli.pair.syphon import _check_master
from pairbus.cli.pair.syphon_progress import PlainProgress
from pairbus.client.sdk.messages import diverted
from pairbus.errors import UsageError
from pairbus.syphon.ledger import ledger_files
from tests.syphon.processes import command_of, descendants, kill, wait_until

KEY = "bm90LWZvci1hbnkgbG9nLW9yLWxpc3Q="
QUEUES = [f"contoso/x-servicebus-transfer/{n}" for n in range(2)]
SECONDS = 120
STOP_SECONDS_MAX = 30


@pytest.fixture
def brokers():
    policies = [Policy(name="Root", key=KEY, rights=frozenset(Right))]
    with (
        Broker(queues=["orders", "invoices"], policies=policies) as primary,
        Broker(queues=QUEUES, policies=policies) as secondary,
    ):
        yield primary, secondary


def environment(brokers, **more):
    return os.environ | {
        "PAIRBUS_PRIMARY": brokers[0].connection_string,
        "PAIRBUS_SECONDARY": brokers[1].connection_string,
        "COLUMNS": "100",
        **more,
    }


def divert(brokers, path, count, queue=QUEUES[0]):
    with (
        ServiceBusClient.from_connection_string(brokers[1].connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(
            [diverted(ServiceBusMessage(f"{path} {n}"), path) for n in range(count)]
        )


def at_once(broker, queue, count):
    """How many messages are not locked."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        found = []
        while len(found) < count:
            more = receiver.receive_messages(max_message_count=count, max_wait_time=20)
            if not more:
                break
            found += more
        return len(found)


class Reader:
    """The output of a process, line by line."""

    def __init__(self, *files):
        self.texts = {file: "" for file in files}

    def wait_for(self, pattern, file, seconds=SECONDS):
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.texts[file], re.DOTALL):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.texts}"
            assert self.read(1) or time.monotonic() < deadline, f"it ended: {self.texts}"

    def read(self, seconds):
        """False: all have ended."""
        open_files = [file for file in self.texts if file >= 0]
        for file in select.select(open_files, [], [], seconds)[0]:
            try:
                data = os.read(file, 65536)
            except OSError:  # a terminal whose other side is closed
                data = b""
            if not data:
                self.texts[-file - 1] = self.texts.pop(file)
            else:
                self.texts[file] += data.decode(errors="replace")
        return any(file >= 0 for file in self.texts)


@contextmanager
def syphon(brokers, *words, stderr=None, is_group=False, **more):
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", "syphon", "--primary-name", "contoso", *words],
        env=environment(brokers, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stderr is None else stderr,
        start_new_session=is_group,
    )
    try:
        yield process
    finally:
        process.kill()  # does nothing to one that has ended
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue


def test_a_port_for_metrics_that_is_taken_ends_it_before_spark_starts(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run("--metrics-port", str(port))

    assert code == 1
    assert err == f"pairbus: cannot serve metrics on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.spark
@pytest.mark.req("S-01", "S-04", "C-02")
def test_a_service_stops_within_seconds_and_leaves_nothing_locked_and_no_secret(brokers, tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    submit = f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir={log} pyspark-shell"
    divert(brokers, "orders", 20)
    divert(brokers, "invoices", 7)
    with (
        brokers[0].faults.cannot_send(entity="invoices"),
        syphon(brokers, "--metrics-port", "0", PYSPARK_SUBMIT_ARGS=submit) as process,
    ):
        out, err = process.stdout.fileno(), process.stderr.fileno()
        reader = Reader(out, err)
        reader.wait_for("ready: 2 backlog queues of contoso", err)
        reader.wait_for("20 brought home.*7 wait for their destination", err)
        reader.wait_for("waiting for invoices: ", err)
        spied = [line for line in command_lines() if KEY in line]
        [url] = re.findall(r"metrics: (http://127\.0\.0\.1:\d+/metrics)", reader.texts[err])
        with urlopen(url) as answer:
            metrics = answer.read().decode()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        seconds = time.monotonic() - began
        while reader.read(1):
            pass
        output = "".join(reader.texts.values())

    assert code == 0, output
    assert seconds < STOP_SECONDS_MAX
    assert "20 brought home, 0 dead-lettered, 0 expired, 7 left in the backlog" in output
    assert 'messages_total{destination="orders",outcome="brought_home"} 20.0' in metrics
    assert 'entity="orders",namespace="localhost' in metrics
    assert 'pairbus_syphon_running{namespace="contoso"} 1.0' in metrics
    assert 'pairbus_syphon_backlog_messages{backlog_queue="contoso/' in metrics
    assert KEY not in metrics
    assert "Traceback" not in output
    assert KEY not in output
    assert not spied
    logs = [file for file in log.rglob("*") if file.is_file()]
    assert logs
    assert not [file for file in logs if KEY.encode() in file.read_bytes()]
    assert at_once(brokers[0], "orders", 20) == 20
    assert at_once(brokers[1], QUEUES[0], 7) == 7


@pytest.mark.spark
def test_a_terminal_shows_live_progress_and_ctrl_c_ends_it(brokers, tmp_path):
    divert(brokers, "orders", 30)
    divert(brokers, "gone", 2, QUEUES[1])
    screen, other_side = pty.openpty()
    with syphon(
        brokers, "--ledger", str(tmp_path / "ledger"), stderr=other_side, TERM="xterm"
    ) as process:
        os.close(other_side)
        out = process.stdout.fileno()
        reader = Reader(out, screen)
        reader.wait_for("30 brought home", screen)
        reader.wait_for(r"transfer/1 +0 +2\b", screen)
        reader.wait_for(r"orders +up +30 +0\b", screen)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        seconds = time.monotonic() - began
        while reader.read(1):
            pass
        output = "".join(reader.texts.values())
    os.close(screen)

    assert code == 0, output
    assert seconds < STOP_SECONDS_MAX
    assert "30 brought home, 2 dead-lettered, 0 expired, 0 left in the backlog" in output
    assert f"dead-lettered: 2 in {QUEUES[1]}: DestinationNotFound (gone)" in output
    assert "Traceback" not in output
    assert KEY not in output
    assert ledger_files(tmp_path / "ledger")


# Moments of a start: Spark's script, its Java machine, and its context, which makes folders.
MOMENTS = {
    "a script": lambda pids, folder: pids,
    "Java": lambda pids, folder: any("SparkSubmit" in command_of(pid) for pid in pids),
    "a context": lambda pids, folder: [*folder.glob("pairbus-spark-*/*")],
}


@pytest.mark.spark
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_spark_starts_leaves_no_process_no_file_and_no_word(brokers, tmp_path, moment):
    with syphon(brokers, is_group=True, TMPDIR=str(tmp_path)) as process:
        below = wait_until(
            lambda: MOMENTS[moment](pids := descendants(process.pid), tmp_path) and pids, moment
        )
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, b"", b"")
    wait_until(lambda: not [pid for pid in below if command_of(pid)], "no process")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.spark
def test_after_the_end_of_its_java_machine_it_prints_one_line_and_leaves_no_file(brokers, tmp_path):
    with syphon(brokers, TMPDIR=str(tmp_path)) as process:
        reader = Reader(process.stdout.fileno(), process.stderr.fileno())
        reader.wait_for("ready: ", process.stderr.fileno())
        [java] = [pid for pid in descendants(process.pid) if "SparkSubmit" in command_of(pid)]
        kill(java)
        code = process.wait(60)
        while reader.read(1):
            pass
        lines = "".join(reader.texts.values()).splitlines()

    assert code == 1
    assert lines[0].startswith("ready: "), "and no warning of Java before it"
    assert lines[-1] == ("pairbus: the Spark session was stopped, or its Java process has ended")
    assert not [line for line in lines[1:-1] if not line.startswith("round 1")]
    assert [*tmp_path.iterdir()] == []


# --- in this process, which is faster -------------------------------------------------------------


@pytest.fixture
def run(monkeypatch, capsys, brokers):
    def running(*words, **variables):
        for name, value in {**environment(brokers), **variables}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["pairbus", "syphon", "--primary-name", "contoso", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code, *capsys.readouterr()

    return running


@pytest.mark.spark
@pytest.mark.req("S-01", "S-05")
def test_once_ends_by_itself_and_programs_get_json(spark, run, brokers):
    divert(brokers, "orders", 5)
    divert(brokers, "gone", 1)

    code, out, err = run("--once", "--json")

    output = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert f"dead-lettered: 1 in {QUEUES[0]}: DestinationNotFound (gone)" in err
    assert output[0] == {
        "event": "ready",
        "primaries": ["contoso"],
        "backlogQueues": 2,
        "ignored": {},
        "checked": {"contoso": "the Send right on orders"},
    }
    assert {(each["path"], each["outcome"]) for each in output[1]["receipts"]} == {
        ("orders", "brought_home"),
        ("gone", "dead_lettered"),
    }
    assert output[-1] | {"durationSeconds": 0} == {
        "event": "ended",
        "durationSeconds": 0,
        "broughtHome": 5,
        "waiting": 0,
        "deadLettered": 1,
        "expired": 0,
        "left": 0,
        "deadLetters": [
            {"queue": QUEUES[0], "path": "gone", "reason": "DestinationNotFound", "count": 1}
        ],
    }


@pytest.mark.spark
@pytest.mark.req("S-02")
def test_an_idle_syphon_costs_nothing_but_its_long_polls_and_counts(
    spark, run, brokers, monkeypatch
):
    monkeypatch.setattr("pairbus.syphon.job.DISCOVERY_SECONDS", 0.1)
    monkeypatch.setattr("pairbus.cli.pair.syphon.COUNT_SECONDS", 0.1)
    has_begun, found = threading.Event(), []
    monkeypatch.setattr(PlainProgress, "round_ended", lambda *_: has_begun.set())

    def watch():
        has_begun.wait(60)
        time.sleep(1)  # the count after the first round
        before = [broker.meter.read().total for broker in brokers]
        time.sleep(2)
        found.append((before, [broker.meter.read().total for broker in brokers]))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    code, out, err = run("--metrics-port", "0")
    thread.join()

    assert code == 0, err
    [(before, after)] = found
    assert after == before, "neither a poll nor a count is due for 15 minutes"
    assert "0 left in the backlog" in out


@pytest.mark.spark
@pytest.mark.req("S-01")
def test_several_primaries_share_a_syphon_and_other_backlogs_are_ignored(
    spark, run, brokers, tmp_path
):
    fabrikam, stranger = (f"{name}/x-servicebus-transfer/0" for name in ("fabrikam", "stranger"))
    with (
        Broker(queues=["orders"]) as other,
        Broker(queues=[*QUEUES, fabrikam, stranger]) as secondary,
    ):
        namespaces = brokers[0], secondary
        divert(namespaces, "orders", 5)
        divert(namespaces, "orders", 3, fabrikam)
        divert(namespaces, "orders", 1, stranger)
        both = f"{brokers[0].connection_string} {other.connection_string}"

        words = ("--primary-name", "fabrikam", "--once", "--ledger", str(tmp_path))
        code, out, err = run(
            *words, PAIRBUS_PRIMARY=both, PAIRBUS_SECONDARY=secondary.connection_string
        )

        assert code == 0, err
        assert "ready: 3 backlog queues of contoso, fabrikam" in err
        assert "backlog queues of other primaries are ignored: 1 of stranger" in err
        assert "8 brought home" in out
        assert at_once(brokers[0], "orders", 5) == 5
        assert at_once(other, "orders", 3) == 3
        assert at_once(secondary, stranger, 1) == 1
    assert ledger_files(tmp_path)


def test_a_key_that_the_primary_refuses_is_exit_code_1_before_spark_starts(run, brokers):
    divert(brokers, "orders", 1)
    wrong = brokers[0].connection_string.replace(KEY, "d3Jvbmc=")

    code, _, err = run("--once", PAIRBUS_PRIMARY=wrong)

    assert code == 1
    assert re.search(r"the primary localhost:\d+ refuses the syphon's credentials", err)
    assert "Traceback" not in err
    assert at_once(brokers[1], QUEUES[0], 1) == 1


def test_a_secondary_that_refuses_is_exit_code_1_before_spark_starts(run, brokers):
    wrong = brokers[1].connection_string.replace(KEY, "d3Jvbmc=")

    code, _, err = run(PAIRBUS_SECONDARY=wrong)

    assert code == 1
    assert err == (
        f"pairbus: the secondary localhost:{brokers[1].port} rejected policy 'Root': check the "
        "key, and that the policy has the Manage right\n"
    )


def test_the_answer_of_a_secondary_that_fails_has_no_xml(run, brokers):
    with brokers[1].faults.cannot_manage():
        code, _, err = run("--once")

    assert code == 1
    assert err.startswith("pairbus: cannot list the queues of the secondary localhost:")
    assert err.count("\n") == 1
    assert "<" not in err


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PAIRBUS_PRIMARY": ""}, "which namespace is the primary?.*PAIRBUS_PRIMARY.*--primary"),
        ({"PAIRBUS_SECONDARY": ""}, "which namespace is the secondary?"),
        ({"PAIRBUS_SECONDARY": "Endpoint=sb://a;SharedAccessKey=b"}, "the secondary: the conn"),
    ],
)
def test_a_missing_option_is_a_usage_error(run, variables, words):
    code, out, err = run(**variables)

    assert code == 2
    assert not out
    assert err.count("\n") == 1
    assert re.search(words.replace("?", r"\?"), err)


@pytest.mark.parametrize(
    "master", ["foo", "local[", "local[x]", "spark://host", "spark:/host:1", "k8s://", "Yarn", ""]
)
def test_an_unknown_master_is_a_usage_error(master):
    with pytest.raises(UsageError) as raised:
        _check_master(master)

    assert str(raised.value) == (
        f"--master {master!r} is not a Spark master: use local[N], spark://HOST:PORT, yarn or "
        "k8s://HOST:PORT"
    )


@pytest.mark.parametrize(
    "master",
    [
        None,
        "local",
        "local[2]",
        "local[*]",
        "local[2,4]",
        "local[*, 4]",
        "spark://host:7077",
        "spark://one:7077,two:7077",
        "yarn",
        "k8s://https://kubernetes.default.svc",
    ],
)
def test_a_master_that_spark_knows_is_accepted(master):
    _check_master(master)


def test_an_unknown_master_is_refused_before_anything_starts(run):
    code, out, err = run("--once", "--master", "foo")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("pairbus: --master 'foo' is not a Spark master")


def test_the_error_without_java_says_what_to_install(run):
    code, _, err = run(JAVA_HOME="/nowhere")

    assert code == 2
    assert err.count("\n") == 1
    assert "the syphon runs on Spark, which needs Java 17 or newer, but no Java was found" in err
    assert "openjdk-17-jre-headless" in err


def test_a_namespace_is_not_its_own_secondary(run, brokers):
    code, _, err = run(PAIRBUS_SECONDARY=brokers[0].connection_string)

    assert code == 2
    assert "primary and secondary are the same namespace, localhost:" in err


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("--primary-name", "b"), "1 primary but 2 times --primary-name: give it once for each"),
        (
            ("--primary", "{0}", "--primary", "{1}"),
            "2 primaries but 1 time --primary-name: give it once for each primary",
        ),
        (
            ("--primary", "{0}", "--primary", "{1}", "--primary-name", "CONTOSO"),
            "two primaries have the name 'CONTOSO'.*give each its own --primary-name",
        ),
        (
            ("--primary-ca-file", "a.pem", "--primary-ca-file", "b.pem"),
            "1 primary but 2 times --primary-ca-file: give one for all, or one for each",
        ),
    ],
)
def test_options_that_are_given_for_each_primary_must_match_in_number(run, brokers, words, output):
    texts = [broker.connection_string for broker in brokers]

    code, _, err = run(*(word.format(*texts) for word in words))

    assert code == 2
    assert re.search(output, err)
    assert KEY not in err
