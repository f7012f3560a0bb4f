"""One task against two real brokers: what goes home, what waits, and what is dead-lettered."""

import sys
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from pyarrow.parquet import ParquetDataset

from pairbus.broker import Broker, QueueDescription
from pairbus.client.sdk.messages import diverted
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.drain import drain
from pairbus.syphon.ledger import FOLDER
from pairbus.syphon.policy import Condition
from pairbus.syphon.receipts import ReceiptOutcome
from tests.syphon import stage
from tests.syphon.backlog import encoded
from tests.syphon.stage import Stage

BACKLOG = "contoso/x-servicebus-transfer/0"


@pytest.fixture(scope="module")
def brokers():
    described = [
        "orders",
        "invoices",
        QueueDescription(name="sessions", requires_session=True),
        QueueDescription(name="unique", requires_duplicate_detection=True),
    ]
    with (
        Broker(queues=described, topics=["news/Subscriptions/all"]) as primary,
        Broker(queues=[BACKLOG]) as secondary,
    ):
        yield primary, secondary


@pytest.fixture
def pair(brokers):
    """The brokers, with nothing in them when it ends."""
    made = Pair(*brokers, [BACKLOG])
    yield made
    for broker in brokers:
        broker.faults.clear()
    made.empty()


class Pair(Stage):
    """With messages of the SDK, before and after."""

    def task(self, **settings):
        return super().task(**{"seconds": 5.0, "chunk": 1000} | settings)

    def divert(self, *messages):
        """Divert (message, path) pairs as a paired sender does."""
        self.put([encoded(diverted(message, path)) for message, path in messages])

    def received(self, entity, broker=None, **options):
        broker = broker or self.primary
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            if "/" in entity and entity != BACKLOG:
                receiver = client.get_subscription_receiver(*entity.split("/"), **options)
            else:
                receiver = client.get_queue_receiver(entity, **options)
            with receiver:
                count = len(receiver.peek_messages(max_message_count=500))
                messages = []
                while len(messages) < count:
                    messages += receiver.receive_messages(count - len(messages), max_wait_time=30)
                for message in messages:
                    receiver.complete_message(message)
        return messages

    def empty(self):
        home = ("orders", "invoices", "unique", "news/Subscriptions/all")
        for broker, paths in (
            (self.primary, home),
            (self.secondary, (BACKLOG, f"{BACKLOG}/$DeadLetterQueue")),
        ):
            with self.client(broker) as client:
                for path in paths:
                    left = len(client.management(path).peek(1, 500))
                    receiver = client.receiver(path, credit=500, mode="receiveAndDelete")
                    while left and (some := receiver.receive(left, max_wait_seconds=5)):
                        left -= len(some)


def count(drained, outcome):
    return stage.count(drained.receipts, outcome)


@pytest.mark.req("S-01", "S-03", "E-04")
def test_messages_go_to_their_own_queues_and_topics_as_they_were(pair):
    pair.divert(
        (ServiceBusMessage("one", message_id="1", application_properties={"n": 1}), "orders"),
        (ServiceBusMessage("two", message_id="2", subject="s"), "news"),
        (ServiceBusMessage("three", message_id="3", session_id="left"), "sessions"),
    )

    drained = pair.drain()

    assert count(drained, ReceiptOutcome.BROUGHT_HOME) == 3
    assert drained.emptied == (BACKLOG,)
    [one] = pair.received("orders")
    assert (str(one), one.message_id, one.application_properties) == ("one", "1", {b"n": 1})
    [two] = pair.received("news/all")
    assert (str(two), two.subject, two.application_properties) == ("two", "s", None)
    [three] = pair.received("sessions", session_id="left")
    assert (str(three), three.session_id) == ("three", "left")
    assert pair.left() == 0


def test_the_order_of_one_destination_is_kept_over_several_chunks(pair):
    pair.divert(*((ServiceBusMessage(str(n)), "orders") for n in range(25)))

    pair.drain(chunk=4)

    assert [str(message) for message in pair.received("orders")] == [str(n) for n in range(25)]


@pytest.mark.req("S-04")
def test_a_destination_that_is_down_does_not_hold_up_another(pair):
    pair.divert(
        (ServiceBusMessage("a"), "orders"),
        (ServiceBusMessage("b"), "invoices"),
        (ServiceBusMessage("c"), "orders"),
    )

    with pair.primary.faults.cannot_send(entity="orders"):
        drained = pair.drain()

    assert count(drained, ReceiptOutcome.BROUGHT_HOME) == 1
    assert count(drained, ReceiptOutcome.WAITING) == 2
    assert drained.emptied == ()
    assert [str(message) for message in pair.received("invoices")] == ["b"]
    assert pair.left() == 2
    # Released, not held locked: they can be had at once.
    again = pair.drain()
    assert count(again, ReceiptOutcome.BROUGHT_HOME) == 2
    assert [str(message) for message in pair.received("orders")] == ["a", "c"]


@pytest.mark.req("S-05")
def test_messages_without_a_destination_are_dead_lettered_and_others_go_home(pair):
    pair.divert(
        (ServiceBusMessage("a"), "no-such-queue"),
        (ServiceBusMessage("b"), "orders"),
    )
    pair.put([encoded(ServiceBusMessage("nobody diverted me"))])

    drained = pair.drain()

    assert count(drained, ReceiptOutcome.DEAD_LETTERED) == 2
    assert [str(message) for message in pair.received("orders")] == ["b"]
    dead = pair.received(BACKLOG, pair.secondary, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert {message.dead_letter_reason for message in dead} == {
        "DestinationNotFound",
        "EnvelopeUnreadable",
    }
    assert pair.left() == 0


@pytest.mark.req("S-05")
def test_a_refused_message_does_not_hold_up_its_batch(pair):
    """Without a session id, in the middle of others that have one."""
    pair.divert(
        *((ServiceBusMessage(str(n), session_id="s"), "sessions") for n in range(3)),
        (ServiceBusMessage("no session"), "sessions"),
        *((ServiceBusMessage(str(n), session_id="s"), "sessions") for n in range(3, 6)),
    )

    drained = pair.drain()

    assert count(drained, ReceiptOutcome.BROUGHT_HOME) == 6
    assert count(drained, ReceiptOutcome.DEAD_LETTERED) == 1
    home = pair.received("sessions", session_id="s")
    assert [str(message) for message in home] == [str(n) for n in range(6)]
    [dead] = pair.received(BACKLOG, pair.secondary, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert dead.dead_letter_reason == "RefusedByDestination"


@pytest.mark.req("S-04")
def test_nothing_is_sent_to_a_throttled_destination_for_ten_seconds(pair):
    pair.divert((ServiceBusMessage("a"), "orders"))

    with pair.primary.faults.throttle(entity="orders"):
        drained = pair.drain()

    [orders] = [one for one in drained.destinations if one.path == "orders"]
    assert orders.condition is Condition.THROTTLED
    assert orders.until - time.time() > 5
    assert count(pair.drain(known=drained.destinations), ReceiptOutcome.WAITING) == 1
    pair.drain()
    assert len(pair.received("orders")) == 1


@pytest.mark.req("S-03", "X-02")
def test_a_lost_answer_delivers_twice_and_once_with_duplicate_detection(pair):
    pair.divert(*((ServiceBusMessage(str(n), message_id=f"m{n}"), "unique") for n in range(10)))

    with pair.primary.faults.cut_after_accept(entity="unique"):
        first = pair.drain()
    assert sum(each.duplicates_possible for each in first.receipts) >= 1
    pair.drain()

    assert sorted(m.message_id for m in pair.received("unique")) == sorted(
        f"m{n}" for n in range(10)
    )
    assert pair.left() == 0


def test_with_ttl_keeps_running_a_message_that_expires_in_the_backlog_is_dropped(pair):
    pair.divert((ServiceBusMessage("short", time_to_live=timedelta(seconds=1)), "orders"))
    later, began = time.time() + 60, time.monotonic()

    drained = drain(
        pair.task(ttl_keeps_running=True), clock=lambda: later + time.monotonic() - began
    )

    assert count(drained, ReceiptOutcome.EXPIRED) == 1
    assert pair.left() == 0
    assert pair.received("orders") == []


@pytest.mark.parametrize("which", ["primary", "secondary"])
def test_a_namespace_that_is_down_is_an_error_and_loses_no_message(pair, which):
    pair.divert((ServiceBusMessage("a"), "orders"))

    with getattr(pair, which).faults.unreachable():
        drained = pair.drain()

    assert count(drained, ReceiptOutcome.BROUGHT_HOME) == 0
    assert drained.emptied == ()
    if which == "secondary":
        assert [queue for queue, _ in drained.errors] == [BACKLOG]
    else:
        assert count(drained, ReceiptOutcome.WAITING) == 1
    assert count(pair.drain(), ReceiptOutcome.BROUGHT_HOME) == 1


@pytest.mark.req("X-10")
def test_each_message_has_a_line_in_the_ledger_when_it_is_settled(pair, tmp_path, monkeypatch):
    folder, before = tmp_path / FOLDER, []
    settle = BacklogQueue.settle

    def watched(self, *args, **settings):
        before.append([row["message_id"] for row in _lines(folder)])
        settle(self, *args, **settings)

    monkeypatch.setattr(BacklogQueue, "settle", watched)
    pair.divert(
        (ServiceBusMessage(b"body", message_id="home"), "orders"),
        (ServiceBusMessage(b"body", message_id="nowhere"), "no-such-queue"),
    )
    pair.put([encoded(ServiceBusMessage(b"x", message_id="alien"))])

    drained = pair.drain(messages_folder=str(folder))

    lines = {row["message_id"]: row for row in _lines(folder)}
    assert drained.unwritten == ()
    assert {name: row["outcome"] for name, row in lines.items()} == {
        "home": "brought_home",
        "nowhere": "dead_lettered",
        "alien": "dead_lettered",
    }
    assert {row["queue"] for row in lines.values()} == {BACKLOG}
    assert len({row["sequence_number"] for row in lines.values()}) == 3
    assert (lines["home"]["path"], lines["alien"]["path"]) == ("orders", "")
    assert lines["home"]["size"] == sum(
        each.bytes for each in drained.receipts if each.outcome is ReceiptOutcome.BROUGHT_HOME
    )
    assert sorted(before[-1]) == sorted(lines), "they were settled before they had a line"


def test_a_worker_that_cannot_write_lines_sends_nothing(pair, tmp_path, monkeypatch):
    """Otherwise each attempt of the task would send a batch again, and settle none."""
    pair.divert((ServiceBusMessage("a"), "orders"))
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pairbus.syphon.ledger", None)  # it needs pyarrow

        with pytest.raises(ImportError):
            pair.drain(messages_folder=str(tmp_path))

    assert pair.received("orders") == []
    assert count(pair.drain(), ReceiptOutcome.BROUGHT_HOME) == 1


def _lines(folder):
    return ParquetDataset(folder).read().to_pylist() if folder.exists() else []


@pytest.mark.parametrize("has_messages", [True, False])
def test_a_queue_has_not_ended_while_messages_of_it_wait_to_be_sent(has_messages):
    """Otherwise the task would not sleep until there is room for them."""
    receiver = SimpleNamespace(is_draining=True, has_credit=False, has_messages=has_messages)
    client = SimpleNamespace(receiver=lambda *_, **__: receiver)
    queue = BacklogQueue(client, BACKLOG, None, credit=1, bytes_max=1, message_bytes=1)

    assert queue.has_ended is not has_messages
