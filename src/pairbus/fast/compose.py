"""A row as a message: plain values in, bytes out. `rows.py` goes the other way.

What a row says wrongly is a RowError that names the column and what would be right. Pure: the clock
and the ids of rows that have none are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from pairbus.amqp.codec.types import Symbol, Timestamp, UInt, ULong
from pairbus.amqp.codec.values import (
    PAST_THE_END,
    MalformedMessage,
    encode,
    encode_list,
    encode_map,
    skip,
)
from pairbus.errors import PairbusError
from pairbus.fast import columns
from pairbus.fast.typed import EPOCH, from_typed

_NULL: Final = b"\x40"
_MILLISECOND: Final = timedelta(milliseconds=1)
_SCHEDULED_END: Final = datetime(9999, 12, 31, tzinfo=UTC)
_TTL_MS_MAX: Final = 2**53
_EXPIRY_MS_MAX: Final = 253_402_243_199_000


class RowError(PairbusError, ValueError):
    """A row cannot be made into a message. The text names the column and what would be right."""

    def __init__(self, column: str, fault: str) -> None:
        super().__init__(f"column {column}: {fault}")
        self.column = column
        self.fault = fault


_TEXTS: Final = {
    "to": columns.TO,
    "subject": columns.SUBJECT,
    "replyTo": columns.REPLY_TO,
    "contentType": columns.CONTENT_TYPE,
    "contentEncoding": columns.CONTENT_ENCODING,
    "sessionId": columns.GROUP_ID,
    "replyToSessionId": columns.REPLY_TO_GROUP_ID,
}
_SYMBOLS: Final = frozenset((columns.CONTENT_TYPE, columns.CONTENT_ENCODING))


def message_of(
    row: Mapping[str, Any], *, now_ms: int, name: Callable[[bytes], str] | None = None
) -> bytes:
    """The encoded message. `name` makes an id for a row without one, of all that it holds."""
    get = row.get
    header, times = _life(get("timeToLive"), now_ms)
    annotations = _annotations(row)
    fields: list[bytes] = [_NULL] * (columns.REPLY_TO_GROUP_ID + 1)
    for column, index in _TEXTS.items():
        value = get(column)
        if value is not None:
            fields[index] = encode(Symbol(value) if index in _SYMBOLS else value)
    if get("userId") is not None:
        fields[columns.USER_ID] = encode(bytes(row["userId"]))
    if get("correlationId") is not None:
        fields[columns.CORRELATION_ID] = _identifier("correlationId", row["correlationId"])
    application = _map("applicationProperties", get("applicationProperties"), str)
    body = _body(get("body"), get("bodyType"))
    if get("messageId") is not None:
        fields[columns.MESSAGE_ID] = _identifier("messageId", row["messageId"])
    elif name is not None:
        # Of what a row says, and not of the time: a repeated row has the same id.
        said = b"".join((header, annotations, *fields, application, body))
        fields[columns.MESSAGE_ID] = encode(name(said))
    if times is not None:
        fields[columns.CREATION], fields[columns.EXPIRY] = times
    while fields and fields[-1] == _NULL:
        fields.pop()
    properties = _section(PROPERTIES, encode_list(fields)) if fields else b""
    return b"".join((header, annotations, properties, application, body))


def identifier_of(text: str) -> Any:
    """The id that `rows.identifier_text` has written so."""
    if not text.startswith("AMQP_"):
        return text
    kind, _, rest = text.partition(":")
    match kind:
        case "AMQP_STRING":
            return rest
        case "AMQP_UUID":
            return UUID(rest)
        case "AMQP_ULONG":
            return ULong(int(rest))
        case "AMQP_BINARY":
            return bytes.fromhex(rest)
    raise ValueError(kind)


def _identifier(column: str, text: str) -> bytes:
    try:
        return encode(identifier_of(text))
    except ValueError:
        raise RowError(
            column,
            f"{text!r} begins like an id that is no string, and is none: AMQP_UUID:<uuid>, "
            "AMQP_ULONG:<number>, AMQP_BINARY:<hexadecimal> or AMQP_STRING:<any text> is expected",
        ) from None


def _section(number: int, content: bytes) -> bytes:
    return bytes((0x00, 0x53, number)) + content


def _life(ttl_ms: Any, now_ms: int) -> tuple[bytes, tuple[bytes, bytes] | None]:
    """The header; and the creation and expiry times for a life that is too long for it."""
    if ttl_ms is None:
        return b"", None
    if not 0 < ttl_ms <= _TTL_MS_MAX:
        raise RowError(
            "timeToLive", f"{ttl_ms} is no time to live: milliseconds are expected, 1 or more"
        )
    short = min(int(ttl_ms), columns.HEADER_TTL_MAX)
    header = _section(HEADER, encode_list([_NULL, _NULL, encode(UInt(short))]))
    if ttl_ms <= columns.HEADER_TTL_MAX:
        return header, None
    expiry = min(now_ms + int(ttl_ms), _EXPIRY_MS_MAX)
    return header, (encode(Timestamp(now_ms)), encode(Timestamp(expiry)))


def _annotations(row: Mapping[str, Any]) -> bytes:
    pairs: list[bytes] = []
    count = 0
    key = row.get("partitionKey")
    if key is not None:
        pairs += (encode(Symbol(columns.PARTITION_KEY)), encode(key))
        count += 1
    due = row.get("scheduledEnqueueTime")
    if due is not None:
        pairs += (encode(Symbol(columns.SCHEDULED)), encode(_due(due)))
        count += 1
    for name, value in _pairs("annotations", row.get("annotations")):
        if name not in columns.TOLD:
            pairs += (encode(Symbol(name)), value)
            count += 1
    if not count:
        return b""
    return _section(MESSAGE_ANNOTATIONS, encode_map(b"".join(pairs), count))


def _due(moment: datetime) -> Timestamp:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not EPOCH <= moment < _SCHEDULED_END:
        raise RowError(
            "scheduledEnqueueTime", f"{moment} is out of reach: 1970 to 9999 is expected"
        )
    return Timestamp((moment - EPOCH) // _MILLISECOND)


def _map(column: str, value: Any, kind: type[str]) -> bytes:
    encoded = [encode(kind(name)) + item for name, item in _pairs(column, value)]
    if not encoded:
        return b""
    return _section(APPLICATION_PROPERTIES, encode_map(b"".join(encoded), len(encoded)))


def _pairs(column: str, value: Any) -> Iterable[tuple[str, bytes]]:
    """Of a map of plain strings, or of pairs of a type and a text."""
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
            raise RowError("body", f"it is null where bodyType is {kind!r}; a body is expected")
        return _section(DATA, encode(b""))
    raw = value.encode() if isinstance(value, str) else bytes(value)
    if kind is None or kind == columns.DATA_BODY:
        return _section(DATA, encode(raw))
    section = columns.BODY_SECTIONS.get(kind)
    if section is None:
        raise RowError("bodyType", f"{kind!r} is none of {', '.join(columns.BODY_SECTIONS)}")
    try:
        pos = 0
        while pos < len(raw):
            if raw[pos : pos + 3] != bytes((0x00, 0x53, section)):
                raise MalformedMessage(f"offset {pos}: no section of the body type")
            pos = skip(raw, pos)
        if pos != len(raw) or not raw:
            raise MalformedMessage("it is cut off")
    except (MalformedMessage, *PAST_THE_END) as error:
        raise RowError(
            "body",
            f"it is not what bodyType {kind!r} says: the encoded AMQP sections are expected, as "
            f"they were read ({error})",
        ) from None
    return raw
