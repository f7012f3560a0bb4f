"""A message as JSON, and back without loss: what `receive` and `peek` print, `send` takes.

The names are those of the rows of docs/spark.md; what a message lacks is left out. A body is text
where it is UTF-8, else base64, and then `bodyEncoding` says so. Properties are plain JSON where
that tells their type (a whole number is AMQP's int, or long if it is too large for one), else an
object of type and value. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pairbus.errors import UsageError
from pairbus.fast.columns import COLUMNS, NAMES, reader_of
from pairbus.fast.rows import DATA_BODY, MessageView, UnreadableMessage
from pairbus.fast.typed import TYPES, Typed

Form = dict[str, Any]
Row = dict[str, Any]

ADDED: Final = {
    "DeadLetterReason": "deadLetterReason",
    "DeadLetterErrorDescription": "deadLetterErrorDescription",
}
"""What a message gets when it is put aside, among the properties of its application."""
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


def shown_form(message: MessageView) -> Form:
    """For who only looks: what cannot be read is told, and holds up nothing else."""
    try:
        return form_of(row_of(message))
    except UnreadableMessage as error:
        number = message.annotation("x-opt-sequence-number")
        return {"sequenceNumber": number, UNREADABLE: str(error)}


def form_of(row: Mapping[str, Any]) -> Form:
    form: Form = {}
    for name, value in row.items():
        if value is None or name in ("body", "bodyType", "entity"):
            continue
        if _KINDS[name] == "timestamp":
            form[name] = moment_text(value)
        elif _KINDS[name] == "binary":
            form[name] = _base64(value)
        elif _KINDS[name] == "properties":
            own = {key: _plain(*typed) for key, typed in value if not _is_told(key, row)}
            if own:
                form[name] = own
        else:
            form[name] = value
    return form | _body_form(row.get("body"), row.get("bodyType"))


def _is_told(name: str, row: Mapping[str, Any]) -> bool:
    """Why it was put aside is a property on the wire, and has a name of its own here."""
    return name in ADDED and row.get(ADDED[name]) is not None


def _body_form(body: bytes | None, kind: str | None) -> Form:
    if body is None:
        return {}
    if kind == DATA_BODY:
        try:
            return {"body": body.decode()}
        except UnicodeDecodeError:
            return {"body": _base64(body), ENCODING: BASE64}
    return {"body": _base64(body), ENCODING: BASE64, "bodyType": kind}


def _plain(kind: str, text: str | None) -> Any:
    """The JSON value that `typed_of` makes the same pair of."""
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
    return value if value is not None and typed_of(value) == (kind, text) else _pair(kind, text)


def _pair(kind: str, text: str | None) -> dict[str, str | None]:
    return {"type": kind, "value": text}


def moment_text(microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z".rjust(24, "0")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# -- and back -----------------------------------------------------------------------------------


def typed_of(value: Any) -> Typed:
    """Of a plain value. Raises ValueError."""
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
        case UUID():
            return "uuid", str(value)
        case bytes():  # as the official SDK gives both strings and binaries
            try:
                return "string", value.decode()
            except UnicodeDecodeError:
                return "binary", _base64(value)
        case {"type": str(kind), "value": str() | None as text, **rest} if not rest:
            return kind, text
    raise ValueError(
        'a text, a number, true, false, null or {"type": ..., "value": ...} is expected, not '
        f"{str(value)[:60]!r}"
    )


def parse_form(text: str, where: str) -> Row:
    """A line of JSON as a row to send. Raises UsageError, which says where."""
    try:
        form = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
    if not isinstance(form, dict):
        raise UsageError(f'{where}: an object such as {{"body": "text"}} is expected')
    return row_from(form, where)


def row_from(form: Mapping[str, Any], where: str) -> Row:
    """What the service says of a message that was received is passed over."""
    unknown = [name for name in form if name not in _KINDS and name != ENCODING]
    if unknown:
        known = ", ".join(sorted(_WRITABLE | {ENCODING}))
        raise UsageError(f"{where}: {unknown[0]!r} is nothing a message has; it may have {known}")
    row: Row = {"body": _body_from(form, where)}
    for name, value in form.items():
        if value is None or name in (ENCODING, "body") or name not in _WRITABLE:
            continue
        row[name] = _CONVERTED[_KINDS[name]](value, f"{where}: {name}")
    return row


def _body_from(form: Mapping[str, Any], where: str) -> bytes:
    body, encoding = form.get("body", ""), form.get(ENCODING)
    if encoding not in (None, BASE64, "utf-8"):
        raise UsageError(f"{where}: {ENCODING} {encoding!r}: {BASE64} or utf-8 is expected")
    if not isinstance(body, str):
        if encoding is not None:
            raise UsageError(f"{where}: body: a text in {encoding} is expected")
        return json.dumps(body, ensure_ascii=False).encode()  # JSON in JSON is meant as JSON
    return _binary(body, f"{where}: body") if encoding == BASE64 else _utf_8(body, where)


def _utf_8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: {text[:40]!r} is no text: it cannot be UTF-8") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: a text is expected, not {value!r}")
    _utf_8(value, where)
    return value


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{where}: a whole number is expected, not {value!r}")
    return value


def _binary(value: Any, where: str) -> bytes:
    try:
        return base64.b64decode(_text(value, where), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{where}: this is no base64") from None


def _moment(value: Any, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(value, where))
    except ValueError:
        raise UsageError(f"{where}: {value!r} is no time, such as 2030-12-31T23:59:59Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _properties(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: an object of names and values is expected")
    found = {}
    for name, one in value.items():
        try:
            kind, text = typed_of(one)
            if kind not in TYPES:
                raise ValueError(f"the type {kind!r} is none of {', '.join(TYPES)}")
        except ValueError as error:
            raise UsageError(f"{where}: {name!r}: {error}") from None
        found[_text(name, where)] = _pair(kind, None if text is None else _text(text, where))
    return found


_CONVERTED: Final[dict[str, Callable[[Any, str], Any]]] = {
    "string": _text,
    "long": _whole,
    "binary": _binary,
    "timestamp": _moment,
    "properties": _properties,
}


def parse_property(text: str) -> tuple[str, dict[str, str | None]]:
    """`NAME=TEXT`, or `NAME:TYPE=TEXT` with a type of AMQP. Raises UsageError."""
    name, equals, value = text.partition("=")
    name, colon, kind = name.rpartition(":") if ":" in name else (name, "", "string")
    if not equals or not name:
        raise UsageError(
            f"--property {text!r}: NAME=VALUE or NAME:TYPE=VALUE is expected, such as amount:int=5"
        )
    if kind not in TYPES:
        if colon:
            raise UsageError(f"--property {text!r}: {kind!r} is none of {', '.join(TYPES)}")
        kind = "string"
    _utf_8(text, "--property")
    return name, _pair(kind, None if kind == "null" else value)


def pairs_of(properties: Iterable[tuple[str, Typed]]) -> dict[str, Any]:
    """Of a row that was read, for a row to send."""
    return {name: _pair(kind, text) for name, (kind, text) in properties}
