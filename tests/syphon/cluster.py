"""A Spark cluster of its own for tests: a standalone master and a worker of the installed package,
on the loopback, on ports that the system picks.

Its Python has what pairbus needs and not pairbus: that is what has to be sent along.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.syphon.processes import command_of, descendants, kill
from tests.waiting import wait_until

CORES = 2
# The cluster does little: to optimise its code would take longer than to run it.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    url: str
    worker: int
    variables: dict[str, str]
    """Of the environment of a driver."""

    def executors(self) -> list[int]:
        return [pid for pid in descendants(self.worker) if _EXECUTOR in command_of(pid)]


@contextmanager
def standalone(folder: Path) -> Iterator[Cluster]:
    python = _python_without_pairbus(folder)
    variables = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_CONF_DIR": str(folder),
        "PYSPARK_PYTHON": str(python),
    }
    (folder / "spark-defaults.conf").write_text(
        f"spark.driver.extraJavaOptions {_JAVA_OPTIONS}\n"
        f"spark.executor.extraJavaOptions {_JAVA_OPTIONS}\n"
    )
    own = {
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
    }
    processes: list[subprocess.Popen[Any]] = []

    def start(name: str, *words: str) -> Path:
        log = folder / f"{name}.log"
        command = [str(_spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with log.open("w") as file:
            processes.append(
                subprocess.Popen(
                    [*command, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *words],
                    stdout=file,
                    stderr=file,
                    cwd=folder,
                    env={**os.environ, **variables, **own},
                )
            )
        return log

    try:
        log = start("master.Master")
        url = wait_until(lambda log=log: _MASTER.search(log.read_text()), "a master")[1]
        log = start("worker.Worker", "--cores", str(CORES), "--memory", "2g", url)
        wait_until(lambda log=log: _REGISTERED in log.read_text(), "a worker")
        yield Cluster(url=url, worker=processes[1].pid, variables=variables)
    finally:
        for process in processes:
            for pid in (process.pid, *descendants(process.pid)):
                kill(pid)
            process.wait()


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def _python_without_pairbus(folder: Path) -> Path:
    """This Python, with this one's packages, but not as one that looks into `.pth` files: there an
    editable install is named."""
    site = _spark_home().parent
    path = folder / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec "{base}" "$@"\n')
    path.chmod(0o755)
    return path
