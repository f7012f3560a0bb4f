"""`kill -9` at random moments while clients work; then the same data file again, many times over.

The clients are the official SDK, which never retries, so that each attempt has one of three ends:
acknowledged, refused, unknown. The ledger keeps them, and gives the verdict in Jepsen's words after
the last round. Three kinds of traffic run at once:

* `work`: single messages, batches and scheduled ones; receivers complete, abandon, dead-letter or
  simply hold what they get;
* `once`: duplicate detection; what got no answer is sent again after the restart;
* `state`: a session's state, counted up.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from pairbus.demo.account import Account
from tests.chaos.process import ANSWER_SECONDS_MAX, BrokerProcess, KilledTraffic, Work, peek_all

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "20"))
SEED = int(os.environ.get("PAIRBUS_KILL_SEED", "1"))
QUEUES: dict[str, dict[str, Any]] = {
    # Locks outlast a round: what comes twice in one life of the broker was not merely late.
    "work": {"LockDuration": "PT1M", "MaxDeliveryCount": 1_000_000},
    "once": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT1H"},
    "state": {"RequiresSession": True},
}

connect = ServiceBusClient.from_connection_string


def a_message(id_: str) -> ServiceBusMessage:
    return ServiceBusMessage(id_.encode() * 8, message_id=id_)


class Traffic(KilledTraffic):
    EARLY_KILLS = 0.15

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.work = Account()
        self.once = Account()
        self.dead_letters: set[str] = set()
        self.attempted_dead_letters: set[str] = set()
        self.unanswered: list[str] = []
        self.state_attempted = 0
        self.state_acknowledged = 0

    def workers(self) -> list[Work]:
        workers = [self.send, self.send, self.receive, self.receive]
        return [*workers, self.schedule, self.send_once, self.count_state]

    def restarted(self) -> None:
        self.work.restart()
        self.once.restart()

    def next_id(self, kind: str) -> str:
        [number] = self.next_numbers()
        return f"{kind}-{number:06d}"

    # --- work -------------------------------------------------------------------------------------

    def send(self, client: ServiceBusClient, choice: random.Random) -> None:
        with client.get_queue_sender("work") as sender:
            for _ in range(10_000):  # the kill ends it, by an error
                size = 1 if choice.random() < 0.7 else choice.randint(2, 20)
                ids = [self.next_id("m") for _ in range(size)]
                messages = [a_message(id_) for id_ in ids]
                self.work.attempt(*ids)
                sender.send_messages(
                    messages if size > 1 else messages[0], timeout=ANSWER_SECONDS_MAX
                )
                self.work.acknowledge(*ids)

    def schedule(self, client: ServiceBusClient, choice: random.Random) -> None:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        with client.get_queue_sender("work") as sender:
            for _ in range(10_000):
                id_ = self.next_id("s")
                self.work.attempt(id_)
                (number,) = sender.schedule_messages(a_message(id_), tomorrow)
                self.work.acknowledge(id_)
                if choice.random() < 0.5:
                    self.work.attempt_removal(id_)
                    sender.cancel_scheduled_messages(number)
                    self.work.acknowledge_removal(id_)
                time.sleep(0.02)

    def receive(self, client: ServiceBusClient, choice: random.Random) -> None:
        with client.get_queue_receiver("work") as receiver:
            for _ in range(10_000):
                for message in receiver.receive_messages(20, max_wait_time=0.5):
                    id_ = message.message_id
                    assert id_ is not None
                    assert message.sequence_number is not None
                    self.work.deliver(id_, sequence_number=message.sequence_number)
                    dice = choice.random()
                    if dice < 0.8:
                        self.work.attempt_removal(id_)
                        receiver.complete_message(message)
                        self.work.acknowledge_removal(id_)
                        self.is_flowing.set()
                    elif dice < 0.88:
                        self.work.give_back(id_)
                        receiver.abandon_message(message)
                    elif dice < 0.96:
                        self.attempted_dead_letters.add(id_)
                        receiver.dead_letter_message(message, reason="chaos")
                        self.dead_letters.add(id_)

    # --- once and state ---------------------------------------------------------------------------

    def send_once(self, client: ServiceBusClient, choice: random.Random) -> None:
        with client.get_queue_sender("once") as sender:
            for _ in range(10_000):
                id_ = self.unanswered[0] if self.unanswered else self.next_id("o")
                if not self.unanswered:
                    self.unanswered.append(id_)
                    self.once.attempt(id_)
                sender.send_messages(a_message(id_), timeout=ANSWER_SECONDS_MAX)
                self.once.acknowledge(id_)
                self.unanswered.remove(id_)
                if choice.random() < 0.1:
                    sender.send_messages(a_message(id_), timeout=ANSWER_SECONDS_MAX)

    def count_state(self, client: ServiceBusClient, choice: random.Random) -> None:
        with client.get_queue_receiver("state", session_id="counter") as receiver:
            found = int(bytes(receiver.session.get_state() or b"0"))
            if not self.state_acknowledged <= found <= self.state_attempted:
                self.mistakes.append(
                    f"session state {found} is not between the acknowledged "
                    f"{self.state_acknowledged} and the attempted {self.state_attempted}"
                )
            self.state_attempted = self.state_acknowledged = found
            for _ in range(10_000):
                self.state_attempted += 1
                receiver.session.set_state(str(self.state_attempted))
                self.state_acknowledged = self.state_attempted


def names(receiver: ServiceBusReceiver) -> list[str]:
    return [str(message.message_id) for message in peek_all(receiver)]


def take_all(client: ServiceBusClient, queue: str) -> list[str]:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    ids = []
    with client.get_queue_receiver(queue, receive_mode=mode) as receiver:
        while page := receiver.receive_messages(500, max_wait_time=5):
            ids += [str(message.message_id) for message in page]
    return ids


@pytest.mark.usefixtures("clients_leftovers")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.req("B-12")
@pytest.mark.req("B-10")
@pytest.mark.req("B-07")
def test_what_was_acknowledged_outlives_every_kill(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    broker = BrokerProcess(tmp_path, QUEUES)
    traffic = Traffic(SEED)

    for _ in range(ROUNDS):
        traffic.run(broker)
    broker.start()
    try:
        with connect(broker.connection_string) as client:
            stored = list(peek_all(client.get_queue_receiver("work")))
            dead = names(
                client.get_queue_receiver("work", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
            )
            once = names(client.get_queue_receiver("once"))
            taken = take_all(client, "work")
        exit_code = broker.stop()
    finally:
        broker.kill()

    for message in stored:
        number = message.sequence_number or 0
        traffic.work.find(str(message.message_id), sequence_number=number)
    ids = [str(message.message_id) for message in stored]
    verdict = traffic.work.verdict({*ids, *dead})
    record_property("verdict", str(verdict))
    print(f"\nseed {SEED}, {ROUNDS} rounds\n{verdict}")
    assert traffic.mistakes == []
    assert verdict.is_exact, f"seed {SEED}\n{verdict}"
    assert verdict.acknowledged > 5 * ROUNDS, "too little traffic to prove anything"

    assert len(ids) == len(set(ids)), "a message stands twice in the queue"
    assert len(dead) == len(set(dead)), "a message stands twice in the dead-letter queue"
    assert traffic.dead_letters <= set(dead) <= traffic.attempted_dead_letters
    assert not set(ids) & set(dead), "a message is dead-lettered and active at once"
    assert sorted(taken) == sorted(id_ for id_ in ids if id_.startswith("m-"))
    assert len(once) == len(set(once)), "a duplicate got in"
    assert traffic.once.acknowledged <= set(once) <= traffic.once.attempts
    assert exit_code == 0


@pytest.mark.req("B-12")
def test_a_broker_killed_while_it_starts_starts_again(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, QUEUES)
    broker.start()
    with (
        connect(broker.connection_string) as client,
        client.get_queue_sender("work") as sender,
    ):
        sender.send_messages([a_message(f"m-{number}") for number in range(100)])
    broker.kill()
    choice = random.Random(SEED)

    for _ in range(5):
        broker.start_soon()
        time.sleep(choice.uniform(0.05, 0.6))
        broker.kill()
    broker.start()

    try:
        with connect(broker.connection_string) as client:
            assert len(take_all(client, "work")) == 100
    finally:
        broker.kill()
