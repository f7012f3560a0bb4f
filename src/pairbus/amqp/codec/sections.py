"""The sections of an encoded message: found once, and read where a field is needed.

`slice_message` takes any message that a sender may write: sections in any order (the Python SDK
puts delivery annotations last), in any encoding. Everything after the annotations stays unchanged,
byte for byte. `scan` takes what brokers deliver, in the order of the standard, and returns where
each section is. Neither decodes a body. What `slice_message` accepts, `stamp` can change without
failing; reading a field decodes it, and may still find text that is not UTF-8.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from pairbus.amqp.codec.types import Char, Symbol, UByte, UInt, ULong
from pairbus.amqp.codec.values import (
    PAST_THE_END,
    STEP,
    VAR8,
    MalformedMessage,
    check,
    decode,
    skip,
    u32,
)

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(
    0x70, 0x75
)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

SECTION_NAMES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

# The first four bytes of a section: which it is, and the size of its size field. Nothing else is a
# section, except a VALUE, which may hold any value, and sections with long descriptors.
_LIST, _MAP, _BINARY = {0x45: 0, 0xC0: 1, 0xD0: 4}, {0xC1: 1, 0xD1: 4}, {0xA0: 1, 0xB0: 4}
_FORMS: dict[bytes, tuple[int, int]] = {
    bytes((0x00, 0x53, section, constructor)): (section, size_bytes)
    for section, forms in {
        HEADER: _LIST,
        DELIVERY_ANNOTATIONS: _MAP,
        MESSAGE_ANNOTATIONS: _MAP,
        PROPERTIES: _LIST,
        APPLICATION_PROPERTIES: _MAP,
        DATA: _BINARY,
        SEQUENCE: _LIST,
        FOOTER: _MAP,
    }.items()
    for constructor, size_bytes in forms.items()
}
_VALUE_DESCRIPTOR = bytes((0x00, 0x53, VALUE))
DATA8, DATA32 = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
"""The first bytes of a data section, whose size takes one byte or four."""

_HEADER_FIELDS = ((bool, "durable"), (UByte, "priority"), (UInt, "ttl"))

# The fields of the properties section, by their index.
MESSAGE_ID, USER_ID, TO, SUBJECT, REPLY_TO, CORRELATION_ID, CONTENT_TYPE = range(7)
CONTENT_ENCODING, EXPIRY_TIME, CREATION_TIME, GROUP_ID, GROUP_SEQUENCE, REPLY_TO_GROUP_ID = range(
    7, 13
)
PROPERTY_COUNT: Final = 13  # the Python SDK fails on a message that has more

HEADER_TTL_MS_MAX: Final = 2**32 - 1
"""A longer time to live is the difference between expiry and creation time, as in the SDKs."""
EXPIRY_TIME_MS_MAX: Final = 253_402_243_199_000
"""The latest time in the year 9999 that the SDK uses."""

Span = tuple[int, int]
"""Where a section begins and ends."""


@dataclass(slots=True)  # not frozen: that would double the cost of slicing
class Parts:
    """A sliced message. Annotations are raw pairs without their map; counts are of pairs."""

    durable: bool | None
    priority: int | None
    ttl_ms: int | None
    delivery_annotations: bytes
    delivery_annotation_count: int
    annotations: bytes
    annotation_count: int
    bare: bytes
    properties: Span | None
    application_properties: Span | None


def slice_message(data: bytes) -> Parts:
    """Slice an encoded message into its parts. Raises MalformedMessage with offset and reason.

    Every message passes here. It is one long function because calls would be half its cost, and
    a section that leaves the data is noticed by what is read next, or at the end.
    """
    end = len(data)
    pos = seen = removed = kept_from = 0
    kept: list[bytes] = []
    durable = priority = ttl_ms = properties = application_properties = None
    delivery_annotations = annotations = b""
    delivery_annotation_count = annotation_count = 0
    try:
        while pos < end:
            form = _FORMS.get(data[pos : pos + 4])
            if form is None:
                if data[pos : pos + 3] == _VALUE_DESCRIPTOR:
                    pos = skip(data, pos + 3)
                    continue
                return slice_message(with_short_descriptors(data, pos))
            section, size_bytes = form
            count = 0
            if size_bytes == 1:
                after = pos + 5 + data[pos + 4]
                if section == DATA:
                    pos = after
                    continue
                first, count = pos + 6, data[pos + 5]
            elif size_bytes:
                after = pos + 8 + u32(data, pos + 4)[0]
                if section == DATA:
                    pos = after
                    continue
                first, count = pos + 12, u32(data, pos + 8)[0]
            else:
                first = after = pos + 4
            if section == SEQUENCE:
                pos = after
                continue
            bit = 1 << (section & 0x0F)
            if seen & bit:
                raise MalformedMessage(f"offset {pos}: a second section 0x{section:02x}")
            seen |= bit
            if section == PROPERTIES:
                if count > PROPERTY_COUNT:
                    raise MalformedMessage(f"offset {pos}: more than {PROPERTY_COUNT} properties")
                check(data, first, after, count)
                properties = (pos - removed, after - removed)
                pos = after
                continue
            if section == HEADER:
                if after < first:
                    raise MalformedMessage(f"offset {pos}: a header without its count")
                if after - first < 32:
                    durable, priority, ttl_ms = _known_header(data[first:after], count)
                else:
                    durable, priority, ttl_ms = _header(data[first:after], count)
            else:
                check(data, first, after, count)
                if count & 1:
                    raise MalformedMessage(f"offset {pos}: a map of {count} values lacks one")
                if section == APPLICATION_PROPERTIES:
                    application_properties = (pos - removed, after - removed)
                elif section == MESSAGE_ANNOTATIONS:
                    annotations, annotation_count = data[first:after], count >> 1
                elif section == DELIVERY_ANNOTATIONS:
                    delivery_annotations, delivery_annotation_count = data[first:after], count >> 1
            if section <= MESSAGE_ANNOTATIONS:
                if kept_from < pos:
                    kept.append(data[kept_from:pos])
                removed += after - pos
                kept_from = after
            pos = after
    except PAST_THE_END as error:
        raise MalformedMessage(f"offset {pos}: the message ends inside this section") from error
    if pos != end:
        raise MalformedMessage(f"offset {end}: the last section would end at {pos}")
    bare = data[kept_from:]
    if kept:
        kept.append(bare)
        bare = b"".join(kept)
    return Parts(
        durable,
        priority,
        ttl_ms,
        delivery_annotations,
        delivery_annotation_count,
        annotations,
        annotation_count,
        bare,
        properties,
        application_properties,
    )


def _header(raw: bytes, count: int) -> tuple[bool | None, int | None, int | None]:
    check(raw, 0, len(raw), count)
    fields: list[Any] = [None, None, None]
    pos = 0
    for index, (kind, name) in enumerate(_HEADER_FIELDS[:count]):
        value, pos = decode(raw, pos)
        if value is not None:
            if type(value) is not kind:
                raise MalformedMessage(
                    f"header.{name} must be a {kind.__name__}, not {value!r:.80}"
                )
            fields[index] = value if kind is bool else int(value)
    return fields[0], fields[1], fields[2]


# Messages of one sender share a few headers. Only short ones are cached: senders choose them.
_known_header = lru_cache(maxsize=512)(_header)


def with_short_descriptors(data: bytes, at: int) -> bytes:
    """The same sections with one-byte descriptors, the only form that the Python SDK reads.

    The standard also allows a long number or a symbol as descriptor; no known sender uses them.
    Raises MalformedMessage if the section at `at` is malformed for another reason.
    """
    pieces: list[bytes] = []
    pos = 0
    while pos < len(data):
        if data[pos]:
            raise MalformedMessage(f"offset {pos}: a section begins with 0x00")
        descriptor, start = decode(data, pos + 1)
        if type(descriptor) is Symbol:
            descriptor = SECTION_NAMES.get(descriptor)
        elif type(descriptor) is not ULong:
            descriptor = None
        if descriptor is None or not HEADER <= descriptor <= FOOTER:
            raise MalformedMessage(f"offset {pos}: the descriptor is of no message section")
        if pos == at and data[pos + 1] == 0x53:
            raise MalformedMessage(
                f"offset {pos}: section 0x{descriptor:02x} holds 0x{data[start]:02x}"
                if start < len(data)
                else f"offset {pos}: section 0x{descriptor:02x} holds nothing"
            )
        pos = skip(data, start)
        pieces += (b"\x00\x53", bytes((descriptor,)), data[start:pos])
    return b"".join(pieces)


# -- where the sections are -------------------------------------------------------------------

Section = tuple[int, int, int, int]
"""A list or map section: where it begins, where its values begin and end, and how many there are.

A plain tuple, because five are made for each message.
"""
ABSENT: Final[Section] = (0, 0, 0, 0)


class Sections(NamedTuple):
    header: Section
    delivery_annotations: Section
    annotations: Section
    properties: Section
    application_properties: Section
    body: int
    """Where the body begins; the footer belongs to it."""


# The first four bytes of a section in front of the body: which it is, and whether its size and
# count take four bytes. An empty list in its short form is not here: `_in_order` drops it.
_FRONT: Final = {
    head: (section - HEADER, size_bytes == 4)
    for head, (section, size_bytes) in _FORMS.items()
    if section <= APPLICATION_PROPERTIES and size_bytes
}
_OTHER_BODY: Final = frozenset(bytes((0x00, 0x53, one)) for one in (SEQUENCE, VALUE, FOOTER))


def scan(data: bytes) -> tuple[bytes, Sections]:
    """The message, put in the standard's order if it was not, and where its sections are.

    Quicker than `slice_message`, because brokers deliver nearly all messages in that order. The
    values inside a section are not checked: `pairs` notices when they do not end with it.
    """
    try:
        found = _scan(data)
        if found is None:
            data = _in_order(data)
            found = _scan(data)
    except PAST_THE_END as error:
        raise MalformedMessage("the message ends inside a section") from error
    if found is None:
        raise MalformedMessage("its sections are not those of a message")
    return data, found


def _scan(data: bytes) -> Sections | None:
    """Where the sections are; None if they are not as brokers deliver them."""
    found = [ABSENT] * 5
    pos, end, least = 0, len(data), 0
    while (form := _FRONT.get(data[pos : pos + 4])) is not None:
        index, is_wide = form
        if index < least:
            return None
        least = index + 1
        if is_wide:
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
        if head == DATA32:
            pos += 8 + u32(data, pos + 4)[0]
        elif head == DATA8:
            pos += 5 + data[pos + 4]
        elif head[:3] in _OTHER_BODY:
            pos = skip(data, pos + 3)
        else:
            return None
    if pos != end:
        return None
    header, delivery_annotations, annotations, properties, application_properties = found
    return Sections(
        header, delivery_annotations, annotations, properties, application_properties, body
    )


def _in_order(data: bytes) -> bytes:
    """The same message with its sections in the standard's order and with short descriptors.

    Raises MalformedMessage, with offset and reason, if the message is not a valid one.
    """
    slice_message(data)
    data = with_short_descriptors(data, at=-1)
    front: dict[int, bytes] = {}
    rest: list[bytes] = []
    pos = 0
    while pos < len(data):
        after = skip(data, pos)
        section = data[pos + 2]
        if section > APPLICATION_PROPERTIES:
            rest.append(data[pos:after])
        elif data[pos + 3] != 0x45:  # an empty list in its short form: dropped
            front[section] = data[pos:after]
        pos = after
    return b"".join((*(front[section] for section in sorted(front)), *rest))


def encode_section(section: int, content: bytes) -> bytes:
    """The section around its encoded list, map or value."""
    return bytes((0x00, 0x53, section)) + content


# -- reading ----------------------------------------------------------------------------------


def section_values(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Where the values of the list or map section data[start:end] begin, and how many there are."""
    constructor = data[start + 3]
    if constructor == 0x45:
        return end, 0
    if constructor < 0xD0:
        return start + 6, data[start + 5]
    return start + 12, u32(data, start + 8)[0]


def read_property(bare: bytes, span: Span | None, index: int) -> Any:
    """A field of the properties section, by an index such as MESSAGE_ID; None if absent."""
    if span is None:
        return None
    pos, count = section_values(bare, *span)
    if index >= count:
        return None
    for _ in range(index):
        step = STEP[bare[pos]]
        if step < VAR8:
            pos += step
        elif step == VAR8:
            pos += 2 + bare[pos + 1]
        else:
            pos = skip(bare, pos)
    if bare[pos] == 0xA1:  # a short string, as nearly all fields are
        try:
            return bare[pos + 2 : pos + 2 + bare[pos + 1]].decode()
        except UnicodeDecodeError:
            pass  # decode() raises it again, with the offset
    return decode(bare, pos)[0]


def message_id(parts: Parts) -> str | None:
    return identifier_text(read_property(parts.bare, parts.properties, MESSAGE_ID), "message-id")


def content_type(parts: Parts) -> str | None:
    return _text(read_property(parts.bare, parts.properties, CONTENT_TYPE), "content-type")


def group_id(parts: Parts) -> str | None:
    return _text(read_property(parts.bare, parts.properties, GROUP_ID), "group-id")


def _text(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and type(value) is not Char:
        return str(value)
    raise MalformedMessage(f"{name} must be a string, not {value!r:.80}")


def identifier_text(value: Any, name: str = "an id") -> str | None:
    """One string per distinct id, in the notation of the AMQP JMS mapping (3.2.1.1).

    A uuid and its text are two ids. A string that looks like the notation is marked as a string.
    """
    match value:
        case None:
            return None
        case str() if type(value) is not Char:  # a Char may be a surrogate, which is not text
            return f"AMQP_STRING:{value}" if value.startswith("AMQP_") else str(value)
        case UUID():
            return f"AMQP_UUID:{value}"
        case ULong():
            return f"AMQP_ULONG:{int(value)}"
        case bytes():
            return f"AMQP_BINARY:{value.hex().upper()}"
    raise MalformedMessage(f"{name} must be a string, ulong, uuid or binary, not {value!r:.80}")


def identifier_value(text: str) -> Any:
    """The id that `identifier_text` writes as `text`. Raises ValueError if there is none."""
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
    raise ValueError(f"{kind} is not a type of ids")


def read_annotations(raw: bytes) -> dict[str, Any]:
    """Annotations by name."""
    return {name: value for name, value, _, _ in pairs(raw, 0, len(raw))}


def read_application_properties(bare: bytes, span: Span | None) -> dict[str, Any]:
    if span is None:
        return {}
    first = section_values(bare, *span)[0]
    return {name: value for name, value, _, _ in pairs(bare, first, span[1])}


def pairs(data: bytes, pos: int, end: int) -> Iterator[tuple[str, Any, int, int]]:
    """The pairs of a map, data[pos:end]: name, value, and where the encoded value is.

    Names that are numbers are left out; the standard reserves them.
    """
    while pos < end:
        name, start = decode(data, pos)
        value, pos = decode(data, start)
        if isinstance(name, str):
            yield str(name), value, start, pos
    if pos != end:
        raise MalformedMessage(f"offset {pos}: the pairs do not end at {end}")
