"""A stored message as a receiver sees it: its own bytes with the broker's stamps in front."""

from __future__ import annotations

from typing import Final

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.stamp import stamp, with_property
from pairbus.amqp.codec.types import Timestamp
from pairbus.amqp.codec.values import encode
from pairbus.broker.messages.mailbox import Lock, guid
from pairbus.broker.messages.message import Message

_ABSOLUTE_EXPIRY_TIME: Final = 8


def stamped(message: Message, lock: Lock | None) -> bytes:
    """`lock` is None for a message that is peeked at, or deleted as it is given out."""
    bare = message.bare
    if message.expires_ms is not None:
        # Now and not when it came in: copies of several subscriptions share their bytes.
        expiry = encode(Timestamp(message.expires_ms))
        bare = with_property(bare, slice_message(bare).properties, _ABSOLUTE_EXPIRY_TIME, expiry)
    return stamp(
        durable=message.durable,
        priority=message.priority,
        ttl_ms=message.ttl_ms,
        delivery_count=message.delivery_count,
        lock_token=None if lock is None else guid(lock.token),
        sequence=message.wire_sequence,
        enqueued_ms=message.enqueued_ms,
        locked_until_ms=None if lock is None else lock.until_ms,
        enqueued_sequence=message.enqueued_sequence,
        state=message.state,
        partition_id=message.partition_id,
        dead_letter_source=message.dead_letter_source,
        delivery_annotations=message.delivery_annotations,
        delivery_annotation_count=message.delivery_annotation_count,
        annotations=message.annotations,
        annotation_count=message.annotation_count,
        bare=bare,
    )
