"""The broker under test as a process of its own, on a port of the system's choosing.

It is started the way a user would, by `python -m pairbus broker`, and is asked for nothing but what
it prints. The benchmark imports none of the broker's code.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 20.0
SOURCE = Path(__file__).resolve().parent.parent / "src"


class BrokerFailed(Exception):
    """Our own broker did not start; the text has what it said."""


@dataclass(frozen=True, slots=True)
class Ours:
    port: int
    pid: int
    user: str
    password: str
    startup_seconds: float


def environment() -> dict[str, str]:
    """For child processes: this checkout's pairbus first, installed or not."""
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)}


@contextlib.contextmanager
def broker(folder: Path, queues: Sequence[str], options: Sequence[str] = ()) -> Iterator[Ours]:
    folder.mkdir(parents=True, exist_ok=True)
    config = _write_config(folder, queues)
    command = [sys.executable, "-m", "pairbus", "broker", "--data", str(folder)]
    command += ["--config", str(config), "--namespace", "bench:0", *options]
    log = folder / "stderr.log"
    begun = time.perf_counter()
    with log.open("wb") as stderr:
        # A session of its own: Ctrl-C is for the benchmark, which then stops the broker in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(),
            start_new_session=True,
            text=True,
        )
    try:
        settings = _connection_settings(process, log)
        port = int(settings["endpoint"].rstrip("/").rpartition(":")[2])
        _first_answer(port)
        yield Ours(
            port=port,
            pid=process.pid,
            user=settings["sharedaccesskeyname"],
            password=settings["sharedaccesskey"],
            startup_seconds=time.perf_counter() - begun,
        )
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _write_config(folder: Path, queues: Sequence[str]) -> Path:
    """Room for a million messages, and locks that outlast any row."""
    properties = {"MaxSizeInMegabytes": 20_480, "LockDuration": "PT5M"}
    described = [{"Name": name, "Properties": properties} for name in queues]
    config = {"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": described}]}}
    path = folder / "Config.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def _connection_settings(process: subprocess.Popen[str], log: Path) -> dict[str, str]:
    assert process.stdout is not None
    # Killing it ends the read below: a broker that hangs must not hang the benchmark.
    watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    _, ready, text = line.partition(" ready: ")
    if not ready:
        process.wait()
        said = log.read_text(errors="replace").strip()[-800:]
        raise BrokerFailed(f"pairbus broker did not start (exit {process.returncode}): {said}")
    pairs = (part.partition("=") for part in text.strip().split(";") if part)
    return {key.lower(): value for key, _, value in pairs}


def _first_answer(port: int) -> None:
    """Until a connection is not only in the kernel's queue but answered by the broker."""
    with socket.create_connection(("127.0.0.1", port), 10.0) as sock:
        sock.sendall(b"AMQP\x03\x01\x00\x00")
        if not sock.recv(8):
            raise BrokerFailed("pairbus broker closed its first connection without a word")
