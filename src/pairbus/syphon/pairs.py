"""Names and values of a delivered message: whose they are, found without decoding what stays.

Annotations are the sender's or the broker's, application properties the application's or ours. For
`restore.py`; raises as `pieces.py` does.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pairbus.amqp.codec.sections import read_annotations
from pairbus.amqp.codec.stamp import STAMPED_KEYS, without_keys
from pairbus.amqp.codec.values import STEP, VAR8, MalformedMessage, decode, encode, encode_map, u32
from pairbus.client.route.envelope import ALIASES, KEPT_PREFIX
from pairbus.syphon.pieces import INT, LONG, STRING, SYMBOL, TIMESTAMP, WIDE_STRING, Piece, past

_KEPT: Final = KEPT_PREFIX.encode()
_ALIASES: Final = {alias.encode(): alias for alias in ALIASES}

_SCHEDULE_KEY: Final = b"x-opt-scheduled-enqueue-time"
_ENQUEUED, _SEQUENCE, _ELSE = range(3)
_STAMPS: Final = dict.fromkeys(STAMPED_KEYS, _ELSE) | {
    b"x-opt-enqueued-time": _ENQUEUED,
    b"x-opt-sequence-number": _SEQUENCE,
}
_STAMPS_AND_SCHEDULE: Final = _STAMPS | {_SCHEDULE_KEY: _ELSE}
_SCHEDULE: Final = bytes((SYMBOL, len(_SCHEDULE_KEY), *_SCHEDULE_KEY, TIMESTAMP))
_LOCK_TOKEN: Final = b"\xa3\x10x-opt-lock-token\x98"

# What one broker stamps comes in one order: that of the local broker is read in a single go.
_USUAL: Final = (
    (b"x-opt-sequence-number", LONG, "q"),
    (b"x-opt-enqueued-time", TIMESTAMP, "q"),
    (b"x-opt-enqueue-sequence-number", LONG, "q"),
    (b"x-opt-message-state", INT, "i"),
    (b"x-opt-locked-until", TIMESTAMP, "q"),
)
_USUAL_HEADS: Final = tuple(bytes((SYMBOL, len(key), *key, code)) for key, code, _ in _USUAL)
_usual = struct.Struct(">" + "".join(f"{len(key) + 3}s{layout}" for key, _, layout in _USUAL))
_unpack_usual, _USUAL_SIZE = _usual.unpack_from, _usual.size

_i64 = struct.Struct(">q").unpack_from
_pack_i64 = struct.Struct(">q").pack


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
    if after - pos >= _USUAL_SIZE:
        usual = _unpack_usual(data, pos)
        if usual[::2] == _USUAL_HEADS:
            sequence, enqueued_ms = usual[1], usual[3]
            kept_from = pos = pos + _USUAL_SIZE
            left -= 2 * len(_USUAL)
    while pos < after:
        if data[pos] != SYMBOL:
            return _odd_stamps_taken(data[piece[1] : after], frozenset(stamps))
        start, left = pos, left - 2
        at = pos + 2 + data[pos + 1]
        what = stamps.get(data[pos + 2 : at])
        step = STEP[data[at]]
        pos = at + step if step < VAR8 else past(data, at)
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
        *without_keys(raw, names),
        int(enqueued_ms) if isinstance(enqueued_ms, int) else None,
        int(sequence) if isinstance(sequence, int) else None,
    )


def _number(data: bytes, at: int) -> int | None:
    if data[at] in (LONG, TIMESTAMP):
        number: int = _i64(data, at + 1)[0]
        return number
    value = decode(data, at)[0]
    return int(value) if isinstance(value, int) else None


def without_lock_token(data: bytes, piece: Piece) -> bytes:
    """The delivery annotations' section without the broker's; mostly nothing."""
    _, first, after, count = piece
    if count == 2 and data.startswith(_LOCK_TOKEN, first):
        return b""
    pairs, left = without_keys(data[first:after], STAMPED_KEYS)
    return b"\x00\x53\x71" + encode_map(pairs, left) if left else b""


def annotations_with(schedule_ms: int | None, pairs: bytes, count: int) -> bytes:
    """The message annotations' section. The SDK writes the schedule first."""
    if schedule_ms is not None:
        pairs = _SCHEDULE + _pack_i64(schedule_ms) + pairs
        count += 1
    return b"\x00\x53\x72" + encode_map(pairs, count) if count else b""


# -- application properties -------------------------------------------------------------------


def aliases_taken(data: bytes, piece: Piece) -> tuple[bytes, int, dict[str, Any]]:
    """The application's own pairs under their own names, their number, and the aliases' values."""
    _, pos, after, left = piece
    kept: list[bytes] = []
    kept_from, count = pos, 0
    aliases: dict[str, Any] = {}
    while pos < after:
        start, left = pos, left - 2
        if data[pos] == STRING:
            text = pos + 2
            at = text + data[pos + 1]
        elif data[pos] == WIDE_STRING:
            text = pos + 5
            at = text + u32(data, pos + 1)[0]
        else:
            text = at = past(data, pos)  # no name that we would have given
        step = STEP[data[at]]
        pos = at + step if step < VAR8 else past(data, at)
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
    if constructor == STRING:
        raw = data[at + 2 : at + 2 + data[at + 1]]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw  # `unwrap` refuses it, and says which alias it was
    if constructor in (LONG, TIMESTAMP):
        return _i64(data, at + 1)[0]
    return decode(data, at)[0]


def application_properties(pairs: bytes, count: int) -> bytes:
    return b"\x00\x53\x74" + encode_map(pairs, count) if count else b""


def _check_end(name: str, pos: int, end: int, left: int) -> None:
    if pos != end or left:
        raise MalformedMessage(f"the {name} do not end where they should")
