"""A message as a row: bytes in, plain values out. `compose.py` does the reverse.

A body of one data section is its bytes; any other body stays encoded. Only the values of the
requested columns are decoded. Pure: knows nothing of Spark, Arrow or a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import (
    CREATION_TIME,
    DATA,
    EXPIRY_TIME,
    FOOTER,
    HEADER_TTL_MS_MAX,
    SEQUENCE,
    USER_ID,
    VALUE,
    Parts,
    Section,
    identifier_text,
    pairs,
    scan,
    slice_message,
)
from pairbus.amqp.codec.values import PAST_THE_END, MalformedMessage, check, decode, skip
from pairbus.errors import PairbusError
from pairbus.fast.typed import Typed, to_typed

Body = tuple[bytes | None, str | None]
"""The values of the columns body and bodyType."""
DATA_BODY, MANY_DATA, SEQUENCE_BODY, VALUE_BODY = "data", "dataSections", "sequence", "value"
STATES: Final = ("active", "deferred", "scheduled")

PARTITION_KEY: Final = "x-opt-partition-key"
SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
SERVICE_ANNOTATIONS: Final = frozenset(
    {
        PARTITION_KEY,
        SCHEDULED,
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-partition-id",
        "x-opt-deadletter-source",
        "x-opt-lock-token",
    }
)
"""The service's annotations, and those with their own column. They are not in `annotations`."""

_LONG_MAX: Final = 2**63 - 1
_TTL, _DELIVERY_COUNT = 2, 4  # indexes in the header


class UnreadableMessage(PairbusError, ValueError):
    """A message cannot be made into a row."""


def unreadable(entity: str, error: Exception) -> UnreadableMessage:
    return UnreadableMessage(
        f"a message of {entity!r} cannot be read: {error}. It should be an AMQP message as a queue "
        "delivers it"
    )


class MessageView:
    """One message as it was delivered or peeked. Values are decoded when a column needs them."""

    __slots__ = (
        "_annotations",
        "_application_properties",
        "_body",
        "_data",
        "_properties",
        "_sections",
        "data",
        "entity",
        "lock_token",
    )

    def __init__(self, data: bytes, *, entity: str = "", lock_token: UUID | None = None) -> None:
        """Raises MalformedMessage."""
        self.data = data
        self.entity = entity
        self.lock_token = lock_token
        self._data, self._sections = scan(data)
        header, _, annotations, properties, application_properties, _ = self._sections
        for section in (header, annotations, properties, application_properties):
            _, first, end, count = section
            check(self._data, first, end, count)
        self._body: Body | None = None
        self._properties: list[Any] | None = None
        self._annotations: dict[str, tuple[bytes, Any]] | None = None
        self._application_properties: dict[str, tuple[bytes, Any]] | None = None

    @property
    def parts(self) -> Parts:
        """The message as a broker slices it, for filters. Raises UnreadableMessage."""
        try:
            return slice_message(self.data)
        except MalformedMessage as error:
            raise unreadable(self.entity, error) from error

    @property
    def header(self) -> list[Any]:
        _, first, end, count = self._sections.header
        return _header_fields(self._data[first:end], count)

    @property
    def body(self) -> Body:
        if self._body is None:
            self._body = _body(self._data, self._sections.body)
        return self._body

    def field(self, index: int) -> Any:
        """A field of the properties section."""
        fields = self._properties
        if fields is None:
            _, first, _, count = self._sections.properties
            fields = self._properties = _fields(self._data, first, count)
        return fields[index] if index < len(fields) else None

    @property
    def annotations(self) -> dict[str, tuple[bytes, Any]]:
        """By name: encoded, and decoded."""
        if self._annotations is None:
            self._annotations = self._pairs(self._sections.annotations)
        return self._annotations

    def annotation(self, name: str) -> Any:
        found = self.annotations.get(name)
        return None if found is None else found[1]

    @property
    def application_properties(self) -> dict[str, tuple[bytes, Any]]:
        """By name: encoded, and decoded."""
        if self._application_properties is None:
            self._application_properties = self._pairs(self._sections.application_properties)
        return self._application_properties

    def _pairs(self, section: Section) -> dict[str, tuple[bytes, Any]]:
        _, first, end, _ = section
        data = self._data
        return {
            name: (data[start:after], value)
            for name, value, start, after in pairs(data, first, end)
        }


def read(data: bytes, *, entity: str, lock_token: UUID | None = None) -> MessageView:
    """Raises UnreadableMessage."""
    try:
        return MessageView(data, entity=entity, lock_token=lock_token)
    except (MalformedMessage, *PAST_THE_END) as error:
        raise unreadable(entity, error) from error


def _fields(data: bytes, pos: int, count: int) -> list[Any]:
    fields = []
    for _ in range(count):
        value, pos = decode(data, pos)
        fields.append(value)
    return fields


@lru_cache(maxsize=512)  # messages of one queue share a few
def _header_fields(raw: bytes, count: int) -> list[Any]:
    return _fields(raw, 0, count)


def _body(data: bytes, pos: int) -> Body:
    """The bytes of a single data section; of any other body the sections as they are."""
    start, count, end, kind = pos, 0, pos, 0
    while pos < len(data):
        section = data[pos + 2]
        after = skip(data, pos)
        if section != FOOTER:
            if not count:
                start, kind = pos, section
            count, end = count + 1, after
        pos = after
    if not count:
        return None, None
    if kind == DATA and count == 1:
        is_wide = data[start + 3] == 0xB0
        return data[start + (8 if is_wide else 5) : end], DATA_BODY
    name = {DATA: MANY_DATA, SEQUENCE: SEQUENCE_BODY, VALUE: VALUE_BODY}[kind]
    return data[start:end], name


# -- the values of columns --------------------------------------------------------------------

Getter = Callable[[MessageView], Any]


def sequence_number(message: MessageView) -> int:
    number = message.annotation("x-opt-sequence-number")
    if not isinstance(number, int):
        raise unreadable(message.entity, ValueError("it has no sequence number"))
    return int(number)


def state(message: MessageView) -> str:
    number = message.annotation("x-opt-message-state")
    return STATES[number] if isinstance(number, int) and 0 <= number < 3 else STATES[0]


def text_property(index: int) -> Getter:
    def get(message: MessageView) -> str | None:
        value = message.field(index)
        return None if value is None else str(value)

    return get


def id_property(index: int) -> Getter:
    return lambda message: identifier_text(message.field(index))


def integer_annotation(name: str) -> Getter:
    def get(message: MessageView) -> int | None:
        value = message.annotation(name)
        return int(value) if isinstance(value, int) and abs(value) <= _LONG_MAX else None

    return get


def time_annotation(name: str) -> Getter:
    """In microseconds, as Spark counts them; None for a time beyond its calendar."""

    def get(message: MessageView) -> int | None:
        value = message.annotation(name)
        if not isinstance(value, int) or abs(value) > _LONG_MAX // 1000:
            return None
        return int(value) * 1000

    return get


def text_annotation(name: str) -> Getter:
    def get(message: MessageView) -> str | None:
        value = message.annotation(name)
        return str(value) if isinstance(value, str) else None

    return get


def text_application_property(name: str) -> Getter:
    def get(message: MessageView) -> str | None:
        _, value = message.application_properties.get(name, (b"", None))
        return str(value) if isinstance(value, str) else None

    return get


def time_to_live(message: MessageView) -> int | None:
    ttl_ms = _header_number(message, _TTL)
    if ttl_ms is None or ttl_ms < HEADER_TTL_MS_MAX:
        return ttl_ms
    expiry, creation = message.field(EXPIRY_TIME), message.field(CREATION_TIME)
    if isinstance(expiry, int) and isinstance(creation, int) and expiry - creation > ttl_ms:
        return int(expiry) - int(creation)
    return ttl_ms


def delivery_count(message: MessageView) -> int | None:
    return _header_number(message, _DELIVERY_COUNT)


def _header_number(message: MessageView, index: int) -> int | None:
    header = message.header
    value = header[index] if index < len(header) else None
    return int(value) if isinstance(value, int) else None


def typed_application_properties(message: MessageView) -> list[tuple[str, Typed]]:
    found = message.application_properties
    return [(name, to_typed(raw, value)) for name, (raw, value) in found.items()]


def typed_annotations(message: MessageView) -> list[tuple[str, Typed]]:
    return [
        (name, to_typed(raw, value))
        for name, (raw, value) in message.annotations.items()
        if name not in SERVICE_ANNOTATIONS
    ]


def user_id(message: MessageView) -> bytes | None:
    value = message.field(USER_ID)
    return value if isinstance(value, bytes) else None


def lock_token(message: MessageView) -> str | None:
    return None if message.lock_token is None else str(message.lock_token)
