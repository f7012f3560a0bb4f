"""A message that the SDK has received, as a row: for entities with sessions.

The SDK decodes a message, and does not keep all types: a timestamp becomes a number, and bytes that
are UTF-8 become a string. Of decimals, it can decode only a few, such as NaN.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties

from pairbus.amqp.codec.sections import SEQUENCE, VALUE
from pairbus.amqp.codec.types import Described, Int, ULong
from pairbus.amqp.codec.values import encode
from pairbus.fast.rows import DATA_BODY, SEQUENCE_BODY, STATES, VALUE_BODY
from pairbus.fast.typed import Typed, to_typed

_MICROSECONDS: Final = 1_000_000
_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)


def row_of_sdk(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    body, body_type = _body(message.raw_amqp_message)
    times = {
        "scheduledEnqueueTime": message.scheduled_enqueue_time_utc,
        "enqueuedTime": message.enqueued_time_utc,
    }
    life = message.time_to_live
    properties = message.raw_amqp_message.properties or AmqpMessageProperties()
    return {
        "messageId": _text(message.message_id),
        "correlationId": _text(message.correlation_id),
        "subject": message.subject,
        "contentType": message.content_type,
        "contentEncoding": _text(properties.content_encoding),
        "userId": properties.user_id,
        "to": message.to,
        "replyTo": message.reply_to,
        "replyToSessionId": message.reply_to_session_id,
        "sessionId": message.session_id,
        "partitionKey": message.partition_key,
        "timeToLive": None if life is None else round(life.total_seconds() * 1000),
        "applicationProperties": [
            (str(_text(name)), _typed(value))
            for name, value in (message.application_properties or {}).items()
        ],
        "sequenceNumber": message.sequence_number,
        "enqueuedSequenceNumber": message.enqueued_sequence_number,
        "state": STATES[int(message.state)],
        "deliveryCount": message.delivery_count,
        "deadLetterReason": message.dead_letter_reason,
        "deadLetterErrorDescription": message.dead_letter_error_description,
        "deadLetterSource": message.dead_letter_source,
        "body": body,
        "bodyType": body_type,
        **{
            name: None if time is None else round(time.timestamp() * _MICROSECONDS)
            for name, time in times.items()
        },
    }


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _body(message: AmqpAnnotatedMessage) -> tuple[bytes | None, str | None]:
    """A body that is not plain data stays encoded, as the fast client returns it."""
    if message.body is None:
        return None, None
    if message.body_type is AmqpMessageBodyType.DATA:
        return b"".join(message.body), DATA_BODY
    if message.body_type is AmqpMessageBodyType.VALUE:
        return encode(Described(ULong(VALUE), _native(message.body))), VALUE_BODY
    parts = [encode(Described(ULong(SEQUENCE), _native(list(one)))) for one in message.body]
    return b"".join(parts), SEQUENCE_BODY


def _typed(value: Any) -> Typed:
    value = _native(value)
    return to_typed(encode(value), value)


def _native(value: Any) -> Any:
    """With the AMQP types that it most likely had: the SDK returns strings as bytes."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case Decimal():
            return str(value)
        case int() if not isinstance(value, bool):
            return Int(value) if value in _INT else value if value in _LONG else ULong(value)
        case list():
            return [_native(one) for one in value]
        case dict():
            return {_native(key): _native(one) for key, one in value.items()}
    return value
