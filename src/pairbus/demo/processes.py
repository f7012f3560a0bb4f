"""Who plays in the demo, in processes of their own: two brokers and a syphon on Spark.

Each has a session of its own, so a Ctrl-C on the terminal is only ours to obey, and all that it has
started in turn can be found and ended. What they write lies in the demo's folder and goes with it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

END_SECONDS_MAX: Final = 10.0


class Member:
    """A process whose lines are read as they come; what it says on stderr is kept for a complaint.

    Started by the main thread: where the system can, it ends with that thread's process, however
    that ends.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._errors: deque[str] = deque(maxlen=50)

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """By itself: not by our hand."""
        return self._process is not None and self._process.poll() is not None

    @property
    def complaint(self) -> str:
        """How it has ended: its last words, unless somebody has killed it."""
        code = None if self._process is None else self._process.returncode
        if code is not None and code < 0:
            return f"{self.name} was killed ({signal.Signals(-code).name})"
        said = self._errors[-1].removeprefix("pairbus: ") if self._errors else "it said nothing"
        return f"{self.name} has ended with {code}: {said}"

    def spawn(self, words: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        guard = shutil.which("setpriv")
        tied = [guard, "--pdeathsig", "KILL"] if guard else []
        process = subprocess.Popen(
            [*tied, sys.executable, "-m", "pairbus", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=self.folder,
            env={**_environment(), **(variables or {})},
            start_new_session=True,
        )
        self._process = process
        for stream, take in ((process.stdout, self.heard), (process.stderr, self._errors.append)):
            threading.Thread(
                target=_read, args=(stream, take), name=f"demo-{self.name}", daemon=True
            ).start()

    def heard(self, line: str) -> None:
        """A line of its stdout, on a thread of its own."""

    def kill(self) -> None:
        """At once: it, and all that it has started. Nothing here needs a farewell."""
        process, self._process = self._process, None
        if process is None:
            return
        deadline = time.monotonic() + END_SECONDS_MAX
        while (left := _session(process.pid)) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        process.wait(END_SECONDS_MAX)


def _environment() -> dict[str, str]:
    """Ours, without what it says to brokers and syphons of somebody's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}


def _read(stream: Any, take: Callable[[str], None]) -> None:
    with stream, suppress(ValueError):
        for line in stream:
            if line.strip():
                take(line.strip())


def _session(leader: int) -> list[int]:
    """The processes of a session that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            # After the name, which may have any character: state, parent, group, session.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(folder.name))
    return found


class Namespace(Member):
    """A broker with one namespace, that can be killed and started again as the same one."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, folder)
        self.connection_string = ""
        """Empty while it is not ready."""
        self.data = folder / name
        self._port = 0
        self._config: list[str] = []
        if config is not None:
            path = folder / f"{name}.json"
            namespaces = [{"Name": name, **config}]
            path.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
            self._config = ["--config", str(path)]

    @property
    def is_ready(self) -> bool:
        return bool(self.connection_string) and self.is_running

    @property
    def ca_file(self) -> Path:
        return self.data / "certificates" / "ca.pem"

    def start(self) -> None:
        where = ["--namespace", f"{self.name}:{self._port}", "--data", str(self.data)]
        self.spawn(["broker", *where, *self._config, "--log-level", "warning"])

    def kill(self) -> None:
        super().kill()
        self.connection_string = ""

    def heard(self, line: str) -> None:
        _, ready, text = line.partition(" ready: ")
        if ready:
            self._port = int(text.partition(";")[0].rpartition(":")[2])
            self.connection_string = text


class Syphon(Member):
    """`pairbus syphon`, as anybody would start it, with the files of Java in the demo's folder."""

    def __init__(self, folder: Path, primary: str) -> None:
        super().__init__("syphon", folder)
        self._primary = primary
        self.is_ready = False
        self.moved = 0

    def start(self, primary: str, secondary: str) -> None:
        scratch = self.folder / "spark"
        scratch.mkdir()
        variables = {
            "PAIRBUS_PRIMARY": primary,
            "PAIRBUS_SECONDARY": secondary,
            "SPARK_LOCAL_DIRS": str(scratch),
            "TMPDIR": str(scratch),
            # No files outside of the folder, where killing it would leave them.
            "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
        }
        self.spawn(["syphon", "--namespace", self._primary, "--json"], variables)

    def heard(self, line: str) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            return
        if told.get("ready"):
            self.is_ready = True
        elif "round" in told:
            self.moved += told["brought_home"]
