"""Stepping over encoded AMQP values without decoding them.

What makes slicing a message cheap: a value's end is found from its constructor and its size.
Input is a stranger's, so every step is checked against the bytes that are there; nothing is
allocated by a claimed size, and nothing recurses. Knows no types beyond their width.
"""

import struct


class MalformedMessage(ValueError):
    """The bytes are not what AMQP says they must be. Says the offset and the reason."""


VAR8, VAR32, DESCRIBED, UNKNOWN = 32, 33, 34, 35

# The bytes of a value with its constructor, or how to learn them. A type AMQP does not define is
# an error, although its category would let us skip it: no receiver could read it.
STEP: list[int] = [UNKNOWN] * 256
STEP[0x00] = DESCRIBED
for _width, _codes in {
    0: (0x40, 0x41, 0x42, 0x43, 0x44, 0x45),
    1: (0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56),
    2: (0x60, 0x61),
    4: (0x70, 0x71, 0x72, 0x73, 0x74),
    8: (0x80, 0x81, 0x82, 0x83, 0x84),
    16: (0x94, 0x98),
    VAR8: (0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0),
    VAR32: (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0),
}.items():
    for _code in _codes:
        STEP[_code] = _width if _width >= VAR8 else _width + 1

u32 = struct.Struct(">I").unpack_from
PAST_THE_END = (IndexError, struct.error)


def skip(data: bytes, offset: int = 0) -> int:
    """Where the value at `offset` ends. What is inside lists, maps and arrays is not looked at."""
    end = len(data)
    pos, pending = offset, 1
    try:
        while pending:
            step = STEP[data[pos]]
            pending -= 1
            if step < VAR8:
                pos += step
            elif step == VAR8:
                pos += 2 + data[pos + 1]
            elif step == VAR32:
                pos += 5 + u32(data, pos + 1)[0]
            elif step == DESCRIBED:
                # The descriptor and the value follow; counting them needs no recursion.
                pos += 1
                pending += 2
            else:
                raise MalformedMessage(f"offset {pos}: 0x{data[pos]:02x} is not an AMQP type")
    except PAST_THE_END as error:
        raise MalformedMessage(f"offset {pos}: the value has no end") from error
    if pos > end:
        raise MalformedMessage(f"offset {offset}: the value ends at {pos}, the data at {end}")
    return pos


def check(data: bytes, offset: int, end: int, count: int) -> None:
    """Raise unless data[offset:end] is filled exactly by `count` values.

    The loop is bound by the bytes: each value takes at least one, whatever `count` claims.
    """
    pos, left = offset, count
    try:
        while pos < end:
            left -= 1
            step = STEP[data[pos]]
            if step < VAR8:
                pos += step
            elif step == VAR8:
                pos += 2 + data[pos + 1]
            elif step == VAR32:
                pos += 5 + u32(data, pos + 1)[0]
            else:
                pos = skip(data, pos)
    except PAST_THE_END as error:
        raise MalformedMessage(f"offset {pos}: the value has no end") from error
    if pos != end:
        raise MalformedMessage(f"offset {offset}: the values end at {pos}, not at {end}")
    if left:
        raise MalformedMessage(f"offset {offset}: {count - left} values where {count} were said")
