"""A namespace in its own process: a broker that tests kill, start again, and make fail.

Knows nothing of the paired client. The plain official SDK reads what is in it.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.cli.broker.fault_client import FaultClient
from pairbus.cli.target import parse_target

READY_SECONDS_MAX = 60.0
POLICIES = {
    "RootManageSharedAccessKey": ("SAS_KEY_VALUE", "Manage,Send,Listen"),
    "sender": ("c2VuZA==", "Send"),
    "listener": ("bGlzdGVu", "Listen"),
}


def fixed_port() -> int:
    """A free port that no outgoing connection ever gets.

    Such a connection could hold the port while its broker is down, or connect to itself instead of
    the dead broker.
    """
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for _ in range(100):
        port = random.randrange(int(lowest) - 12_000, int(lowest))
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


class Backstage:
    """Closes in the background what tests opened: the SDK takes half a second for each link."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._pending: list[Future[Any]] = []

    def soon(self, work: Callable[[], Any]) -> None:
        self._pending.append(self._pool.submit(work))

    def wait(self) -> None:
        pending, self._pending = self._pending, []
        for future in pending:
            future.result(120)

    def close(self) -> None:
        self.wait()
        self._pool.shutdown()


class Fault:
    """One fault on demand, in another process."""

    def __init__(self, client: FaultClient, listed: dict[str, Any]) -> None:
        self.id = listed["id"]
        self._client = client

    @property
    def hits(self) -> int:
        """How often it has struck, as long as it is active."""
        [hits] = [listed["hits"] for listed in self._client.all() if listed["id"] == self.id]
        return int(hits)

    @property
    def is_over(self) -> bool:
        """It was cleared, or has struck as often as it should."""
        return all(listed["id"] != self.id for listed in self._client.all())

    def clear(self) -> None:
        if not self.is_over:
            self._client.clear(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


class NamespaceProcess:
    """`python -m pairbus broker`, one namespace, on a port and a data folder that outlive it."""

    def __init__(self, name: str, folder: Path, backstage: Backstage) -> None:
        self.name = name
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self.port = fixed_port()
        self._backstage = backstage
        self._process: subprocess.Popen[str] | None = None
        self._admin: ServiceBusAdministrationClient | None = None
        self._client: ServiceBusClient | None = None

    # its life

    def start(self) -> None:
        command = [sys.executable, "-m", "pairbus", "broker", "--namespace"]
        command += [f"{self.name}:{self.port}", "--data", str(self.data), "--accept-bearer"]
        command += ["--allow-faults"]
        for name, (key, rights) in POLICIES.items():
            command += ["--policy", f"{name}:{key}:{rights}"]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY_SECONDS_MAX)
        line = self._process.stdout.readline() if ready else ""
        assert line.startswith(f"{self.name} ready: "), f"it said {line!r}\n{self.log.read_text()}"

    def kill(self) -> None:
        """`kill -9`: no handler runs, and no connection is closed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def heal(self) -> None:
        """Running, and without faults."""
        if not self.is_running:
            self.start()
        self.faults.clear_all()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def _end(self, number: signal.Signals) -> None:
        self._backstage.wait()  # what earlier tests are still closing
        if self._client is not None:
            self._client.close()
        if self._admin is not None:
            self._admin.close()
        self._client = self._admin = None
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(READY_SECONDS_MAX)
            assert process.stdout is not None
            process.stdout.close()

    # ways in

    @property
    def endpoint(self) -> str:
        return f"localhost:{self.port}"

    @property
    def ca_file(self) -> str:
        return str(self.data / "certificates" / "ca.pem")

    def connection_string(
        self, policy: str = "RootManageSharedAccessKey", key: str | None = None
    ) -> str:
        key = POLICIES[policy][0] if key is None else key
        return (
            f"Endpoint=sb://{self.endpoint};SharedAccessKeyName={policy};SharedAccessKey={key};"
            "UseDevelopmentEmulator=true"
        )

    # faults on demand

    @property
    def faults(self) -> FaultClient:
        return FaultClient(parse_target(self.connection_string()))

    def fault(self, kind: str, entity: str | None = None, **settings: Any) -> Fault:
        if entity is None:
            self._backstage.wait()
        wanted = {"kind": kind, "entity": entity, **settings}
        return Fault(
            self.faults, self.faults.add({k: v for k, v in wanted.items() if v is not None})
        )

    # its entities, by the administration client

    @property
    def admin(self) -> ServiceBusAdministrationClient:
        if self._admin is None:
            self._admin = ServiceBusAdministrationClient.from_connection_string(
                self.connection_string(), connection_verify=self.ca_file
            )
        return self._admin

    def has_queue(self, path: str) -> bool:
        try:
            self.admin.get_queue(path)
        except ResourceNotFoundError:
            return False
        return True

    def set_status(self, path: str, status: str) -> None:
        queue = self.admin.get_queue(path)
        queue.status = status
        self.admin.update_queue(queue)

    def count(self, path: str) -> int:
        """The number of messages in a queue, in any state."""
        return self.admin.get_queue_runtime_properties(path).total_message_count or 0

    # its messages, by the plain SDK

    @property
    def client(self) -> ServiceBusClient:
        if self._client is None:
            self._client = ServiceBusClient.from_connection_string(self.connection_string())
        return self._client

    @contextmanager
    def _closed_later(self, opened: Any) -> Iterator[Any]:
        with_open = opened.__enter__()
        try:
            yield with_open
        finally:
            self._backstage.soon(lambda: opened.__exit__(None, None, None))

    def peek(
        self, queue: str, subscription: str | None = None, **options: Any
    ) -> list[ServiceBusReceivedMessage]:
        """All messages, unchanged; `session_id` if the entity has sessions."""
        if subscription is not None:
            receiver = self.client.get_subscription_receiver(queue, subscription, **options)
        else:
            if not options and not self.count(queue):
                return []
            receiver = self.client.get_queue_receiver(queue, **options)
        found: list[ServiceBusReceivedMessage] = []
        with self._closed_later(receiver) as peeking:
            while page := peeking.peek_messages(
                250, sequence_number=(found[-1].sequence_number or 0) + 1 if found else 1
            ):
                found += page
        return found

    def send(self, queue: str, *messages: Any) -> None:
        """Sends with the plain SDK, one message after the other."""
        with self._closed_later(self.client.get_queue_sender(queue)) as sender:
            for message in messages:
                sender.send_messages(message)

    def take(self, queue: str, count: int) -> list[ServiceBusReceivedMessage]:
        """Receives and removes this many messages."""
        receiver = self.client.get_queue_receiver(queue, receive_mode="receiveanddelete")
        taken: list[ServiceBusReceivedMessage] = []
        with self._closed_later(receiver) as receiving:
            while len(taken) < count:
                messages = receiving.receive_messages(count - len(taken), max_wait_time=10)
                assert messages, f"only {len(taken)} of {count} messages came"
                taken += messages
        return taken


def with_token(connection_string: str, token: str) -> str:
    """A connection string with a signature in place of a key."""
    text = re.sub("SharedAccessKeyName=[^;]*;", "", connection_string)
    return re.sub("SharedAccessKey=[^;]*", f"SharedAccessSignature={token}", text)


def environment() -> dict[str, str]:
    """For a Python process that must find what this one finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
