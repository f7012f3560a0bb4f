"""A row as a message: plain values in, bytes out. `rows.py` does the reverse.

A wrong value is a RowError that names the column and what is expected. Pure: the clock and the ids
of rows that have none are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    EXPIRY_TIME_MS_MAX,
    HEADER,
    HEADER_TTL_MS_MAX,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    encode_section,
    identifier_value,
)
from pairbus.amqp.codec.types import EPOCH, MILLISECOND, Symbol, Timestamp, UInt
from pairbus.amqp.codec.values import (
    PAST_THE_END,
    MalformedMessage,
    encode,
    encode_list,
    encode_map,
    skip,
)
from pairbus.errors import PairbusError
from pairbus.fast.rows import (
    DATA_BODY,
    MANY_DATA,
    PARTITION_KEY,
    SCHEDULED,
    SEQUENCE_BODY,
    SERVICE_ANNOTATIONS,
    VALUE_BODY,
)
from pairbus.fast.typed import from_typed

_NULL: Final = b"\x40"
_SCHEDULED_END: Final = datetime(9999, 12, 31, tzinfo=UTC)
_TTL_MS_MAX: Final = 2**53
_BODY_SECTIONS: Final = {
    DATA_BODY: DATA,
    MANY_DATA: DATA,
    SEQUENCE_BODY: SEQUENCE,
    VALUE_BODY: VALUE,
}


class RowError(PairbusError, ValueError):
    """A row cannot be made into a message. The text names the column and what is expected."""

    def __init__(self, column: str, fault: str) -> None:
        super().__init__(f"column {column}: {fault}")
        self.column = column
        self.fault = fault


_TEXTS: Final = {
    "to": sections.TO,
    "subject": sections.SUBJECT,
    "replyTo": sections.REPLY_TO,
    "contentType": sections.CONTENT_TYPE,
    "contentEncoding": sections.CONTENT_ENCODING,
    "sessionId": sections.GROUP_ID,
    "replyToSessionId": sections.REPLY_TO_GROUP_ID,
}
_SYMBOLS: Final = frozenset((sections.CONTENT_TYPE, sections.CONTENT_ENCODING))


def message_of(
    row: Mapping[str, Any], *, now_ms: int, name: Callable[[bytes], str] | None = None
) -> bytes:
    """Returns the encoded message. `name` makes an id, from the row's content, for a row without
    one.
    """
    get = row.get
    header, times = _time_to_live(get("timeToLive"), now_ms)
    annotations = _annotations(row)
    fields: list[bytes] = [_NULL] * (sections.REPLY_TO_GROUP_ID + 1)
    for column, index in _TEXTS.items():
        value = get(column)
        if value is not None:
            fields[index] = encode(Symbol(value) if index in _SYMBOLS else value)
    if get("userId") is not None:
        fields[sections.USER_ID] = encode(bytes(row["userId"]))
    if get("correlationId") is not None:
        fields[sections.CORRELATION_ID] = _identifier("correlationId", row["correlationId"])
    application_pairs = _pairs("applicationProperties", get("applicationProperties"))
    application = _map(APPLICATION_PROPERTIES, application_pairs, str)
    body = _body(get("body"), get("bodyType"))
    if get("messageId") is not None:
        fields[sections.MESSAGE_ID] = _identifier("messageId", row["messageId"])
    elif name is not None:
        # The id depends on the content and not on the time, so a repeated row has the same id.
        content = b"".join((header, annotations, *fields, application, body))
        fields[sections.MESSAGE_ID] = encode(name(content))
    if times is not None:
        fields[sections.CREATION_TIME], fields[sections.EXPIRY_TIME] = times
    while fields and fields[-1] == _NULL:
        fields.pop()
    properties = encode_section(PROPERTIES, encode_list(fields)) if fields else b""
    return b"".join((header, annotations, properties, application, body))


def _identifier(column: str, text: str) -> bytes:
    try:
        return encode(identifier_value(text))
    except ValueError:
        raise RowError(
            column,
            f"{text!r} starts with AMQP_ but is not a valid id; expected AMQP_UUID:<uuid>, "
            "AMQP_ULONG:<number>, AMQP_BINARY:<hexadecimal> or AMQP_STRING:<any text>",
        ) from None


def _time_to_live(ttl_ms: Any, now_ms: int) -> tuple[bytes, tuple[bytes, bytes] | None]:
    """The header, and the creation and expiry time of a time to live that is too long for it."""
    if ttl_ms is None:
        return b"", None
    if not 0 < ttl_ms <= _TTL_MS_MAX:
        raise RowError(
            "timeToLive",
            f"{ttl_ms} is not a time to live; expected a number of milliseconds from 1",
        )
    short = min(int(ttl_ms), HEADER_TTL_MS_MAX)
    header = encode_section(HEADER, encode_list([_NULL, _NULL, encode(UInt(short))]))
    if ttl_ms <= HEADER_TTL_MS_MAX:
        return header, None
    expiry = min(now_ms + int(ttl_ms), EXPIRY_TIME_MS_MAX)
    return header, (encode(Timestamp(now_ms)), encode(Timestamp(expiry)))


def _annotations(row: Mapping[str, Any]) -> bytes:
    pairs: list[tuple[str, bytes]] = []
    if (key := row.get("partitionKey")) is not None:
        pairs.append((PARTITION_KEY, encode(key)))
    if (due := row.get("scheduledEnqueueTime")) is not None:
        pairs.append((SCHEDULED, encode(_due(due))))
    for name, value in _pairs("annotations", row.get("annotations")):
        if name not in SERVICE_ANNOTATIONS:
            pairs.append((name, value))
    return _map(MESSAGE_ANNOTATIONS, pairs, Symbol)


def _due(moment: datetime) -> Timestamp:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not EPOCH <= moment < _SCHEDULED_END:
        raise RowError(
            "scheduledEnqueueTime", f"{moment} is out of range; expected a year from 1970 to 9999"
        )
    return Timestamp((moment - EPOCH) // MILLISECOND)


def _map(section: int, pairs: Iterable[tuple[str, bytes]], kind: type[str]) -> bytes:
    """An encoded section, empty if there are no pairs. The values are encoded already."""
    encoded = [encode(kind(name)) + value for name, value in pairs]
    return encode_section(section, encode_map(b"".join(encoded), len(encoded))) if encoded else b""


def _pairs(column: str, value: Any) -> Iterable[tuple[str, bytes]]:
    """The pairs of a map, whose values are plain strings, or a type and a text each."""
    if value is None:
        return
    for name, item in value.items() if isinstance(value, Mapping) else value:
        kind, text = "string", item
        if item is None:
            kind = "null"
        elif isinstance(item, Mapping):
            kind, text = item["type"], item["value"]
        try:
            yield name, from_typed(kind, text)
        except ValueError as error:
            raise RowError(column, f"in {name!r}, {error}") from None


def _body(value: bytes | str | None, kind: str | None) -> bytes:
    if value is None:
        if kind is not None:
            raise RowError("body", f"it is null, but bodyType is {kind!r}; expected a body")
        return encode_section(DATA, encode(b""))
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if kind is None or kind == DATA_BODY:
        return encode_section(DATA, encode(raw))
    section = _BODY_SECTIONS.get(kind)
    if section is None:
        raise RowError("bodyType", f"it is {kind!r}; expected one of {', '.join(_BODY_SECTIONS)}")
    try:
        pos = 0
        while pos < len(raw):
            if raw[pos : pos + 3] != bytes((0x00, 0x53, section)):
                raise MalformedMessage(f"offset {pos}: not a section of the body type")
            pos = skip(raw, pos)
        if pos != len(raw) or not raw:
            raise MalformedMessage("it is truncated")
    except (MalformedMessage, *PAST_THE_END) as error:
        raise RowError(
            "body",
            f"it does not match bodyType {kind!r}; expected the encoded AMQP sections as they "
            f"were read ({error})",
        ) from None
    return raw
