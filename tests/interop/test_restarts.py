"""What the official SDK sees when a broker or a queue goes away, and when the broker comes back.

Each test has a broker of its own, on a data folder of its own, with a clock of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
)

from pairbus.broker import (
    Broker,
    QueueDescription,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
)
from pairbus.broker.messages.topic import Topic
from pairbus.testing import ManualClock
from tests.interop.bus import Bus, sweeping_up_after_the_sdk, take
from tests.interop.shells import Shell, both_clients

PATIENT = {"retry_total": 5, "retry_backoff_factor": 0.1}
HOUR = timedelta(hours=1)

# The blocking SDK forgets to close a socket that its peer has closed first.
pytestmark = [
    both_clients,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(runs=True)


@pytest.fixture
def broker(tmp_path: Path, clock: ManualClock) -> Iterator[Broker]:
    queues = [
        QueueDescription(name="q", requires_duplicate_detection=True),
        QueueDescription(name="sessions", requires_session=True),
    ]
    with Broker(queues=queues, data=tmp_path, clock=clock) as running:
        yield running


@pytest.fixture
def bus(shell: Shell, broker: Broker, clock: ManualClock) -> Iterator[Bus]:
    view = Bus(shell=shell, broker=broker, queue="q", clock=clock)
    yield view
    with sweeping_up_after_the_sdk():
        view.close()


def restart(broker: Broker) -> None:
    broker.stop()
    broker.start()


def test_a_sender_of_a_stopped_broker_gets_a_connection_error(bus, broker):
    sender = bus.sender()
    sender.send_messages(ServiceBusMessage("before"))
    broker.stop()
    with pytest.raises(ServiceBusConnectionError):
        sender.send_messages(ServiceBusMessage("into the void"))
    broker.start()
    assert bus.left_bodies() == ["before"]


def test_a_receiver_of_a_stopped_broker_gets_a_connection_error(bus, broker):
    receiver = bus.receiver()
    broker.stop()
    with pytest.raises(ServiceBusConnectionError):
        receiver.receive_messages(max_wait_time=30)
    broker.start()


def test_the_sdk_connects_again_by_itself(bus, broker):
    client = bus.connect(**PATIENT)
    sender, receiver = bus.sender(client=client), bus.receiver(client=client)
    sender.send_messages(ServiceBusMessage("before"))
    restart(broker)
    sender.send_messages(ServiceBusMessage("after"))
    messages = take(receiver, 2)
    assert [str(m) for m in messages] == ["before", "after"]
    for message in messages:
        receiver.complete_message(message)
    assert bus.left() == []


@pytest.mark.req("B-12")
def test_everything_acknowledged_is_there_after_a_restart(bus, broker):
    sender, receiver = bus.sender(), bus.receiver()
    for name in ("completed", "abandoned", "deferred", "dead", "active"):
        sender.send_messages(ServiceBusMessage(name, message_id=name))
    sender.schedule_messages(ServiceBusMessage("scheduled"), datetime.now(UTC) + HOUR)
    completed, abandoned, deferred, dead = take(receiver, 4)
    receiver.complete_message(completed)
    receiver.abandon_message(abandoned)
    receiver.defer_message(deferred)
    receiver.dead_letter_message(dead, reason="why")
    with bus.receiver("sessions", session_id="s") as session_receiver:
        session_receiver.session.set_state("state")
    restart(broker)

    again = Bus(shell=bus.shell, broker=broker, queue="q")
    try:
        again.send("a duplicate", message_id="completed")
        assert again.left_bodies() == ["abandoned", "deferred", "active", "scheduled"]
        receiver = again.receiver()
        first, second = take(receiver, 2)
        assert (str(first), first.delivery_count) == ("abandoned", 1)
        assert (str(second), second.delivery_count) == ("active", 0)
        [kept] = receiver.receive_deferred_messages(deferred.sequence_number)
        assert str(kept) == "deferred"
        [dead] = again.left(sub_queue="deadletter")
        assert (str(dead), dead.dead_letter_reason) == ("dead", "why")
        session_receiver = again.receiver("sessions", session_id="s")
        assert session_receiver.session.get_state() == b"state"
    finally:
        again.close()


def test_a_lock_from_before_a_restart_does_not_settle_what_came_after(bus, broker):
    bus.send("x")
    receiver = bus.receiver(client=bus.connect(**PATIENT))
    [message] = take(receiver)
    restart(broker)
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(message)
    other = Bus(shell=bus.shell, broker=broker, queue="q")
    try:
        assert other.left_bodies() == ["x"]
    finally:
        other.close()


@pytest.mark.req("B-08")
def test_senders_wait_while_a_broker_compiles_thousands_of_rules(
    shell, tmp_path, clock, monkeypatch
):
    may_compile, compile_rules = threading.Event(), Topic.compile_rules

    def when_allowed(topic: Topic) -> Iterator[None]:
        while topic.is_waiting and not may_compile.is_set():
            yield
        yield from compile_rules(topic)

    monkeypatch.setattr(Topic, "compile_rules", when_allowed)
    rules = [RuleDescription(name=f"r-{n}", filter=SqlFilter(f"n = {n}")) for n in range(2000)]
    subscription = SubscriptionDescription(name="t/Subscriptions/s", rules=tuple(rules))
    forwarding = QueueDescription(name="forwarding", forward_to="t")
    with (
        Broker(["q", forwarding], topics=["t", subscription], data=tmp_path, clock=clock) as broker,
        ThreadPoolExecutor(2) as pool,
    ):
        bus = Bus(shell=shell, broker=broker, queue="q", clock=clock)
        sender = bus.enter(bus.client.get_topic_sender("t"))
        through = bus.sender("forwarding", client=bus.connect())

        def send(sender, name: str) -> None:
            for number in range(3):
                one = ServiceBusMessage(f"{name} {number}", application_properties={"n": 1999})
                sender.send_messages(one)

        sent = [pool.submit(send, sender, "direct"), pool.submit(send, through, "forwarded")]
        try:
            bus.sender("q", client=bus.connect()).send_messages(ServiceBusMessage("elsewhere"))
            assert not any(future.done() for future in sent)
        finally:
            may_compile.set()
        for future in sent:
            future.result(timeout=60)

        receiver = bus.enter(bus.client.get_subscription_receiver("t", "s"))
        found = [str(message) for message in take(receiver, 6)]
        for name in ("direct", "forwarded"):
            assert [one for one in found if name in one] == [f"{name} {n}" for n in range(3)]
        with sweeping_up_after_the_sdk():
            bus.close()
