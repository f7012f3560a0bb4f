"""The way back to the primary: by a ping or by hand; which entity is pinged, how often, and which
events follow."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.events import FailedBack, FailedOver, PingSent
from tests.pairing.world import AT_ONCE, SECOND, aliases, ids
from tests.waiting import wait_until


def settled(value, *, seconds: float) -> list:
    """What it returns during so many seconds, each answer once."""
    seen, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = value()
        if answer not in seen:
            seen.append(answer)
        time.sleep(0.1)
    return seen


@pytest.mark.req("F-08", "G-01", "G-02", "G-03")
def test_a_ping_that_is_taken_brings_the_entity_back(world):
    queue = world.queue()
    client = world.pair(ping_primary_interval=SECOND)
    sender, another = world.senders(client, queue, queue)
    world.send(another, "before")
    fault = world.primary.fault("cannot_send", queue)
    world.send(sender, "diverted")
    failed_over = time.monotonic()
    world.wait_for(PingSent, count=2)
    assert time.monotonic() - failed_over > 1.3, "one a second, the first after half a second"
    assert fault.hits == 1 + len(world.events_of(PingSent))
    assert not any(ping.answered for ping in world.events_of(PingSent))
    fault.clear()
    [failed_back] = world.wait_for(FailedBack)
    assert (failed_back.path, failed_back.reason) == (queue, "ping")
    assert failed_back.after_seconds > 1.4
    world.send(sender, "back 1")
    world.send(another, "back 2")
    world.check(queue, primary=["before", "back 1", "back 2"], backlog=["diverted"])
    assert [ping.answered for ping in world.events_of(PingSent)][-1:] == [True]
    pings = settled(lambda: len(world.events_of(PingSent)), seconds=1.5)
    assert len(pings) == 1, "none for what is healthy"
    assert world.primary.count(queue) == 3, "and none of them is to be seen"


@pytest.mark.req("F-08")
def test_a_primary_that_was_killed_is_used_again_when_it_is_back(world):
    queue = world.queue()
    client = world.pair(ping_primary_interval=SECOND)
    senders = [world.sender(client, queue) for _ in range(3)]
    for number, sender in enumerate(senders):
        world.send(sender, f"before {number}")
    world.primary.kill()
    for number, sender in enumerate(senders):
        world.send(sender, f"during {number}")
    world.primary.start()
    world.wait_for(FailedBack, queue)
    for number, sender in enumerate(senders):
        world.send(sender, f"after {number}")
    assert len(world.events_of(FailedOver)) == 1, "links of before the outage are opened anew"
    expected = [f"{when} {number}" for when in ("before", "after") for number in range(3)]
    world.check(queue, primary=expected, backlog=[f"during {number}" for number in range(3)])


@pytest.mark.req("A-11", "F-08")
def test_an_entity_is_brought_back_by_hand(world):
    queue = world.queue()
    client = world.client()
    options = world.options()
    client.pair_namespace(options)
    sender, another = world.senders(client, queue, queue)
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "diverted")
    assert options.mark_path_healthy(queue) is True
    assert options.mark_path_healthy(queue.upper()) is False, "it is healthy already"
    world.send(sender, "back 1")
    world.send(another, "back 2")
    world.check(queue, primary=["back 1", "back 2"], backlog=["diverted"])
    [failed_back] = world.events_of(FailedBack)
    assert (failed_back.path, failed_back.reason) == (queue, "by hand")
    assert not world.events_of(PingSent)


@pytest.mark.req("G-01")
def test_each_failed_over_entity_is_pinged_and_no_other(world):
    failed, gone, healthy = (world.queue(name) for name in ("failed", "gone", "healthy"))
    client = world.pair(ping_primary_interval=SECOND)
    # One that strikes at nothing still counts whoever comes by.
    watching = world.primary.fault("slow", healthy, latencySeconds=0.001)
    world.send(world.sender(client, healthy), "before")
    seen = watching.hits
    faults = [world.primary.fault("cannot_send", queue) for queue in (failed, gone)]
    world.send(world.sender(client, failed), "1")
    world.send(world.sender(client, gone), "2")
    for queue in (failed, gone):
        world.wait_for(PingSent, queue, count=2)
    assert not world.events_of(PingSent, healthy)
    assert watching.hits == seen, "nothing came to the healthy one"
    assert all(fault.hits >= 3 for fault in faults)
    faults[0].clear()
    world.wait_for(FailedBack, failed)
    assert not world.events_of(FailedBack, gone), "each comes back alone"
    world.check_all({failed: ([], ["1"]), gone: ([], ["2"])})


@pytest.mark.req("G-02")
def test_an_entity_with_sessions_takes_a_ping(world):
    queue = world.queue(requires_session=True)
    client = world.pair(ping_primary_interval=SECOND)
    sender = world.sender(client, queue)
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "diverted", session_id="s")
    world.wait_for(FailedBack)
    world.send(sender, "back", session_id="s")
    assert ids(world.primary.peek(queue, session_id="s")) == ["back"]
    assert world.primary.count(queue) == 1
    assert ids(world.backlog(queue)) == ["diverted"]


@pytest.mark.req("G-02", "F-08")
def test_a_topic_takes_a_ping_and_no_subscription_sees_it(world):
    topic = world.topic("all")
    client = world.pair(ping_primary_interval=SECOND)
    sender = world.enter(client.get_topic_sender(topic))
    with world.primary.fault("cannot_send", topic):
        world.send(sender, "diverted")
    world.wait_for(FailedBack, topic)
    world.send(sender, "back")
    assert ids(world.primary.peek(topic, "all")) == ["back"]
    assert ids(world.backlog(topic)) == ["diverted"]


@pytest.mark.req("G-01", "G-02")
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "error", "condition": "amqp:unauthorized-access", "on": ["send", "attach"]},
        # A busy entity would throttle the sends, too: they are better off where they are.
        {"kind": "throttle"},
    ],
    ids=lambda fault: fault["kind"],
)
def test_a_ping_that_is_refused_leaves_the_entity_failed_over(world, fault):
    queue = world.queue()
    client = world.pair(ping_primary_interval=SECOND)
    sender = world.sender(client, queue)
    with world.primary.fault("cannot_send", queue):
        world.send(sender, "1")
        refused = world.primary.fault(entity=queue, **fault)
    pings = world.wait_for(PingSent, count=2)
    assert refused.hits >= 1
    assert not any(ping.answered for ping in pings)
    assert all(isinstance(ping.error, ServiceBusError) for ping in pings)
    world.send(sender, "2")
    refused.clear()
    world.wait_for(FailedBack)
    world.send(sender, "3")
    world.check(queue, primary=["3"], backlog=["1", "2"])


@pytest.mark.req("G-01")
def test_a_ping_by_link_sends_nothing(world):
    queue = world.queue()
    client = world.pair(ping_primary_interval=SECOND, ping_mode="link")
    sender = world.sender(client, queue)
    sends = world.primary.fault("cannot_send", queue)
    links = world.primary.fault("error", queue, on=["attach"])
    world.send(sender, "diverted")
    assert sends.hits == 1
    world.wait_for(PingSent, count=2)
    assert links.hits >= 2
    links.clear()
    world.wait_for(FailedBack)
    assert sends.hits == 1, "who only opens a link does not learn that sends are refused"
    sends.clear()
    world.send(sender, "back")
    world.check(queue, primary=["back"], backlog=["diverted"])


@pytest.mark.req("G-01", "C-02")
@pytest.mark.parametrize("mode", ["message", "link"])
def test_a_ping_into_silence_harms_nobody(world, mode):
    """It has a time limit, and what it waits for does not keep a client from closing."""
    silent, failed = world.queue("silent"), world.queue("failed")
    client = world.client()
    world.pair(
        client,
        ping_primary_interval=SECOND,
        ping_mode=mode,
        send_timeout=SECOND,
        failover_interval=AT_ONCE,
    )
    senders = [client.get_queue_sender(queue) for queue in (silent, failed)]
    with world.primary.fault("hang"):
        world.send(senders[0], "1")
        world.send(senders[1], "2")
        for queue in (silent, failed):
            world.wait_for(PingSent, queue)
        world.send(senders[0], "3")
        assert world.entity(client, silent).failures == 1, "no second attempt on the primary"
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 40
    with suppress(AssertionError):  # an unknown outcome: the first may have arrived in the end
        wait_until(lambda: world.primary.count(silent), "the message that waited", seconds=0.5)
    assert ids(world.backlog(silent)) == ["1", "3"]
    assert ids(world.backlog(failed)) == ["2"]
    for queue in (silent, failed):
        assert set(ids(world.primary.peek(queue))) <= {"1", "2"}, "no ping is to be seen"


@pytest.mark.req("F-09", "R-02")
def test_order_is_not_kept_in_a_session_whose_state_stays_on_the_primary(world):
    """The primary accepts new messages before the old ones are home."""
    queue = world.queue(requires_session=True)
    client = world.pair()
    sender = world.sender(client, queue)
    with client.get_queue_receiver(queue, session_id="cart") as receiver:
        receiver.session.set_state(b"two items")
    world.primary.kill()
    world.send(sender, "1", "2", session_id="cart")
    with pytest.raises(ServiceBusError):
        client.get_queue_receiver(queue, session_id="cart").__enter__()
    world.primary.start()
    diverted = world.backlog(queue)
    assert [each.session_id for each in diverted] == [None, None], "no session, so no state"
    assert {aliases(each)["x-ms-sessionid"] for each in diverted} == {"cart"}
    client.pairing.mark_path_healthy(queue)
    world.send(sender, "3", session_id="cart")
    world.bring_home(queue)
    with client.get_queue_receiver(queue, session_id="cart") as receiver:
        assert receiver.session.get_state() == b"two items"
        assert [str(each) for each in receiver.peek_messages(9)] == ["3", "1", "2"]
