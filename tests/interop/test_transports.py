"""The official SDK over every transport of the broker's one port.

How an unmodified client is pointed at a port that is not Azure's:

* plain TCP: the connection string as the broker gives it, `Endpoint=sb://HOST:PORT;...;
  UseDevelopmentEmulator=true`. The flag makes the SDK honour the port and leave out TLS.
* TLS: the same string without the flag, and `custom_endpoint_address="sb://HOST:PORT"`,
  `transport_type=TransportType.Amqp`, `connection_verify=<the broker's CA file>`. (Without the flag
  the SDK drops the port of `Endpoint` and dials 5671; the custom endpoint says where to dial.)
* WebSocket: `custom_endpoint_address` again, `transport_type=TransportType.AmqpOverWebsocket`; with
  the flag it is `ws://`, without it `wss://` and needs `connection_verify`. The blocking client
  needs the package websocket-client, the asyncio one aiohttp.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusConnectionError

from tests.interop.bus import sweeping_up_after_the_sdk, take
from tests.interop.shells import both_clients

pytestmark = [
    both_clients,
    pytest.mark.req("X-08"),
    # The SDK's own way of saying "no TLS" to aiohttp.
    pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning"),
]
EVERY_TRANSPORT = pytest.mark.parametrize("transport", ["tcp", "tls", "websocket", "websocket-tls"])


@EVERY_TRANSPORT
def test_send_receive_and_settle(bus):
    sender = bus.sender()
    sender.send_messages(ServiceBusMessage("single"))
    sender.send_messages([ServiceBusMessage("list 1"), ServiceBusMessage("list 2")])
    batch = sender.create_message_batch()
    batch.add_message(ServiceBusMessage("batch"))
    sender.send_messages(batch)
    receiver = bus.receiver()
    done, back, later, dead = take(receiver, 4)
    assert [str(m) for m in (done, back, later, dead)] == ["single", "list 1", "list 2", "batch"]
    receiver.complete_message(done)
    receiver.defer_message(later)
    receiver.dead_letter_message(dead, reason="why")
    receiver.abandon_message(back)
    [again] = take(receiver)
    assert (str(again), again.delivery_count) == ("list 1", 1)
    assert receiver.renew_message_lock(again) is not None
    [deferred] = receiver.receive_deferred_messages(later.sequence_number)
    receiver.complete_message(deferred)
    receiver.complete_message(again)
    [number] = sender.schedule_messages(
        ServiceBusMessage("scheduled"), datetime.now(UTC) + timedelta(hours=1)
    )
    assert [str(m) for m in receiver.peek_messages(5, sequence_number=1)] == ["scheduled"]
    sender.cancel_scheduled_messages(number)
    assert receiver.peek_messages(5, sequence_number=1) == []
    assert bus.left_bodies(sub_queue="deadletter") == ["batch"]


@EVERY_TRANSPORT
def test_large_messages_and_refused_ones(bus):
    body = bytes(range(256)) * 900
    bus.send(body)
    with pytest.raises(MessageSizeExceededError):
        bus.send(body * 2)
    [message] = take(bus.receiver())
    assert b"".join(message.body) == body


@EVERY_TRANSPORT
def test_many_messages_with_prefetch(bus):
    sender = bus.sender()
    for start in range(0, 400, 100):
        sender.send_messages([ServiceBusMessage(f"{n}") for n in range(start, start + 100)])
    taken = take(bus.receiver(prefetch_count=200), 400)
    assert [str(m) for m in taken] == [f"{n}" for n in range(400)]


@pytest.mark.parametrize("transport", ["tls", "websocket-tls"])
def test_a_certificate_from_somebody_else_is_not_trusted(bus):
    """The SDK's own bundle of authorities does not know the broker's."""
    with sweeping_up_after_the_sdk():
        client = bus.connect(ssl_context=ssl.create_default_context(), retry_total=0)
        with pytest.raises(ServiceBusConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            bus.sender(client=client)


@pytest.mark.parametrize("transport", ["tls"])
def test_a_wrong_key_is_refused_over_tls_as_well(bus):
    """With a custom endpoint, the SDK gives a refused token this name."""
    client = bus.connect(bus.connection_string(key="bm90IHRoZSBrZXk="))
    with pytest.raises(ServiceBusConnectionError, match="client-error"):
        bus.sender(client=client)


@pytest.mark.queue("other")
def test_a_connection_string_may_name_the_queue(bus):
    client = bus.connect(f"{bus.broker.connection_string};EntityPath={bus.queue}")
    bus.sender(client=client).send_messages(ServiceBusMessage("x"))
    assert bus.left_bodies() == ["x"]
    with pytest.raises(ValueError, match="EntityPath"):
        bus.sender(bus.path("other"), client=client)


def test_what_one_transport_sends_another_receives(bus):
    bus.send("over tcp")
    client = bus.connect(
        custom_endpoint_address=f"sb://{bus.endpoint}",
        transport_type=TransportType.AmqpOverWebsocket,
    )
    [message] = take(bus.receiver(client=client))
    assert str(message) == "over tcp"
