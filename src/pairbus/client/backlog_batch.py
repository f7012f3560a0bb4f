"""What a diverted call sends to a backlog queue: one message, or batches within the link's limits.

The envelope makes each message a little larger, so a batch that fits the primary may need two here.
All batches are made before the first is sent: a message that does not fit is refused before any
message of the call has left the caller.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.billing import extra_units
from pairbus.client.route.envelope import ALIASES
from pairbus.client.sdk import private
from pairbus.client.sdk.batches import DivertedBatch, diverted_all
from pairbus.client.sdk.messages import body_bytes
from pairbus.client.sdk.pairing_errors import EnvelopeTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogBatch:
    content: AmqpAnnotatedMessage | ServiceBusMessageBatch
    count: int
    extra: int = 0
    """Billed operations in addition to one per message."""


def batches_of(
    sender: Any,
    given: Any,
    *,
    path: str,
    queue: str,
    schedule: datetime | None = None,
    diverted_by: str | None = None,
) -> list[BacklogBatch]:
    """`given` is what the application sends, with ids. `sender` is an open sender of the SDK,
    blocking or asyncio: nothing here waits. `diverted_by`: the mark for ordered failback.
    """
    _, batch_bytes_max = private.link_limits(sender)
    is_ready = isinstance(given, DivertedBatch) and given.path == path and diverted_by is None
    if is_ready and given.size_in_bytes <= batch_bytes_max:
        # Its messages have their envelopes already.
        extra = extra_units(sender, given)
        return [BacklogBatch(content=given, count=len(given), extra=extra)]
    messages = diverted_all(given, path, schedule, diverted_by)
    is_list = schedule is not None or isinstance(given, list | ServiceBusMessageBatch)
    if is_list and len(messages) == 1:
        # On the primary, the SDK encodes what is scheduled or in a list before it sends, and raises
        # its encoder's error. Of one message sent by itself, it wraps that error.
        private.encoded_size(sender, messages[0])
    return make_batches(sender, messages, path=path, queue=queue)


def make_batches(
    sender: Any, messages: Sequence[AmqpAnnotatedMessage], *, path: str, queue: str
) -> list[BacklogBatch]:
    """`messages` have their envelopes."""
    if len(messages) == 1:
        return [_single(sender, messages[0], path=path, queue=queue)]
    batches: list[BacklogBatch] = []
    _, batch_bytes_max = private.link_limits(sender)
    batch = private.new_batch(sender, batch_bytes_max)

    def finish() -> None:
        nonlocal batch
        if len(batch):
            extra = extra_units(sender, batch)
            batches.append(BacklogBatch(content=batch, count=len(batch), extra=extra))
            batch = private.new_batch(sender, batch_bytes_max)

    for message in messages:
        if not _add(batch, message):
            finish()
            if not _add(batch, message):
                # Larger than a batch may be; the queue may still accept it by itself.
                batches.append(_single(sender, message, path=path, queue=queue))
    finish()
    return batches


def _add(batch: ServiceBusMessageBatch, message: AmqpAnnotatedMessage) -> bool:
    try:
        batch.add_message(message)
    except MessageSizeExceededError:
        return False
    return True


def _single(sender: Any, message: AmqpAnnotatedMessage, *, path: str, queue: str) -> BacklogBatch:
    limit, _ = private.link_limits(sender)
    length = body_bytes(message)
    # A body of half the limit fits for sure. Encoding a message only to learn its size costs as
    # much as sending it.
    if length is None or length * 2 > limit:
        size = _size(sender, message)
        if size > limit:
            bare = _bare_size(sender, message)
            raise EnvelopeTooLarge(
                entity=path, backlog_queue=queue, size=size, limit=limit, bare_size=bare
            )
    return BacklogBatch(content=message, count=1, extra=extra_units(sender, message))


def _size(sender: Any, message: AmqpAnnotatedMessage) -> int:
    try:
        return private.encoded_size(sender, message)
    except Exception:
        return 0  # it cannot be encoded: the send raises the SDK's own error


def _bare_size(sender: Any, message: AmqpAnnotatedMessage) -> int:
    """The size without the envelope, or a few bytes less: the envelope moves some fields."""
    bare = copy.copy(message)
    properties = message.application_properties or {}
    bare.application_properties = {k: v for k, v in properties.items() if k not in ALIASES}
    return private.encoded_size(sender, bare)
