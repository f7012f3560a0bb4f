"""`pairbus demo` as a whole: with Spark, in its own processes, and with nothing left afterwards."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time

import pytest

from tests.cli.process import COMMAND, finished, leftovers

SECONDS_MAX = 150

pytestmark = pytest.mark.spark


@pytest.fixture
def environment(tmp_path):
    """Its temporary files are in a folder of ours, by which its processes are known, too."""
    return os.environ | {"TMPDIR": str(tmp_path)}


@pytest.mark.req("X-02", "X-10", "F-03", "F-08", "S-01")
def test_it_has_all_phases_and_every_message_arrives_once(environment, tmp_path):
    began = time.monotonic()
    words = ("demo", "--json", "--phase", "3s", "--seed", "11")
    done = finished(*words, env=environment, timeout=SECONDS_MAX)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert time.monotonic() - began < 120
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    phases = list(dict.fromkeys(each["phase"] for each in lines if each["event"] == "phase"))
    assert phases == [
        "healthy",
        "failing over",
        "outage",
        "returning",
        "draining",
        "stopping",
        "counting",
        "over",
    ]
    ledger = lines[-1]
    assert ledger["event"] == "ledger"
    assert ledger["sent"] == ledger["delivered"] > 100
    assert [ledger[name] for name in ("lost", "duplicated", "raised", "unexpected")] == [0, 0, 0, 0]
    assert ledger["broughtHome"] > 50
    assert leftovers(tmp_path) == ([], [])


class Terminal:
    """One that is 90 columns wide, and what the demo has drawn on it."""

    def __init__(self, environment, *words):
        self._screen, other_side = pty.openpty()
        fcntl.ioctl(other_side, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, "demo", *words],
            env=environment | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=other_side,
            stderr=other_side,
        )
        os.close(other_side)
        self._drawn = b""

    @property
    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._drawn.decode(errors="replace"))

    def read_until(self, pattern):
        deadline = time.monotonic() + SECONDS_MAX
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, self.text
            assert self._read(), self.text

    def rest(self):
        while self._read():
            pass
        os.close(self._screen)
        return self.text

    def _read(self):
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the other side is closed
            return False
        self._drawn += data
        return bool(data)


@pytest.mark.req("C-02")
@pytest.mark.parametrize(
    ("words", "number"),
    [("backlog .* at most", signal.SIGINT), ("messages wait on the secondary", signal.SIGTERM)],
)
def test_interrupted_it_leaves_neither_processes_nor_files(environment, tmp_path, words, number):
    terminal = Terminal(environment, "--phase", "2s")

    terminal.read_until(words)
    terminal.process.send_signal(number)
    text = terminal.rest()

    assert terminal.process.wait(SECONDS_MAX) == 130
    assert "pairbus demo: " in text
    assert text.rstrip().endswith("Interrupted. All processes have ended.")
    assert "Traceback" not in text
    assert leftovers(tmp_path) == ([], [])


def test_with_keep_it_runs_until_it_is_interrupted_and_counts_again(environment, tmp_path):
    terminal = Terminal(environment, "--keep", "--phase", "2s")

    terminal.read_until("Then try:")
    terminal.process.send_signal(signal.SIGINT)
    text = terminal.rest()

    assert terminal.process.wait(SECONDS_MAX) == 0, text
    first, last = re.findall(r"LEDGER sent=(\d+) delivered=(\d+) lost=0 duplicated=0", text)
    assert first[0] == first[1]
    assert last[0] == last[1]
    assert int(last[0]) >= int(first[0])
    assert leftovers(tmp_path) == ([], [])
