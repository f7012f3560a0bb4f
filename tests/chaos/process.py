"""A broker in a process of its own, on a port that outlives it: it can be killed and come back."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMESPACE = "chaos"
READY_SECONDS_MAX = 60.0


class BrokerProcess:
    """`python -m pairbus broker` on one data folder; started, killed and started again."""

    def __init__(
        self,
        folder: Path,
        queues: Mapping[str, Mapping[str, Any]],
        *,
        data: Path | None = None,
        module: str = "pairbus",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.data = data or folder / "data"
        self._module = module
        self._variables = {**os.environ, **(variables or {})}
        self.log = folder / "broker.log"
        self.port = 0
        """The system picks one at the first start, and later starts use it again."""
        self.connection_string = ""
        self._config = folder / "Config.json"
        listed = [{"Name": name, "Properties": dict(settings)} for name, settings in queues.items()]
        namespaces = [{"Name": NAMESPACE, "Queues": listed}]
        self._config.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        prefix, deadline = f"{NAMESPACE} ready: ", time.monotonic() + READY_SECONDS_MAX
        while True:
            self.spawn()
            line = self._first_line()
            if line.startswith(prefix):
                break
            log = self.log.read_text()
            # While it was down, somebody else may have got its port for a moment.
            is_taken = "already in use" in "".join(log.splitlines()[-1:])
            may_try_again = is_taken and time.monotonic() < deadline
            assert may_try_again, f"it said {line!r}; its log:\n{log}"
            self._end(signal.SIGKILL)
            time.sleep(0.5)
        self.connection_string = line.removeprefix(prefix)
        self.port = int(self.connection_string.partition(";")[0].rpartition(":")[2])

    def spawn(self) -> None:
        """Starts it without waiting until it is ready."""
        command = [sys.executable, "-m", self._module, "broker", "--data", str(self.data)]
        command += ["--config", str(self._config), "--namespace", f"{NAMESPACE}:{self.port}"]
        command += ["--allow-faults"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._variables
            )

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS_MAX)
        return self._process.stdout.readline().strip() if ready else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """By SIGKILL: no handler runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """By SIGTERM, as an operator would; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            code = process.wait(READY_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
        return code

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None
