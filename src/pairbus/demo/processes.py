"""The child processes of the demo: two brokers, and a syphon on Spark.

Each has its own session. A Ctrl-C on the terminal therefore reaches only the demo, and the demo can
find and stop all processes that a child has started. Their files are in the demo's folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
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


class ChildProcess:
    """A process whose output is read line by line. Its stderr is kept for an error message.

    Start it from the main thread: on systems with `setpriv`, it ends together with the demo's
    process, also after a crash.
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
        """Whether it ended without a call of `kill`."""
        return self._process is not None and self._process.poll() is not None

    @property
    def exit_message(self) -> str:
        """How it ended: the signal that killed it, or its last line on stderr."""
        code = None if self._process is None else self._process.returncode
        if code is not None and code < 0:
            return f"{self.name} was killed ({signal.Signals(-code).name})"
        last = self._errors[-1].removeprefix("pairbus: ") if self._errors else "no error output"
        return f"{self.name} ended with exit code {code}: {last}"

    def spawn(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
        *,
        module: str = "pairbus",
        first_line: str | None = None,
    ) -> None:
        """`first_line` is the first line of its stdin, which then stays open."""
        guard = shutil.which("setpriv")
        prefix = [guard, "--pdeathsig", "KILL"] if guard else []
        # Without the user's settings for other brokers and syphons.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")
        }
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL if first_line is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=self.folder,
            env={**environment, **(variables or {})},
            start_new_session=True,
        )
        self._process = process
        if first_line is not None:
            self.write_line(first_line)
        for stream, on_line in (
            (process.stdout, self.on_line),
            (process.stderr, self._errors.append),
        ):
            threading.Thread(
                target=_read, args=(stream, on_line), name=f"demo-{self.name}", daemon=True
            ).start()

    def on_line(self, line: str) -> None:
        """Called with each line of its stdout, on its own thread."""

    def write_line(self, line: str) -> None:
        """To its stdin, which `first_line` has opened."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def request_stop(self) -> None:
        """By SIGTERM, as an operator would, or by the end of its stdin if that is open."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        else:
            self._process.send_signal(signal.SIGTERM)

    def pids(self) -> list[int]:
        """Of it, and of everything that it has started."""
        return [] if self._process is None else _session(self._process.pid)

    def kill(self) -> None:
        """Kills it and everything that it has started, at once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # also where there is no /proc
        deadline = time.monotonic() + END_SECONDS_MAX
        while (pids := _session(process.pid)) and time.monotonic() < deadline:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        process.wait(END_SECONDS_MAX)
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


def _read(stream: Any, on_line: Callable[[str], None]) -> None:
    with stream, suppress(ValueError):
        for line in stream:
            if line.strip():
                on_line(line.strip())


def _session(leader: int) -> list[int]:
    """The running processes of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            # After the name, which may contain any character: state, parent, group, session.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(folder.name))
    return found


class BrokerProcess(ChildProcess):
    """A broker with one namespace. After a kill it can start again with the same port and data."""

    def __init__(
        self,
        name: str,
        folder: Path,
        config: Mapping[str, Any] | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        module: str = "pairbus",
    ) -> None:
        """`module`: what runs as the command line."""
        super().__init__(name, folder)
        self._variables = variables
        self._module = module
        self.connection_string = ""
        """Empty until the broker is ready."""
        self.data = folder / name
        self.port = 0
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
        namespace = ["--namespace", f"{self.name}:{self.port}", "--data", str(self.data)]
        options = [*self._config, "--allow-faults", "--log-level", "warning"]
        self.spawn(["broker", *namespace, *options], self._variables, module=self._module)

    def kill(self) -> None:
        super().kill()
        self.connection_string = ""

    def on_line(self, line: str) -> None:
        _, ready, text = line.partition(" ready: ")
        if ready:
            self.port = int(text.partition(";")[0].rpartition(":")[2])
            self.connection_string = text


class SyphonProcess(ChildProcess):
    """`pairbus syphon`, as a user would start it, with Java's files in the demo's folder."""

    def __init__(self, folder: Path, primary_name: str) -> None:
        super().__init__("syphon", folder)
        self._primary_name = primary_name
        self.is_ready = False
        self.brought_home = 0

    def start(
        self,
        primary: str,
        secondary: str,
        *,
        ca_files: tuple[str | None, str | None] = (None, None),
        metrics_port: int | None = None,
    ) -> None:
        scratch = self.folder / "spark"
        scratch.mkdir(exist_ok=True)
        variables = {
            "PAIRBUS_PRIMARY": primary,
            "PAIRBUS_SECONDARY": secondary,
            "SPARK_LOCAL_DIRS": str(scratch),
            "TMPDIR": str(scratch),
            # No files outside of the folder: a kill would leave them behind.
            "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={scratch} -XX:-UsePerfData",
        }
        names = ("--primary-ca-file", "--secondary-ca-file")
        trusted = [
            word
            for name, file in zip(names, ca_files, strict=True)
            if file is not None
            for word in (name, file)
        ]
        metrics = [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
        words = ["syphon", "--primary-name", self._primary_name, "--json", *metrics, *trusted]
        self.spawn(words, variables)

    def on_line(self, line: str) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            return
        if message["event"] == "ready":
            self.is_ready = True
        elif message["event"] == "round":
            self.brought_home += message["broughtHome"]


class DashboardProcess(ChildProcess):
    """`pairbus dashboard` on the demo."""

    def __init__(self, folder: Path, primary_name: str) -> None:
        super().__init__("dashboard", folder)
        self._primary_name = primary_name
        self.address = ""
        """Empty until it is ready."""

    def start(self, primary: str, secondary: str, metrics: Sequence[str]) -> None:
        variables = {
            "PAIRBUS_PRIMARY": primary,
            "PAIRBUS_SECONDARY": secondary,
            "PAIRBUS_METRICS": " ".join(metrics),
        }
        words = ["dashboard", "--port", "0", "--allow-changes"]
        self.spawn([*words, "--primary-name", self._primary_name], variables)

    def on_line(self, line: str) -> None:
        _, ready, address = line.partition("dashboard ready: ")
        if ready:
            self.address = address


def free_port() -> int:
    """A port that nobody listens on, for a process that gets its port before it starts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
