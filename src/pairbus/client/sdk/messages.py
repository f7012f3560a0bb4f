"""The SDK's messages on their way to the backlog: their ids, their envelope, and the ping.

What the application hands over is left alone, but for a missing message id. A diverted message
shares its body and differs from the original in what `route/envelope` tells, and in nothing else.
Knows the SDK's message classes and how it encodes them; knows nothing of namespaces, senders or
states.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import uuid4

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.client.route.envelope import PATH, SCHEDULED, TIME_TO_LIVE, wrap
from pairbus.client.sdk.batches import splice

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"

_SCHEDULE_KEYS: Final = (b"x-opt-scheduled-enqueue-time", "x-opt-scheduled-enqueue-time")
_TTL_MS_MAX: Final = 2**32 - 1  # of an AMQP header
_NO_ID: Final = (None, "", b"")

Message = ServiceBusMessage | AmqpAnnotatedMessage

# --- ids ------------------------------------------------------------------------------------------


def give_ids(messages: Any) -> Any:
    """Whatever `send_messages` takes, with an id on every message, the same for each attempt.

    An id is given only where there is none, and stays on the application's own object: sent again
    after an error, it is the same message still. (That is how the SDK's ServiceBusMessage behaves,
    which has an id from birth.) A dict becomes a message here, once, where the SDK would make a new
    one at each attempt; iterables become lists. What is no message passes, for the SDK to refuse in
    its own words.
    """
    kind = type(messages)
    if kind is ServiceBusMessage:  # first: almost every call
        _identify(messages.raw_amqp_message)
        return messages
    if kind is AmqpAnnotatedMessage:
        _identify(messages)
        return messages
    if isinstance(messages, ServiceBusMessageBatch):
        return _batch_with_ids(messages)
    if isinstance(messages, Mapping | str | bytes) or not isinstance(messages, Iterable):
        return _with_id(messages)
    return [_with_id(message) for message in messages]


def id_of(message: Message) -> str:
    """The message id as text, whatever type it has on the wire; empty where there is none."""
    properties = _raw(message).properties
    value = None if properties is None else properties.message_id
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _with_id(message: Any) -> Any:
    if type(message) is ServiceBusMessage:  # almost always; what follows costs more than it looks
        _identify(message.raw_amqp_message)
        return message
    if isinstance(message, Mapping):
        try:
            return ServiceBusMessage(**message)
        except (TypeError, ValueError):
            return message
    raw = getattr(message, "raw_amqp_message", message)
    if isinstance(raw, AmqpAnnotatedMessage):
        _identify(raw)
    return message


def _identify(raw: AmqpAnnotatedMessage) -> bool:
    """Whether it had no id, and has one now."""
    properties = raw.properties
    if properties is None:
        raw.properties = AmqpMessageProperties(message_id=str(uuid4()))
        return True
    if not isinstance(properties, AmqpMessageProperties) or properties.message_id not in _NO_ID:
        return False
    properties.message_id = str(uuid4())
    return True


def _batch_with_ids(batch: ServiceBusMessageBatch) -> ServiceBusMessageBatch:
    """A batch is bytes already, so what lacks an id is a reason to build it anew.

    A paired sender's batches give ids as they grow (`messages_of` reads what they keep); this is
    for one from elsewhere. Where the ids make it too large, it goes as it is: to refuse what the
    SDK sends would be worse.
    """
    if hasattr(batch, "as_added"):
        return batch
    given = [_identify(message.raw_amqp_message) for message in batch._messages]
    if not any(given):
        return batch
    anew = ServiceBusMessageBatch(batch.max_size_in_bytes)
    try:
        for message in batch._messages:
            anew.add_message(message)
    except MessageSizeExceededError:
        return batch
    return anew


# --- the envelope ---------------------------------------------------------------------------------


def diverted(message: Message, path: str, schedule: datetime | None = None) -> AmqpAnnotatedMessage:
    """What stands for a message in a backlog queue. `schedule` is that of `schedule_messages`.

    Session id, time to live and schedule are taken off, where they are what the service
    understands, and written into the envelope. What is not (a session id that is a number, say)
    stays where it is: the SDK or the service refuses it here as it would on the primary.
    """
    raw = _raw(message)
    twin = _twin(raw)
    header, fields = raw.header, raw.properties
    if header is not None and _is_blank(header):
        # Which is how it goes out: the SDK takes its time to find that out.
        twin.header = header = None  # type: ignore[assignment]
    # Most have none of this, and every message in an outage comes here.
    session_id = None if fields is None or fields.group_id is None else _take_session(twin)
    time_to_live_ms = None if header is None else _take_time_to_live(twin)
    if schedule is not None and _milliseconds(schedule) is None:
        raise TypeError(f"schedule_time_utc must be a datetime, not {schedule!r}")
    annotated = _take_schedule(twin) if raw.annotations else None
    scheduled_ms = annotated if schedule is None else _milliseconds(schedule)
    properties = wrap(
        raw.application_properties,
        path=path,
        session_id=session_id,
        time_to_live_ms=time_to_live_ms,
        scheduled_ms=scheduled_ms,
    )
    # The SDK would make 32-bit ints of them. This is how it is told an AMQP type.
    if time_to_live_ms is not None:
        properties[TIME_TO_LIVE] = {"TYPE": "LONG", "VALUE": time_to_live_ms}
    if scheduled_ms is not None:
        properties[SCHEDULED] = {"TYPE": "TIMESTAMP", "VALUE": scheduled_ms}
    twin.application_properties = properties
    return twin


def eased(twin: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A diverted message that is sent by itself, without what the SDK would find out the slow way:
    that it has properties, and that its path is text. The same bytes go out."""
    properties = twin.properties
    if type(properties) is AmqpMessageProperties and properties.message_id is not None:
        twin.properties = given = _Given.__new__(_Given)
        given.__dict__.update(properties.__dict__)
    envelope: Any = twin.application_properties
    envelope[PATH] = {"TYPE": "STRING", "VALUE": envelope[PATH]}
    return twin


class _Given(AmqpMessageProperties):
    """With an id at least. The SDK asks for that by listing all that there could be, twice."""

    def __len__(self) -> int:
        return 1

    def values(self) -> list[Any]:
        return [self.message_id]


def diverted_all(
    messages: Any, path: str, schedule: datetime | None = None
) -> list[AmqpAnnotatedMessage]:
    """The same for whatever `give_ids` has answered."""
    twins = [diverted(message, path, schedule) for message in messages_of(messages)]
    if hasattr(messages, "as_added"):  # its bytes are those of what it remembers
        splice(messages, twins)
    return twins


def messages_of(messages: Any) -> list[Message]:
    """Each message of a call. Raises what the SDK raises for what is none."""
    if isinstance(messages, ServiceBusMessageBatch):
        return list(getattr(messages, "as_added", messages._messages))
    listed = messages if isinstance(messages, list) else [messages]
    return [_checked(message) for message in listed]


def as_added(message: Message) -> AmqpAnnotatedMessage:
    """A message as it is now, for a batch to keep: its object may be changed and added again."""
    raw = _raw(message)
    kept = _twin(raw)
    if raw.properties is not None:
        kept.properties = _twin(raw.properties)
    if raw.header is not None:
        kept.header = _twin(raw.header)
    if raw.application_properties:
        kept.application_properties = dict(raw.application_properties)
    if raw.annotations:
        kept.annotations = dict(raw.annotations)
    return kept


def _is_blank(header: AmqpMessageHeader) -> bool:
    values = list(vars(header).values())
    return values.count(None) == len(values)


def _take_session(twin: AmqpAnnotatedMessage) -> str | None:
    properties = twin.properties
    session_id = None if properties is None else properties.group_id
    if properties is None or not isinstance(session_id, (str, bytes)):
        return None
    twin.properties = anew = _twin(properties)
    anew.group_id = None
    return session_id if isinstance(session_id, str) else session_id.decode()


def _take_time_to_live(twin: AmqpAnnotatedMessage) -> int | None:
    header = twin.header
    given = None if header is None else header.time_to_live
    if given is None or header is None:
        return None
    if not isinstance(given, (int, float)) or not -256 < given <= _TTL_MS_MAX:
        return None  # one that the SDK cannot send, and says so
    time_to_live_ms = abs(int(given))  # down to -255, the SDK sends it without its sign
    twin.header = anew = _twin(header)
    anew.time_to_live = None
    if time_to_live_ms and twin.properties is not None:
        # The SDK makes these of a time to live, also while it sends: whatever stood there is lost.
        twin.properties = undated = _twin(twin.properties)
        undated.creation_time = undated.absolute_expiry_time = None
    return time_to_live_ms


def _take_schedule(twin: AmqpAnnotatedMessage) -> int | None:
    annotations = twin.annotations or {}
    found = {key: _milliseconds(annotations[key]) for key in _SCHEDULE_KEYS if key in annotations}
    times = {key: value for key, value in found.items() if value is not None}
    if not times:
        return None
    twin.annotations = {key: value for key, value in annotations.items() if key not in times}
    return next(iter(times.values()))


def _milliseconds(time: Any) -> int | None:
    """Since 1970, to the same millisecond as the SDK has it; a time without a zone is UTC to it."""
    if isinstance(time, dict):  # of a type that the application named, in the SDK's way
        time = time.get("VALUE")
    if isinstance(time, datetime):
        return int(calendar.timegm(time.utctimetuple()) * 1000 + time.microsecond / 1000)
    return time if isinstance(time, int) and not isinstance(time, bool) else None


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


def _raw(message: Message) -> AmqpAnnotatedMessage:
    return message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message


_Section = TypeVar("_Section", AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties)


def _twin(section: _Section) -> _Section:
    """A copy that shares what is inside. By hand: `copy.copy` takes three times as long."""
    kind = type(section)
    twin = kind.__new__(kind)
    twin.__dict__.update(section.__dict__)
    return twin


# --- the rest -------------------------------------------------------------------------------------


def ping_message() -> ServiceBusMessage:
    """Shows that an entity takes messages; the service drops it.

    With a session id, so that an entity with sessions takes it, too.
    """
    return ServiceBusMessage(
        b"",
        content_type=PING_CONTENT_TYPE,
        time_to_live=timedelta(seconds=1),
        session_id=str(uuid4()),
    )


class UnknownSequenceNumber(int):
    """In place of the sequence number of a diverted message: -1, which no message has.

    The primary numbers it when it is brought home. To find it then, peek for its message id.
    """

    backlog_queue: str
    message_id: str

    def __new__(cls, *, backlog_queue: str, message_id: str) -> UnknownSequenceNumber:
        number = super().__new__(cls, -1)
        number.backlog_queue = backlog_queue
        number.message_id = message_id
        return number

    def __repr__(self) -> str:
        return (
            f"<unknown sequence number (-1): message {self.message_id!r} was diverted to backlog "
            f"queue {self.backlog_queue!r} and is numbered when it comes home>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _number, (self.backlog_queue, self.message_id)


def _number(backlog_queue: str, message_id: str) -> UnknownSequenceNumber:
    return UnknownSequenceNumber(backlog_queue=backlog_queue, message_id=message_id)
