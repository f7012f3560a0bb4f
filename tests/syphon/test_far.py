"""Namespaces that are far away or slow: rounds are short, and still messages come home once."""

import time

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.client import transport
from pairbus.amqp.client.links import ClientReceiverLink
from pairbus.broker import Broker
from pairbus.client.sdk.messages import diverted
from pairbus.fast.client import wait_together
from pairbus.fast.message import ReceivedMessage
from pairbus.syphon import drain, window
from pairbus.syphon.backlog_queue import BacklogQueue
from pairbus.syphon.policy import Destination
from pairbus.syphon.receipts import ReceiptOutcome
from pairbus.syphon.window import TaskWindow
from tests.syphon.backlog import encoded
from tests.syphon.stage import (
    Stage,
    after_sends,
    backlog_names,
    copies,
    count,
    numbered,
    possible_duplicates,
)

BACKLOGS = backlog_names(2)
FAR_SECONDS = 0.1
BYTES_MAX, READ_SIZE, LARGE = 200_000, 32_000, 20_000


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


def test_credit_is_taken_back_while_the_primary_answers_the_last_batch(stage, monkeypatch):
    """Another round trip at the end of each round would be lost otherwise."""
    has_credit = []
    settle = BacklogQueue.settle

    def watched(queue, *done, **settings):
        has_credit.append(queue.receiver.has_credit)
        settle(queue, *done, **settings)

    monkeypatch.setattr(BacklogQueue, "settle", watched)
    stage.divert(numbered(10))

    with stage.primary.faults.slow(latency_seconds=0.5):
        stage.drain(seconds=0.01)

    assert has_credit == [False]


def test_the_first_batch_of_a_far_task_has_what_comes_a_moment_after_the_first_message(
    stage, monkeypatch
):
    """Otherwise one message is on its way for a round trip, and the others wait for it."""
    gather_seconds, ids, batches, arrived = 1_000.0, numbered(20), [], []
    settle, receive = BacklogQueue.settle, ClientReceiverLink._arrived

    def watched(queue, done, *rest, **settings):
        batches.append(len(done))
        settle(queue, done, *rest, **settings)

    def counted(link, number, tag, data):
        receive(link, number, tag, data)
        arrived.extend(one for one in link.inbox[-1:] if isinstance(one, ReceivedMessage))

    def wait(clients, done, until):
        if until < time.monotonic() + gather_seconds / 2:
            return wait_together(clients, done, until)
        stage.divert(ids[1:])
        return wait_together(clients, lambda: len(arrived) == 20, time.monotonic() + 60)

    monkeypatch.setattr(TaskWindow, "gather_seconds", gather_seconds)
    monkeypatch.setattr(BacklogQueue, "settle", watched)
    monkeypatch.setattr(ClientReceiverLink, "_arrived", counted)
    monkeypatch.setattr(drain, "wait_together", wait)
    stage.divert(ids[:1])

    stage.drain(chunk=100)

    assert batches == [20]
    assert stage.home() == ids


def test_a_task_takes_no_longer_if_the_clock_is_set_back(stage, monkeypatch):
    monkeypatch.setattr(window, "ANSWER_LATE_SECONDS", 30.0)
    set_back = []
    after_sends(monkeypatch, 1, lambda: set_back.append(3600))
    stage.divert(numbered(2000))

    with stage.primary.faults.slow(latency_seconds=0.05):
        drained = drain.drain(stage.task(seconds=0.5), clock=lambda: time.time() - sum(set_back))

    assert set_back
    assert 0 < count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) < 2000


@pytest.fixture
def buffered(monkeypatch):
    """The most bytes that had arrived and were not taken, in a list of one."""
    monkeypatch.setattr(window, "BYTES_MAX", BYTES_MAX)
    monkeypatch.setattr(transport, "READ_SIZE", READ_SIZE)
    links, peak = {}, [0]
    arrived = ClientReceiverLink._arrived

    def watched(link, *message):
        arrived(link, *message)
        links[id(link)] = link
        inboxes = [one for each in links.values() for one in each.inbox]
        size = sum(len(one.data) for one in inboxes if isinstance(one, ReceivedMessage))
        peak[0] = max(peak[0], size)

    monkeypatch.setattr(ClientReceiverLink, "_arrived", watched)
    return peak


def put_large(stage, ids, size):
    half = len(ids) // 2
    for queue, some in zip(BACKLOGS, (ids[:half], ids[half:]), strict=True):
        large = [ServiceBusMessage(bytes(size), message_id=one) for one in some]
        stage.put([encoded(diverted(one, "orders")) for one in large], queue)


@pytest.mark.req("S-01")
def test_memory_is_bounded_by_bytes_however_many_messages_are_granted(stage, buffered):
    ids = numbered(80)
    put_large(stage, ids, LARGE)

    with stage.primary.faults.slow(latency_seconds=0.02):
        drained = stage.drain(chunk=1_000)

    assert count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 80
    # Each settlement may read a little more.
    assert LARGE < buffered[0] <= BYTES_MAX + 4 * READ_SIZE + LARGE < 80 * LARGE / 2
    assert sorted(stage.home()) == ids


@pytest.mark.req("S-01")
def test_memory_is_bounded_by_bytes_also_when_a_task_ends_before_its_queues_are_empty(
    stage, buffered
):
    put_large(stage, numbered(400), LARGE)

    with stage.primary.faults.slow(latency_seconds=0.1):
        drained = stage.drain(chunk=1_000, seconds=0.5)

    assert 0 < count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) < 400
    assert buffered[0] <= BYTES_MAX + 4 * READ_SIZE + LARGE


@pytest.mark.req("S-01")
def test_memory_is_bounded_by_bytes_also_when_large_messages_follow_small_ones(
    stage, buffered, monkeypatch
):
    """The credit was granted for small ones. At its end, the task takes back what is left of it,
    and the messages that are on their way come first."""
    # A busy machine may take long to release them.
    monkeypatch.setattr(window, "RELEASE_LATE_SECONDS", 60.0)
    monkeypatch.setattr("pairbus.fast.receiver.CLOSE_SECONDS", 60.0)
    stage.divert(numbered(40))
    put_large(stage, numbered(400, "large-"), LARGE)

    with stage.primary.faults.slow(latency_seconds=0.1):
        drained = stage.drain(chunk=1_000, seconds=0.3, message_bytes={BACKLOGS[0]: 100})

    assert 0 < count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) < 400
    assert buffered[0] <= BYTES_MAX + 4 * READ_SIZE + LARGE
    assert drained.errors == ()
    left = sum(len(stage.free(queue)) for queue in BACKLOGS)
    assert left + count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) == 440, "none is locked"


def test_a_task_with_large_messages_asks_for_more_until_its_time_is_nearly_over(stage, monkeypatch):
    monkeypatch.setattr(window, "BYTES_MAX", BYTES_MAX)
    put_large(stage, numbered(400), LARGE)

    with stage.primary.faults.slow(latency_seconds=0.05):
        began = time.monotonic()
        drained = stage.drain(chunk=1_000, seconds=1.5)

    assert 0 < count(drained.receipts, ReceiptOutcome.BROUGHT_HOME) < 400
    assert time.monotonic() - began > 1.3


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
