"""What a broker adds to a message when it delivers it: added by `stamp`, removed by `unstamp`.

The other functions change one thing in raw bytes that `slice_message` has checked, and leave every
other byte alone. Spans are of the bytes passed in: after a change, slice the result again (a bare
message is a message).
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pairbus.amqp.codec.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    PROPERTIES,
    Section,
    Span,
    encode_section,
    read_annotations,
    section_values,
)
from pairbus.amqp.codec.types import UByte, UInt
from pairbus.amqp.codec.values import (
    MalformedMessage,
    decode,
    encode,
    encode_list,
    encode_map,
    skip,
    u32,
)

STAMPED_KEYS: frozenset[bytes] = frozenset(
    (
        b"x-opt-sequence-number",
        b"x-opt-enqueued-time",
        b"x-opt-locked-until",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-message-state",
        b"x-opt-partition-id",
        b"x-opt-deadletter-source",
        b"x-opt-lock-token",
    )
)
"""Annotations that only a broker sets; dropped from what a sender sends (a received message)."""


def _key(name: bytes, constructor: int) -> bytes:
    assert name in STAMPED_KEYS
    return bytes((0xA3, len(name))) + name + bytes((constructor,))


_LOCK_TOKEN_PAIR = _key(b"x-opt-lock-token", 0x98)
_LOCK_TOKEN = b"\x00\x53\x71\xc1" + bytes((len(_LOCK_TOKEN_PAIR) + 17, 2)) + _LOCK_TOKEN_PAIR
_NO_LOCK_TOKEN = b"\x00\x53\x71\xc1\x01\x00"
"""An empty map, as Azure writes it."""
_SEQUENCE = _key(b"x-opt-sequence-number", 0x81)
_ENQUEUED = _key(b"x-opt-enqueued-time", 0x83)
_ENQUEUED_SEQUENCE = _key(b"x-opt-enqueue-sequence-number", 0x81)
_STATE = _key(b"x-opt-message-state", 0x71)
_LOCKED_UNTIL = _key(b"x-opt-locked-until", 0x83)
_PARTITION_ID = _key(b"x-opt-partition-id", 0x61)
_DEAD_LETTER_SOURCE = _key(b"x-opt-deadletter-source", 0x00)[:-1]

_STAMPED = f"{len(_ENQUEUED)}sq{len(_SEQUENCE)}sq"
_LOCKED = f"{len(_LOCKED_UNTIL)}sq"
# Always the long form of a map: six bytes more, but one case fewer for each message.
_stamped = struct.Struct(">4sII" + _STAMPED)
_stamped_locked = struct.Struct(">4sII" + _STAMPED + _LOCKED)
_STAMPED_SIZE = _stamped.size - 8
_STAMPED_LOCKED_SIZE = _stamped_locked.size - 8
_pack_stamped = _stamped.pack
_pack_stamped_locked = _stamped_locked.pack
_pack_i64 = struct.Struct(">q").pack
_pack_i32 = struct.Struct(">i").pack
_pack_i16 = struct.Struct(">h").pack


def stamp(
    *,
    durable: bool | None,
    priority: int | None,
    ttl_ms: int | None,
    delivery_count: int,
    lock_token: bytes | None,
    sequence: int,
    enqueued_ms: int,
    locked_until_ms: int | None,
    enqueued_sequence: int | None = None,
    state: int = 0,
    partition_id: int | None = None,
    dead_letter_source: str | None = None,
    delivery_annotations: bytes = b"",
    delivery_annotation_count: int = 0,
    annotations: bytes = b"",
    annotation_count: int = 0,
    bare: bytes,
) -> bytes:
    """The message as a receiver gets it. `lock_token` is the uuid's 16 bytes in RFC order.

    As on Azure, the state is written only if the message is not active. The sender's pairs must be
    free of STAMPED_KEYS (`without_keys`, when it was enqueued).
    """
    header = _header(durable, priority, ttl_ms, delivery_count)
    if delivery_annotations:
        header += _delivery_annotations(lock_token, delivery_annotations, delivery_annotation_count)
    elif lock_token is not None:
        header += _LOCK_TOKEN + lock_token
    else:
        header += _NO_LOCK_TOKEN
    if enqueued_sequence is not None:
        annotations = _ENQUEUED_SEQUENCE + _pack_i64(enqueued_sequence) + annotations
        annotation_count += 1
    if state:
        annotations = _STATE + _pack_i32(state) + annotations
        annotation_count += 1
    if partition_id is not None:
        annotations = _PARTITION_ID + _pack_i16(partition_id) + annotations
        annotation_count += 1
    if dead_letter_source is not None:
        annotations = _DEAD_LETTER_SOURCE + encode(dead_letter_source) + annotations
        annotation_count += 1
    # One pack for all of it: the keys are constants, and copying them is cheaper than joining.
    if locked_until_ms is None:
        stamped = _pack_stamped(
            b"\x00\x53\x72\xd1",
            _STAMPED_SIZE + len(annotations),
            4 + 2 * annotation_count,
            _ENQUEUED,
            enqueued_ms,
            _SEQUENCE,
            sequence,
        )
    else:
        stamped = _pack_stamped_locked(
            b"\x00\x53\x72\xd1",
            _STAMPED_LOCKED_SIZE + len(annotations),
            6 + 2 * annotation_count,
            _ENQUEUED,
            enqueued_ms,
            _SEQUENCE,
            sequence,
            _LOCKED_UNTIL,
            locked_until_ms,
        )
    return b"".join((header, stamped, annotations, bare))


@lru_cache(maxsize=1024)
def _header(
    durable: bool | None, priority: int | None, ttl_ms: int | None, delivery_count: int
) -> bytes:
    """The header section. Nearly all messages share a few; the delivery count is always there.

    Without it, the Python SDK shows delivery_count None where 0 is meant.
    """
    fields = [
        encode(durable),
        encode(None if priority is None else UByte(priority)),
        encode(None if ttl_ms is None else UInt(ttl_ms)),
        encode(None),
        encode(UInt(delivery_count)),
    ]
    return encode_section(HEADER, encode_list(fields))


def _delivery_annotations(lock_token: bytes | None, pairs: bytes, count: int) -> bytes:
    if lock_token is not None:
        pairs, count = _LOCK_TOKEN_PAIR + lock_token + pairs, count + 1
    return encode_section(DELIVERY_ANNOTATIONS, encode_map(pairs, count))


# -- unstamp ----------------------------------------------------------------------------------

SCHEDULED_KEY = b"x-opt-scheduled-enqueue-time"
_ENQUEUED_KEY, _OTHER_KEY = range(2)
_DROPPED = dict.fromkeys(STAMPED_KEYS, _OTHER_KEY) | {b"x-opt-enqueued-time": _ENQUEUED_KEY}
_DROPPED_WITH_SCHEDULE = _DROPPED | {SCHEDULED_KEY: _OTHER_KEY}

# `stamp` writes the pairs of a locked message in one order: they are read with one unpack.
_usual = struct.Struct(">" + _STAMPED + _LOCKED)
_USUAL_KEYS = (_ENQUEUED, _SEQUENCE, _LOCKED_UNTIL)
_unpack_usual, _USUAL_SIZE = _usual.unpack_from, _usual.size


def unstamp(data: bytes, section: Section, *, keep_schedule: bool) -> tuple[bytes, int, int | None]:
    """The sender's own annotations, raw, and their number; and when the message was enqueued.

    For annotations that a broker has delivered. `keep_schedule` decides whether the scheduled
    enqueue time, which the sender and the broker both may set, is the sender's.
    """
    _, pos, after, left = section
    dropped = _DROPPED if keep_schedule else _DROPPED_WITH_SCHEDULE
    kept: list[bytes] = []
    kept_from, count = pos, 0
    enqueued_ms = None
    if after - pos >= _USUAL_SIZE:
        usual = _unpack_usual(data, pos)
        if usual[::2] == _USUAL_KEYS:
            enqueued_ms = usual[1]
            kept_from = pos = pos + _USUAL_SIZE
            left -= 2 * len(_USUAL_KEYS)
    while pos < after:
        if data[pos] != 0xA3:
            return _unstamp_slowly(data[section[1] : after], frozenset(dropped))
        start, left = pos, left - 2
        at = pos + 2 + data[pos + 1]
        key = dropped.get(data[pos + 2 : at])
        pos = skip(data, at)
        if key is None:
            count += 1
            continue
        if kept_from < start:
            kept.append(data[kept_from:start])
        kept_from = pos
        if key == _ENQUEUED_KEY:
            enqueued_ms = _integer(decode(data, at)[0])
    if pos != after or left:
        raise MalformedMessage("the message annotations do not end where they should")
    if kept_from < after:
        kept.append(data[kept_from:after])
    return b"".join(kept), count, enqueued_ms


def _unstamp_slowly(raw: bytes, keys: frozenset[bytes]) -> tuple[bytes, int, int | None]:
    """The same where a key is not a short symbol."""
    enqueued_ms = read_annotations(raw).get("x-opt-enqueued-time")
    return (*without_keys(raw, keys), _integer(enqueued_ms))


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, int) else None


def without_lock_token(data: bytes, section: Section) -> bytes:
    """The delivery annotations without those of the broker, as a section; mostly empty."""
    _, first, after, count = section
    if count == 2 and data.startswith(_LOCK_TOKEN_PAIR, first):
        return b""
    pairs, left = without_keys(data[first:after], STAMPED_KEYS)
    return encode_section(DELIVERY_ANNOTATIONS, encode_map(pairs, left)) if left else b""


# -- one change -------------------------------------------------------------------------------


def without_keys(raw: bytes, drop: frozenset[bytes]) -> tuple[bytes, int]:
    """Raw pairs without those of the keys in `drop`, and how many pairs are left."""
    pieces: list[bytes] = []
    pos, kept_from, count, end = 0, 0, 0, len(raw)
    while pos < end:
        after = skip(raw, skip(raw, pos))
        if _text_of(raw, pos) in drop:
            pieces.append(raw[kept_from:pos])
            kept_from = after
        else:
            count += 1
        pos = after
    if not pieces:
        return raw, count
    pieces.append(raw[kept_from:])
    return b"".join(pieces), count


def _text_of(data: bytes, pos: int) -> bytes | None:
    """The bytes of the string or symbol at `pos`; None for a value of another type."""
    constructor = data[pos]
    if constructor in (0xA3, 0xA1):
        return data[pos + 2 : pos + 2 + data[pos + 1]]
    if constructor in (0xB3, 0xB1):
        return data[pos + 5 : pos + 5 + u32(data, pos + 1)[0]]
    return None


def with_application_properties(
    bare: bytes, span: Span | None, add: Mapping[str, Any], remove: Iterable[str] = ()
) -> bytes:
    """Add, replace and remove application properties; the other pairs stay byte for byte."""
    new = b"".join([encode(str(key)) + encode(value) for key, value in add.items()])
    if span is None:
        # Where the standard has it: behind the properties, if they come first.
        at = skip(bare, 0) if bare[:3] == bytes((0x00, 0x53, PROPERTIES)) else 0
        span, old, count = (at, at), b"", 0
    else:
        old = bare[section_values(bare, *span)[0] : span[1]]
        old, count = without_keys(old, frozenset(key.encode() for key in (*add, *remove)))
    section = encode_section(APPLICATION_PROPERTIES, encode_map(old + new, count + len(add)))
    return bare[: span[0]] + section + bare[span[1] :]


def with_property(bare: bytes, span: Span | None, index: int, encoded: bytes) -> bytes:
    """Replace a field of the properties. If there are none, they are added in front."""
    fields: list[bytes] = []
    if span is None:
        span = (0, 0)
    else:
        pos, count = section_values(bare, *span)
        for _ in range(count):
            after = skip(bare, pos)
            fields.append(bare[pos:after])
            pos = after
    fields += [b"\x40"] * (index + 1 - len(fields))
    fields[index] = encoded
    section = encode_section(PROPERTIES, encode_list(fields))
    return bare[: span[0]] + section + bare[span[1] :]
