"""Two brokers for `pairbus syphon`, and what it finds in its environment and in the backlog."""

import os
from contextlib import contextmanager

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Broker
from pairbus.broker.entities.policies import Policy, Right
from pairbus.client.sdk.messages import diverted

KEY = "bm90LWZvci1hbnkgbG9nLW9yLWxpc3Q="
QUEUES = [f"contoso/x-servicebus-transfer/{n}" for n in range(2)]


@contextmanager
def two_brokers():
    policies = [Policy(name="Root", key=KEY, rights=frozenset(Right))]
    with (
        Broker(queues=["orders", "invoices"], policies=policies) as primary,
        Broker(queues=QUEUES, policies=policies) as secondary,
    ):
        yield primary, secondary


def environment(brokers, **more):
    return os.environ | {
        "PAIRBUS_PRIMARY": brokers[0].connection_string,
        "PAIRBUS_SECONDARY": brokers[1].connection_string,
        "COLUMNS": "100",
        **more,
    }


def divert(brokers, path, count, queue=QUEUES[0]):
    with (
        ServiceBusClient.from_connection_string(brokers[1].connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(
            [diverted(ServiceBusMessage(f"{path} {n}"), path) for n in range(count)]
        )


def at_once(broker, queue, count):
    """How many messages are not locked."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        found = []
        while len(found) < count:
            more = receiver.receive_messages(max_message_count=count, max_wait_time=60)
            if not more:
                break
            found += more
        return len(found)
