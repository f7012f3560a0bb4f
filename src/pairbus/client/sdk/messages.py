"""One message of the SDK on its way to the backlog: its id, schedule and envelope. Also the ping.

A diverted message is a copy that shares the body, and differs from the original only in what
`route/envelope` says. This module knows the SDK's message classes and how the SDK encodes them; it
knows nothing of namespaces, senders or states. `batches.py` has what concerns several messages.
"""

from __future__ import annotations

import calendar
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from pairbus.client.route.envelope import DIVERTED_BY, PATH, SCHEDULED, TIME_TO_LIVE, wrap
from pairbus.client.route.own_backlog import PeekedPage
from pairbus.client.sdk.private import TYPE, VALUE

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"

_SCHEDULE_KEYS: Final = (b"x-opt-scheduled-enqueue-time", "x-opt-scheduled-enqueue-time")
_TTL_MS_MAX: Final = 2**32 - 1  # of an AMQP header

Message = ServiceBusMessage | AmqpAnnotatedMessage
_Copied = TypeVar("_Copied")


def id_of(message: Message) -> str:
    """The message id as text, for any type on the wire. Empty if there is none.

    In the notation of the AMQP JMS mapping, as the broker and the commands write it, so a uuid and
    its text are two ids.
    """
    properties = raw_of(message).properties
    value: Any = None if properties is None else properties.message_id
    match value:
        case None:
            return ""
        case UUID():
            return f"AMQP_UUID:{value}"
        case int():
            return f"AMQP_ULONG:{value}"
        case bytes():
            return f"AMQP_BINARY:{value.hex().upper()}"
    text = str(value)
    return f"AMQP_STRING:{text}" if text.startswith("AMQP_") else text


def _copied(original: _Copied) -> _Copied:
    """A shallow copy of a message or a section: every message in an outage is copied, and
    `copy.copy` takes three times as long.
    """
    kind = type(original)
    copied = kind.__new__(kind)
    copied.__dict__ = vars(original).copy()
    return copied


def scheduled(message: Message, schedule: datetime | None) -> AmqpAnnotatedMessage:
    """A message whose own annotations schedule it, as `schedule_messages` does."""
    raw = raw_of(message)
    if schedule is None:
        return raw
    if _milliseconds(schedule) is None:
        raise TypeError(f"schedule_time_utc must be a datetime, not {schedule!r}")
    copied = _copied(raw)
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


def detached(raw: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    """A copy that stays as it is if the application changes its message. A body never changes."""
    copied = _copied(raw)
    if raw.header is not None:
        copied.header = _copied(raw.header)
    if raw.properties is not None:
        copied.properties = _copied(raw.properties)
    if raw.application_properties:
        copied.application_properties = dict(raw.application_properties)
    if raw.annotations:
        copied.annotations = dict(raw.annotations)
    return copied


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
    raw = raw_of(message)
    copied = _copied(raw)
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
        properties[TIME_TO_LIVE] = {TYPE: "LONG", VALUE: time_to_live_ms}
    if scheduled_ms is not None:
        properties[SCHEDULED] = {TYPE: "TIMESTAMP", VALUE: scheduled_ms}
    # Here the form saves time: the SDK raises and catches an error for a value without a type.
    properties[PATH] = {TYPE: "STRING", VALUE: path}
    copied.application_properties = properties
    return copied


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
    copied.properties = without = _copied(properties)
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
    copied.header = without = _copied(header)
    without.time_to_live = None
    if time_to_live_ms and copied.properties is not None:
        # The SDK derives these from a time to live, also while it sends, and overwrites what the
        # application set.
        copied.properties = undated = _copied(copied.properties)
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
        time = time.get(VALUE)
    if isinstance(time, datetime):
        return int(calendar.timegm(time.utctimetuple()) * 1000 + time.microsecond / 1000)
    return time if isinstance(time, int) and not isinstance(time, bool) else None


def raw_of(message: Message) -> AmqpAnnotatedMessage:
    return message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message


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
