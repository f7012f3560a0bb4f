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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    folder: Path

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port}/;SharedAccessKeyName={self.user};"
            f"SharedAccessKey={self.password}"
        )

    def ca_file(self) -> Path:
        """The broker makes it in the background once it is up."""
        path = self.folder / "certificates" / "ca.pem"
        end = time.monotonic() + START_SECONDS_MAX
        while not path.exists():
            if time.monotonic() > end:
                raise BrokerFailed(f"pairbus broker made no {path}")
            time.sleep(0.05)
        return path


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    subscriptions: Mapping[str, str | None] = field(default_factory=dict)
    """Name -> its SQL filter; None for the rule that takes everything."""


def environment() -> dict[str, str]:
    """For child processes: this checkout's pairbus first, installed or not."""
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{path}" if path else str(SOURCE)}


@contextlib.contextmanager
def broker(
    folder: Path,
    queues: Sequence[str],
    topics: Sequence[Topic] = (),
    *,
    message_kilobytes_max: int = 0,
) -> Iterator[Ours]:
    """`message_kilobytes_max`: the queues accept messages up to this size, as in Premium."""
    folder.mkdir(parents=True, exist_ok=True)
    config = _write_config(folder, queues, topics, message_kilobytes_max)
    command = [sys.executable, "-m", "pairbus", "broker", "--data", str(folder)]
    command += ["--config", str(config), "--namespace", "bench:0", "--allow-faults"]
    if message_kilobytes_max:
        command += ["--sku", "Premium"]
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
            folder=folder,
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


def _write_config(
    folder: Path, queues: Sequence[str], topics: Sequence[Topic], message_kilobytes_max: int
) -> Path:
    """Room for a million messages, and locks that outlast any row."""
    room, locks = {"MaxSizeInMegabytes": 20_480}, {"LockDuration": "PT5M"}
    if message_kilobytes_max:
        room["MaxMessageSizeInKilobytes"] = message_kilobytes_max
    namespace = {
        "Name": "bench",
        "Queues": [{"Name": name, "Properties": room | locks} for name in queues],
        "Topics": [
            {
                "Name": topic.name,
                "Properties": room,
                "Subscriptions": [
                    {"Name": name, "Properties": locks, "Rules": _rules(expression)}
                    for name, expression in topic.subscriptions.items()
                ],
            }
            for topic in topics
        ],
    }
    path = folder / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}, indent=1))
    return path


def _rules(expression: str | None) -> list[dict[str, Any]]:
    """None at all stands for the rule that takes everything."""
    if expression is None:
        return []
    properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    return [{"Name": "bench", "Properties": properties}]


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
