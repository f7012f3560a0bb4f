"""`pairbus syphon` in this process, which is faster: its output, exit codes and usage errors."""

import json
import os
import re
import signal
import socket
import sys
import threading
import time

import pytest
from pyarrow.parquet import ParquetDataset

from pairbus.broker import Broker
from pairbus.cli.main import main
from pairbus.cli.pair.syphon import check_master
from pairbus.cli.pair.syphon_progress import PlainProgress
from pairbus.errors import UsageError
from pairbus.syphon.ledger import FOLDER, ledger_files
from tests.syphon.syphon_command import KEY, QUEUES, at_once, divert, environment, two_brokers


@pytest.fixture
def brokers():
    with two_brokers() as pair:
        yield pair


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


def test_a_port_for_metrics_that_is_taken_ends_it_before_spark_starts(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run("--metrics-port", str(port))

    assert code == 1
    assert err == f"pairbus: cannot serve metrics on 127.0.0.1:{port}: Address already in use\n"


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


def test_once_with_nothing_to_bring_home_starts_no_spark(run, tmp_path, monkeypatch):
    monkeypatch.delattr("pairbus.cli.pair.syphon.syphon_session")

    code, out, _ = run("--once", "--json", "--ledger", str(tmp_path / "ledger"))

    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert [(each["event"], each.get("broughtHome"), each.get("left")) for each in events] == [
        ("ready", None, None),
        ("ended", 0, 0),
    ]


@pytest.mark.spark
@pytest.mark.req("S-02")
def test_an_idle_syphon_costs_nothing_but_its_long_polls_and_counts(
    spark, run, brokers, monkeypatch
):
    monkeypatch.setattr("pairbus.syphon.job.DISCOVERY_SECONDS", 0.1)
    monkeypatch.setattr("pairbus.cli.pair.syphon.COUNT_SECONDS", 0.1)
    has_begun, has_ended, found = threading.Event(), threading.Event(), []
    monkeypatch.setattr(PlainProgress, "round_ended", lambda *_: has_begun.set())

    def watch():
        has_begun.wait(60)
        for _ in range(60):  # the count after the first round may take a while
            before = [broker.meter.read().total for broker in brokers]
            time.sleep(2)
            after = [broker.meter.read().total for broker in brokers]
            if after == before:
                break
        found.append((before, after))
        if not has_ended.is_set():  # else it would end the tests
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    code, out, err = run("--metrics-port", "0")
    has_ended.set()
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

        ledger = ("--ledger", str(tmp_path), "--ledger-messages")
        words = ("--primary-name", "fabrikam", "--once", *ledger)
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
    lines = ParquetDataset(tmp_path / FOLDER).read(["queue", "message_id"]).to_pylist()
    assert len(lines) == 8
    assert {line["queue"] for line in lines} >= {fabrikam}


def test_a_secondary_that_refuses_is_exit_code_1_before_spark_starts(run, brokers):
    wrong = brokers[1].connection_string.replace(KEY, "d3Jvbmc=")

    code, _, err = run(PAIRBUS_SECONDARY=wrong)

    assert code == 1
    assert err == (
        f"pairbus: the secondary: localhost:{brokers[1].port} rejected policy 'Root': check the "
        "key, and that the policy has the Manage right\n"
    )


def test_the_answer_of_a_secondary_that_fails_has_no_xml(run, brokers):
    with brokers[1].faults.cannot_manage():
        code, _, err = run("--once")

    assert code == 1
    assert err.startswith("pairbus: the secondary: the list of queues: localhost:")
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
        check_master(master)

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
    check_master(master)


def test_an_unknown_master_is_refused_before_anything_starts(run):
    code, out, err = run("--once", "--master", "foo")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("pairbus: --master 'foo' is not a Spark master")


def test_lines_of_messages_without_a_ledger_are_a_usage_error(run):
    code, out, err = run("--once", "--ledger-messages")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("pairbus: --ledger-messages writes to a ledger")


def test_the_error_without_java_says_what_to_install(run):
    code, _, err = run(JAVA_HOME="/nowhere")

    assert code == 2
    assert err.count("\n") == 1
    assert "the syphon runs on Spark, which needs Java 17 or newer" in err
    assert "there is none in JAVA_HOME (/nowhere): install" in err
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
