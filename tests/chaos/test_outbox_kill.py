"""`kill -9` of a client with an outbox, at random moments, while both namespaces come and go: a
message whose send returned is delivered after a restart. In both shells, in turn."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from tests.chaos.outbox_victim import QUEUES
from tests.chaos.process import peek_all
from tests.pairing.namespaces import environment
from tests.pairing.world import aliases
from tests.waiting import wait_until

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("PAIRBUS_KILL_SEED", "1"))
BACKLOG = [f"east/x-servicebus-transfer/{index}" for index in range(2)]


class Victim:
    def __init__(self, broker: Broker, folder: Path) -> None:
        self.reports = folder / "reports"
        self.reports.touch()
        words = [
            broker["primary"].connection_string,
            broker["secondary"].connection_string,
            str(broker.ca_file),
            str(folder / "outbox.db"),
            str(self.reports),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.outbox_victim", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
            env=environment(),
        )
        self.children: list[int] = []

    def start(self, what: str) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        self.children.append(child)
        wait_until(lambda: self.count("paired") == len(self.children), "it is paired")
        return child

    def lines(self) -> list[list[str]]:
        lines = self.reports.read_text().split("\n")[:-1]  # an incomplete line was not reported
        assert not [line for line in lines if line.startswith("failed")], lines[-3:]
        return [line.split() for line in lines]

    def count(self, word: str) -> int:
        return sum(words[0] == word for words in self.lines())

    def sent(self, queue: str) -> set[str]:
        return {words[2] for words in self.lines() if words[:2] == ["sent", queue]}

    def close(self) -> None:
        for child in self.children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.process.communicate(timeout=30)


def flap(broker: Broker, rng: random.Random, seconds: float) -> None:
    """Both namespaces come and go; they are down together most of the time."""
    until_ = time.monotonic() + seconds
    while (left := until_ - time.monotonic()) > 0:
        for name, odds in (("primary", 0.8), ("secondary", 0.7)):
            broker[name].faults.clear()
            if rng.random() < odds:
                broker[name].faults.unreachable()
        time.sleep(min(left, rng.uniform(0.05, 0.3)))


def found(text: str, queues: Sequence[str]) -> list[list[ServiceBusReceivedMessage]]:
    """The messages of each queue, all at once: the SDK needs a second to close a receiver."""

    def peek(queue: str) -> list[ServiceBusReceivedMessage]:
        return list(peek_all(client.get_queue_receiver(queue)))

    with ServiceBusClient.from_connection_string(text) as client, ThreadPoolExecutor() as threads:
        return list(threads.map(peek, queues))


def bring_home(broker: Broker) -> None:
    """As the syphon would."""
    diverted = list(itertools.chain(*found(broker["secondary"].connection_string, BACKLOG)))

    def send(name: str) -> None:
        own = [each for each in diverted if aliases(each)["x-ms-path"] == name]
        home = [ServiceBusMessage("x", message_id=each.message_id) for each in own]
        with client.get_queue_sender(name) as sender:
            for at in range(0, len(home), 500):
                sender.send_messages(home[at : at + 500])

    text = broker["primary"].connection_string
    with ServiceBusClient.from_connection_string(text) as client, ThreadPoolExecutor() as threads:
        list(threads.map(send, QUEUES))


@pytest.mark.req("X-04")
def test_every_send_that_returned_is_delivered(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    queues = [QueueDescription(name="plain")]
    queues.append(QueueDescription(name="exact", requires_duplicate_detection=True))
    namespaces = [NamespaceOptions(name=name, queues=queues) for name in ("primary", "secondary")]
    with Broker(namespaces=namespaces) as broker:
        victim = Victim(broker, tmp_path)
        try:
            for round_ in range(ROUNDS):
                child = victim.start(f"send {round_}")
                flap(broker, rng, rng.uniform(0.1, 0.7))
                os.kill(child, signal.SIGKILL)
                for name in ("primary", "secondary"):
                    broker[name].faults.clear()
            victim.start("drain")
            wait_until(lambda: victim.count("empty"), "the outbox is empty")
        finally:
            victim.close()
        bring_home(broker)

        on_primary = found(broker["primary"].connection_string, QUEUES)
        for queue, messages in zip(QUEUES, on_primary, strict=True):
            arrived = Counter(str(each.message_id) for each in messages)
            missing = victim.sent(queue) - set(arrived)
            assert not missing, f"acknowledged and nowhere: {sorted(missing)}"
            if queue == "exact":
                assert set(arrived.values()) == {1}, "each id once"
    assert victim.count("StoredInOutbox") > ROUNDS, "the outbox was used"
    assert victim.count("OutboxOpened") > 1, "a process began with messages of an earlier one"
    assert len(victim.sent("plain")) > ROUNDS
