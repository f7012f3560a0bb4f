"""The messages of a call: their ids, and the batches that they are in.

pairbus changes nothing on a message of the application, except that it adds a missing message id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.sdk import encoded, private
from pairbus.client.sdk.messages import Message, detached, diverted, id_of, raw_of
from pairbus.client.sdk.pairing_errors import UnknownSequenceNumber

_NO_ID: Final = (None, "", b"")

# --- ids ------------------------------------------------------------------------------------------


def give_ids(messages: Any) -> Any:
    """What `send_messages` accepts, with an id on every message that is the same at each attempt.

    A message gets an id only if it has none. The id stays on the application's own object, so that
    the message keeps it if the application sends it again after an error. (The SDK's
    ServiceBusMessage always has an id.) A dict becomes a message here, once; the SDK would make a
    new one at each attempt. Iterables become lists. Anything else is returned unchanged, so that
    the SDK raises its own error.
    """
    if isinstance(messages, ServiceBusMessageBatch):
        _give_ids_in_batch(messages)
        return messages
    if isinstance(messages, list):
        return [_with_id(message) for message in messages]
    if isinstance(messages, Message | Mapping | str | bytes) or not isinstance(messages, Iterable):
        return _with_id(messages)
    return [_with_id(message) for message in messages]


def _with_id(message: Any) -> Any:
    try:
        if message.raw_amqp_message.properties.message_id:
            return message  # nearly every message, so this comes first
    except AttributeError:
        pass
    raw = getattr(message, "raw_amqp_message", message)
    if isinstance(raw, AmqpAnnotatedMessage):
        _identify(raw)
    elif isinstance(message, Mapping):
        try:
            return ServiceBusMessage(**message)
        except (TypeError, ValueError):
            return message
    return message


def _identify(raw: AmqpAnnotatedMessage) -> bool:
    """Give the message an id if it has none. Returns True if it had none."""
    properties = raw.properties
    if properties is None:
        raw.properties = AmqpMessageProperties(message_id=str(uuid4()))
        return True
    if not isinstance(properties, AmqpMessageProperties) or properties.message_id not in _NO_ID:
        return False
    properties.message_id = str(uuid4())
    return True


# --- batches --------------------------------------------------------------------------------------


class DivertedBatch(ServiceBusMessageBatch):
    """A batch that is made while its entity is failed over: it holds the copies for the backlog, so
    that they are encoded once.

    It becomes a plain batch if it is sent to the primary after all, and if a message does not fit
    with its envelope or cannot be encoded: then the SDK judges the message.
    """

    path: str | None
    """The entity in the envelopes. None if the batch has become a plain one."""
    without_envelopes: list[AmqpAnnotatedMessage]
    """The messages as they were added."""

    @classmethod
    def of(cls, made: ServiceBusMessageBatch, path: str) -> DivertedBatch:
        """`made` is an empty batch that the SDK has made."""
        batch = private.batch_like(made, cls)
        batch.path = path
        batch.without_envelopes = []
        return batch

    def add_message(self, message: Message | Mapping[str, Any]) -> None:
        if self.path is not None:
            message = _with_id(message)
            try:
                plain = detached(raw_of(_checked(message)))
                super().add_message(diverted(plain, self.path))
            except Exception:
                self.make_plain()
            else:
                self.without_envelopes.append(plain)
                return
        super().add_message(message)

    def make_plain(self) -> None:
        """Replace the copies for the backlog by the messages as they were added. They always fit,
        because an envelope makes a message larger.
        """
        if self.path is not None:
            _fill(self, self.without_envelopes, path=None)


def _messages_in(batch: ServiceBusMessageBatch) -> list[AmqpAnnotatedMessage]:
    """The messages as they were added. The SDK encodes a message when it is added; the application
    may change its object later, and add it again. So they are read back from the bytes.
    """
    if isinstance(batch, DivertedBatch) and batch.path is not None:
        return batch.without_envelopes
    return [encoded.decode(bytes(each)) for each in private.encoded_in(batch)]


def _give_ids_in_batch(batch: ServiceBusMessageBatch) -> None:
    """If a message has no id, fill the batch again, so that it keeps the ids if it is sent again.

    If the ids make it too large, it stays as it is: refusing what the SDK sends would be worse.
    """
    if isinstance(batch, DivertedBatch) and batch.path is not None:
        return  # they got ids when they were added
    added = private.messages_in(batch)
    try:
        if all([each.raw_amqp_message.properties.message_id for each in added]):
            return
    except AttributeError:
        pass  # a message without properties
    messages = _messages_in(batch)
    for message in messages:
        _identify(message)
    with suppress(MessageSizeExceededError):
        _fill(batch, messages)


def _fill(batch: ServiceBusMessageBatch, messages: Iterable[Message], **attributes: object) -> None:
    """Give the batch other content, in one step: the application has the batch, and may send it
    after a Ctrl-C, too.
    """
    filled = private.batch_like(batch, ServiceBusMessageBatch)
    for message in messages:
        filled.add_message(message)
    private.replace_content(batch, filled, **attributes)


# --- the messages of a call -----------------------------------------------------------------------


def count_of(messages: Any) -> int:
    return len(messages) if isinstance(messages, (list, ServiceBusMessageBatch)) else 1


def messages_of(messages: Any) -> list[Message]:
    """Returns each message of a call. Raises the SDK's error for anything that is not a message."""
    if isinstance(messages, ServiceBusMessageBatch):
        return list[Message](_messages_in(messages))
    listed = messages if isinstance(messages, list) else [messages]
    return [_checked(message) for message in listed]


def unknown_numbers(messages: Iterable[Message], queue: str | None) -> list[int]:
    """What `schedule_messages` returns for messages that went to this backlog queue, or with None
    to the outbox.
    """
    return [UnknownSequenceNumber(backlog_queue=queue, message_id=id_of(each)) for each in messages]


def _checked(message: Any) -> Message:
    if isinstance(getattr(message, "raw_amqp_message", message), AmqpAnnotatedMessage):
        checked: Message = message
        return checked
    if isinstance(message, Mapping):
        try:
            return ServiceBusMessage(**message)
        except TypeError:
            pass
    raise TypeError(
        "Only AmqpAnnotatedMessage, ServiceBusMessage instances or Mappings representing messages "
        f"are supported. Received instead: {type(message).__name__}"
    )


def diverted_all(
    messages: Any, path: str, schedule: datetime | None = None, diverted_by: str | None = None
) -> list[AmqpAnnotatedMessage]:
    """The copies of all messages of a call, for what `give_ids` has returned."""
    return [diverted(message, path, schedule, diverted_by) for message in messages_of(messages)]
