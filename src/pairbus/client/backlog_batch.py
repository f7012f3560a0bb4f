"""What a diverted call sends to the backlog: one message, or batches within the link's limits.

The aliases make each message a little larger, so a batch that fitted the primary may need two here.
Everything is packed before anything is sent: a message that fits nowhere is refused while all of
the call's messages are still the caller's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.billing import extra_units
from pairbus.client.route.envelope import ALIASES
from pairbus.client.sdk import private as internals
from pairbus.client.sdk.batches import new_batch
from pairbus.client.sdk.errors import EnvelopeTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    content: AmqpAnnotatedMessage | ServiceBusMessageBatch
    count: int
    extra: int = 0
    """Operations that are billed beyond one for each message."""


def pack(
    lane: Any, messages: Sequence[AmqpAnnotatedMessage], *, path: str, queue: str
) -> list[Parcel]:
    """`lane` is an open sender of the SDK, blocking or asyncio: nothing here waits."""
    if len(messages) == 1:
        return [_single(lane, messages[0], path=path, queue=queue)]
    return [
        replace(parcel, extra=extra) if (extra := extra_units(lane, parcel.content)) else parcel
        for parcel in _parcels(lane, messages, path=path, queue=queue)
    ]


def _parcels(
    lane: Any, messages: Sequence[AmqpAnnotatedMessage], *, path: str, queue: str
) -> list[Parcel]:
    parcels: list[Parcel] = []
    _, batch_bytes_max = internals.link_limits(lane)
    batch = new_batch(lane, batch_bytes_max)
    for message in messages:
        try:
            batch.add_message(message)
            continue
        except MessageSizeExceededError:
            if len(batch):
                parcels.append(Parcel(content=batch, count=len(batch)))
                batch = new_batch(lane, batch_bytes_max)
        try:
            batch.add_message(message)
        except MessageSizeExceededError:
            # Larger than a batch may be; by itself it may still be taken.
            parcels.append(_single(lane, message, path=path, queue=queue))
    if len(batch):
        parcels.append(Parcel(content=batch, count=len(batch)))
    return parcels


def is_small(lane: Any, message: AmqpAnnotatedMessage) -> bool:
    """Whether one message surely fits, with its envelope. Encoding it only to learn its size costs
    as much as sending it."""
    return _body_bytes(message) * 2 <= internals.message_limit(lane)


def _single(lane: Any, message: AmqpAnnotatedMessage, *, path: str, queue: str) -> Parcel:
    if not is_small(lane, message):
        limit, _ = internals.link_limits(lane)
        size = internals.encoded_size(lane, message)
        if size > limit:
            bare = _bare_size(lane, message)
            raise EnvelopeTooLarge(
                entity=path, backlog_queue=queue, size=size, limit=limit, bare_size=bare
            )
    return Parcel(content=message, count=1, extra=extra_units(lane, message))


def _bare_size(lane: Any, message: AmqpAnnotatedMessage) -> int:
    """What it was without its envelope, or a few bytes less: some of that stood elsewhere in it."""
    bare = copy.copy(message)
    properties = message.application_properties or {}
    bare.application_properties = {k: v for k, v in properties.items() if k not in ALIASES}
    return internals.encoded_size(lane, bare)


def _body_bytes(message: AmqpAnnotatedMessage) -> int:
    data = message._data_body
    if data is None:
        return 1 << 62  # a sequence or a value: only encoding tells
    parts = cast(list[bytes], data)
    return len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
