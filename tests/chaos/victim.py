"""A broker with small limits in a process of its own, for peers that do their worst.

If it dies, the tests keep running and report it. It says where it listens in one line of JSON, and
stops when its standard input ends. `Victim` is the other side: it starts one and watches it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker, QueueDescription
from pairbus.broker.entities.namespace_options import Limits
from tests.chaos.peers import Address
from tests.chaos.process import Usage, usage_of

LIMITS = Limits(
    connections_max=40,
    unauthenticated_max=40,
    links_max=16,
    unsettled_max=500,
    write_buffer_bytes_max=256 * 1024,
    handshake_seconds=3.0,  # an honest peer on a busy machine needs some time, too
    idle_timeout_seconds=3.0,
)
QUEUES = ("healthy", "target", "flood")
START_SECONDS_MAX = 60


class Victim:
    def __init__(self, process: subprocess.Popen[str], address: Address) -> None:
        self.address = address
        self._process = process

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def usage(self) -> Usage:
        return usage_of(self._process.pid)

    @contextmanager
    def growth_below(self, limit_MiB: float) -> Iterator[None]:
        """Inside the block, the process must not grow by more than this."""
        proc = Path("/proc") / str(self._process.pid)
        before = self.usage().MiB
        (proc / "clear_refs").write_text("5")  # proc(5): restart the peak from what is held now
        yield
        peak = re.search(r"VmHWM:\s+(\d+) kB", (proc / "status").read_text())
        assert peak is not None
        grown = int(peak[1]) / 1024 - before
        assert grown < limit_MiB, f"the broker grew by {grown:.1f} MiB"

    def settled_usage(self, *, files_max: int | None = None, within: float = 60.0) -> Usage:
        """Once the last peers are cleared away; at the latest after that time."""
        deadline = time.monotonic() + within
        usage = self.usage()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            before, usage = usage, self.usage()
            if usage.files == before.files and (files_max is None or usage.files <= files_max):
                break
        return usage


@contextmanager
def start_victim(folder: Path) -> Iterator[Victim]:
    log = folder / "victim.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                "tests.chaos.victim",
                str(folder / "data"),
            ],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"the broker did not start:\n{log.read_text()}"
        said = json.loads(line)
        yield Victim(process, Address(said["connection_string"], said["ca_file"]))
        process.stdin.close()
        code = process.wait(START_SECONDS_MAX)
        assert code == 0, f"the broker ended with {code}:\n{log.read_text()}"
        complaints = log.read_text()
        assert "Traceback" not in complaints, complaints
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class Healthy:
    """A well-behaved client: it sends, receives and completes without a pause."""

    def __init__(self, connection_string: str) -> None:
        self.round_trips = 0
        self.slowest_seconds = 0.0
        self.errors: list[str] = []
        self._client = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="healthy")
        self._thread.start()

    def _run(self) -> None:
        try:
            with (
                self._client,
                self._client.get_queue_sender("healthy") as sender,
                self._client.get_queue_receiver("healthy") as receiver,
            ):
                while not self._stopped.is_set():
                    started = time.monotonic()
                    sender.send_messages(ServiceBusMessage(str(self.round_trips)), timeout=30)
                    (message,) = receiver.receive_messages(1, max_wait_time=30)
                    receiver.complete_message(message)
                    assert str(message) == str(self.round_trips), "not the message just sent"
                    if self.round_trips:  # the first one connects
                        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
                    self.round_trips += 1
                    self._stopped.wait(0.02)  # leave the processor to the hostile ones
        except Exception as error:
            self.errors.append(repr(error))

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)


def main() -> None:
    queues = [QueueDescription(name=name) for name in QUEUES]
    with Broker(queues=queues, data=Path(sys.argv[1]), limits=LIMITS) as broker:
        said = {"connection_string": broker.connection_string, "ca_file": str(broker.ca_file)}
        print(json.dumps(said), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
