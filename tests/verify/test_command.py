"""`pairbus verify` on a real pair: a healthy one is valid, one with a thief is not."""

from __future__ import annotations

import json
import signal
import subprocess
import threading

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import Broker
from pairbus.cli.administration import EntityKind, administration
from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.target import parse_target
from tests.cli.process import finished, leftovers, started

SECONDS_MAX = 120
HERE = "Endpoint=sb://localhost:5672;SharedAccessKeyName=a;SharedAccessKey=b"


def verify(*words):
    return finished("verify", *words, timeout=SECONDS_MAX)


@pytest.fixture(scope="module")
def pair():
    with Broker() as primary, Broker() as secondary:
        yield primary, secondary


def on_pair(pair, *words):
    texts = [broker.connection_string for broker in pair]
    return verify("--primary", texts[0], "--secondary", texts[1], "--no-syphon", "--json", *words)


@pytest.mark.req("X-15")
def test_a_healthy_pair_is_valid_and_nothing_is_left_behind(pair, tmp_path):
    page = tmp_path / "verify.html"

    done = on_pair(pair, "--duration", "5s", "--rate", "50", "--report", str(page))

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["valid"]
    assert result["acknowledged"] == result["received"] > 50
    assert result["lost"] == result["unexpected"] == result["damaged"] == 0
    assert result["duplicated"] == 0
    text = page.read_text()
    assert f"all {result['acknowledged']:,} acknowledged messages are accounted for" in text
    assert "http" not in text  # it loads nothing


@pytest.mark.req("X-15")
def test_a_message_that_somebody_takes_away_is_lost(pair):
    stopping = threading.Event()
    thief = threading.Thread(target=steal, args=(pair, stopping))
    thief.start()

    done = on_pair(pair, "--duration", "8s", "--rate", "100", "--drain", "1s")
    stopping.set()
    thief.join()

    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert not result["valid"]
    assert result["lost"] > 0
    assert result["lostIds"]


def steal(pair, stopping):
    """Deletes messages of the run's queue, as soon as there is one."""
    text = pair[0].connection_string
    with ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=str(pair[0].ca_file)
    ) as manager:
        while not stopping.wait(0.1):
            names = [each.name for each in manager.list_queues()]
            queues = [n for n in names if n.startswith("pairbus-verify-") and "sessions" not in n]
            if queues:
                break
    with ServiceBusClient.from_connection_string(text) as client:
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        receiver = client.get_queue_receiver(queues[0], receive_mode=mode, prefetch_count=0)
        while not stopping.is_set() and not receiver.receive_messages(5, max_wait_time=30):
            pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_neither_processes_nor_files(tmp_path, monkeypatch, number):
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    with started("verify", "--local", "--no-syphon", "--duration", "60s") as process:
        while not process.stderr.readline().startswith("sending for 60s"):
            assert process.poll() is None
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 130
    assert err.endswith("interrupted; all processes have ended\n")
    assert leftovers(tmp_path) == ([], [])


@pytest.mark.parametrize("fault", [{"kind": "hang"}, {"kind": "unreachable", "mode": "drop"}])
def test_interrupted_while_the_primary_does_not_answer_it_ends_soon(pair, fault):
    primary, secondary = pair
    faults = FaultClient(parse_target(primary.connection_string, primary.ca_file))
    faults.add(fault)
    words = "--primary", primary.connection_string, "--secondary", secondary.connection_string
    try:
        with started("verify", *words, "--no-syphon", "--duration", "5s") as process:
            assert process.stderr.readline().startswith("run ")
            with pytest.raises(subprocess.TimeoutExpired):  # it waits for the primary
                process.wait(3)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=6)
    finally:
        faults.clear_all()

    left, end = err.splitlines()
    assert (process.returncode, end) == (130, "interrupted; all processes have ended")
    assert left.startswith("queue 'pairbus-verify-")
    assert " may be left on the primary, which did not answer; " in left


def test_interrupted_on_a_pair_it_deletes_its_queues(pair):
    primary, secondary = pair
    words = "--primary", primary.connection_string, "--secondary", secondary.connection_string
    with started("verify", *words, "--no-syphon", "--duration", "60s") as process:
        run = process.stderr.readline().removeprefix("run ").partition(",")[0]
        assert process.stderr.readline().startswith("sending for 60s")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS_MAX)

    assert (process.returncode, err) == (130, "interrupted; all processes have ended\n")
    with administration(parse_target(primary.connection_string)) as admin:
        assert not [name for name in admin.names(EntityKind.QUEUE) if run in name]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "which pair? Put one primary and its secondary into PAIRBUS_PRIMARY"),
        (("--local", "--duration", "1s"), "--duration 1s: must be from 5s to 24h"),
        (("--local", "--drain", "soon"), "--drain"),
        (("--local", "--primary", "a.example"), "--local brings its own pair"),
        (("--local", "--report", "nowhere/a.html"), "cannot write to the folder nowhere"),
        (("--local", "--report", f"{'x' * 300}/a.html"), "cannot write to the folder xx"),
        (("--primary", HERE, "--secondary", HERE), "are the same namespace, localhost:5672"),
    ],
)
def test_a_mistake_is_one_clear_line(pairbus, words, error):
    done = pairbus("verify", *words)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert error in done.err


def test_a_wrong_key_is_one_clear_line(pair):
    good, other = (broker.connection_string for broker in pair)
    name, _, rest = good.partition("SharedAccessKey=")
    bad = f"{name}SharedAccessKey=wrong;{rest.partition(';')[2]}"

    done = verify("--primary", bad, "--secondary", other, "--no-syphon", "--duration", "5s")

    assert done.returncode == 1
    assert "<Error>" not in done.stderr
    assert "Manage" in done.stderr.splitlines()[-1]


@pytest.mark.spark
@pytest.mark.req("X-15")
def test_nothing_is_lost_in_all_the_faults_of_a_local_run():
    done = verify("--local", "--duration", "15s", "--seed", "3", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["valid"]
    assert result["acknowledged"] > 100
    assert result["faults"]
    assert sum(result["faultsByKind"].values()) == len(result["faults"])
