"""What the official SDK shows when the broker refuses it, and what the broker's log says then."""

from __future__ import annotations

import logging

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

pytestmark = pytest.mark.req("B-02")

NO_KEY = "there is no policy 'sender' with this key"


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="pairbus.broker")

    def refusals() -> list[str]:
        """Without the namespace and the client's address, each once."""
        found = [
            line.split(" refused 127.0.0.1:")[1].partition(", ")[2] for line in caplog.messages
        ]
        caplog.clear()
        return list(dict.fromkeys(found))

    return refusals


def test_the_text_tells_a_wrong_key_a_missing_claim_and_an_unknown_queue_apart(bus, lines):
    """What `$cbs` refuses has its text in the inner exception: the SDK does not show it."""
    for queue in (bus.queue, "nowhere"):
        with pytest.raises(ServiceBusAuthenticationError) as wrong_key:
            bus.sender(queue, client=bus.connect(bus.connection_string("sender", "d3Jvbmc=")))
        assert NO_KEY in str(wrong_key.value.inner_exception)
        [line] = lines()
        assert line.startswith(f"entity '{queue}', policy 'sender': {NO_KEY}")

    sender = bus.connect(bus.connection_string("sender"))
    with pytest.raises(ServiceBusAuthorizationError) as missing:
        bus.receiver(client=sender)
    text = f"policy 'sender' does not have the Listen claim for {bus.queue}"
    assert text in str(missing.value)
    assert lines() == [f"entity '{bus.queue}', policy 'sender': {text}"]

    with pytest.raises(ServiceBusAuthenticationError) as unknown:
        bus.receiver("nowhere", client=sender)
    text = "The messaging entity 'sb://local/nowhere' could not be found."
    assert text in str(unknown.value.inner_exception)
    assert lines() == [f"entity 'nowhere', policy 'sender': {text}"]


@pytest.mark.queue(max_message_size_in_kilobytes=1024)
def test_messages_that_are_too_large_are_logged(bus, lines):
    sender = bus.sender(client=bus.connect(bus.connection_string("sender")))
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(bytes(1024 * 1024)))
    sender.close()
    sender = bus.sender(client=bus.connect(bus.connection_string("sender")))
    with pytest.raises(MessageSizeExceededError):  # this one is not even read to its end
        sender.send_messages(ServiceBusMessage(bytes(3 * 1024 * 1024)))
    head = f"entity '{bus.queue}', policy 'sender': the message"
    assert lines() == [
        f"{head} has 1048640 bytes; queue '{bus.queue}' accepts at most 1048576",
        f"{head} is larger than 1114112 bytes",
    ]


def test_the_administration_logs_whom_it_refuses(bus, lines, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bus.broker.ca_file))
    text = bus.connection_string("sender")
    with (
        ServiceBusAdministrationClient.from_connection_string(text) as administration,
        pytest.raises(Exception, match="sender"),
    ):
        administration.get_queue(bus.queue)
    [line] = lines()
    assert line.startswith(f"entity '{bus.queue}', policy 'sender': Manage,EntityRead claims")
