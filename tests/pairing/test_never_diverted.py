"""Failures that say nothing about the primary: the caller gets them, and nothing goes to the
backlog.

The client fails over at the first failure that counts, so none of these may count.
"""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from pairbus.errors import PairbusError
from pairbus.events import Diverted, FailedOver, PrimaryFailed

pytestmark = pytest.mark.req("F-02", "A-10")


def check_nothing_counted(world, client, *queues: str) -> None:
    assert not world.events_of(FailedOver)
    assert not world.events_of(PrimaryFailed)
    assert not world.events_of(Diverted)
    assert world.backlog() == []
    for entity in client.pairing.status().entities:
        assert entity.state == "healthy"
        assert entity.failures == 0


@pytest.mark.parametrize(
    ("policy", "key", "error"),
    [
        ("listener", None, ServiceBusAuthorizationError),
        ("sender", "bm90IHRoZSBrZXk=", ServiceBusAuthenticationError),
    ],
    ids=["without the claim", "with a wrong key"],
)
def test_an_unauthorized_sender(world, policy, key, error):
    queue = world.queue()
    client = world.pair(world.client(world.primary.connection_string(policy, key)))
    with pytest.raises(error) as raised, client.get_queue_sender(queue):
        pass
    assert type(raised.value) is error
    sender = client.get_queue_sender(queue)
    for _ in range(2):
        with pytest.raises(error) as raised:
            sender.send_messages(ServiceBusMessage("x"))
        assert type(raised.value) is error
    with pytest.raises(error):
        sender.create_message_batch()
    sender.close()
    check_nothing_counted(world, client)
    world.check(queue)


def test_an_entity_that_is_not_there(world):
    client = world.pair()
    sender = client.get_queue_sender(f"{world.name}.nowhere")
    with pytest.raises(ServiceBusAuthenticationError) as raised:
        sender.send_messages(ServiceBusMessage("x"))
    assert not isinstance(raised.value, PairbusError)
    sender.close()
    check_nothing_counted(world, client)


def test_a_message_that_is_too_large(world):
    queue = world.queue()
    client = world.pair()
    sender = world.sender(client, queue)
    large = ServiceBusMessage(b"x" * 300_000)
    for content in (large, [large], [large, large]):
        with pytest.raises(MessageSizeExceededError) as raised:
            sender.send_messages(content)
        assert not isinstance(raised.value, PairbusError), "the SDK's own"
    batch = sender.create_message_batch(max_size_in_bytes=1000)
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(large)
    world.send(sender, "after")
    check_nothing_counted(world, client)
    world.check(queue, primary=["after"])


def test_a_sender_that_is_closed(world):
    queue = world.queue()
    client = world.pair()
    sender = client.get_queue_sender(queue)
    world.send(sender, "before")
    sender.close()
    sender.close()
    with pytest.raises(ValueError, match="shutdown"):
        sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ValueError, match="shutdown"):
        sender.create_message_batch()
    world.check(queue, primary=["before"])


def test_a_refusal_of_one_message_does_not_stop_the_next(world):
    """An entity with sessions refuses a message without one: the message is at fault."""
    queue = world.queue(requires_session=True)
    client = world.pair()
    sender = world.sender(client, queue)
    with pytest.raises(ServiceBusError):
        sender.send_messages(ServiceBusMessage("without a session"))
    sender.send_messages(ServiceBusMessage("with one", session_id="s"))
    assert world.primary.count(queue) == 1
    check_nothing_counted(world, client)
