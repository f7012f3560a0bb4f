"""A message as JSON, and back without loss: `send` accepts what `receive` and `peek` print. Pure.

The keys are the column names of docs/spark.md; what a message does not have is left out. A body is
text if it is UTF-8, otherwise base64, and then `bodyEncoding` says so. A property is plain JSON if
that determines its type (an integer is AMQP's int, or long if it is too large), otherwise an object
of type and value.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pairbus.errors import UsageError
from pairbus.fast.columns import COLUMNS, NAMES, reader_of
from pairbus.fast.rows import DATA_BODY, MessageView, UnreadableMessage
from pairbus.fast.typed import TYPES, Typed, from_typed

MessageJson = dict[str, Any]
Row = dict[str, Any]

DEAD_LETTER_PROPERTIES: Final = {
    "DeadLetterReason": "deadLetterReason",
    "DeadLetterErrorDescription": "deadLetterErrorDescription",
}
"""Application properties that the service adds when it dead-letters a message, by their keys."""
UNREADABLE: Final = "unreadable"
BASE64: Final = "base64"
ENCODING: Final = "bodyEncoding"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT: Final = range(-(2**31), 2**31)
_KINDS: Final = {column.name: column.kind for column in COLUMNS}
_WRITABLE: Final = {column.name for column in COLUMNS if column.writable}
_read_all: Final[Callable[[MessageView], list[Any]]] = reader_of(NAMES)


# -- a message as JSON --------------------------------------------------------------------------


def row_of(message: MessageView) -> Row:
    """Raises UnreadableMessage."""
    return dict(zip(NAMES, _read_all(message), strict=True))


def to_json_if_readable(message: MessageView) -> MessageJson:
    """For a message that cannot be read, the object has the reason. The others are not affected."""
    try:
        return to_json(row_of(message))
    except UnreadableMessage as error:
        return unreadable(message.data, message.annotation("x-opt-sequence-number"), error)


def unreadable(data: bytes, number: object, error: UnreadableMessage) -> MessageJson:
    """With all bytes of the message: once it is received, there is no other copy."""
    return {"sequenceNumber": number, UNREADABLE: str(error), "encodedMessage": _base64(data)}


def to_json(row: Mapping[str, Any]) -> MessageJson:
    fields: MessageJson = {}
    for name, value in row.items():
        if value is None or name in ("body", "bodyType", "entity"):
            continue
        if _KINDS[name] == "timestamp":
            fields[name] = format_time(value)
        elif _KINDS[name] == "binary":
            fields[name] = _base64(value)
        elif _KINDS[name] == "properties":
            own = {key: _plain(*typed) for key, typed in value if not _has_its_own_key(key, row)}
            if own:
                fields[name] = own
        else:
            fields[name] = value
    return fields | _body_to_json(row.get("body"), row.get("bodyType"))


def _has_its_own_key(name: str, row: Mapping[str, Any]) -> bool:
    """The reason of a dead letter is a property on the wire, and has a key of its own here."""
    return name in DEAD_LETTER_PROPERTIES and row.get(DEAD_LETTER_PROPERTIES[name]) is not None


def _body_to_json(body: bytes | None, kind: str | None) -> MessageJson:
    if body is None:
        return {}
    if kind == DATA_BODY:
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            return {"body": _base64(body), ENCODING: BASE64}
    return {"body": _base64(body), ENCODING: BASE64, "bodyType": kind}


def _plain(kind: str, text: str | None) -> Any:
    """Returns plain JSON if `amqp_typed` gives the same type and text, otherwise an object."""
    if kind in ("null", "string"):
        return text
    assert text is not None
    value: Any = None
    if kind == "boolean":
        value = text == "true"
    elif kind in ("int", "long"):
        value = int(text)
    elif kind == "double" and math.isfinite(float(text)):
        value = float(text)
    return value if value is not None and amqp_typed(value) == (kind, text) else _pair(kind, text)


def _pair(kind: str, text: str | None) -> dict[str, str | None]:
    return {"type": kind, "value": text}


def format_time(microseconds: int) -> str:
    try:
        time = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z".rjust(24, "0")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# -- JSON as a message --------------------------------------------------------------------------


def amqp_typed(value: Any) -> Typed:
    """The AMQP type and text of a value of JSON. Raises ValueError."""
    match value:
        case None:
            return "null", None
        case bool():
            return "boolean", "true" if value else "false"
        case int():
            return ("int" if value in _INT else "long"), str(int(value))
        case float():
            return "double", repr(value)
        case str():
            return "string", value
        case {"type": str(kind), "value": str() | None as text, **rest} if not rest:
            return kind, text
    raise ValueError(
        'must be a string, a number, true, false, null or {"type": ..., "value": ...}, not '
        f"{str(value)[:60]!r}"
    )


def parse_line(text: str, where: str) -> Row:
    """A line of JSON as a row to send. Raises UsageError, which begins with `where`."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise UsageError(f'{where}: must be an object such as {{"body": "text"}}')
    return from_json(fields, where)


def from_json(fields: Mapping[str, Any], where: str) -> Row:
    """Ignores what the service adds to a message, such as its sequence number."""
    unknown = [name for name in fields if name not in _KINDS and name != ENCODING]
    if unknown:
        known = ", ".join(sorted(_WRITABLE | {ENCODING}))
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; a message may have {known}")
    row: Row = {"body": _body_from_json(fields, where)}
    for name, value in fields.items():
        if value is None or name in (ENCODING, "body") or name not in _WRITABLE:
            continue
        row[name] = _CONVERTERS[_KINDS[name]](value, f"{where}: {name}")
    return row


def _body_from_json(fields: Mapping[str, Any], where: str) -> bytes:
    body, encoding = fields.get("body", ""), fields.get(ENCODING)
    if encoding not in (None, BASE64, "utf-8"):
        raise UsageError(f"{where}: {ENCODING} must be {BASE64} or utf-8, not {encoding!r}")
    if not isinstance(body, str):
        if encoding is not None:
            raise UsageError(f"{where}: body: must be a string in {encoding}")
        return _utf_8(json.dumps(body, ensure_ascii=False), where)  # as its JSON text
    return _binary(body, f"{where}: body") if encoding == BASE64 else _utf_8(body, where)


def _utf_8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: {text[:40]!r} cannot be encoded as UTF-8") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: must be a string, not {value!r}")
    _utf_8(value, where)
    return value


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{where}: must be an integer, not {value!r}")
    return value


def _binary(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(_text(value, where), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{where}: is not base64") from None


def _time(value: Any, where: str) -> datetime:
    try:
        time = datetime.fromisoformat(_text(value, where))
    except ValueError:
        raise UsageError(f"{where}: {value!r} is not a time such as 2030-12-31T23:59:59Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _properties(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: must be an object of names and values")
    found = {}
    for name, one in value.items():
        try:
            kind, text = amqp_typed(one)
            if kind not in TYPES:
                raise ValueError(f"the type {kind!r} is not one of {', '.join(TYPES)}")
        except ValueError as error:
            raise UsageError(f"{where}: {name!r}: {error}") from None
        found[_text(name, where)] = _pair(kind, None if text is None else _text(text, where))
    return found


_CONVERTERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "string": _text,
    "long": _integer,
    "binary": _binary,
    "timestamp": _time,
    "properties": _properties,
}


def parse_property(text: str) -> tuple[str, dict[str, str | None]]:
    """`NAME=TEXT`, or `NAME:TYPE=TEXT` with an AMQP type. Raises UsageError."""
    name, equals, value = text.partition("=")
    name, colon, kind = name.rpartition(":") if ":" in name else (name, "", "string")
    if not equals or not name:
        raise UsageError(
            f"--property {text!r}: use NAME=VALUE or NAME:TYPE=VALUE, such as amount:int=5"
        )
    if kind not in TYPES:
        if colon:
            raise UsageError(f"--property {text!r}: {kind!r} is not one of {', '.join(TYPES)}")
        kind = "string"
    _utf_8(text, "--property")
    try:
        from_typed(kind, value)
    except ValueError as error:
        raise UsageError(f"--property {text!r}: {str(error).removeprefix('the value ')}") from None
    return name, _pair(kind, None if kind == "null" else value)


def typed_properties(properties: Iterable[tuple[str, Typed]]) -> dict[str, Any]:
    """Properties of a row that was read, for a row to send."""
    return {name: _pair(kind, text) for name, (kind, text) in properties}
