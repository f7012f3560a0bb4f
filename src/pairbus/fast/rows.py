"""A message as a row: bytes in, plain values out. `outgoing.py` goes the other way.

Bodies of one data section are their bytes; all others stay the encoded sections that they are.
Nothing is decoded that no column asks for. Pure: knows nothing of Spark, Arrow or a broker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import (
    DATA,
    FOOTER,
    SEQUENCE,
    VALUE,
    Parts,
    section_values,
    slice_message,
)
from pairbus.amqp.codec.types import Symbol, Timestamp, ULong
from pairbus.amqp.codec.values import PAST_THE_END, MalformedMessage, decode, skip
from pairbus.errors import PairbusError
from pairbus.fast.columns import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    CREATION,
    DATA_BODY,
    EXPIRY,
    GROUP_ID,
    HEADER_TTL_MAX,
    MANY_DATA,
    MESSAGE_ID,
    NAMES,
    PARTITION_KEY,
    REPLY_TO,
    REPLY_TO_GROUP_ID,
    SCHEDULED,
    SEQUENCE_BODY,
    STATES,
    SUBJECT,
    TO,
    TOLD,
    USER_ID,
    VALUE_BODY,
)
from pairbus.fast.typed import Typed, to_typed

Body = tuple[bytes | None, str | None]
"""What the columns body and bodyType say."""


class UnreadableMessage(PairbusError, ValueError):
    """A message cannot be made into a row."""


_LONG_MAX: Final = 2**63 - 1


# -- a message as a row -----------------------------------------------------------------------


class Read:
    """One message as it was delivered or peeked, taken apart when a column asks for it."""

    __slots__ = (
        "_application",
        "_body",
        "_fields",
        "_notes",
        "data",
        "entity",
        "lock_token",
        "parts",
    )

    def __init__(self, data: bytes, *, entity: str = "", lock_token: UUID | None = None) -> None:
        self.data = data
        self.parts: Parts = slice_message(data)
        self.entity = entity
        self.lock_token = lock_token
        self._body: Body | None = None
        self._fields: list[Any] | None = None
        self._notes: dict[str, tuple[bytes, Any]] | None = None
        self._application: dict[str, tuple[bytes, Any]] | None = None

    def field(self, index: int) -> Any:
        """Of the properties section."""
        fields = self._fields
        if fields is None:
            fields = self._fields = _fields(self.parts.bare, self.parts.properties)
        return fields[index] if index < len(fields) else None

    @property
    def body(self) -> Body:
        if self._body is None:
            self._body = _body(self.parts)
        return self._body

    @property
    def notes(self) -> dict[str, tuple[bytes, Any]]:
        """The annotations by name: encoded, and decoded."""
        if self._notes is None:
            raw = self.parts.annotations
            self._notes = _pairs(raw, 0, len(raw))
        return self._notes

    def note(self, name: str) -> Any:
        found = self.notes.get(name)
        return None if found is None else found[1]

    @property
    def application(self) -> dict[str, tuple[bytes, Any]]:
        if self._application is None:
            span = self.parts.application_properties
            bare = self.parts.bare
            self._application = (
                {} if span is None else _pairs(bare, section_values(bare, *span)[0], span[1])
            )
        return self._application


def _fields(data: bytes, span: tuple[int, int] | None) -> list[Any]:
    if span is None:
        return []
    pos, count = section_values(data, *span)
    fields = []
    for _ in range(count):
        value, pos = _decode(data, pos)
        fields.append(value)
    return fields


def _pairs(data: bytes, pos: int, end: int) -> dict[str, tuple[bytes, Any]]:
    found = {}
    while pos < end:
        key, start = _decode(data, pos)
        value, pos = _decode(data, start)
        if isinstance(key, str):
            found[key] = (data[start:pos], value)
    return found


def _decode(data: bytes, pos: int) -> tuple[Any, int]:
    """As `decode`, but quick for what nearly all values are. Names come as plain strings.

    For what `slice_message` has checked only: nothing ends within a value.
    """
    code = data[pos]
    if code in (_STRING, _SYMBOL):
        end = pos + 2 + data[pos + 1]
        text = data[pos + 2 : end].decode()
        return (text if code == _STRING else Symbol(text)), end
    if code == _NULL:
        return None, pos + 1
    if code == _TIMESTAMP:
        return Timestamp(_i64(data, pos + 1)[0]), pos + 9
    if code == _LONG:
        return _i64(data, pos + 1)[0], pos + 9
    return decode(data, pos)


_STRING, _SYMBOL, _NULL, _TIMESTAMP, _LONG = 0xA1, 0xA3, 0x40, 0x83, 0x81
_i64 = struct.Struct(">q").unpack_from


def read(data: bytes, *, entity: str, lock_token: UUID | None = None) -> Read:
    """Raises UnreadableMessage."""
    try:
        return Read(data, entity=entity, lock_token=lock_token)
    except (MalformedMessage, *PAST_THE_END) as error:
        raise unreadable(entity, error) from error


def reader_of(names: Iterable[str]) -> Callable[[Read], list[Any]]:
    """What makes a row of these columns, in this order, of a message."""
    getters = [_GETTERS[name] for name in names]

    def values(message: Read) -> list[Any]:
        try:
            return [getter(message) for getter in getters]
        except (MalformedMessage, UnicodeDecodeError, *PAST_THE_END) as error:
            raise unreadable(message.entity, error) from error

    return values


def unreadable(entity: str, error: Exception) -> UnreadableMessage:
    return UnreadableMessage(
        f"a message of {entity!r} cannot be read: {error}. It should be an AMQP message as a queue "
        "delivers it"
    )


def sequence_number(message: Read) -> int:
    number = message.note("x-opt-sequence-number")
    if not isinstance(number, int):
        raise unreadable(message.entity, ValueError("it has no sequence number"))
    return int(number)


def state(message: Read) -> str:
    number = message.note("x-opt-message-state")
    return STATES[number] if isinstance(number, int) and 0 <= number < 3 else STATES[0]


def _body(parts: Parts) -> Body:
    """The bytes of a single data section; of anything else the sections, encoded as they are."""
    bare = parts.bare
    spans = (parts.properties, parts.application_properties)
    pos = start = max((span[1] for span in spans if span), default=0)
    count, end, kind = 0, pos, 0
    while pos < len(bare):
        section = bare[pos + 2]
        after = skip(bare, pos)
        if DATA <= section <= VALUE:
            if not count:
                start, kind = pos, section
            count, end = count + 1, after
        elif section != FOOTER and count:
            raise MalformedMessage(f"offset {pos}: section 0x{section:02x} behind the body")
        pos = after
    if not count:
        return None, None
    if kind == DATA and count == 1:
        wide = bare[start + 3] == 0xB0
        return bare[start + (8 if wide else 5) : end], DATA_BODY
    name = {DATA: MANY_DATA, SEQUENCE: SEQUENCE_BODY, VALUE: VALUE_BODY}[kind]
    return bare[start:end], name


def _text(index: int) -> Callable[[Read], str | None]:
    def get(message: Read) -> str | None:
        value = message.field(index)
        return None if value is None else str(value)

    return get


def _identifier(index: int) -> Callable[[Read], str | None]:
    def get(message: Read) -> str | None:
        return identifier_text(message.field(index))

    return get


def identifier_text(value: Any) -> str | None:
    """As the AMQP JMS mapping writes it (3.2.1.1), so that no two ids look alike."""
    if type(value) is str:
        return f"AMQP_STRING:{value}" if value.startswith("AMQP_") else value
    match value:
        case None:
            return None
        case UUID():
            return f"AMQP_UUID:{value}"
        case ULong():
            return f"AMQP_ULONG:{int(value)}"
        case bytes():
            return f"AMQP_BINARY:{value.hex().upper()}"
    raise MalformedMessage(f"an id must be a string, ulong, uuid or binary, not {value!r}")


def _integer(name: str) -> Callable[[Read], int | None]:
    def get(message: Read) -> int | None:
        value = message.note(name)
        return int(value) if isinstance(value, int) and abs(value) <= _LONG_MAX else None

    return get


def _moment(name: str) -> Callable[[Read], int | None]:
    """In microseconds, as Spark counts them; None for what is beyond its calendar."""

    def get(message: Read) -> int | None:
        value = message.note(name)
        if not isinstance(value, int) or abs(value) > _LONG_MAX // 1000:
            return None
        return int(value) * 1000

    return get


def _annotation(name: str) -> Callable[[Read], str | None]:
    def get(message: Read) -> str | None:
        value = message.note(name)
        return str(value) if isinstance(value, str) else None

    return get


def _property(name: str) -> Callable[[Read], str | None]:
    def get(message: Read) -> str | None:
        found = message.application.get(name)
        return str(found[1]) if found is not None and isinstance(found[1], str) else None

    return get


def _time_to_live(message: Read) -> int | None:
    """A life that is too long for the header is told by two times."""
    ttl_ms = message.parts.ttl_ms
    if ttl_ms is None or ttl_ms < HEADER_TTL_MAX:
        return ttl_ms
    expiry, creation = message.field(EXPIRY), message.field(CREATION)
    if isinstance(expiry, int) and isinstance(creation, int) and expiry - creation > ttl_ms:
        return int(expiry) - int(creation)
    return ttl_ms


def _delivery_count(message: Read) -> int | None:
    """Of the header, which slicing has checked and not kept."""
    data, pos = message.data, 0
    while pos < len(data):
        after = skip(data, pos)
        if data[pos + 1 : pos + 3] == b"\x53\x70":
            return _count_in_header(data[pos + 3 : after])
        pos = after
    return None


@lru_cache(maxsize=512)  # messages of one queue share a few
def _count_in_header(raw: bytes) -> int | None:
    fields, _ = decode(raw)
    return int(fields[4]) if len(fields) > 4 and fields[4] is not None else None


def _application_properties(message: Read) -> list[tuple[str, Typed]]:
    return [(name, to_typed(raw, value)) for name, (raw, value) in message.application.items()]


def _annotations(message: Read) -> list[tuple[str, Typed]]:
    return [
        (name, to_typed(raw, value))
        for name, (raw, value) in message.notes.items()
        if name not in TOLD
    ]


def _user_id(message: Read) -> bytes | None:
    value = message.field(USER_ID)
    return value if isinstance(value, bytes) else None


def _lock_token(message: Read) -> str | None:
    return None if message.lock_token is None else str(message.lock_token)


_GETTERS: Final[dict[str, Callable[[Read], Any]]] = {
    "body": lambda message: message.body[0],
    "bodyType": lambda message: message.body[1],
    "messageId": _identifier(MESSAGE_ID),
    "correlationId": _identifier(CORRELATION_ID),
    "subject": _text(SUBJECT),
    "contentType": _text(CONTENT_TYPE),
    "contentEncoding": _text(CONTENT_ENCODING),
    "to": _text(TO),
    "replyTo": _text(REPLY_TO),
    "replyToSessionId": _text(REPLY_TO_GROUP_ID),
    "sessionId": _text(GROUP_ID),
    "userId": _user_id,
    "partitionKey": _annotation(PARTITION_KEY),
    "timeToLive": _time_to_live,
    "scheduledEnqueueTime": _moment(SCHEDULED),
    "applicationProperties": _application_properties,
    "annotations": _annotations,
    "enqueuedTime": _moment("x-opt-enqueued-time"),
    "sequenceNumber": _integer("x-opt-sequence-number"),
    "enqueuedSequenceNumber": _integer("x-opt-enqueue-sequence-number"),
    "state": state,
    "deliveryCount": _delivery_count,
    "deadLetterReason": _property("DeadLetterReason"),
    "deadLetterErrorDescription": _property("DeadLetterErrorDescription"),
    "deadLetterSource": _annotation("x-opt-deadletter-source"),
    "lockToken": _lock_token,
    "lockedUntil": _moment("x-opt-locked-until"),
    "entity": lambda message: message.entity,
}
assert tuple(_GETTERS) == NAMES
