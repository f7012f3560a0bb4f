"""A syphon and brokers in processes of their own, which a test can kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow.parquet import ParquetDataset

from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.target import parse_target
from pairbus.syphon.receipts import ReceiptOutcome
from tests.chaos.process import BrokerProcess
from tests.syphon.driver import LEDGER, PRIMARY, SECONDARY
from tests.syphon.stage import Namespace, Stage, backlog_names, copies, firsts, numbered
from tests.waiting import wait_until

CHUNK = 100
TASKS = 2
EACH = 1_200
LOCK_SECONDS = 10
PATHS = ("orders", "invoices", "unique")
BACKLOGS = backlog_names(4)
PRIMARY_QUEUES: dict[str, dict[str, Any]] = {
    "orders": {},
    "invoices": {},
    "unique": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1H"},
}
# The round must last long enough to be killed in the middle.
LATENCY_SECONDS = 0.1


@contextmanager
def filled_stage(folder: Path, *, lock_seconds: int = LOCK_SECONDS) -> Iterator[Stage]:
    (folder / "primary").mkdir()
    (folder / "secondary").mkdir()
    primary = BrokerProcess(folder / "primary", PRIMARY_QUEUES)
    backlog = {"LockDuration": f"PT{lock_seconds}S", "MaxDeliveryCount": 1_000}
    secondary = BrokerProcess(folder / "secondary", dict.fromkeys(BACKLOGS, backlog))
    try:
        primary.start()
        secondary.start()
        made = Stage(primary, secondary, BACKLOGS)
        for path in PATHS:
            ids = numbered(EACH, path)
            share = EACH // len(BACKLOGS)
            for place, queue in enumerate(BACKLOGS):
                made.divert(ids[place * share : (place + 1) * share], path, queue)
        yield made
    finally:
        primary.stop()
        secondary.stop()


# --- processes --------------------------------------------------------------------------------


class Driver:
    def __init__(
        self,
        stage: Stage,
        folder: Path,
        *,
        master: str = f"local[{TASKS},4]",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", "tests.syphon.driver", master, str(CHUNK), *BACKLOGS]
        self._log = (folder / "driver.log").open("a")
        file, name = tempfile.mkstemp(dir=folder, suffix=".out")
        self._output = Path(name)
        self.process = subprocess.Popen(
            command,
            stdout=file,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "SPARK_LOCAL_DIRS": str(folder),
                "TMPDIR": str(folder),
                PRIMARY: stage.primary.connection_string,
                SECONDARY: stage.secondary.connection_string,
                LEDGER: str(folder / "ledger"),
                **(variables or {}),
            },
        )
        os.close(file)
        try:
            wait_until(lambda: self._lines()[:1] == ["ready\n"], "ready")
        except AssertionError:
            raise AssertionError(Path(self._log.name).read_text()) from None

    def _lines(self) -> list[str]:
        lines = self._output.read_text().splitlines(keepends=True)
        return [line for line in lines if line.endswith("\n")]

    def brought_home(self) -> int:
        """How many messages it has brought home so far."""
        return sum(
            count
            for line in self._lines()[1:]
            for outcome, count in json.loads(line)["receipts"]
            if outcome == ReceiptOutcome.BROUGHT_HOME
        )

    def rounds(self) -> int:
        """How many rounds it has run so far."""
        return max((json.loads(line)["round"] for line in self._lines()[1:]), default=0)

    def workers(self) -> list[int]:
        """Python processes that Spark's daemon has forked."""
        return [
            pid
            for daemon in descendants(self.process.pid)
            if "pyspark.daemon" in command_of(daemon)
            for pid in children(daemon)
        ]

    def end(self) -> None:
        """As an operator would."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(180) == 0

    def close(self) -> None:
        below = descendants(self.process.pid)
        for pid in (self.process.pid, *below):
            kill(pid)
        self.process.wait()
        self._log.close()


@contextmanager
def two_drivers(stage: Stage, folder: Path) -> Iterator[tuple[Driver, Driver]]:
    """They start at the same time. Messages wait until both are ready."""
    faults = FaultClient(parse_target(stage.primary.connection_string))
    fault = faults.add({"kind": "cannot_send"})
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        futures = [pool.submit(Driver, stage, folder) for _ in range(2)]
        for each in futures:
            stack.callback(lambda each=each: each.result().close())
        one, other = (each.result() for each in futures)
        faults.clear(fault["id"])
        yield one, other


@contextmanager
def driver(stage: Stage, folder: Path, **settings: Any) -> Iterator[Driver]:
    made = Driver(stage, folder, **settings)
    try:
        yield made
    finally:
        made.close()


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # the process has just ended
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # a thread that has just ended
                found += map(int, tasks.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# --- checks ------------------------------------------------------------------------


def slow_primary(stage: Stage, latency_seconds: float = LATENCY_SECONDS) -> FaultClient:
    return slow(stage.primary, latency_seconds)


def slow(namespace: Namespace, latency_seconds: float = LATENCY_SECONDS) -> FaultClient:
    faults = FaultClient(parse_target(namespace.connection_string))
    faults.add({"kind": "slow", "latencySeconds": latency_seconds})
    return faults


def await_arrivals(stage: Stage, number: int, path: str = "orders") -> None:
    """Wait until the primary has accepted this many. Its sequence numbers have no gaps."""
    with stage.client(stage.primary) as client:
        management = client.management(path)
        wait_until(lambda: management.peek(number, 1), f"{number} messages in {path}")


def await_empty_backlog(stage: Stage) -> None:
    """Locked messages count, too."""
    with stage.client(stage.secondary) as client:
        for queue in BACKLOGS:
            management = client.management(queue)
            wait_until(lambda management=management: not management.peek(1, 1), f"{queue} is empty")


def check(stage: Stage, ledger: Path, *, tasks_killed: int) -> None:
    """No message is lost. The ledger has the copies of tasks that were not killed, for example of
    those whose locks expired on a busy machine.
    """
    found = {path: stage.home(path) for path in PATHS}
    for path, ids in found.items():
        missing = sorted(set(numbered(EACH, path)) - set(ids))
        assert not missing, f"{path}: {len(missing)} messages were lost: {missing[:5]}"
        assert len(firsts(ids)) == EACH
    assert copies(found["unique"]) == 0
    copied = sum(map(copies, found.values()))
    # Only the rounds: the folder for lines of messages begins with an underscore.
    rows = ParquetDataset(ledger).read(["duplicates_possible"])
    possible = sum(rows["duplicates_possible"].to_pylist())
    assert copied <= tasks_killed * CHUNK + possible, f"{copied} messages arrived twice"
    assert [stage.dead_lettered(queue) for queue in BACKLOGS] == [[] for _ in BACKLOGS]
