"""A RabbitMQ node of the benchmark's own: private ports, private folder, gone afterwards.

The Debian package's scripts are run directly, not the system service: nothing of an installed and
perhaps running RabbitMQ is read or changed. The Erlang port mapper is started here as well, on a
port of its own, because a node would otherwise leave one behind as a daemon. This module knows
nothing of messages; native.py and load.py speak to the node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loop import LoadError

PACKAGE = "rabbitmq-server"
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = SCRIPT.with_name("rabbitmqctl")
NAME = "pairbus-bench@localhost"
POLICY = Path("/usr/sbin/policy-rc.d")
START_SECONDS_MAX = 60.0
CONTROL_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 15.0
# Both are durable and confirm a message when it is on disk. Classic is the default, quorum what
# RabbitMQ recommends where messages matter; which is faster depends on the row.
QUEUE_KINDS = ("classic", "quorum")
USER = PASSWORD = "guest"  # RabbitMQ's own default, valid on loopback only


class PeerMissing(Exception):
    """RabbitMQ cannot be measured here; the text says what would make it possible."""


@dataclass(frozen=True, slots=True)
class Node:
    port: int
    pid: int
    version: str
    startup_seconds: float
    environment: Mapping[str, str] = field(repr=False)

    def evaluate(self, erlang: str) -> str:
        """Have the node itself run an expression: many changes for one start of `rabbitmqctl`."""
        done = subprocess.run(
            [str(CONTROL), "-n", NAME, "eval", erlang],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=dict(self.environment),
            timeout=CONTROL_SECONDS_MAX,
            start_new_session=True,
        )
        if done.returncode:
            raise LoadError(f"rabbitmqctl: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.stdout.strip()


def install() -> None:
    """Make sure that the package is there; as root, install it without starting the service."""
    if SCRIPT.exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise PeerMissing(f"RabbitMQ is not installed: install Debian's package {PACKAGE!r}")
    with _services_kept_still():
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", PACKAGE]
        subprocess.run(["apt-get", "update", "-q"], check=False, capture_output=True)
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
    if done.returncode or not SCRIPT.exists():
        raise PeerMissing(f"apt could not install {PACKAGE!r}: {done.stderr.strip()[-300:]}")


@contextlib.contextmanager
def _services_kept_still() -> Iterator[None]:
    """Debian asks policy-rc.d before it starts a freshly installed service; answer no, once."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


@contextlib.contextmanager
def node(folder: Path, plugin: str = "rabbitmq_amqp1_0") -> Iterator[Node]:
    """Run a node in `folder`; leaving the context stops it, with its port mapper."""
    port, dist_port, epmd_port = _free_ports(3)
    environment = _prepare(folder, plugin, port, dist_port, epmd_port)
    with contextlib.ExitStack() as stack:
        mapper = ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"]
        stack.enter_context(_running(mapper, folder / "epmd.log", environment))
        begun = time.perf_counter()
        process = stack.enter_context(_running([str(SCRIPT)], folder / "startup.log", environment))
        _wait_until_ready(process, port, folder)
        seconds = time.perf_counter() - begun
        yield Node(
            port=port,
            pid=process.pid,
            version=_version(),
            startup_seconds=seconds,
            environment=environment,
        )


def _prepare(
    folder: Path, plugin: str, port: int, dist_port: int, epmd_port: int
) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    # Only what keeps the node private, and no limit that would slow it: the watermarks for memory
    # and disk stay far away so that no alarm blocks its publishers.
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\n"
        "vm_memory_high_watermark.relative = 0.8\n"
        "disk_free_limit.absolute = 50MB\n"
        "log.file.level = warning\n"
        "log.console = false\n"
    )
    (folder / "enabled_plugins").write_text(f"[{plugin}].\n")
    (folder / "rabbitmq-env.conf").write_text("")
    return {
        "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        "LANG": "C.UTF-8",
        "HOME": str(folder),  # the Erlang cookie
        "RABBITMQ_NODENAME": NAME,
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # Makes the script become the Erlang machine instead of a shell that waits for it, so
        # that the pid we hold is the node's.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


@contextlib.contextmanager
def _running(
    command: list[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        # A session of its own: Ctrl-C is for the benchmark, which then stops the node in order.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as s:
            s.sendall(b"AMQP\x00\x00\x09\x01")
            if s.recv(1):
                return
        time.sleep(0.02)
    said = (folder / "startup.log").read_text(errors="replace").strip()[-600:]
    raise PeerMissing(f"RabbitMQ did not start within {START_SECONDS_MAX:.0f} s: {said}")


def _version() -> str:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "of unknown version"


def _free_ports(count: int) -> list[int]:
    """Ports the system just called free; RabbitMQ cannot be asked to choose one itself."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]
