"""Tests of an application that must survive an outage, with the fixtures of pairbus.

pytest examples/order_tests.py
"""

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

pytestmark = pytest.mark.servicebus(queues=["orders"])


def place_order(client: ServiceBusClient, order: str) -> None:
    """The application. It does not know that its client is paired."""
    with client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(order, message_id=order))


def orders_received(connection_string: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver("orders") as receiver,
    ):
        messages = receiver.receive_messages(max_message_count=10, max_wait_time=2)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def test_an_order_arrives(servicebus_namespace):
    connection_string = servicebus_namespace.connection_string
    with ServiceBusClient.from_connection_string(connection_string) as client:
        place_order(client, "two teapots")

    assert orders_received(connection_string) == ["two teapots"]


def test_an_order_placed_in_an_outage_arrives_after_it(servicebus_pair):
    client = servicebus_pair.client()
    with servicebus_pair.primary.faults.unreachable():
        place_order(client, "two teapots")

    assert servicebus_pair.bring_home() == 1
    assert orders_received(servicebus_pair.primary.connection_string) == ["two teapots"]
