"""Each way in which a primary can fail, and where the messages are afterwards."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from pairbus.events import Diverted, FailedOver, Throttled
from tests.pairing.world import SECOND, aliases, ids, short_throttle_waits
from tests.waiting import wait_until


@pytest.mark.req("A-10", "X-01")
def test_a_paired_client_of_a_healthy_primary_is_the_sdks_client(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.send(sender, "single")
    sender.send_messages([ServiceBusMessage(x, message_id=x) for x in ("one", "two")])
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("batch", message_id="batch"))
    sender.send_messages(batch)
    [number] = sender.schedule_messages(
        ServiceBusMessage("later", message_id="later"), datetime.now(UTC) + timedelta(hours=1)
    )
    world.acknowledge(queue, "one", "two", "batch", "later")
    world.check(queue, primary=["single", "one", "two", "batch", "later"])
    sender.cancel_scheduled_messages(number)
    receiver = world.enter(client.get_queue_receiver(queue))
    assert [str(m) for m in receiver.peek_messages(9)] == ["single", "one", "two", "batch"]
    assert not world.events_of(FailedOver)


@pytest.mark.req("F-01", "F-03", "A-05")
def test_a_primary_that_is_killed_is_failed_over_by_the_send_that_notices(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.send(sender, "before")
    world.primary.kill()
    world.send(sender, "during 1", "during 2")
    world.primary.start()
    world.check(queue, primary=["before"], backlog=["during 1", "during 2"])
    [failed_over] = world.events_of(FailedOver)
    assert (failed_over.path, failed_over.namespace) == (queue, world.name)
    assert isinstance(failed_over.error, ServiceBusError)
    assert [each.count for each in world.events_of(Diverted, queue)] == [1, 1]


@pytest.mark.req("F-01", "A-05")
def test_a_primary_that_refuses_connections_is_failed_over_by_opening_the_link(world):
    queue = world.queue()
    client = world.client()
    world.primary.kill()
    world.pair(client)  # which asks nothing of the primary
    with client.get_queue_sender(queue) as sender:
        assert [each.path for each in world.events_of(FailedOver)] == [queue]
        batch = sender.create_message_batch()
        batch.add_message(ServiceBusMessage("in a batch", message_id="in a batch"))
        sender.send_messages(batch)
        world.send(sender, "alone")
    world.acknowledge(queue, "in a batch")
    world.primary.start()
    world.check(queue, backlog=["in a batch", "alone"])


@pytest.mark.req("F-01", "X-02")
@pytest.mark.parametrize("scope", ["namespace", "entity"])
def test_a_primary_that_hangs_is_failed_over_in_bounded_time(world, scope):
    queue = world.queue(requires_duplicate_detection=True)
    client = world.pair(send_timeout=3 * SECOND)
    sender = world.sender(client, queue)
    world.send(sender, "before")
    with world.primary.fault("hang", queue if scope == "entity" else None):
        began = time.monotonic()
        world.send(sender, "during")
        assert 2.9 < time.monotonic() - began < 40
        world.send(sender, "later")
        assert world.entity(client, queue).failures == 1, "no second attempt on the primary"
    # What was said into the silence is done when it ends, unless the client had hung up by then.
    found = wait_until(lambda: ids(world.primary.peek(queue)), "an answer")
    world.check(queue, primary=found, backlog=["during", "later"])
    assert set(found) <= {"before", "during"}


@pytest.mark.req("F-01")
@pytest.mark.parametrize("first", ["open", "send"])
def test_a_new_connection_to_a_primary_that_hangs_is_bounded_too(world, first):
    queue = world.queue()
    client = world.pair(send_timeout=3 * SECOND)
    with world.primary.fault("hang"):
        began = time.monotonic()
        sender = client.get_queue_sender(queue)
        if first == "open":
            sender.__enter__()
            assert world.events_of(FailedOver)
        world.send(sender, "during")
        assert 2.9 < time.monotonic() - began < 40
        sender.close()
    world.check(queue, backlog=["during"])


@pytest.mark.req("F-01")
def test_a_primary_that_loses_what_it_is_sent_is_failed_over(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.send(sender, "before")
    with world.primary.fault("unreachable", mode="drop"):
        world.send(sender, "during", timeout=3)  # the caller's own bound, for each namespace
    world.check(queue, primary=["before"], backlog=["during"])


@pytest.mark.req("F-01", "F-04")
def test_a_disabled_entity_is_failed_over_and_others_are_not(world):
    disabled, other = world.queue("disabled"), world.queue("other")
    client = world.pair()
    to_disabled, to_other = world.senders(client, disabled, other)
    world.send(to_disabled, "1")
    world.primary.set_status(disabled, "SendDisabled")
    world.send(to_disabled, "2")
    world.send(to_other, "3")
    world.check_all({disabled: (["1"], ["2"]), other: (["3"], [])})
    assert [each.path for each in world.events_of(FailedOver)] == [disabled]


@pytest.mark.req("F-01")
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "error"},
        {"kind": "error", "condition": "com.example:never-heard-of"},
        {"kind": "cannot_contact"},
        {"kind": "restart", "seconds": 600},
        {"kind": "error", "condition": "amqp:link:detach-forced", "on": ["send", "attach"]},
    ],
    ids=lambda fault: fault.get("condition", fault["kind"]).replace(":", "-"),
)
def test_what_an_entity_answers_that_no_retry_cures_is_failed_over(world, fault):
    """What each error counts as is in `tests/client/sdk/test_failures_live.py`."""
    queue, other = world.queue(), world.queue("other")
    client = world.pair()
    sender, unhindered = world.senders(client, queue, other)
    world.send(sender, "before")
    with world.primary.fault(entity=queue, **fault):
        world.send(sender, "during")
        world.send(unhindered, "unhindered")
    world.send(sender, "still")
    world.check_all({queue: (["before"], ["during", "still"]), other: (["unhindered"], [])})


@pytest.mark.req("F-01")
def test_a_full_entity_is_failed_over(world):
    queue = world.queue(max_size_in_megabytes=1)
    client = world.pair()
    sender = world.sender(client, queue)
    bodies = [f"{number}" for number in range(6)]
    for body in bodies:
        world.send(sender, body, application_properties={"padding": "x" * 200_000})
    fits = ids(world.primary.peek(queue))
    assert 3 <= len(fits) < 6
    world.check(queue, primary=fits, backlog=set(bodies) - set(fits))


@pytest.mark.req("F-01", "A-05")
def test_the_sdks_own_retries_come_first(world):
    queue = world.queue()
    client = world.pair(world.client(retry_total=3, retry_backoff_factor=0.01))
    sender = world.sender(client, queue)
    with world.primary.fault("error", queue, times=2) as fault:
        world.send(sender, "cured")
        assert fault.is_over
    with world.primary.fault("error", queue) as fault:
        world.send(sender, "not cured")
        assert fault.hits == 4
    world.check(queue, primary=["cured"], backlog=["not cured"])


@pytest.mark.req("A-01", "F-03", "F-05")
def test_every_sender_of_the_client_sees_a_failover_at_once(world):
    queue = world.queue()
    client = world.client()
    unopened, used = client.get_queue_sender(queue), world.sender(client, queue)
    world.send(used, "before the pairing")
    world.pair(client)
    assert [entity.path for entity in client.pairing.status().entities] == [queue]
    after = world.sender(client, queue)
    fault = world.primary.fault("cannot_send", queue)
    world.send(used, "1")
    world.send(after, "2")
    world.send(unopened, "3")
    world.send(world.sender(client, queue.upper()), "4")
    assert fault.hits == 1
    unopened.close()
    assert len(world.events_of(FailedOver)) == 1
    found = world.backlog()
    assert ids(found) == ["1", "2", "3", "4"]
    assert {aliases(each)["x-ms-path"].lower() for each in found} == {queue.lower()}
    assert ids(world.primary.peek(queue)) == ["before the pairing"]


@pytest.mark.req("F-05", "Q-05")
def test_two_clients_know_nothing_of_each_other(world):
    queue = world.queue()
    one, two = world.pair(), world.pair()
    fault = world.primary.fault("cannot_send", queue)
    world.send(world.sender(one, queue), "diverted")
    fault.clear()
    world.send(world.sender(two, queue), "delivered")
    world.check(queue, primary=["delivered"], backlog=["diverted"])
    states = [world.entity(client, queue).state for client in (one, two)]
    assert states == ["failed over", "healthy"]


@pytest.mark.req("Q-05", "Q-06")
def test_messages_for_many_entities_share_the_backlog_queues(world):
    queues = [world.queue(f"{number}") for number in range(5)]
    client = world.pair(backlog_queue_count=1)
    fault = world.primary.fault("cannot_send")
    for queue in queues:
        with client.get_queue_sender(queue) as sender:
            world.send(sender, queue)
    fault.clear()
    assert len(world.secondary.peek(world.backlog_path(0))) == 5
    world.check_all({queue: ([], [queue]) for queue in queues})


@pytest.mark.req("R-01")
def test_receivers_of_a_paired_client_receive_from_the_primary_only(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    receiver = world.enter(client.get_queue_receiver(queue))
    fault = world.primary.fault("cannot_send", queue)
    world.send(sender, "diverted")
    fault.clear()
    world.primary.send(queue, ServiceBusMessage("delivered", message_id="delivered"))
    assert [str(m) for m in receiver.receive_messages(9, max_wait_time=20)] == ["delivered"]
    world.check(queue, primary=["delivered"], backlog=["diverted"])


@pytest.mark.req("F-02", "R-03")
def test_a_throttled_sender_waits_and_stays_on_the_primary(world, monkeypatch):
    short_throttle_waits(monkeypatch)
    queue = world.queue()
    client = world.pair(world.client(retry_total=3, retry_backoff_factor=0.01))
    sender = world.sender(client, queue)
    busy = "com.microsoft:server-busy"
    with world.primary.fault("error", queue, condition=busy, times=1) as fault:
        began = time.monotonic()
        world.send(sender, "patient")
        assert 0.5 <= time.monotonic() - began < 40, "not tried again before that"
        assert fault.is_over
    world.check(queue, primary=["patient"])
    [throttled] = world.events_of(Throttled)
    assert (throttled.path, throttled.wait_seconds) == (queue, 0.5)
    assert throttled.backlog_queue is None
    assert not world.events_of(FailedOver)


@pytest.mark.parametrize("scope", ["entity", "namespace"])
def test_the_scope_of_a_failover_when_the_namespace_refuses_connections(world, scope):
    """One entity finds out. With the scope of a namespace, the others need not."""
    orders, stock = world.queue(), world.queue("stock")
    client = world.pair(failover_scope=scope)
    first, other = world.senders(client, orders, stock)
    world.primary.kill()
    world.send(first, "1")
    failed_over = set(client.pairing.status().failed_over)
    assert failed_over == ({orders} if scope == "entity" else {orders, stock})
    world.send(other, "2")
    failures = client.pairing.status().entity(stock).failures
    assert failures == (1 if scope == "entity" else 0)
    world.primary.start()
    world.check(orders, backlog=["1"])
    world.check(stock, backlog=["2"])


def test_one_entity_that_cannot_be_reached_does_not_count_for_its_namespace(world):
    orders, stock = world.queue(), world.queue("stock")
    client = world.pair(failover_scope="namespace")
    first, _ = world.senders(client, orders, stock)
    world.primary.fault("unreachable", orders)
    world.send(first, "1")
    assert client.pairing.status().failed_over == (orders,)
