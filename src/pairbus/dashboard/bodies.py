"""A message for people: its body as text, JSON, XML or hex, and all its properties. Pure.

Everything here is text for the page, which escapes it. Nothing of a message is ever markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from xml.parsers.expat import ExpatError

from defusedxml import DefusedXmlException
from defusedxml.minidom import parseString

from pairbus.cli.messages.message_json import DEAD_LETTER_PROPERTIES, format_time, row_of
from pairbus.cli.output import format_size
from pairbus.fast.columns import COLUMNS
from pairbus.fast.rows import DATA_BODY, MessageView, UnreadableMessage

BODY_BYTES_MAX: Final = 64 * 1024
"""More of a body is not shown."""
_HEX_BYTES_MAX: Final = 8 * 1024
_LINE_BYTES: Final = 16
_BEGINNING: Final = 80
_TIMES: Final = frozenset(column.name for column in COLUMNS if column.kind == "timestamp")


class BodyForm(StrEnum):
    TEXT = "text"
    JSON = "JSON"
    XML = "XML"
    HEX = "hex"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage:
    """A message for the page: as a row of a table, and in full."""

    sequence_number: int
    message_id: str = ""
    subject: str = ""
    state: str
    enqueued_at: float | None = None
    reason: str = ""
    description: str = ""
    size: int
    beginning: str
    """The first part of the body, as text."""
    body: bytes
    body_kind: str
    fields: tuple[tuple[str, str], ...] = ()
    """Properties of the service, by their names."""
    properties: tuple[tuple[str, str, str], ...] = ()
    """Application properties: name, AMQP type, value."""
    error: str = ""
    """Why it cannot be read."""


def read_message(message: MessageView) -> MessagePage:
    """A message that cannot be read has the reason in its error."""
    try:
        row = row_of(message)
    except UnreadableMessage as error:
        return _unreadable(message, str(error))
    body: bytes = row["body"] or b""
    properties = [
        (name, kind, "" if text is None else text)
        for name, (kind, text) in row["applicationProperties"]
        if name not in DEAD_LETTER_PROPERTIES
    ]
    enqueued = row["enqueuedTime"]
    return MessagePage(
        sequence_number=row["sequenceNumber"] or 0,
        message_id=row["messageId"] or "",
        subject=row["subject"] or "",
        state=row["state"] or "active",
        enqueued_at=None if enqueued is None else enqueued / 1_000_000,
        reason=row["deadLetterReason"] or "",
        description=row["deadLetterErrorDescription"] or "",
        size=len(message.data),
        beginning=beginning_of(body),
        body=body,
        body_kind=row["bodyType"] or DATA_BODY,
        fields=tuple(_fields(row)),
        properties=tuple(properties),
    )


def _unreadable(message: MessageView, error: str) -> MessagePage:
    number = message.annotation("x-opt-sequence-number")
    return MessagePage(
        sequence_number=number if isinstance(number, int) else 0,
        state="unreadable",
        size=len(message.data),
        beginning=error,
        body=message.data,
        body_kind="raw",
        error=error,
    )


def _fields(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in row.items():
        if value is None or name in ("body", "applicationProperties", "entity"):
            continue
        if name in _TIMES:
            yield name, format_time(value)
        elif isinstance(value, list):
            for key, (kind, text) in value:
                yield f"{name}.{key}", f"{text} ({kind})"
        elif isinstance(value, bytes):
            yield name, value.hex()
        else:
            yield name, str(value)


# -- bodies --------------------------------------------------------------------------------------


def beginning_of(body: bytes) -> str:
    text = body[: 4 * _BEGINNING].decode("utf-8", "replace")
    shown = "".join(one if one.isprintable() else " " for one in text[:_BEGINNING])
    return f"{shown}…" if len(text) > _BEGINNING or len(body) > 4 * _BEGINNING else shown


def best_form(body: bytes) -> BodyForm:
    """How to show a body, unless the viewer chooses another form."""
    try:
        text = body.decode().lstrip()
    except UnicodeDecodeError:
        return BodyForm.HEX
    if text[:1] in ("{", "["):
        return BodyForm.JSON
    return BodyForm.XML if text[:1] == "<" else BodyForm.TEXT


def body_text(body: bytes, form: BodyForm) -> tuple[str, str]:
    """The body in this form, and a note: what was cut, or why the form does not fit."""
    if form is BodyForm.HEX:
        return _hex(body[:_HEX_BYTES_MAX]), _cut_note(body, _HEX_BYTES_MAX)
    note = _cut_note(body, BODY_BYTES_MAX)
    if form is not BodyForm.TEXT and not note:
        try:
            return (_json if form is BodyForm.JSON else _xml)(body), ""
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            note = f"Not {form}: {reason}."
    elif note:
        note = f"{note} It is shown as text." if form is not BodyForm.TEXT else note
    return body[:BODY_BYTES_MAX].decode("utf-8", "replace"), note


def _cut_note(body: bytes, most: int) -> str:
    if len(body) <= most:
        return ""
    return f"The first {format_size(most)} of {format_size(len(body))}."


def _json(body: bytes) -> str:
    return json.dumps(json.loads(body.decode()), indent=2, ensure_ascii=False)


def _xml(body: bytes) -> str:
    """Indented. A document type is refused: with entities, a few bytes can become gigabytes."""
    try:
        document = parseString(body.decode(), forbid_dtd=True)
    except (ExpatError, DefusedXmlException) as error:
        raise ValueError(str(error)) from error
    lines = document.toprettyxml(indent="  ").splitlines()
    return "\n".join(line for line in lines if line.strip())


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, len(body), _LINE_BYTES):
        part = body[start : start + _LINE_BYTES]
        shown = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _LINE_BYTES - 1}}  {shown}")
    return "\n".join(lines)
