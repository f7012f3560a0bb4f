"""A process that brings messages home (syphon_load.py), as the benchmark drives it.

It says when it is ready, and then carries out orders, a line of JSON each way. Leaving the context
ends it, together with its Java machine.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ours
import rows
import syphon_processes as processes
from loop import LoadError

READY_SECONDS_MAX = 180.0


class Mover:
    def __init__(self, way: str, process: subprocess.Popen[str], log: Path) -> None:
        self.way = way
        self._process = process
        self._log = log

    def pids(self) -> dict[str, list[int]]:
        return processes.family(self._process.pid)

    def tell(self, **order: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def answer(self, seconds_max: float) -> dict[str, Any]:
        """Wait for an answer, but not forever: a process may hang."""
        assert self._process.stdout is not None
        watchdog = threading.Timer(seconds_max, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise self._failure()
        found: dict[str, Any] = json.loads(line)
        return found

    def _failure(self) -> LoadError:
        self._process.kill()
        self._process.wait()
        said = self._log.read_text(errors="replace").strip()[-600:]
        return LoadError(f"{self.way}: {said or 'no answer'}")


@contextlib.contextmanager
def mover(
    way: str, *, primary: str, secondary: str, queues: Sequence[str], folder: Path
) -> Iterator[Mover]:
    """It is ready when it gives its first answer."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "stderr.log"
    with log.open("wb") as stderr:
        # In a session of its own: Ctrl-C is for the benchmark, which then ends this process.
        process = subprocess.Popen(
            [
                *(sys.executable, str(rows.HERE / "syphon_load.py"), way),
                *("--primary", primary, "--secondary", secondary),
                *("--queues", ",".join(queues)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=ours.environment() | {"SPARK_LOCAL_DIRS": str(folder), "TMPDIR": str(folder)},
            start_new_session=True,
            text=True,
        )
    made = Mover(way, process, log)
    try:
        yield made
    finally:
        pids = made.pids()
        process.kill()
        with contextlib.suppress(BrokenPipeError):  # it may have died before it read an order
            process.communicate()
        processes.end(pids)
