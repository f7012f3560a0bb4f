"""Backlog queues that fail: which is used next, which events follow, what is left at the end."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from pairbus.client.sdk.pairing_errors import BacklogExhausted
from pairbus.errors import PairbusError
from pairbus.events import (
    BacklogReadmitted,
    BacklogWithdrawn,
    Diverted,
    FailedBack,
    SendFailed,
    Throttled,
)
from tests.pairing.world import SECOND, ids, short_throttle_waits
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def long_rests(monkeypatch):
    """No queue comes back into the rotation during a test, however slow the machine."""
    monkeypatch.setattr("pairbus.client.pairing.QUEUE_REST_SECONDS", 600.0)


@pytest.fixture
def short_rests(monkeypatch):
    """A withdrawn queue is probed again after a second."""
    monkeypatch.setattr("pairbus.client.pairing.QUEUE_REST_SECONDS", 1.0)


def in_rotation(client) -> tuple[str, ...]:
    return client.pairing.status().backlog_queues


def withdrawn(client) -> list[str]:
    return [each.queue for each in client.pairing.status().withdrawn]


def fill(world, queue: str) -> None:
    """Until it accepts nothing more, not even a small message; its size was made small."""
    for size in (250_000, 25_000, 2_500, 250, 25, 0):
        with pytest.raises(ServiceBusQuotaExceededError):
            world.secondary.send(queue, *(ServiceBusMessage(b"x" * size) for _ in range(20)))


BREAK = {
    "deleted": lambda world, queue: world.secondary.admin.delete_queue(queue),
    "disabled": lambda world, queue: world.secondary.set_status(queue, "Disabled"),
    "forbidden": lambda world, queue: world.secondary.fault(
        "error", queue, condition="amqp:unauthorized-access", on=["send", "attach"]
    ),
    "cut off": lambda world, queue: world.secondary.fault("unreachable", queue),
    "failing": lambda world, queue: world.secondary.fault("cannot_send", queue),
}


@pytest.mark.req("F-06")
@pytest.mark.parametrize("how", BREAK)
def test_a_backlog_queue_that_fails_is_replaced_and_every_sender_learns_of_it(world, how):
    queue, other = world.queue(), world.queue("other")
    client = world.pair(backlog_queue_count=2)
    world.primary.fault("cannot_send")
    sender, another = world.senders(client, queue, other)
    world.send(sender, "1")
    broken = world.queue_in_use(client, queue)
    [spare] = {world.backlog_path(0), world.backlog_path(1)} - {broken}
    found = [] if how == "deleted" else ["1"]
    watching = world.secondary.fault("slow", broken, latencySeconds=0.001)
    BREAK[how](world, broken)
    world.send(sender, "2")
    [seen] = world.events_of(BacklogWithdrawn)
    assert (seen.backlog_queue, seen.left) == (broken, 1)
    assert isinstance(seen.error, ServiceBusError)
    seen = watching.hits
    world.send(another, "3")
    world.send(sender, "4")
    assert watching.hits == seen, "nobody goes there any more"
    assert in_rotation(client) == (spare,)
    assert withdrawn(client) == [broken]
    assert world.queue_in_use(client, queue) == world.queue_in_use(client, other) == spare
    assert [each.backlog_queue for each in world.events_of(Diverted)][1:] == [spare] * 3
    world.secondary.faults.clear_all()
    if how == "disabled":
        world.secondary.set_status(broken, "Active")
    in_spare = world.secondary.peek(spare)
    assert ids(in_spare) == ["2", "3", "4"]
    assert ids(world.secondary.peek(broken)) == found if found else True


@pytest.mark.req("F-06", "Q-03")
def test_a_full_backlog_queue_is_replaced(world):
    queue = world.queue()
    for index in range(2):  # found with a size of their own, and used as they are
        world.secondary.admin.create_queue(world.backlog_path(index), max_size_in_megabytes=1)
    client = world.pair(backlog_queue_count=2)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(sender, "1")
    full = world.queue_in_use(client, queue)
    fill(world, full)
    world.send(sender, "2")
    assert [each.backlog_queue for each in world.events_of(BacklogWithdrawn)] == [full]
    [spare] = in_rotation(client)
    assert ids(world.secondary.peek(spare)) == ["2"]


@pytest.mark.req("F-06")
def test_a_whole_call_goes_to_the_next_queue(world):
    queue = world.queue()
    client = world.pair(backlog_queue_count=2)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(sender, "1")
    world.secondary.fault("cannot_send", world.queue_in_use(client, queue))
    sender.send_messages([ServiceBusMessage(f"{n}", message_id=f"{n}") for n in range(2, 7)])
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("7", message_id="7"))
    sender.send_messages(batch)
    world.acknowledge(queue, *"234567")
    world.check(queue, backlog=list("1234567"))


@pytest.mark.req("F-06")
def test_one_that_fails_before_it_was_ever_used_is_not_chosen_by_the_next(world):
    """Ten entities and two queues: if they did not share what is known, half of them would try the
    broken one.
    """
    queues = [world.queue(f"{number}") for number in range(10)]
    client = world.pair(backlog_queue_count=2)
    senders = world.senders(client, *queues)
    world.primary.fault("cannot_send")
    broken = world.backlog_path(0)
    fault = world.secondary.fault("cannot_send", broken)
    for sender, queue in zip(senders, queues, strict=True):
        world.send(sender, queue)
    assert fault.hits <= 2, "a link that was kept gets a second try on a new one"
    assert len(world.events_of(BacklogWithdrawn)) <= 1
    assert ids(world.secondary.peek(world.backlog_path(1))) == sorted(queues)


@pytest.mark.req("F-07", "A-04")
def test_when_no_backlog_queue_is_left_the_error_names_both_causes(world):
    queue = world.queue()
    client = world.pair(backlog_queue_count=1)
    sender = world.sender(client, queue)
    world.primary.fault("error", queue, description="the primary's error")
    world.secondary.fault("error", world.backlog_path(0), description="the backlog's error")
    message = ServiceBusMessage("still mine")
    with pytest.raises(BacklogExhausted) as raised:
        sender.send_messages(message)
    error = raised.value
    assert isinstance(error, ServiceBusError)
    assert isinstance(error, PairbusError)
    assert error.entity == queue
    assert "the primary's error" in str(error.primary_error)
    assert "the backlog's error" in str(error.backlog_error)
    assert error.diverted_count == 0
    for words in (queue, "the primary's error", "the backlog's error"):
        assert words in str(error)
    assert str(message) == "still mine"
    [failed] = world.events_of(SendFailed)
    assert failed.path == queue
    assert (failed.primary_error, failed.backlog_error) == (
        error.primary_error,
        error.backlog_error,
    )
    assert world.entity(client, queue).backlog_queue is None
    assert world.entity(client, queue).refused == 1
    with pytest.raises(BacklogExhausted):
        sender.send_messages([ServiceBusMessage("a list"), ServiceBusMessage("of two")])
    world.primary.faults.clear_all()
    world.secondary.faults.clear_all()
    client.pairing.mark_path_healthy(queue)
    world.send(sender, "on the primary")
    world.check(queue, primary=["on the primary"])


@pytest.mark.req("F-07")
def test_when_both_namespaces_are_down_the_caller_keeps_the_message(world, short_rests):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.send(sender, "before")
    world.primary.kill()
    world.send(sender, "diverted")
    world.secondary.kill()
    with pytest.raises(BacklogExhausted) as raised:
        world.send(sender, "nowhere")
    assert isinstance(raised.value.primary_error, ServiceBusError)
    assert isinstance(raised.value.backlog_error, ServiceBusError)
    world.secondary.start()
    world.wait_for(BacklogReadmitted)
    world.send(sender, "diverted again")
    world.primary.start()
    world.check(queue, primary=["before"], backlog=["diverted", "diverted again"])


@pytest.mark.req("F-07", "F-08")
def test_without_any_backlog_queue_the_way_back_is_still_found(world):
    queue = world.queue()
    client = world.pair(backlog_queue_count=1, ping_primary_interval=SECOND)
    sender = world.sender(client, queue)
    fault = world.primary.fault("cannot_send", queue)
    world.secondary.fault("cannot_send", world.backlog_path(0))
    with pytest.raises(BacklogExhausted):
        world.send(sender, "nowhere")
    fault.clear()
    world.wait_for(FailedBack, queue)
    world.send(sender, "back")
    world.check(queue, primary=["back"])


@pytest.mark.req("F-06")
def test_a_backlog_queue_that_is_back_is_used_again(world, short_rests):
    queue = world.queue()
    client = world.pair(backlog_queue_count=1)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    links = world.secondary.fault("unreachable", world.backlog_path(0))
    with pytest.raises(BacklogExhausted):
        world.send(sender, "nowhere")
    assert in_rotation(client) == ()
    wait_until(lambda: links.hits >= 2, "tried, and tried again")
    assert in_rotation(client) == ()
    links.clear()
    [readmitted] = world.wait_for(BacklogReadmitted)
    assert (readmitted.backlog_queue, readmitted.left) == (world.backlog_path(0), 1)
    assert in_rotation(client) == (world.backlog_path(0),)
    assert withdrawn(client) == []
    world.send(sender, "diverted")
    world.check(queue, backlog=["diverted"])


@pytest.mark.req("F-06", "F-03")
def test_a_silent_secondary_is_given_up_in_bounded_time(world):
    queue = world.queue()
    client = world.pair(backlog_queue_count=2, send_timeout=3 * SECOND)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(sender, "1")
    with world.secondary.fault("hang", world.queue_in_use(client, queue)):
        world.send(sender, "2")
    assert len(world.events_of(BacklogWithdrawn)) == 1
    # What was said into the silence may be done in the end: an unknown outcome, under one id.
    found = ids(world.backlog(queue))
    assert set(found) == {"1", "2"}
    assert len(found) <= 3


@pytest.mark.req("F-06")
def test_a_busy_a_silent_and_a_slow_queue_do_not_hold_a_message_up(world):
    """Four queues, of which one works. The caller's time is shorter than a throttle wait, and the
    silent queue alone could use it up.
    """
    queue = world.queue()
    client = world.pair(backlog_queue_count=4)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    faults, hit = [], []
    for kind, settings in (("throttle", {}), ("hang", {}), ("slow", {"latencySeconds": 60})):
        hit.append(world.queue_in_use(client, queue))
        faults.append(world.secondary.fault(kind, hit[-1], **settings))
        world.send(sender, kind, timeout=4.0)
    assert len({*hit, world.queue_in_use(client, queue)}) == 4
    assert [each.backlog_queue for each in world.events_of(BacklogWithdrawn)] == hit
    assert [each.backlog_queue for each in world.events_of(Throttled)] == hit[:1]
    entity = client.pairing.status().entity(queue)
    assert (entity.throttled, entity.refused, entity.diverted) == (1, 0, 3)
    # What the silent and the slow queue were sent may be done in the end, under the same id.
    for fault in faults:
        fault.clear()
    assert set(ids(world.backlog(queue))) == {"throttle", "hang", "slow"}


@pytest.mark.req("F-06")
def test_a_busy_queue_is_used_again_after_its_wait(world, monkeypatch):
    short_throttle_waits(monkeypatch)
    queue = world.queue()
    client = world.pair(backlog_queue_count=2)
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    with world.secondary.fault("throttle", world.queue_in_use(client, queue)):
        world.send(sender, "1")
    [readmitted] = world.wait_for(BacklogReadmitted)
    assert readmitted.left == 2
    world.check(queue, backlog=["1"])


@pytest.mark.req("F-06")
def test_a_link_to_the_backlog_that_was_lost_while_idle_is_opened_anew(world):
    """The queue works: withdrawing it would be wrong."""
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(sender, "1")
    world.secondary.kill()
    world.secondary.start()
    world.send(sender, "2")
    assert not world.events_of(BacklogWithdrawn)
    world.check(queue, backlog=["1", "2"])
