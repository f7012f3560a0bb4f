"""`pairbus syphon` in a real process: on a terminal, under a service manager, and its secrets."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from pairbus.syphon.ledger import ledger_files
from tests.syphon.processes import command_of, descendants, kill
from tests.syphon.syphon_command import KEY, QUEUES, at_once, divert, environment, two_brokers
from tests.waiting import wait_until

SECONDS = 120
STOP_SECONDS_MAX = 30


@pytest.fixture
def brokers():
    with two_brokers() as pair:
        yield pair


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

    def rest(self):
        """All that the process has written, when it has ended."""
        while self.read(1):
            pass
        return "".join(self.texts.values())


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


def stop(process, reader, number):
    """The exit code, all output, and how many seconds it took."""
    began = time.monotonic()
    process.send_signal(number)
    code = process.wait(60)
    return code, reader.rest(), time.monotonic() - began


def command_lines():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue


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
        code, output, seconds = stop(process, reader, signal.SIGTERM)

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
        code, output, seconds = stop(process, reader, signal.SIGINT)
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
        code, lines = process.wait(60), reader.rest().splitlines()

    assert code == 1
    assert lines[0].startswith("ready: "), "and no warning of Java before it"
    assert lines[-1] == ("pairbus: the Spark session was stopped, or its Java process has ended")
    assert not [line for line in lines[1:-1] if not line.startswith("round 1")]
    assert [*tmp_path.iterdir()] == []
