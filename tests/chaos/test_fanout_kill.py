"""Fan-out under `kill -9`: a topic's message is on all matching subscriptions, or on none.

Senders (single messages, batches, scheduled ones that fall due) never stop while the broker is
killed and started again on the same file; one subscription is drained meanwhile, so that shared
bodies come and go. After the last round, what the subscriptions hold is compared with each other.
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)

from pairbus.demo.account import Account
from tests.chaos.process import (
    ANSWER_SECONDS_MAX,
    NAMESPACE,
    BrokerProcess,
    KilledTraffic,
    Work,
    peek_all,
)

ROUNDS = int(os.environ.get("PAIRBUS_KILL_ROUNDS", "10"))
SEED = int(os.environ.get("PAIRBUS_KILL_SEED", "1"))
TOPIC = "events"
EVERY = {"LockDuration": "PT1M", "MaxDeliveryCount": 1_000_000}


def a_rule(expression: str, action: str | None = None) -> dict[str, Any]:
    properties: dict[str, Any] = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}
    if action is not None:
        properties["Action"] = {"SqlExpression": action}
    return {"Name": "rule", "Properties": properties}


# subscription -> its settings, its rules, and which messages it takes, by their number
SUBSCRIPTIONS: dict[str, tuple[dict[str, Any], list[Any], Callable[[int], bool]]] = {
    "all": ({}, [], lambda n: True),
    "drained": ({}, [], lambda n: True),
    "even": ({}, [a_rule("n % 2 = 0")], lambda n: n % 2 == 0),
    "marked": ({}, [a_rule("n % 3 = 0", "SET mark = 'three'")], lambda n: n % 3 == 0),
    "fails": ({}, [a_rule("1 / (n % 4) > 5")], lambda n: False),
    "forwards": ({"ForwardTo": "queue"}, [], lambda n: True),
}


TOPICS = [
    {
        "Name": TOPIC,
        "Subscriptions": [
            {"Name": name, "Properties": {**EVERY, **settings}, "Rules": rules}
            for name, (settings, rules, _) in SUBSCRIPTIONS.items()
        ],
    }
]


class Traffic(KilledTraffic):
    LIFE_SECONDS = (0.0, 0.4)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ledger = Account()

    def workers(self) -> list[Work]:
        return [self.send, self.send, self.schedule, self.drain]

    def restarted(self) -> None:
        self.ledger.restart()

    def next_messages(self, count: int) -> dict[str, ServiceBusMessage]:
        """Of both kinds: small ones are copied, large ones shared."""
        return {
            f"m-{n}": ServiceBusMessage(
                b"x" * (20 if n % 5 == 0 else 600),
                message_id=f"m-{n}",
                application_properties={"n": n},
            )
            for n in self.next_numbers(count)
        }

    def send(self, client: ServiceBusClient, choice: random.Random) -> None:
        with client.get_topic_sender(TOPIC) as sender:
            for _ in range(10_000):  # the kill ends it, by an error
                batch = self.next_messages(choice.choice([1, 1, 2, 10]))
                self.ledger.attempt(*batch)
                sender.send_messages(list(batch.values()), timeout=ANSWER_SECONDS_MAX)
                self.ledger.acknowledge(*batch)
                self.is_flowing.set()

    def schedule(self, client: ServiceBusClient, choice: random.Random) -> None:
        """They fall due in this life of the broker or in a later one."""
        with client.get_topic_sender(TOPIC) as sender:
            for _ in range(10_000):
                [(id_, message)] = self.next_messages(1).items()
                self.ledger.attempt(id_)
                due = datetime.now(UTC) + timedelta(seconds=choice.uniform(0.05, 1.0))
                sender.schedule_messages(message, due)
                self.ledger.acknowledge(id_)
                time.sleep(0.01)

    def drain(self, client: ServiceBusClient, choice: random.Random) -> None:
        with client.get_subscription_receiver(TOPIC, "drained") as receiver:
            for _ in range(10_000):
                for message in receiver.receive_messages(20, max_wait_time=0.5):
                    assert message.message_id is not None
                    self.ledger.attempt_removal(message.message_id)
                    receiver.complete_message(message)
                    self.ledger.acknowledge_removal(message.message_id)


def counted(receiver: ServiceBusReceiver) -> Counter[str]:
    """The ids of all messages, and how often each is there."""
    return Counter(str(message.message_id) for message in peek_all(receiver))


def look(client: ServiceBusClient) -> dict[str, Counter[str]]:
    found = {
        name: counted(client.get_subscription_receiver(TOPIC, name))
        for name in SUBSCRIPTIONS
        if name != "forwards"
    }
    found["forwards"] = counted(client.get_queue_receiver("queue"))
    found["failed"] = counted(
        client.get_subscription_receiver(TOPIC, "fails", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    )
    return found


def look_until_nothing_moves(client: ServiceBusClient, ledger: Account) -> dict[str, Counter[str]]:
    """A slow broker may still pass on what has fallen due."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    before, found = None, look(client)
    while before != found or not ledger.acknowledged <= set(found["all"]):
        if time.monotonic() > deadline:
            break
        before, found = found, look(client)
    return found


def references(data: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Of each shared body: how many it claims to have, and how many there are."""
    with closing(sqlite3.connect(data / f"{NAMESPACE}.db")) as db:
        claimed = dict(db.execute("SELECT id, refs FROM body"))
        found = dict(
            db.execute(
                "SELECT bare, count(*) FROM message WHERE typeof(bare) = 'integer' GROUP BY bare"
            )
        )
    return claimed, found


@pytest.mark.usefixtures("clients_leftovers")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.req("B-08")
@pytest.mark.req("B-12")
def test_a_topic_message_is_on_all_matching_subscriptions_or_on_none(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    broker = BrokerProcess(tmp_path, {"queue": {}}, TOPICS)
    traffic = Traffic(SEED)

    for _ in range(ROUNDS):
        traffic.run(broker)
    broker.start()
    time.sleep(1.2)  # the last scheduled message is due
    try:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            found = look_until_nothing_moves(client, traffic.ledger)
        exit_code = broker.stop()
    finally:
        broker.kill()

    ledger = traffic.ledger
    verdict = f"seed {SEED}, {ROUNDS} rounds: {len(ledger.attempts)} attempted, "
    verdict += f"{len(ledger.acknowledged)} acknowledged, {len(found['all'])} stored, "
    verdict += f"{len(ledger.acknowledged_removals)} drained"
    record_property("verdict", verdict)
    print(f"\n{verdict}")
    assert traffic.mistakes == []
    assert exit_code == 0
    assert len(ledger.acknowledged) > 5 * ROUNDS, "too little traffic to prove anything"

    everything = set(found["all"])
    assert ledger.acknowledged <= everything <= ledger.attempts
    torn = ledger.torn(everything)
    assert torn == []
    for name, (_, _, takes) in SUBSCRIPTIONS.items():
        expected = {id_ for id_ in everything if takes(int(id_.removeprefix("m-")))}
        if name == "drained":
            assert expected - ledger.attempted_removals <= set(found[name])
            assert set(found[name]) <= expected - ledger.acknowledged_removals
        else:
            assert (name, set(found[name]) ^ expected) == (name, set())
    failed = {id_ for id_ in everything if int(id_.removeprefix("m-")) % 4 == 0}
    assert set(found["failed"]) == failed
    assert all(set(counts.values()) <= {1} for counts in found.values()), "a copy stands twice"
    claimed, real = references(broker.data)
    assert claimed == real
