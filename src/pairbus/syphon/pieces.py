"""The pieces of a delivered message: found, read and filtered without decoding what stays as it is.

For `restore.py`, which says what becomes of them. Faster than `amqp/sections`, because it relies on
what brokers deliver (sections in the standard's order, short names), and hands anything else over
to it. All of it raises MalformedMessage, IndexError or struct.error where the bytes are no message.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    PROPERTY_COUNT,
    read_annotations,
    slice_message,
)
from pairbus.amqp.splice import STAMPED_KEYS, without_annotations
from pairbus.amqp.types import UByte, UInt, ULong
from pairbus.amqp.values import decode, encode, encode_list, encode_map
from pairbus.amqp.walk import STEP, VAR8, VAR32, MalformedMessage, skip, u32
from pairbus.route.envelope import ALIASES, KEPT_PREFIX

Piece = tuple[int, int, int, int]
"""Of a list or map section: where it begins, where its values begin and end, and their number."""
Cut = tuple[Piece, Piece, Piece, Piece, Piece, int]
"""Header, delivery annotations, message annotations, properties and application properties; and
where the body begins."""

_ABSENT: Final[Piece] = (0, 0, 0, 0)
_FORMS: Final[dict[bytes, tuple[int, bool]]] = {
    bytes((0x00, 0x53, section, constructor)): (section - HEADER, wide)
    for section, forms in {
        HEADER: {0xC0: False, 0xD0: True},
        DELIVERY_ANNOTATIONS: {0xC1: False, 0xD1: True},
        MESSAGE_ANNOTATIONS: {0xC1: False, 0xD1: True},
        PROPERTIES: {0xC0: False, 0xD0: True},
        APPLICATION_PROPERTIES: {0xC1: False, 0xD1: True},
    }.items()
    for constructor, wide in forms.items()
}
"""The first four bytes of a section: which it is, and whether its size and count take four bytes.
What is not listed here may still be a section: see `in_order`."""
_DATA8, _DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_OTHER_BODY: Final = frozenset((b"\x00\x53\x76", b"\x00\x53\x77", b"\x00\x53\x78"))

_KEPT: Final = KEPT_PREFIX.encode()
_ALIASES: Final = {alias.encode(): alias for alias in ALIASES}
_STRING, _WIDE_STRING, _SYMBOL, _LONG, _TIMESTAMP = 0xA1, 0xB1, 0xA3, 0x81, 0x83

_SCHEDULE_KEY: Final = b"x-opt-scheduled-enqueue-time"
_ENQUEUED, _SEQUENCE, _ELSE = range(3)
_STAMPS: Final = dict.fromkeys(STAMPED_KEYS, _ELSE) | {
    b"x-opt-enqueued-time": _ENQUEUED,
    b"x-opt-sequence-number": _SEQUENCE,
}
_STAMPS_AND_SCHEDULE: Final = _STAMPS | {_SCHEDULE_KEY: _ELSE}
_LOCK_TOKEN: Final = b"\xa3\x10x-opt-lock-token\x98"

_i64 = struct.Struct(">q").unpack_from
_pack_i64 = struct.Struct(">q").pack
_pack_times = struct.Struct(">BqBq").pack
_pack_two_u32 = struct.Struct(">II").pack


# -- sections ---------------------------------------------------------------------------------


def cut(data: bytes) -> Cut | None:
    """Where the sections are; None if they are not as brokers send them (see `in_order`)."""
    found = [_ABSENT] * 5
    pos, end, least = 0, len(data), 0
    while (form := _FORMS.get(data[pos : pos + 4])) is not None:
        index, wide = form
        if index < least:
            return None
        least = index + 1
        if wide:
            after = pos + 8 + u32(data, pos + 4)[0]
            found[index] = (pos, pos + 12, after, u32(data, pos + 8)[0])
        else:
            after = pos + 5 + data[pos + 4]
            found[index] = (pos, pos + 6, after, data[pos + 5])
        pos = after
    body = pos
    while pos < end:
        head = data[pos : pos + 4]
        if head == _DATA32:
            pos += 8 + u32(data, pos + 4)[0]
        elif head == _DATA8:
            pos += 5 + data[pos + 4]
        elif head[:3] in _OTHER_BODY:
            pos = skip(data, pos + 3)
        else:
            return None
    if pos != end:
        return None
    header, delivery, annotations, properties, application = found
    return header, delivery, annotations, properties, application, body


def in_order(data: bytes) -> bytes:
    """The same message with its sections in the standard's order, in the forms that `cut` reads.

    Raises MalformedMessage, with offset and reason, if that cannot be done.
    """
    parts = slice_message(data)
    spans = [span for span in (parts.properties, parts.application_properties) if span]
    rest = bytearray(parts.bare)
    for start, end in sorted(spans, reverse=True):
        del rest[start:end]
    fields = (
        parts.durable,
        None if parts.priority is None else UByte(parts.priority),
        None if parts.ttl_ms is None else UInt(parts.ttl_ms),
    )
    pieces = [_section(HEADER) + encode_list([encode(field) for field in fields])]
    for section, pairs, count in (
        (DELIVERY_ANNOTATIONS, parts.delivery_annotations, parts.delivery_annotation_count),
        (MESSAGE_ANNOTATIONS, parts.annotations, parts.annotation_count),
    ):
        if count:
            pieces.append(_section(section) + encode_map(pairs, count))
    # An empty list says nothing, and has a form of its own.
    pieces += [parts.bare[slice(*span)] for span in spans if parts.bare[span[0] + 3] != 0x45]
    return b"".join((*pieces, rest))


def _section(code: int) -> bytes:
    return bytes((0x00, 0x53, code))


def _past(data: bytes, pos: int) -> int:
    """`skip`, quicker where the value is of a plain type."""
    step = STEP[data[pos]]
    if step < VAR8:
        return pos + step
    if step == VAR8:
        return pos + 2 + data[pos + 1]
    if step == VAR32:
        return pos + 5 + int(u32(data, pos + 1)[0])
    return skip(data, pos)


def _check_end(name: str, pos: int, end: int, left: int) -> None:
    if pos != end or left:
        raise MalformedMessage(f"the {name} do not end where they should")


# -- header -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def header_for(raw: bytes, count: int, ttl_ms: int | None) -> tuple[bytes, bool]:
    """The header section with another time to live, and whether the broker had given it one.

    How often the broker has delivered it is left out; empty if nothing is left. A few serve nearly
    all messages.
    """
    fields: list[Any] = []
    pos = 0
    for _ in range(min(count, 3)):
        field, pos = decode(raw, pos)
        fields.append(field)
    durable, priority, old_ttl_ms = fields + [None] * (3 - len(fields))
    if durable is priority is ttl_ms is None:
        return b"", old_ttl_ms is not None
    # The SDK's way: always five fields, and the long form of a boolean.
    written = [
        encode(None) if durable is None else b"\x56\x01" if durable else b"\x56\x00",
        encode(priority),
        encode(None if ttl_ms is None else UInt(ttl_ms)),
        encode(None),
        encode(None),
    ]
    return _section(HEADER) + encode_list(written), old_ttl_ms is not None


# -- annotations ------------------------------------------------------------------------------


def stamps_taken(
    data: bytes, piece: Piece, *, schedule_too: bool
) -> tuple[bytes, int, int | None, int | None]:
    """The sender's own pairs and their number; when and as which number it was enqueued."""
    _, pos, after, left = piece
    stamps = _STAMPS_AND_SCHEDULE if schedule_too else _STAMPS
    kept: list[bytes] = []
    kept_from, count = pos, 0
    enqueued_ms = sequence = None
    while pos < after:
        if data[pos] != _SYMBOL:
            return _odd_stamps_taken(data[piece[1] : after], frozenset(stamps))
        start, left = pos, left - 2
        at = pos + 2 + data[pos + 1]
        what = stamps.get(data[pos + 2 : at])
        step = STEP[data[at]]
        pos = at + step if step < VAR8 else _past(data, at)
        if what is None:
            count += 1
            continue
        if kept_from < start:
            kept.append(data[kept_from:start])
        kept_from = pos
        if what == _ENQUEUED:
            enqueued_ms = _number(data, at)
        elif what == _SEQUENCE:
            sequence = _number(data, at)
    _check_end("message annotations", pos, after, left)
    if kept_from < after:
        kept.append(data[kept_from:after])
    return b"".join(kept), count, enqueued_ms, sequence


def _odd_stamps_taken(
    raw: bytes, names: frozenset[bytes]
) -> tuple[bytes, int, int | None, int | None]:
    """The same where a name is not a short symbol."""
    notes = read_annotations(raw)
    enqueued_ms, sequence = notes.get("x-opt-enqueued-time"), notes.get("x-opt-sequence-number")
    return (
        *without_annotations(raw, names),
        int(enqueued_ms) if isinstance(enqueued_ms, int) else None,
        int(sequence) if isinstance(sequence, int) else None,
    )


def _number(data: bytes, at: int) -> int | None:
    if data[at] in (_LONG, _TIMESTAMP):
        number: int = _i64(data, at + 1)[0]
        return number
    value = decode(data, at)[0]
    return int(value) if isinstance(value, int) else None


def without_lock_token(data: bytes, piece: Piece) -> bytes:
    """The delivery annotations' section without the broker's; mostly nothing."""
    _, first, after, count = piece
    if count == 2 and data.startswith(_LOCK_TOKEN, first):
        return b""
    pairs, left = without_annotations(data[first:after], STAMPED_KEYS)
    return _section(DELIVERY_ANNOTATIONS) + encode_map(pairs, left) if left else b""


def annotations_with(schedule_ms: int | None, pairs: bytes, count: int) -> bytes:
    """The message annotations' section. The SDK writes the schedule first."""
    if schedule_ms is not None:
        pairs = _SCHEDULE + _pack_i64(schedule_ms) + pairs
        count += 1
    return _section(MESSAGE_ANNOTATIONS) + encode_map(pairs, count) if count else b""


_SCHEDULE: Final = (
    bytes((_SYMBOL, len(_SCHEDULE_KEY))) + _SCHEDULE_KEY + bytes((_TIMESTAMP,))
)


# -- application properties -------------------------------------------------------------------


def aliases_taken(data: bytes, piece: Piece) -> tuple[bytes, int, dict[str, Any]]:
    """The application's own pairs under their own names, their number, and the aliases' values."""
    _, pos, after, left = piece
    kept: list[bytes] = []
    kept_from, count = pos, 0
    aliases: dict[str, Any] = {}
    while pos < after:
        start, left = pos, left - 2
        if data[pos] == _STRING:
            text = pos + 2
            at = text + data[pos + 1]
        elif data[pos] == _WIDE_STRING:
            text = pos + 5
            at = text + u32(data, pos + 1)[0]
        else:
            text = at = _past(data, pos)  # no name that we would have given
        step = STEP[data[at]]
        pos = at + step if step < VAR8 else _past(data, at)
        if data[text : text + 2] != b"x-":
            count += 1
            continue
        name = data[text:at]
        if (alias := _ALIASES.get(name)) is not None:
            aliases[alias] = _alias_value(data, at)
        else:
            count += 1
            if not name.startswith(_KEPT):
                continue
        if kept_from < start:
            kept.append(data[kept_from:start])
        kept_from = pos
        if alias is None:
            kept += (encode(name[len(_KEPT) :].decode()), data[at:pos])
    _check_end("application properties", pos, after, left)
    if kept_from < after:
        kept.append(data[kept_from:after])
    return b"".join(kept), count, aliases


def _alias_value(data: bytes, at: int) -> Any:
    constructor = data[at]
    if constructor == _STRING:
        return data[at + 2 : at + 2 + data[at + 1]].decode()
    if constructor in (_LONG, _TIMESTAMP):
        return _i64(data, at + 1)[0]
    return decode(data, at)[0]


def application_properties(pairs: bytes, count: int) -> bytes:
    return _section(APPLICATION_PROPERTIES) + encode_map(pairs, count) if count else b""



# -- properties -------------------------------------------------------------------------------

_MARKED: Final = 11  # up to and with the group id
_EXPIRY, _CREATION, _GROUP = 8, 9, 10


def properties_with(
    data: bytes, piece: Piece, *, times: bytes | None, session: bytes | None, is_stamped: bool
) -> bytes:
    """The properties' section with the fields that are given.

    `times` are expiry and creation, `session` is the group id, both encoded; if the broker has
    stamped it, an expiry that stands there is the broker's.
    """
    _, first, after, count = piece
    if count < _MARKED:
        padded = data[first:after] + b"\x40" * (_MARKED - count)
        first, after, count, data = 0, len(padded), _MARKED, padded
    pos, marks = first, [first]
    for _ in range(_MARKED):
        step = STEP[data[pos]]
        pos = pos + step if step < VAR8 else _past(data, pos)
        marks.append(pos)
    if pos > after or count > PROPERTY_COUNT:
        raise MalformedMessage("the properties do not end where they should")
    if times is None:
        expiry = b"\x40" if is_stamped else data[marks[_EXPIRY] : marks[_CREATION]]
        times = expiry + data[marks[_CREATION] : marks[_GROUP]]
    if session is None:
        session = data[marks[_GROUP] : pos]
    content = b"".join((data[first : marks[_EXPIRY]], times, session, data[pos:after]))
    size = len(content)
    if size < 255:
        return b"\x00\x53\x73\xc0" + bytes((size + 1, count)) + content
    return b"\x00\x53\x73\xd0" + _pack_two_u32(size + 4, count) + content


def times(creation_ms: int, expiry_ms: int) -> bytes:
    """Absolute expiry time and creation time, in the order of the properties."""
    return _pack_times(_TIMESTAMP, expiry_ms, _TIMESTAMP, creation_ms)


def message_id(data: bytes, piece: Piece) -> str | None:
    """As text, for people: whatever type it has. None where there is none that can be read."""
    _, first, _, count = piece
    if not count:
        return None
    if data[first] == _STRING:
        return data[first + 2 : first + 2 + data[first + 1]].decode("utf-8", "replace")
    value = decode(data, first)[0]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, str | UUID | ULong) else None
