import threading

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage

from pairbus.broker import Broker
from pairbus.syphon.backlog_peek import BacklogPeek
from tests.syphon.backlog import encoded
from tests.syphon.stage import Stage, backlog_names, numbered

BACKLOGS = backlog_names(2)


@pytest.fixture
def stage():
    with Broker(queues=["orders"]) as primary, Broker(queues=BACKLOGS) as secondary:
        yield Stage(primary, secondary, BACKLOGS)


@pytest.fixture
def peek(stage):
    return BacklogPeek(stage.address(stage.secondary).client, stopping=threading.Event())


def test_destinations_are_seen_without_receiving(stage, peek):
    stage.divert(numbered(600))
    stage.divert(["behind"], "Invoices")

    found = peek.look_into({BACKLOGS[0]: False, BACKLOGS[1]: False})
    assert found[BACKLOGS[0]].ahead == {"orders": 0, "invoices": 600}
    assert found[BACKLOGS[1]].ahead == {}
    assert all(one.is_complete and one.has_order for one in found.values())
    assert stage.secondary.meter.read().total.receive == 0


def test_later_only_what_has_arrived_is_peeked_at(stage, peek):
    stage.divert(numbered(600))
    peek.look_into({BACKLOGS[0]: False})
    before = stage.secondary.meter.read().total.peek
    stage.divert(["new"], "invoices")

    found = peek.look_into({BACKLOGS[0]: True})[BACKLOGS[0]]

    assert found.ahead == {"orders": 0, "invoices": 600}
    assert stage.secondary.meter.read().total.peek - before <= 2


def test_a_queue_that_fails_does_not_affect_another(stage, peek):
    stage.divert(numbered(3))

    found = peek.look_into({"deleted": False, BACKLOGS[0]: False})

    assert {queue: one.ahead for queue, one in found.items()} == {BACKLOGS[0]: {"orders": 0}}


def test_a_secondary_that_does_not_answer_is_an_error(stage, peek):
    with stage.secondary.faults.unreachable(), pytest.raises(AzureError):
        peek.look_into({BACKLOGS[0]: False})


def test_an_unreadable_message_has_no_destination(stage, peek):
    stage.put([encoded(ServiceBusMessage(b"not ours"))])

    assert peek.look_into({BACKLOGS[0]: False})[BACKLOGS[0]].ahead == {"": 0}


def test_a_queue_whose_messages_are_locked_is_not_empty(stage, peek):
    stage.divert(numbered(1), queue=BACKLOGS[1])
    with stage.client(stage.secondary) as client:
        client.receiver(BACKLOGS[1], credit=1).receive(1, max_wait_seconds=60)

        assert peek.non_empty(BACKLOGS) == BACKLOGS[1:]
