"""Messages on their way through a backlog queue, without a queue: encoded by Azure's SDK, diverted
as a paired sender does it, and given out as the broker does it."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.amqp.codec.sections import read_property, slice_message
from pairbus.amqp.codec.types import Symbol
from pairbus.amqp.codec.values import encode
from pairbus.broker.entities.descriptions import QueueDescription
from pairbus.broker.message import stamped
from pairbus.broker.messages.incoming import IncomingMessage, check, to_message
from pairbus.broker.messages.lifecycle import times_at_enqueue
from pairbus.broker.messages.mailbox import LockTokens
from pairbus.client.sdk.messages import diverted

ENQUEUED_MS = 1_800_000_000_000
NOW_MS = ENQUEUED_MS + 5_000
SEQUENCE = 4711
CREATION = 9
QUEUE = QueueDescription(name="contoso/x-servicebus-transfer/0")


def encoded(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    """As the SDK would send it."""
    annotated = getattr(message, "raw_amqp_message", message)
    outgoing = PyamqpTransport.to_outgoing_amqp_message(annotated)
    return bytes(encode_payload(bytearray(), outgoing))


def delivered(
    data: bytes,
    *,
    queue: QueueDescription = QUEUE,
    delivery_count: int = 0,
    is_locked: bool = True,
    partition_id: int | None = None,
) -> bytes:
    """As a receiver would get what was sent to a queue."""
    one = IncomingMessage(slice_message(data), len(data), enqueued_sequence=SEQUENCE - 1)
    assert check(one, queue, LockTokens()) is None
    times = times_at_enqueue(queue, ttl_ms=one.parts.ttl_ms, due_ms=None, now_ms=ENQUEUED_MS)
    message = to_message(one, SEQUENCE, times, partition_id)
    message.delivery_count = delivery_count
    message.lock = bytes(range(16))
    return stamped(message, locked_until_ms=ENQUEUED_MS + 60_000 if is_locked else None)


def backlogged(
    message: ServiceBusMessage | AmqpAnnotatedMessage, path: str = "orders", **delivery: Any
) -> bytes:
    """A message as the syphon receives it."""
    return delivered(encoded(diverted(message, path)), **delivery)


def creation_ms(data: bytes) -> int | None:
    """When the SDK wrote it, where it says so."""
    parts = slice_message(data)
    found = read_property(parts.bare, parts.properties, CREATION)
    return None if found is None else int(found)


def by_hand(
    properties: dict[Any, Any] | None,
    *,
    annotations: dict[str, Any] | None = None,
    fields: list[Any] | None = None,
    body: bytes = b"\x00\x53\x75\xa0\x01x",
) -> bytes:
    """A message in a backlog queue that no paired sender wrote."""
    pieces = []
    if annotations is not None:
        notes = {Symbol(name): value for name, value in annotations.items()}
        pieces.append(b"\x00\x53\x72" + encode(notes))
    if fields is not None:
        pieces.append(b"\x00\x53\x73" + encode(fields))
    if properties is not None:
        pieces.append(b"\x00\x53\x74" + encode(properties))
    return b"".join((*pieces, body))
