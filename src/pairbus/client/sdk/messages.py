"""The SDK's messages on their way to the backlog: their ids, their envelope, batches, and the ping.

pairbus changes nothing on a message of the application, except that it adds a missing message id. A
diverted message is a copy that shares the body, and differs from the original only in what
`route/envelope` says. This module knows the SDK's message classes and how the SDK encodes them; it
knows nothing of namespaces, senders or states.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.route.envelope import DIVERTED_BY, PATH, SCHEDULED, TIME_TO_LIVE, wrap
from pairbus.client.route.own_backlog import PeekedPage
from pairbus.client.sdk import private
from pairbus.client.sdk.errors import UnknownSequenceNumber

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"

_SCHEDULE_KEYS: Final = (b"x-opt-scheduled-enqueue-time", "x-opt-scheduled-enqueue-time")
_TTL_MS_MAX: Final = 2**32 - 1  # of an AMQP header
_NO_ID: Final = (None, "", b"")

Message = ServiceBusMessage | AmqpAnnotatedMessage

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
        return _batch_with_ids(messages)
    if isinstance(messages, list):
        return [_with_id(message) for message in messages]
    if isinstance(messages, Message | Mapping | str | bytes) or not isinstance(messages, Iterable):
        return _with_id(messages)
    return [_with_id(message) for message in messages]


def id_of(message: Message) -> str:
    """The message id as text, for any type on the wire. Empty if there is none."""
    properties = _raw(message).properties
    value = None if properties is None else properties.message_id
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


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

_Encoded = tuple[AmqpAnnotatedMessage, Any, dict[Any, Any] | None, dict[Any, Any] | None]
"""A message in a batch: the application's object, what the SDK has encoded of it, and copies of its
properties and annotations, which the application may still change. Few messages are ever diverted,
so the rest is done for those.
"""


class Batch(ServiceBusMessageBatch):
    """The SDK's batch, whose messages have ids and are remembered as they were added.

    The SDK encodes a message when it is added, and keeps the application's object beside it. If the
    application changes that object and adds it again, only this class knows what was encoded.

    A batch that is made while its entity is failed over holds the copies for the backlog, so that
    they are encoded once. It becomes a plain batch if it is sent to the primary after all, and if a
    message does not fit with its envelope or cannot be encoded: then the SDK judges the message.
    """

    _as_added: list[_Encoded | AmqpAnnotatedMessage]
    path: str | None
    """The entity in the envelopes. None if the messages have none."""

    @classmethod
    def of(cls, made: ServiceBusMessageBatch, *, path: str | None = None) -> Batch:
        """`made` is an empty batch that the SDK has made. `path` is given if the entity is failed
        over.
        """
        batch = private.adopt(made, cls)
        batch._as_added = []
        batch.path = path
        return batch

    def add_message(self, message: Message | Mapping[str, Any]) -> None:
        identified = _with_id(message)
        if self.path is not None:
            try:
                detached = _detached(_raw(identified))
                super().add_message(diverted(detached, self.path))
            except Exception:
                self.make_plain()
            else:
                self._as_added.append(detached)
                return
        super().add_message(identified)
        self._as_added.append(_encoded(self))

    def messages(self) -> list[AmqpAnnotatedMessage]:
        """The messages as they were added."""
        return [_restored(*each) if isinstance(each, tuple) else each for each in self._as_added]

    def make_plain(self) -> None:
        """Replace the copies for the backlog by the messages as they were added. They always fit,
        because an envelope makes a message larger.
        """
        if self.path is not None:
            self.path = None
            private.make_empty(self)
            for message in self.messages():
                super().add_message(message)


def _batch_with_ids(batch: ServiceBusMessageBatch) -> ServiceBusMessageBatch:
    """A batch holds encoded messages, so one whose messages lack ids is built again.

    Our own batches give ids as messages are added; this is for a batch from elsewhere. If the ids
    make it too large, it is sent as it is: refusing what the SDK sends would be worse.
    """
    if isinstance(batch, Batch):
        return batch
    messages = private.messages_in(batch)
    given = [_identify(message.raw_amqp_message) for message in messages]
    if not any(given):
        return batch
    rebuilt = ServiceBusMessageBatch(batch.max_size_in_bytes)
    try:
        for message in messages:
            rebuilt.add_message(message)
    except MessageSizeExceededError:
        return batch
    return rebuilt


def _encoded(batch: ServiceBusMessageBatch) -> _Encoded:
    """The message that was added last, as the SDK has encoded it."""
    raw, outgoing = private.last_added(batch)
    properties, annotations = raw.application_properties, raw.annotations
    return (
        raw,
        outgoing,
        dict(properties) if properties else properties,
        dict(annotations) if annotations else annotations,
    )


def _restored(
    raw: AmqpAnnotatedMessage, outgoing: Any, properties: Any, annotations: Any
) -> AmqpAnnotatedMessage:
    sections, restored = private.annotated(outgoing), _copy(raw)
    restored.header = sections.header  # type: ignore[assignment]  # the SDK's setter accepts None
    restored.properties = sections.properties  # type: ignore[assignment]
    restored.application_properties = properties
    restored.annotations = annotations
    restored.delivery_annotations = sections.delivery_annotations
    restored.footer = sections.footer
    return restored


def _detached(raw: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A copy that stays as it is if the application changes its message. A body never changes."""
    detached = _copy(raw)
    if raw.header is not None:
        detached.header = _copy(raw.header)
    if raw.properties is not None:
        detached.properties = _copy(raw.properties)
    if raw.application_properties:
        detached.application_properties = dict(raw.application_properties)
    if raw.annotations:
        detached.annotations = dict(raw.annotations)
    return detached


# --- the messages of a call -----------------------------------------------------------------------


def count_of(messages: Any) -> int:
    return len(messages) if isinstance(messages, (list, ServiceBusMessageBatch)) else 1


def messages_of(messages: Any) -> list[Message]:
    """Yields each message of a call. Raises the SDK's error for anything that is not a message."""
    if isinstance(messages, Batch):
        return list[Message](messages.messages())
    if isinstance(messages, ServiceBusMessageBatch):
        return private.messages_in(messages)
    listed = messages if isinstance(messages, list) else [messages]
    return [_checked(message) for message in listed]


def unknown_numbers(messages: Any, queue: str | None) -> list[int]:
    """What `schedule_messages` returns for messages that went to this backlog queue, or with None
    to the outbox.
    """
    return [
        UnknownSequenceNumber(backlog_queue=queue, message_id=id_of(each))
        for each in messages_of(messages)
    ]


def scheduled(message: Message, schedule: datetime | None) -> AmqpAnnotatedMessage:
    """A message whose own annotations schedule it, as `schedule_messages` does."""
    raw = _raw(message)
    if schedule is None:
        return raw
    if _milliseconds(schedule) is None:
        raise TypeError(f"schedule_time_utc must be a datetime, not {schedule!r}")
    copied = _copy(raw)
    annotations = {**(raw.annotations or {}), _SCHEDULE_KEYS[0]: schedule}
    annotations.pop(_SCHEDULE_KEYS[1], None)  # the same key, as text
    copied.annotations = annotations
    return copied


def body_bytes(message: AmqpAnnotatedMessage) -> int | None:
    """The length of a body of bytes; None for a sequence or a value, whose size only encoding
    shows, and for a body that is none.
    """
    if message.body_type is not AmqpMessageBodyType.DATA:
        return None
    try:
        return sum(map(len, message.body))
    except TypeError:
        return None


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


# --- the envelope ---------------------------------------------------------------------------------


def diverted(
    message: Message, path: str, schedule: datetime | None = None, diverted_by: str | None = None
) -> AmqpAnnotatedMessage:
    """The copy of a message that goes to a backlog queue. `schedule` is that of
    `schedule_messages`.

    Session id, time to live and schedule are removed from the message and written into the
    envelope, where the service understands them. What it would not understand (a session id that is
    a number, for example) stays where it is: the SDK or the service refuses it here as it would on
    the primary.
    """
    raw = _raw(message)
    copied = _copy(raw)
    session_id = _take_session(copied)
    time_to_live_ms = _take_time_to_live(copied)
    if schedule is not None and _milliseconds(schedule) is None:
        raise TypeError(f"schedule_time_utc must be a datetime, not {schedule!r}")
    annotated = _take_schedule(copied)
    scheduled_ms = annotated if schedule is None else _milliseconds(schedule)
    properties = wrap(
        raw.application_properties,
        path=path,
        session_id=session_id,
        time_to_live_ms=time_to_live_ms,
        scheduled_ms=scheduled_ms,
        diverted_by=diverted_by,
    )
    # The SDK would encode these numbers as 32-bit ints. This form names the AMQP type explicitly.
    if time_to_live_ms is not None:
        properties[TIME_TO_LIVE] = {"TYPE": "LONG", "VALUE": time_to_live_ms}
    if scheduled_ms is not None:
        properties[SCHEDULED] = {"TYPE": "TIMESTAMP", "VALUE": scheduled_ms}
    # Here the form saves time: the SDK raises and catches an error for a value without a type.
    properties[PATH] = {"TYPE": "STRING", "VALUE": path}
    copied.application_properties = properties
    return copied


def diverted_all(
    messages: Any, path: str, schedule: datetime | None = None, diverted_by: str | None = None
) -> list[AmqpAnnotatedMessage]:
    """The copies of all messages of a call, for what `give_ids` has returned."""
    return [diverted(message, path, schedule, diverted_by) for message in messages_of(messages)]


def peeked_page(messages: Sequence[Any], *, token: str, path: str) -> PeekedPage:
    """What a page of a backlog queue shows of the messages for `path` that a client has diverted.
    `token` is that client's.
    """
    for message in messages:
        properties = message.application_properties or {}
        diverted_by, _, at = _text(properties, DIVERTED_BY).partition(":")
        if diverted_by == token and _text(properties, PATH).lower() == path.lower():
            first = message.sequence_number
            return PeekedPage(first=first, diverted_at=float(at), last=first, is_end=False)
    # A service may return fewer messages than it has. So only an empty page is the end.
    last = messages[-1].sequence_number if messages else 0
    return PeekedPage(first=None, last=last, is_end=not messages)


def _text(properties: Mapping[Any, Any], name: str) -> str:
    value = properties.get(name.encode(), properties.get(name))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _take_session(copied: AmqpAnnotatedMessage) -> str | None:
    properties = copied.properties
    session_id = None if properties is None else properties.group_id
    if properties is None or not isinstance(session_id, (str, bytes)):
        return None
    if isinstance(session_id, bytes):
        try:
            session_id = session_id.decode()
        except UnicodeDecodeError:
            return None
    copied.properties = without = _copy(properties)
    without.group_id = None
    return session_id


def _take_time_to_live(copied: AmqpAnnotatedMessage) -> int | None:
    header = copied.header
    given = None if header is None else header.time_to_live
    if given is None or header is None:
        return None
    if not isinstance(given, (int, float)) or not -256 < given <= _TTL_MS_MAX:
        return None  # the SDK cannot encode it, and raises its own error
    time_to_live_ms = abs(int(given))  # down to -255, the SDK sends it without its sign
    copied.header = without = _copy(header)
    without.time_to_live = None
    if time_to_live_ms and copied.properties is not None:
        # The SDK derives these from a time to live, also while it sends, and overwrites what the
        # application set.
        copied.properties = undated = _copy(copied.properties)
        undated.creation_time = undated.absolute_expiry_time = None
    return time_to_live_ms


def _take_schedule(copied: AmqpAnnotatedMessage) -> int | None:
    annotations = copied.annotations or {}
    found = {key: _milliseconds(annotations[key]) for key in _SCHEDULE_KEYS if key in annotations}
    times = {key: value for key, value in found.items() if value is not None}
    if not times:
        return None
    copied.annotations = {key: value for key, value in annotations.items() if key not in times}
    return next(iter(times.values()))


def _milliseconds(time: Any) -> int | None:
    """Milliseconds since 1970, exactly as the SDK computes them; without a zone, it takes UTC."""
    if isinstance(time, dict):  # a value whose AMQP type the application named, in the SDK's way
        time = time.get("VALUE")
    if isinstance(time, datetime):
        return int(calendar.timegm(time.utctimetuple()) * 1000 + time.microsecond / 1000)
    return time if isinstance(time, int) and not isinstance(time, bool) else None


def _raw(message: Message) -> AmqpAnnotatedMessage:
    return message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message


_Section = TypeVar("_Section", AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties)


def _copy(section: _Section) -> _Section:
    """A shallow copy. `copy.copy` takes three times as long, and every message in an outage is
    copied."""
    kind = type(section)
    copied = kind.__new__(kind)
    copied.__dict__ = vars(section).copy()
    return copied


# --- the ping -------------------------------------------------------------------------------------


def ping_message() -> ServiceBusMessage:
    """A message that tests whether an entity accepts messages. The service drops it.

    It has a session id, so that an entity with sessions accepts it too.
    """
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=1),
        session_id=str(uuid4()),
    )
