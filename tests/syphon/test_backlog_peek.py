import threading

import pytest

from pairbus.broker import Broker
from pairbus.syphon.backlog_peek import BacklogPeek
from tests.syphon.stage import Stage, backlog_names, numbered

BACKLOGS = backlog_names(2)


@pytest.fixture
def stage():
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


@pytest.fixture
def peek(stage):
    return BacklogPeek(stage.address(stage.secondary).client, stopping=threading.Event())


def test_arrivals_are_seen_without_receiving(stage, peek):
    stage.divert(numbered(600))

    assert peek.without_arrivals(BACKLOGS) == [], "it is not known what was there before"
    assert peek.without_arrivals(BACKLOGS) == BACKLOGS
    stage.divert(numbered(1), queue=BACKLOGS[1])
    assert peek.without_arrivals(BACKLOGS) == BACKLOGS[:1]
    assert peek.without_arrivals(BACKLOGS) == BACKLOGS
    with stage.secondary.faults.unreachable():
        assert peek.without_arrivals(BACKLOGS) == []
    assert stage.secondary.meter.read().total.receive == 0


def test_a_queue_whose_messages_are_locked_is_not_empty(stage, peek):
    stage.divert(numbered(1), queue=BACKLOGS[1])
    with stage.client(stage.secondary) as client:
        client.receiver(BACKLOGS[1], credit=1).receive(1, max_wait_seconds=5)

        assert peek.non_empty(BACKLOGS) == BACKLOGS[1:]
