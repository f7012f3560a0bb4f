"""Namespaces that are far away or slow: rounds are short, and still messages come home once."""

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.client import transport
from pairbus.amqp.client.links import ClientReceiverLink
from pairbus.broker import Broker
from pairbus.client.sdk.messages import diverted
from pairbus.fast.message import ReceivedMessage
from pairbus.syphon import window
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.policy import Destination
from pairbus.syphon.receipts import ReceiptOutcome
from tests.syphon.backlog import encoded
from tests.syphon.stage import Stage, backlog_names, copies, count, numbered, possible_duplicates

BACKLOGS = backlog_names(2)
FAR_SECONDS = 0.1


@pytest.fixture
def stage(monkeypatch):
    """All times, and the distances, are a third of the real ones."""
    monkeypatch.setattr(window, "EMPTY_SECONDS", 0.08)
    monkeypatch.setattr(window, "ANSWER_LATE_SECONDS", 0.3)
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


@pytest.mark.req("S-01", "S-03")
def test_a_round_that_is_shorter_than_the_way_brings_messages_home(stage):
    ids = numbered(40)
    stage.divert(ids[:20])
    stage.divert(ids[20:], "orders", BACKLOGS[1])

    far = FAR_SECONDS
    with (
        stage.primary.faults.slow(latency_seconds=far),
        stage.secondary.faults.slow(latency_seconds=far),
    ):
        receipts = brought_home(stage, ids, rounds=5)

    home = stage.home()
    assert sorted(set(home)) == ids
    assert copies(home) <= possible_duplicates(receipts)


@pytest.mark.req("S-03", "X-02")
def test_a_primary_that_answers_late_is_given_more_time_and_gets_nothing_again_and_again(stage):
    ids = numbered(20)
    stage.divert(ids)

    with stage.primary.faults.slow_disk(latency_seconds=0.7):
        receipts = brought_home(stage, ids, rounds=20)

    home = stage.home()
    assert sorted(set(home)) == ids
    assert copies(home) <= possible_duplicates(receipts) <= 80


def test_a_queue_is_asked_whether_it_is_empty_while_its_last_messages_are_on_their_way(
    stage, monkeypatch
):
    asked = []
    settle = BacklogQueue.settle

    def watched(queue, *done, **settings):
        asked.append(queue.receiver.is_draining)
        settle(queue, *done, **settings)

    monkeypatch.setattr(BacklogQueue, "settle", watched)
    stage.divert(numbered(10))

    with stage.primary.faults.slow(latency_seconds=0.5):
        drained = stage.drain()

    assert asked == [True]
    assert set(drained.emptied) == set(BACKLOGS)


@pytest.mark.req("S-01")
def test_memory_is_bounded_by_bytes_however_many_messages_are_granted(stage, monkeypatch):
    most, read, size = 200_000, 32_000, 20_000
    monkeypatch.setattr(window, "BYTES_MAX", most)
    monkeypatch.setattr(transport, "READ_SIZE", read)
    links, peak = {}, [0]
    arrived = ClientReceiverLink._arrived

    def watched(link, *message):
        arrived(link, *message)
        links[id(link)] = link
        inboxes = [one for each in links.values() for one in each.inbox]
        buffered = sum(len(one.data) for one in inboxes if isinstance(one, ReceivedMessage))
        peak[0] = max(peak[0], buffered)

    monkeypatch.setattr(ClientReceiverLink, "_arrived", watched)
    ids = numbered(80)
    for queue, some in zip(BACKLOGS, (ids[:40], ids[40:]), strict=True):
        large = [ServiceBusMessage(bytes(size), message_id=one) for one in some]
        stage.put([encoded(diverted(one, "orders")) for one in large], queue)

    with stage.primary.faults.slow(latency_seconds=0.02):
        drained = stage.drain(chunk=1_000)

    assert count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 80
    # Each settlement may read a little more.
    assert size < peak[0] <= most + 4 * read + size < 80 * size / 2
    monkeypatch.undo()
    assert sorted(stage.home()) == ids


def brought_home(stage, ids, rounds):
    """The receipts of so many rounds at most. One or two are enough, unless the machine is busy."""
    known, receipts = (), []
    for _ in range(rounds):
        drained = stage.drain(seconds=0.1, known=reopened(known))
        receipts += drained.receipts
        known = drained.destinations
        if count(receipts, ReceiptOutcome.BROUGHT_HOME) == len(ids):
            return receipts
    raise AssertionError(f"not all are home after {rounds} rounds: {receipts}")


def reopened(known):
    """As if their waits had ended."""
    for destination in known:
        destination.until = 0.0
    return known


def test_the_time_for_an_answer_grows_with_lateness_and_shrinks_with_quick_answers():
    orders = Destination("orders")
    orders.was_late(waited=1.5)
    assert orders.answer_seconds == 3.0
    orders.was_late(waited=3.0)
    assert orders.answer_seconds == 6.0
    for _ in range(5):
        orders.was_late(waited=15.0)
    assert orders.answer_seconds == window.ANSWER_SECONDS_MAX
    orders.answered(after=2.0)
    assert orders.answer_seconds == 4.0
    orders.answered(after=0.01)
    assert orders.answer_seconds == 0.0
