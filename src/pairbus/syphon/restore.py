"""Makes a backlog message, as a receiver gets it, the message that the application sent.

It removes the envelope, and what a broker adds on delivery, from the encoded bytes. Session, time
to live and schedule return to where the service looks for them, and everything else stays byte for
byte. Bodies are not decoded. New sections are written as Azure's SDK for Python writes them. Pure:
knows no clock (`now_ms` is UTC) and no destinations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pairbus.amqp.codec.sections import (
    APPLICATION_PROPERTIES,
    CREATION_TIME,
    EXPIRY_TIME,
    EXPIRY_TIME_MS_MAX,
    GROUP_ID,
    HEADER,
    HEADER_TTL_MS_MAX,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    PROPERTY_COUNT,
    Section,
    Sections,
    encode_section,
    scan,
)
from pairbus.amqp.codec.stamp import SCHEDULED_KEY, unstamp, without_lock_token
from pairbus.amqp.codec.types import Symbol, Timestamp, UByte, UInt
from pairbus.amqp.codec.values import (
    PAST_THE_END,
    MalformedMessage,
    decode,
    encode,
    encode_list,
    encode_map,
    skip,
    u32,
)
from pairbus.client.route.envelope import (
    ALIASES,
    DIVERTED_BY,
    KEPT_PREFIX,
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    EnvelopeError,
    can_be_entity,
    unwrap,
)

_SCHEDULED_MS_END: Final = 2**63
# A few headers and sets of properties serve nearly all messages. Long ones are not kept.
_KNOWN_HEADER_BYTES_MAX: Final = 32
_KNOWN_APPLICATION_BYTES_MAX: Final = 512


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Restored:
    """The original of a backlog message."""

    path: str
    """The queue or topic that it was sent to."""
    data: bytes
    """The message, encoded, ready to be sent."""
    size: int
    """Of `data`, in bytes."""
    is_expired: bool
    """Its time to live is over. Only if that keeps running in the backlog."""
    enqueued_ms: int | None
    """When the backlog queue accepted it."""
    is_ordered: bool = False
    """Its client waits for it to come home, to keep the order of its messages."""


def restore(data: bytes, *, now_ms: int, ttl_keeps_running: bool = False) -> Restored:
    """Raises EnvelopeError, with the reason, for a message that pairbus did not divert.

    The time to live starts again at `now_ms`. With `ttl_keeps_running`, the time that the message
    has waited is subtracted; for a scheduled message, the time since it was due.
    """
    try:
        return _restored(*scan(data), now_ms, ttl_keeps_running)
    except EnvelopeError:
        raise
    except (ValueError, *PAST_THE_END) as error:
        raise EnvelopeError(
            f"the message cannot be read: {error}. Expected an AMQP message as a queue delivers it"
        ) from error


def _restored(data: bytes, found: Sections, now_ms: int, ttl_keeps_running: bool) -> Restored:
    header, delivery_annotations, annotations, properties, application, body = found
    own, is_ordered, path, session_id, ttl_ms, scheduled_ms = _application(data, application)
    notes, note_count, enqueued_ms = unstamp(data, annotations, keep_schedule=scheduled_ms is None)
    is_expired = False
    if ttl_ms is not None and ttl_keeps_running:
        began_ms = max(now_ms if enqueued_ms is None else enqueued_ms, scheduled_ms or 0)
        ttl_ms -= max(now_ms - began_ms, 0)
        if ttl_ms <= 0:
            ttl_ms, is_expired = 0, True
    header_section, is_stamped = _header(data, header, ttl_ms)
    if ttl_ms or session_id is not None or (is_stamped and properties[3] > EXPIRY_TIME):
        properties_section = _properties(
            data,
            properties,
            times=_times(now_ms, ttl_ms) if ttl_ms else None,
            session=None if session_id is None else encode(session_id),
            is_stamped=is_stamped,
        )
    else:
        properties_section = data[properties[0] : properties[2]]
    restored = b"".join(
        (
            header_section,
            _annotations(scheduled_ms, notes, note_count),
            properties_section,
            own,
            data[body:],
            without_lock_token(data, delivery_annotations),  # last, where the SDK has them
        )
    )
    return Restored(path, restored, len(restored), is_expired, enqueued_ms, is_ordered)


# -- the envelope -----------------------------------------------------------------------------

_KEPT: Final = KEPT_PREFIX.encode()
_ALIASES: Final = {alias.encode(): alias for alias in ALIASES}

_Application = tuple[bytes, bool, str, str | None, int | None, int | None]
"""The application's own properties as a section; whether its order matters; path, session id, time
to live and schedule."""


def _application(data: bytes, section: Section) -> _Application:
    _, first, after, count = section
    if after - first > _KNOWN_APPLICATION_BYTES_MAX:
        return _read_application.__wrapped__(data[first:after], count)
    return _read_application(data[first:after], count)


@lru_cache(maxsize=1024)
def _read_application(raw: bytes, count: int) -> _Application:
    """Cached, because messages of one sender often differ only in their bodies and ids."""
    own, own_count, aliases = _split_envelope(raw, count)
    section = encode_section(APPLICATION_PROPERTIES, encode_map(own, own_count))
    return section if own_count else b"", DIVERTED_BY in aliases, *_meaning(aliases)


def _split_envelope(raw: bytes, left: int) -> tuple[bytes, int, dict[str, Any]]:
    """The application's own pairs under their own names, their number, and the aliases' values."""
    kept: list[bytes] = []
    pos, kept_from, count = 0, 0, 0
    aliases: dict[str, Any] = {}
    while pos < len(raw):
        start, left = pos, left - 2
        if raw[pos] == 0xA1:
            text = pos + 2
            at = text + raw[pos + 1]
        elif raw[pos] == 0xB1:
            text = pos + 5
            at = text + u32(raw, pos + 1)[0]
        else:
            text = at = skip(raw, pos)  # not a name that `wrap` would have written
        pos = skip(raw, at)
        if raw[text : text + 2] != b"x-":
            count += 1
            continue
        name = raw[text:at]
        if (alias := _ALIASES.get(name)) is not None:
            aliases[alias] = _alias_value(raw, at)
        else:
            count += 1
            if not name.startswith(_KEPT):
                continue
        if kept_from < start:
            kept.append(raw[kept_from:start])
        kept_from = pos
        if alias is None:
            kept += (encode(name[len(_KEPT) :].decode()), raw[at:pos])
    if pos != len(raw) or left:
        raise MalformedMessage("the application properties do not end where they should")
    if kept_from < len(raw):
        kept.append(raw[kept_from:])
    return b"".join(kept), count, aliases


def _alias_value(raw: bytes, at: int) -> Any:
    if raw[at] == 0xA1:
        content = raw[at + 2 : at + 2 + raw[at + 1]]
        try:
            return content.decode()
        except UnicodeDecodeError:
            return content  # `unwrap` refuses it, and names the alias
    value = decode(raw, at)[0]
    return int(value) if type(value) is Timestamp else value


def _meaning(aliases: Mapping[str, Any]) -> tuple[str, str | None, int | None, int | None]:
    """Path, session id, time to live and schedule."""
    path, session_id = aliases.get(PATH), aliases.get(SESSION_ID)
    ttl_ms, scheduled_ms = aliases.get(TIME_TO_LIVE), aliases.get(SCHEDULED)
    if (
        not (type(path) is str and can_be_entity(path))
        or not (session_id is None or type(session_id) is str)
        or not (ttl_ms is None or (type(ttl_ms) is int and ttl_ms >= 0))
        or not (scheduled_ms is None or type(scheduled_ms) is int)
    ):
        # Either invalid, or of another type whose meaning is clear: `unwrap` decides.
        meant = unwrap(aliases)
        path, session_id = str(meant.path), meant.session_id and str(meant.session_id)
        ttl_ms, scheduled_ms = meant.time_to_live_ms, meant.scheduled_ms
    if scheduled_ms is not None and scheduled_ms >= _SCHEDULED_MS_END:
        raise EnvelopeError(
            f"the property {SCHEDULED} is {scheduled_ms}: it should be a time in milliseconds "
            "since 1970, UTC (a timestamp)"
        )
    return path, session_id, ttl_ms, scheduled_ms


# -- sections as the SDK writes them ----------------------------------------------------------


def _header(data: bytes, section: Section, ttl_ms: int | None) -> tuple[bytes, bool]:
    _, first, after, count = section
    if ttl_ms is not None and ttl_ms > HEADER_TTL_MS_MAX:
        ttl_ms = HEADER_TTL_MS_MAX
    if after - first > _KNOWN_HEADER_BYTES_MAX:
        return _new_header.__wrapped__(data[first:after], count, ttl_ms)
    return _new_header(data[first:after], count, ttl_ms)


@lru_cache(maxsize=1024)
def _new_header(raw: bytes, count: int, ttl_ms: int | None) -> tuple[bytes, bool]:
    """The header section with another time to live, and whether the broker had set one.

    The broker's delivery count is left out. Empty if nothing is left.
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
    return encode_section(HEADER, encode_list(written)), old_ttl_ms is not None


_SCHEDULED_PAIR: Final = encode(Symbol(SCHEDULED_KEY.decode()))


def _annotations(scheduled_ms: int | None, pairs: bytes, count: int) -> bytes:
    """The message annotations as a section. The SDK writes the schedule first."""
    if scheduled_ms is not None:
        pairs = _SCHEDULED_PAIR + encode(Timestamp(scheduled_ms)) + pairs
        count += 1
    return encode_section(MESSAGE_ANNOTATIONS, encode_map(pairs, count)) if count else b""


_pack_times = struct.Struct(">BqBq").pack


def _times(now_ms: int, ttl_ms: int) -> bytes:
    """Expiry and creation time, encoded, in the order of the properties."""
    return _pack_times(0x83, min(now_ms + ttl_ms, EXPIRY_TIME_MS_MAX), 0x83, now_ms)


def _properties(
    data: bytes, section: Section, *, times: bytes | None, session: bytes | None, is_stamped: bool
) -> bytes:
    """The properties as a section, with the given times and group id, both encoded.

    If the broker has set a time to live, an expiry time without `times` belongs to the broker and
    is removed.
    """
    _, first, after, count = section
    if count <= GROUP_ID:
        data = data[first:after] + b"\x40" * (GROUP_ID + 1 - count)
        first, after, count = 0, len(data), GROUP_ID + 1
    pos, marks = first, [first]
    for _ in range(GROUP_ID + 1):
        pos = skip(data, pos)
        marks.append(pos)
    if pos > after or count > PROPERTY_COUNT:
        raise MalformedMessage("the properties do not end where they should")
    if times is None:
        expiry = b"\x40" if is_stamped else data[marks[EXPIRY_TIME] : marks[CREATION_TIME]]
        times = expiry + data[marks[CREATION_TIME] : marks[GROUP_ID]]
    if session is None:
        session = data[marks[GROUP_ID] : pos]
    fields = [data[first : marks[EXPIRY_TIME]], times, session, data[pos:after]]
    return encode_section(PROPERTIES, encode_list(fields, count))
