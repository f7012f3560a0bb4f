"""The SDK's batch, whose messages have ids and are remembered as they were.

The SDK encodes a message when it is added, and keeps the application's object besides. If that is
changed and added again, what was encoded is known from here only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.client.sdk import messages
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.batches import EncodedOnce


class Batch(EncodedOnce):
    as_added: list[AmqpAnnotatedMessage]

    @classmethod
    def of(cls, made: ServiceBusMessageBatch) -> Batch:
        """From an empty one that the SDK has made."""
        batch = internals.adopt(made, cls)
        batch.as_added = []
        return batch

    def add_message(
        self, message: ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
    ) -> None:
        identified = messages.give_ids(message)
        super().add_message(identified)
        self.as_added.append(messages.as_added(identified))
