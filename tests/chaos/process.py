"""A broker in a process of its own, on a port that outlives it: it can be killed and come back. And
clients that work until it is killed.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

from pairbus.demo import processes

NAMESPACE = "chaos"
READY_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 30


class BrokerProcess(processes.BrokerProcess):
    """Started, killed and started again. `start` waits until it is ready."""

    def __init__(
        self,
        folder: Path,
        queues: Mapping[str, Mapping[str, Any]],
        topics: Sequence[Mapping[str, Any]] = (),
        *,
        data: Path | None = None,
        module: str = "pairbus",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        listed = [{"Name": name, "Properties": dict(settings)} for name, settings in queues.items()]
        # The broker works in its folder; `module` may be one of the tests.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        super().__init__(
            NAMESPACE,
            folder,
            {"Queues": listed, "Topics": list(topics)},
            variables={"PYTHONPATH": path, **(variables or {})},
            module=module,
        )
        self.data = data or folder / "data"

    def start(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        self.start_soon()
        while not self.is_ready:
            assert time.monotonic() < deadline, "the broker did not start"
            if self.has_ended:
                # While it was down, somebody else may have got its port for a moment.
                assert "already in use" in self.exit_message, self.exit_message
                time.sleep(0.5)
                self.start_soon()
            time.sleep(0.01)

    def start_soon(self) -> None:
        """Without waiting until it is ready."""
        super().kill()
        super().start()

    def kill(self) -> None:
        """By SIGKILL: no handler runs. Its connection string is the same after the next start."""
        text = self.connection_string
        super().kill()
        self.connection_string = text

    def stop(self) -> int:
        """By SIGTERM, as an operator would; returns the exit code."""
        process = self._process
        if process is None:
            return 0
        self.request_stop()
        code = process.wait(READY_SECONDS_MAX)
        self.kill()
        return code


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds."""

    MiB: float
    """Resident memory."""
    files: int
    threads: int


def usage_of(pid: int) -> Usage:
    """Raises OSError if the process has ended."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return Usage(
        MiB=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        files=len(os.listdir(folder / "fd")),
        threads=len(os.listdir(folder / "task")),
    )


def peek_all(receiver: ServiceBusReceiver) -> Iterator[ServiceBusReceivedMessage]:
    """Every message that exists, locked and scheduled ones too."""
    number = 1
    with receiver:
        while page := receiver.peek_messages(max_message_count=250, sequence_number=number):
            yield from page
            number = (page[-1].sequence_number or 0) + 1


Work = Callable[[ServiceBusClient, random.Random], None]


class KilledTraffic(ABC):
    """The clients of all rounds, and what they remember from one round to the next."""

    LIFE_SECONDS = (0.0, 0.5)
    """From the first acknowledgement of a life to its end."""
    EARLY_KILLS = 0.0
    """The share of brokers that are killed while the clients still connect."""

    def __init__(self, seed: int) -> None:
        self.mistakes: list[str] = []
        self._random = random.Random(seed)
        self._count = 0
        self._count_lock = threading.Lock()
        self.is_flowing = threading.Event()

    @abstractmethod
    def workers(self) -> Sequence[Work]: ...

    @abstractmethod
    def restarted(self) -> None:
        """A new life of the broker begins: it has no locks."""

    def next_numbers(self, count: int = 1) -> range:
        with self._count_lock:
            self._count += count
            return range(self._count - count, self._count)

    def run(self, broker: BrokerProcess) -> None:
        """One broker process, from its start until it is killed."""
        broker.start()
        self.restarted()
        self.is_flowing.clear()
        killed = threading.Event()
        threads = []
        for work in self.workers():
            choice = random.Random(self._random.random())
            client = ServiceBusClient.from_connection_string(
                broker.connection_string, retry_total=0
            )
            arguments = (work, client, choice, killed)
            threads.append(threading.Thread(target=self._guard, args=arguments, name=work.__name__))
        for thread in threads:
            thread.start()
        if self._random.random() >= self.EARLY_KILLS:
            self.is_flowing.wait(ANSWER_SECONDS_MAX)
        time.sleep(self._random.uniform(*self.LIFE_SECONDS))
        if not broker.is_running:
            self.mistakes.append(f"the broker ended by itself: {broker.exit_message}")
        killed.set()
        broker.kill()
        for thread in threads:
            thread.join(ANSWER_SECONDS_MAX + 5)
            if thread.is_alive():
                self.mistakes.append(f"{thread.name} does not notice that the broker is gone")

    def _guard(
        self, work: Work, client: ServiceBusClient, choice: random.Random, killed: threading.Event
    ) -> None:
        """Works until the broker is killed; any other error is a bug of the broker."""
        try:
            while not killed.is_set():
                work(client, choice)
        except Exception as error:
            # The SDK has many words for a lost connection. Before the kill, none is right.
            if not killed.is_set():
                self.mistakes.append(f"{work.__name__} failed before the kill: {error!r}")
        finally:
            client.close()
