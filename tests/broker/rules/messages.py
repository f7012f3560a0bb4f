"""Messages for rules to look at: encoded and sliced, as the broker has them."""

from pairbus.amqp.codec.sections import slice_message
from pairbus.amqp.codec.types import Symbol, UInt
from pairbus.amqp.codec.values import encode
from pairbus.broker.rules import Facts, SqlFilter, compile_filter

FIELDS = {
    "MessageId": 0,
    "To": 2,
    "Label": 3,
    "ReplyTo": 4,
    "CorrelationId": 5,
    "ContentType": 6,
    "SessionId": 10,
    "ReplyToSessionId": 12,
}
BODY = b"\x00\x53\x75" + encode(b"the body, which no rule ever looks at")


def message(properties=None, *, annotations=None, ttl_ms=None, **system):
    """Parts of a message with these application properties; None: without the section."""
    fields = [None] * 13
    for name, value in system.items():
        fields[FIELDS[name]] = value
    raw = b"\x00\x53\x70" + encode([None, None, None if ttl_ms is None else UInt(ttl_ms)])
    if annotations:
        pairs = {Symbol(key): value for key, value in annotations.items()}
        raw += b"\x00\x53\x72" + encode(pairs)
    if system:
        raw += b"\x00\x53\x73" + encode(fields)
    if properties is not None:
        raw += b"\x00\x53\x74" + encode(properties)
    return slice_message(raw + BODY)


def facts(properties=None, **settings):
    return Facts.from_parts(message(properties, **settings))


def matches(expression, properties=None, *, parameters=None, **settings):
    match = compile_filter(SqlFilter(expression, parameters or {}))
    return match(facts(properties, **settings))
