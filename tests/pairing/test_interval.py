"""The failover interval: until it is over, the caller gets the failures; and what ends it early.

In real time, with an interval of a few seconds. Its exact bounds are tested where time is passed
in.
"""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.errors import PairbusError
from pairbus.events import FailedOver, PrimaryFailed, Recovered
from tests.waiting import wait_until

INTERVAL = timedelta(seconds=4)
LONG = timedelta(minutes=60)


def is_failed_over(world, client, queue) -> bool:
    return world.entity(client, queue).state == "failed over"


@pytest.mark.req("A-05", "F-03")
def test_an_entity_fails_over_when_it_has_failed_for_the_interval(world):
    queue = world.queue()
    client = world.pair(failover_interval=INTERVAL)
    sender = world.sender(client, queue)
    fault = world.primary.fault("cannot_send", queue)
    began = time.monotonic()
    with pytest.raises(ServiceBusError):
        world.send(sender, "refused 1")
    with pytest.raises(ServiceBusError):
        world.send(sender, "refused 2")
    wait_until(lambda: is_failed_over(world, client, queue), "failed over by time alone")
    assert time.monotonic() - began >= 4
    world.send(sender, "diverted")
    assert fault.hits == 2
    world.check(queue, backlog=["diverted"])
    first, second = world.events_of(PrimaryFailed)
    assert (first.path, first.since_seconds) == (queue, 0)
    assert first.failover_in_seconds == pytest.approx(4)
    assert second.failover_in_seconds == pytest.approx(4 - second.since_seconds)
    [failed_over] = world.events_of(FailedOver)
    assert failed_over.after_seconds >= 4


@pytest.mark.req("A-05", "A-10")
@pytest.mark.parametrize(
    ("condition", "on"),
    [
        ("amqp:internal-error", "send"),
        ("amqp:resource-limit-exceeded", "send"),
        ("com.microsoft:timeout", "send"),
        ("com.microsoft:entity-disabled", "attach"),
    ],
)
def test_before_the_interval_is_over_the_caller_gets_the_sdks_own_error(world, condition, on):
    queue = world.queue()
    paired = world.pair(failover_interval=LONG)
    plain = world.enter(world.shell.plain_client(world.primary.connection_string(), retry_total=0))
    errors = []
    with world.primary.fault("error", queue, condition=condition, on=[on]):
        for client in (paired, plain):
            sender = client.get_queue_sender(queue)
            with pytest.raises(ServiceBusError) as raised:
                sender.send_messages(ServiceBusMessage("x"))
            errors.append(raised.value)
            sender.close()
    ours, theirs = errors
    assert type(ours) is type(theirs)
    assert not isinstance(ours, PairbusError)
    assert condition in str(ours)
    world.check(queue)


@pytest.mark.req("A-05")
def test_before_the_interval_is_over_opening_a_link_raises_as_the_sdk_does(world):
    queue = world.queue()
    client = world.pair(failover_interval=LONG)
    fault = world.primary.fault("unreachable", queue)
    with pytest.raises(ServiceBusError), client.get_queue_sender(queue):
        pass
    sender = client.get_queue_sender(queue)
    with pytest.raises(ServiceBusError):
        sender.create_message_batch()
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("x"))
    assert len(world.events_of(PrimaryFailed, queue)) == 3
    fault.clear()
    world.send(sender, "after")
    sender.close()
    world.check(queue, primary=["after"])
    assert len(world.events_of(Recovered, queue)) == 1
