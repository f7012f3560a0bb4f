"""The Java process of a Spark session: how it starts, and that nothing of it is left.

PySpark starts it and forgets it if it is interrupted meanwhile. Here, the process that was started
is known at any time. It has a folder of its own for temporary files, which is removed with it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

EXIT_SECONDS: Final = 2.0
# Spark needs this module, and Java says so at each start. There is no option to keep it quiet.
_NOISE: Final = b"Using incubator modules"


class JavaProcess:
    """The Java process of this Python process, if it was started by `starting`."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="pairbus-spark-")
        """For all temporary files of Spark and Java."""
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """PySpark starts Java inside of this block. If that fails or is interrupted, nothing of it
        is left.
        """
        import pyspark.java_gateway

        module: Any = pyspark.java_gateway
        real, module.Popen = module.Popen, self._start
        try:
            yield
        except BaseException:
            self.end(wait_seconds=0.0)
            raise
        finally:
            module.Popen = real

    def _start(self, command: Any, **settings: Any) -> subprocess.Popen[bytes]:
        settings["stderr"] = subprocess.PIPE
        with _postponed_interrupt():
            process = self._process = subprocess.Popen(command, **settings)
            assert process.stderr is not None
            threading.Thread(
                target=_copy_errors, args=(process.stderr,), name="pairbus-java-stderr", daemon=True
            ).start()
        return process

    def kill(self) -> None:
        if self._process is not None:
            _kill(self._process)

    def end(self, *, wait_seconds: float = EXIT_SECONDS) -> None:
        """End Java and remove its files. It has this long to end by itself."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()  # the Java process ends when its stdin does
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait_seconds)
            _kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.end)


@contextmanager
def _postponed_interrupt() -> Iterator[None]:
    """Ctrl-C inside of `Popen` would leave a process behind that nobody knows: it takes effect at
    the end of this block. Only the main thread gets it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    for number in arrived[:1]:
        signal.raise_signal(number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children: at first it is a script, which asks another Java process how
    to start Java. Where there is no /proc, that one ends by itself, within a second.
    """
    children: list[int] = []
    for file in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    process.kill()  # does nothing to one that has ended
    for pid in children:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _copy_errors(stream: IO[bytes]) -> None:
    with stream:
        for line in stream:
            if _NOISE not in line:
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()
