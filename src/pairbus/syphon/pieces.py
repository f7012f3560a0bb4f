"""The sections of a delivered message: found, and written anew where something in them changes.

For `restore.py`, which says what becomes of them; `pairs.py` looks into the maps. Quicker than
`amqp/sections`, because it relies on what brokers deliver (sections in the standard's order), and
hands anything else over to it. All of it raises ValueError, IndexError or struct.error for bytes
that are no message.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from pairbus.amqp.codec.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    PROPERTY_COUNT,
    slice_message,
)
from pairbus.amqp.codec.types import UByte, UInt, ULong
from pairbus.amqp.codec.values import (
    STEP,
    VAR8,
    VAR32,
    MalformedMessage,
    decode,
    encode,
    encode_list,
    encode_map,
    skip,
    u32,
)

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
What is not listed here may still be a section: see `_in_order`."""
_DATA8, _DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
_OTHER_BODY: Final = frozenset((b"\x00\x53\x76", b"\x00\x53\x77", b"\x00\x53\x78"))

STRING, WIDE_STRING, SYMBOL, INT, LONG, TIMESTAMP = 0xA1, 0xB1, 0xA3, 0x71, 0x81, 0x83

_pack_times = struct.Struct(">BqBq").pack
_pack_two_u32 = struct.Struct(">II").pack


# -- sections ---------------------------------------------------------------------------------


def opened(data: bytes) -> tuple[bytes, Cut]:
    """The message, put in order if it was not, and where its sections are."""
    found = _cut(data)
    if found is None:
        data = _in_order(data)
        found = _cut(data)
        if found is None:
            raise MalformedMessage("its sections are not those of a message")
    return data, found


def _cut(data: bytes) -> Cut | None:
    """Where the sections are; None if they are not as brokers send them."""
    found = [_ABSENT] * 5
    pos, end, least = 0, len(data), 0
    while (form := _FORMS.get(data[pos : pos + 4])) is not None:
        index, wide = form
        if index < least:
            return None
        least = index + 1
        if wide:
            first, after = pos + 12, pos + 8 + u32(data, pos + 4)[0]
            found[index] = (pos, first, after, u32(data, pos + 8)[0])
        else:
            first, after = pos + 6, pos + 5 + data[pos + 4]
            found[index] = (pos, first, after, data[pos + 5])
        if after < first:
            return None
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


def _in_order(data: bytes) -> bytes:
    """The same message with its sections in the standard's order, in the forms that `_cut` reads.

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
    pieces = [
        b"\x00\x53\x70" + encode_list([encode(field) for field in fields]),
        b"\x00\x53\x71" + encode_map(parts.delivery_annotations, parts.delivery_annotation_count),
        b"\x00\x53\x72" + encode_map(parts.annotations, parts.annotation_count),
    ]
    # An empty list says nothing, and has a form of its own.
    pieces += [parts.bare[slice(*span)] for span in spans if parts.bare[span[0] + 3] != 0x45]
    return b"".join((*pieces, rest))


def past(data: bytes, pos: int) -> int:
    """`skip`, quicker where the value is of a plain type."""
    step = STEP[data[pos]]
    if step < VAR8:
        return pos + step
    if step == VAR8:
        return pos + 2 + data[pos + 1]
    if step == VAR32:
        return pos + 5 + int(u32(data, pos + 1)[0])
    return skip(data, pos)


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
    for field, kind in ((durable, bool), (priority, UByte), (old_ttl_ms, UInt)):
        if field is not None and type(field) is not kind:
            raise MalformedMessage(f"{field!r} in the header should be a {kind.__name__}")
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
    return b"\x00\x53\x70" + encode_list(written), old_ttl_ms is not None


# -- properties -------------------------------------------------------------------------------

_MARKED: Final = 11  # up to and with the group id
EXPIRY, _CREATION, _GROUP = 8, 9, 10


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
        pos = pos + step if step < VAR8 else past(data, pos)
        marks.append(pos)
    if pos > after or count > PROPERTY_COUNT:
        raise MalformedMessage("the properties do not end where they should")
    if times is None:
        expiry = b"\x40" if is_stamped else data[marks[EXPIRY] : marks[_CREATION]]
        times = expiry + data[marks[_CREATION] : marks[_GROUP]]
    if session is None:
        session = data[marks[_GROUP] : pos]
    content = b"".join((data[first : marks[EXPIRY]], times, session, data[pos:after]))
    size = len(content)
    if size < 255:
        return b"\x00\x53\x73\xc0" + bytes((size + 1, count)) + content
    return b"\x00\x53\x73\xd0" + _pack_two_u32(size + 4, count) + content


def times(creation_ms: int, expiry_ms: int) -> bytes:
    """Absolute expiry time and creation time, in the order of the properties."""
    return _pack_times(TIMESTAMP, expiry_ms, TIMESTAMP, creation_ms)


def message_id(data: bytes, piece: Piece) -> str | None:
    """As text, for people: whatever type it has. None where there is none that can be read."""
    _, first, _, count = piece
    if not count:
        return None
    if data[first] == STRING:
        return data[first + 2 : first + 2 + data[first + 1]].decode("utf-8", "replace")
    value = decode(data, first)[0]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, str | UUID | ULong) else None
