"""Messages of a client with ordered failback do not overtake those that another receiver holds."""

import threading
import time

import pytest

from pairbus.broker import Broker
from pairbus.syphon.backlog_queue import GAPS_MAX
from tests.syphon.stage import Stage, backlog_names, firsts, id_of, numbered

pytestmark = pytest.mark.req("X-03")

BACKLOGS = backlog_names(1)
MARK = "client:12.5"


@pytest.fixture(scope="module")
def brokers():
    with Broker(queues=["orders", "others"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield primary, secondary


@pytest.fixture
def stage(brokers):
    made = Stage(*brokers, BACKLOGS)
    yield made
    for broker in brokers:
        broker.faults.clear()
    for path in ("orders", "others"):
        made.home(path)
    made.free()


def test_messages_that_another_receiver_holds_are_not_overtaken(stage):
    stage.divert(numbered(60), diverted_by=MARK)
    stage.divert(["plain"], path="others")
    with stage.client(stage.secondary) as dead:
        receiver, held = stage.lock(dead, 20)
        assert [id_of(one.data) for one in held] == numbered(20)

        drained = stage.drain(seconds=1.0)

        assert stage.home() == []
        assert stage.home("others") == ["plain"], "others do not wait"
        assert sum(each.count for each in drained.receipts if each.outcome == "waiting") == 40
        receiver.release(held)
        receiver.stop()
    stage.drain(seconds=1.0)
    assert stage.home() == numbered(60)


def test_two_syphons_at_once_keep_the_order(stage):
    ids = numbered(600)
    stage.divert(ids, diverted_by=MARK)

    def run():
        while stage.left() and time.monotonic() < deadline:
            stage.drain(seconds=0.3)

    deadline = time.monotonic() + 60
    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert firsts(stage.home()) == ids


def test_a_gap_that_a_dead_letter_left_holds_nobody_up(stage):
    stage.divert(numbered(10, "a"), diverted_by=MARK)
    stage.divert(["lost"], path="nowhere", diverted_by=MARK)
    stage.divert(numbered(10, "b"), diverted_by=MARK)
    with stage.client(stage.secondary) as client:
        receiver, got = stage.lock(client, 5)
        receiver.complete(got[2:4])
        receiver.release([*got[:2], *got[4:]])
        receiver.stop()

    stage.drain(seconds=1.0)

    left = [one for one in numbered(10, "a") if one not in ("a0002", "a0003")]
    assert stage.home() == left + numbered(10, "b")
    assert stage.dead_lettered() == ["lost"]


def test_a_queue_with_more_gaps_than_are_looked_into_still_comes_home(stage):
    ids = numbered(4 * GAPS_MAX)  # half of them, and so twice as many gaps
    stage.divert(ids, diverted_by=MARK)
    with stage.client(stage.secondary) as client:
        receiver, got = stage.lock(client, len(ids))
        receiver.complete(got[::2])
        receiver.release(got[1::2])
        receiver.stop()

    home = []
    for _ in range(20):
        stage.drain(seconds=0.5, chunk=1000)
        home += stage.home()
        if not stage.left():
            break
    assert home == ids[1::2]


def test_the_peeks_are_few_and_messages_without_the_mark_cost_none(stage):
    stage.divert(numbered(200))
    plain = stage.drain(seconds=1.0)
    stage.divert(numbered(200), diverted_by=MARK)
    marked = stage.drain(seconds=1.0)

    peeks = [each.usage[1].total.peek for each in (plain, marked)]
    assert peeks[0] == 0
    assert 1 <= peeks[1] <= 5


@pytest.mark.parametrize("diverted_by", [None, MARK], ids=["plain", "ordered"])
def test_a_message_that_waits_alone_is_overtaken_only_by_messages_without_the_mark(
    stage, diverted_by
):
    stage.divert(numbered(8), diverted_by=diverted_by)
    # All eight are refused, and then four, two and one of them.
    with stage.primary.faults.error(entity="orders", times=4):
        stage.drain(seconds=0.5, chunk=16)

    first = stage.home()
    stage.drain(seconds=0.5)
    both = first + stage.home()

    if diverted_by is None:
        assert both == [*numbered(8)[1:], "0000"]
    else:
        assert both == numbered(8)
