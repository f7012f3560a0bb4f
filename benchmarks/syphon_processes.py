"""The processor time and memory of the processes of a drain.

A driver in Python starts a Java machine, which starts Python workers. Only the process id of the
driver is known; the others are found as its descendants.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import rows
from loop import LoadError

Pids = Mapping[str, list[int]]
SAMPLE_SECONDS = 0.2
END_SECONDS_MAX = 15.0
DRIVER, JAVA, WORKERS = "driver", "java", "workers"


def family(pid: int) -> dict[str, list[int]]:
    """A process with all its descendants, as driver, Java machine and workers."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            front, _, back = entry.read_text().rpartition(")")
            number, _, name = front.partition(" (")
            names[int(number)] = name
            children.setdefault(int(back.split()[1]), []).append(int(number))
    found: dict[str, list[int]] = {DRIVER: [pid], JAVA: [], WORKERS: []}
    left = list(children.get(pid, ()))
    while left:
        one = left.pop()
        found[JAVA if names[one] == "java" else WORKERS].append(one)
        left += children.get(one, ())
    return found


def cpu_seconds(pids: Pids) -> dict[str, float]:
    """User and system time. Workers that have ended are included."""
    return {kind: sum(_cpu(pid, kind == WORKERS) for pid in each) for kind, each in pids.items()}


def _cpu(pid: int, with_children: bool) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11 : 15 if with_children else 13]) / rows.TICKS


def resident_mb(pids: Pids) -> dict[str, float]:
    found = dict.fromkeys(pids, 0.0)
    for kind, each in pids.items():
        for pid in each:
            with contextlib.suppress(OSError, LoadError):
                found[kind] += rows.resident_mb(pid)
    return found


class Watch:
    """The peak memory of each kind of process while this is open."""

    def __init__(self, pids: Callable[[], Pids]) -> None:
        self._pids = pids
        self.peaks_mb = self.before_mb = resident_mb(pids())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            for kind, now in resident_mb(self._pids()).items():
                self.peaks_mb = self.peaks_mb | {kind: max(now, self.peaks_mb.get(kind, 0.0))}


@contextlib.contextmanager
def watched(pids: Callable[[], Pids]) -> Iterator[Watch]:
    watch = Watch(pids)
    watch._thread.start()
    try:
        yield watch
    finally:
        watch._over.set()
        watch._thread.join()


def end(pids: Pids) -> None:
    """A Java machine ends by itself after its driver, and deletes its files. Kill it if it does
    not."""
    left = [pid for each in pids.values() for pid in each]
    until = time.monotonic() + END_SECONDS_MAX
    while left := [pid for pid in left if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > until:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)
