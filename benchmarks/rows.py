"""The rows of the table: what is asked of every broker, and one measured run of it.

A row is run by a generator process that is ready before the clock starts; the processor time of
generator and broker are taken around it, so that a figure can be judged: a generator that costs
more than the broker measures itself. This module starts no broker and prints nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ours
from loop import LoadError

HERE = Path(__file__).resolve().parent
QUEUE = "bench"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    aim: int | None = None  # messages a second
    flight: int = 0  # messages sent and not yet acknowledged; 0: nothing is sent
    batch: int = 1
    credit: int = 0  # 0: nothing is received
    fresh: bool = False  # begins with an empty queue


ROWS = (
    Row("single", "sent singly, 64 in flight", aim=12_000, flight=64, fresh=True),
    # RabbitMQ knows no batches: it gets the same number of messages in flight, one by one.
    Row("batch", "sent in batches of 100, 10 in flight", aim=40_000, flight=1_000, batch=100),
    # What the two rows before have sent, so that the queue is empty afterwards.
    Row("receive", "received and settled, credit 500", aim=18_000, credit=500),
    Row("both", "both at once: 64 in flight, credit 500", flight=64, credit=500, fresh=True),
)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages each row moves."""

    single: int
    batch: int
    both: int

    @property
    def receive(self) -> int:
        return self.single + self.batch

    def of(self, row: Row) -> int:
        return int(getattr(self, row.key))


@dataclass(frozen=True, slots=True)
class Subject:
    """A broker through one protocol: how its generator is called, and whose time is counted."""

    name: str
    script: str
    pid: int
    arguments: tuple[str, ...]
    batches: bool  # whether it knows them
    empty: Callable[[], None] = lambda: None
    """Make sure that its queue is empty. Only RabbitMQ needs it: settlements that it had not dealt
    with when the connection closed bring their messages back."""

    def command(self, row: Row, count: int, size: int) -> list[str]:
        command = [sys.executable, str(HERE / self.script), *self.arguments]
        command += ["--count", str(count), "--size", str(size)]
        if row.flight:
            command += ["--send", str(row.flight)]
        if row.batch > 1 and self.batches:
            command += ["--batch", str(row.batch)]
        if row.credit:
            command += ["--receive", str(row.credit)]
        return command


@dataclass(frozen=True, slots=True)
class Sample:
    messages: int
    seconds: float
    generator_seconds: float  # of processor time
    broker_seconds: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Figure:
    """The rounds of one row on one broker, in one."""

    rate: float
    rates: tuple[float, ...]
    broker_us: float
    generator_us: float

    @property
    def generator_share(self) -> float:
        """Of the processor time that the row took."""
        return self.generator_us / (self.generator_us + self.broker_us or 1)


def summary(samples: list[Sample]) -> Figure:
    def median_us(seconds: str) -> float:
        return float(statistics.median(getattr(s, seconds) / s.messages * 1e6 for s in samples))

    return Figure(
        rate=statistics.median(s.rate for s in samples),
        rates=tuple(s.rate for s in samples),
        broker_us=median_us("broker_seconds"),
        generator_us=median_us("generator_seconds"),
    )


def measure(subject: Subject, row: Row, count: int, size: int) -> Sample:
    if row.fresh:
        subject.empty()
    command = subject.command(row, count, size)
    return drive(command, subject.pid, f"{subject.name}, {row.title}")


def drive(command: list[str], pid: int, what: str) -> Sample:
    """Run a generator (see `loop.measure`), and take the time of the broker `pid` around it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ours.environment(),
        start_new_session=True,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != "ready":
            raise _failure(what, process)
        before = cpu_seconds(pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise _failure(what, process)
        result = json.loads(line)
        return Sample(
            messages=result["messages"],
            seconds=result["seconds"],
            generator_seconds=result["cpu_seconds"],
            broker_seconds=cpu_seconds(pid) - before,
        )
    finally:
        process.kill()
        process.communicate()


def _failure(what: str, process: subprocess.Popen[str]) -> LoadError:
    process.kill()
    _, said = process.communicate()
    return LoadError(f"{what}: {said.strip()[-600:] or 'no answer'}")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise LoadError(f"process {pid} is gone")
