"""Every call of a sender of the SDK, while its entity is failed over; and the ids of messages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.sdk.pairing_errors import SequenceNumberUnknown
from pairbus.errors import PairbusError
from pairbus.events import Diverted
from tests.pairing.world import SECOND, aliases, ids

HOUR = timedelta(hours=1)


def text(number: int) -> str:
    return f"{number}"


# what `send_messages` takes


@pytest.mark.req("E-02", "X-01")
def test_one_message_a_list_a_batch_a_dict_and_an_annotated_one(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(sender, "single")
    sender.send_messages([ServiceBusMessage(name, message_id=name) for name in ("a", "b")])
    sender.send_messages(ServiceBusMessage(name, message_id=name) for name in ("from", "generator"))
    sender.send_messages({"body": "dict", "message_id": "dict"})
    sender.send_messages([{"body": "dicts", "message_id": "dicts"}])
    sender.send_messages(
        AmqpAnnotatedMessage(
            data_body=b"annotated", properties=AmqpMessageProperties(message_id="annotated")
        )
    )
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("batch 1", message_id="batch 1"))
    batch.add_message({"body": "batch 2", "message_id": "batch 2"})
    batch.add_message(
        AmqpAnnotatedMessage(
            data_body=b"batch 3", properties=AmqpMessageProperties(message_id="batch 3")
        )
    )
    sender.send_messages(batch)
    names = ["a", "b", "from", "generator", "dict", "dicts", "annotated"]
    names += ["batch 1", "batch 2", "batch 3"]
    world.acknowledge(queue, *names)
    world.check(queue, backlog=["single", *names])
    for message in world.backlog(queue):
        assert str(message) == message.message_id
    assert sum(each.count for each in world.events_of(Diverted)) == len(names) + 1


# every message has an id before its first attempt


@pytest.mark.req("X-02")
@pytest.mark.parametrize("shape", ["single", "list", "batch", "dict", "annotated"])
def test_an_unknown_outcome_is_diverted_under_the_same_ids(world, shape):
    """The messages get their ids before the first attempt, and keep them."""
    queue = world.queue(requires_duplicate_detection=True)
    client = world.pair()
    sender = world.sender(client, queue)
    content = {
        "single": lambda: ServiceBusMessage(text(0)),
        "list": lambda: [ServiceBusMessage(text(n)) for n in range(3)],
        "batch": sender.create_message_batch,
        "dict": lambda: [{"body": text(n)} for n in range(3)],
        "annotated": lambda: [AmqpAnnotatedMessage(value_body=text(n)) for n in range(3)],
    }[shape]()
    if shape == "batch":
        for number in range(3):
            content.add_message(ServiceBusMessage(text(number)))
    world.primary.fault("cut_after_accept", queue, times=1)
    sender.send_messages(content)
    on_primary, diverted = world.primary.peek(queue), world.backlog(queue)
    count = 1 if shape == "single" else 3
    assert ids(on_primary) == ids(diverted)
    assert len(set(ids(on_primary))) == count
    assert None not in [message.message_id for message in on_primary]
    assert client.pairing.status().entities[0].diverted == count
    if shape == "single":
        assert ids(on_primary) == [content.message_id]
        world.bring_home(queue)
        assert ids(world.primary.peek(queue)) == [content.message_id], "once, after all"


@pytest.mark.req("X-02")
def test_a_cut_in_the_middle_of_a_transfer_is_diverted_and_stored_once(world):
    queue = world.queue(requires_duplicate_detection=True)
    client = world.pair()
    sender = world.sender(client, queue)
    world.primary.fault("cut_in_transfer", queue, times=1)
    world.send(sender, "x")
    world.check(queue, backlog=["x"])


@pytest.mark.req("X-02")
def test_the_sdks_retry_after_a_lost_answer_is_seen_once(world):
    queue = world.queue(requires_duplicate_detection=True)
    client = world.pair(world.client(retry_total=3, retry_backoff_factor=0.05))
    sender = world.sender(client, queue)
    world.primary.fault("cut_after_accept", queue, times=1)
    sender.send_messages(ServiceBusMessage("no id"))
    assert len(world.primary.peek(queue)) == 1
    assert world.backlog() == []


# scheduling


@pytest.mark.req("E-01")
def test_what_is_scheduled_while_failed_over_has_no_number_yet(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    due = datetime.now(UTC) + HOUR
    [known] = sender.schedule_messages(ServiceBusMessage("known", message_id="known"), due)
    world.primary.fault("cannot_send", queue)
    numbers = sender.schedule_messages(
        [ServiceBusMessage(name, message_id=name) for name in ("a", "b")], due
    )
    world.acknowledge(queue, "known", "a", "b")
    assert [int(number) for number in numbers] == [-1, -1]
    for name, number in zip(("a", "b"), numbers, strict=True):
        assert isinstance(number, int)
        assert name in repr(number)
        assert "x-servicebus-transfer" in repr(number)
    [single] = sender.schedule_messages(ServiceBusMessage("c", message_id="c"), due)
    assert int(single) == -1
    found = world.backlog(queue)
    assert ids(found) == ["a", "b", "c"]
    for message in found:
        assert aliases(message) == {
            "x-ms-path": queue,
            "x-ms-scheduledenqueuetimeutc": pytest.approx(due.timestamp() * 1000, abs=1),
        }
    for unknown in (single, [single], [known, *numbers]):
        with pytest.raises(SequenceNumberUnknown) as raised:
            sender.cancel_scheduled_messages(unknown)
        assert isinstance(raised.value, ServiceBusError)
        assert isinstance(raised.value, PairbusError)
    world.primary.faults.clear_all()
    assert ids(world.primary.peek(queue)) == ["known"], "nothing was cancelled"
    sender.cancel_scheduled_messages(known)
    assert world.primary.count(queue) == 0


@pytest.mark.req("A-10")
def test_cancelling_what_is_unknown_to_the_primary_is_the_sdks_error(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    with pytest.raises(ServiceBusError) as raised:
        sender.cancel_scheduled_messages(4711)
    assert not isinstance(raised.value, PairbusError)
    world.send(sender, "after")
    world.check(queue, primary=["after"])


def test_a_hanging_primary_bounds_scheduling_too(world):
    queue = world.queue()
    client = world.pair(send_timeout=3 * SECOND)
    sender = world.sender(client, queue)
    due = datetime.now(UTC) + HOUR
    sender.schedule_messages(ServiceBusMessage("before"), due)
    with world.primary.fault("hang", queue):
        began = time.monotonic()
        [number] = sender.schedule_messages(ServiceBusMessage("x", message_id="x"), due)
        assert time.monotonic() - began < 40
        assert int(number) == -1
    assert ids(world.backlog(queue)) == ["x"]


# the rest of a sender's surface


@pytest.mark.req("X-01", "A-10")
def test_a_sender_is_one_of_the_sdk_with_its_names(world):
    from azure.servicebus import ServiceBusSender
    from azure.servicebus.aio import ServiceBusSender as AsyncSender

    from tests.pairing.shells import bare

    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue, client_identifier="me")
    kind = ServiceBusSender if world.shell.name == "sync" else AsyncSender
    assert isinstance(bare(sender), kind)
    assert (sender.entity_name, sender.client_identifier) == (queue, "me")
    assert sender.fully_qualified_namespace == client.fully_qualified_namespace
    assert sender.client_identifier == "me"
    given = world.sender(client, queue)
    assert given.client_identifier


@pytest.mark.req("A-05")
def test_the_callers_timeout_holds_on_each_namespace(world):
    queue = world.queue()
    client = world.pair(backlog_queue_count=1)
    sender = world.sender(client, queue)
    world.send(sender, "before")
    with (
        world.primary.fault("hang", queue),
        world.secondary.fault("hang", world.backlog_path(0)),
    ):
        began = time.monotonic()
        with pytest.raises(ServiceBusError):
            world.send(sender, "nowhere", timeout=1)
        assert 1.8 < time.monotonic() - began < 40
    assert "before" in ids(world.primary.peek(queue))


@pytest.mark.req("A-10")
def test_a_client_bound_to_an_entity_refuses_others_as_the_sdk_does(world):
    queue = world.queue()
    text = f"{world.primary.connection_string()};EntityPath={queue}"
    client = world.pair(world.client(text))
    world.send(world.sender(client, queue), "x")
    with pytest.raises(ValueError, match="EntityPath"):
        client.get_queue_sender(f"{queue}.other")
    world.check(queue, primary=["x"])


def test_closing_a_sender_closes_no_other(world):
    queue = world.queue()
    client = world.pair()
    one, two = client.get_queue_sender(queue), world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    world.send(one, "1")
    one.close()
    world.send(two, "2")
    world.check(queue, backlog=["1", "2"])


# what cannot be encoded


def alone(sender, make):
    sender.send_messages(make())


def in_a_list_of_one(sender, make):
    sender.send_messages([make()])


def in_a_list(sender, make):
    sender.send_messages([ServiceBusMessage("fine"), make()])


def scheduled(sender, make):
    sender.schedule_messages(make(), datetime.now(UTC) + HOUR)


def in_a_batch(sender, make):
    batch = sender.create_message_batch()
    batch.add_message(make())
    sender.send_messages(batch)


def annotated(**properties):
    return AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(**properties))


NOT_ENCODABLE = {
    "a property": lambda: ServiceBusMessage("x", application_properties={"a": object}),
    "a property of a large message": lambda: ServiceBusMessage(
        b"x" * 200_000, application_properties={"a": object}
    ),
    "a value": lambda: AmqpAnnotatedMessage(value_body=object),
    "a session id": lambda: annotated(group_id="\ud800"),
    "no message at all": lambda: 5,
}


@pytest.mark.req("E-02")
def test_what_cannot_be_encoded_raises_the_same_error_whether_healthy_or_failed_over(world):
    healthy, failing = world.queue(), world.queue("other")
    client = world.pair()
    senders = world.senders(client, healthy, failing)
    world.primary.fault("cannot_send", failing)
    world.send(senders[1], "diverted")
    for name, make in NOT_ENCODABLE.items():
        for send in (alone, in_a_list_of_one, in_a_list, scheduled, in_a_batch):
            errors = []
            for sender in senders:
                with pytest.raises(Exception) as caught:  # noqa: PT011
                    send(sender, make)
                errors.append((type(caught.value), str(caught.value)))
            assert errors[0] == errors[1], (name, send.__name__)
    world.check(failing, backlog=["diverted"])


@pytest.mark.req("E-02")
def test_a_session_id_that_is_no_text_is_accepted_as_on_the_primary(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    world.primary.fault("cannot_send", queue)
    sender.send_messages(annotated(message_id="odd", group_id=b"\xff"))
    world.acknowledge(queue, "odd")
    world.check(queue, backlog=["odd"])
