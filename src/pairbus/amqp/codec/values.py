"""AMQP 1.0 values: decode, encode, or step over one encoded value (part 1 of the standard).

Decoding keeps the type, so that a decoded value encodes to the same type again. Types that Python
lacks have wrappers in `types`. The input is untrusted: sizes and counts are checked against the
available bytes before anything is allocated, and skipping never recurses. Knows nothing of
messages, sections or links.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from pairbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


class MalformedMessage(ValueError):
    """The bytes are not valid AMQP. The text has the offset and the reason."""


VAR8, VAR32, DESCRIBED, UNKNOWN = 32, 33, 34, 35

# The size of a value with its constructor, or how to find it. A type that AMQP does not define is
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
_i64 = struct.Struct(">q").unpack_from
PAST_THE_END = (IndexError, struct.error)

DEPTH_MAX = 64  # the limit of .NET and of the Python SDK; no real message comes near it

# Elements of these arrays take no bytes (null, true, list0), so a large count costs the sender
# nothing, and us memory. Nobody sends them; a few are accepted because the standard allows them.
EMPTY_ELEMENTS_MAX = 4


# -- skipping ---------------------------------------------------------------------------------


def skip(data: bytes, offset: int = 0) -> int:
    """Where the value at `offset` ends. The content of lists, maps and arrays is not checked."""
    try:
        step = STEP[data[offset]]
        if step < VAR8:
            end = offset + step
        elif step == VAR8:
            end = offset + 2 + data[offset + 1]
        elif step == VAR32:
            end = offset + 5 + int(u32(data, offset + 1)[0])
        else:
            end = _skip_described(data, offset)
    except PAST_THE_END as error:
        raise MalformedMessage(f"offset {offset}: the value has no end") from error
    if end > len(data):
        raise MalformedMessage(f"offset {offset}: the value ends at {end}, the data at {len(data)}")
    return end


def _skip_described(data: bytes, offset: int) -> int:
    """The descriptor and the value follow, each perhaps described; counting needs no recursion."""
    pos, pending = offset, 1
    while pending:
        step = STEP[data[pos]]
        pending -= 1
        if step < VAR8:
            pos += step
        elif step == VAR8:
            pos += 2 + data[pos + 1]
        elif step == VAR32:
            pos += 5 + int(u32(data, pos + 1)[0])
        elif step == DESCRIBED:
            pos += 1
            pending += 2
        else:
            raise MalformedMessage(f"offset {pos}: 0x{data[pos]:02x} is not an AMQP type")
    return pos


def check(data: bytes, offset: int, end: int, count: int) -> None:
    """Raise unless data[offset:end] holds exactly `count` values.

    The bytes bound the loop, not `count`: each value takes at least one byte.
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
        raise MalformedMessage(f"offset {offset}: {count - left} values where {count} were claimed")


# -- decoding ---------------------------------------------------------------------------------

_CONSTANTS: dict[int, Callable[[], Any]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: UInt(0),
    0x44: lambda: ULong(0),
    0x45: list,
}


def _bool(octet: int) -> bool:
    if octet > 1:
        raise MalformedMessage(f"a boolean is 0 or 1, not {octet}")
    return octet == 1


def _char(number: int) -> Char:
    if number > 0x10FFFF:
        raise MalformedMessage(f"a char is at most 0x10ffff, not 0x{number:x}")
    return Char(chr(number))


def _same(value: Any) -> Any:
    return value


_FIXED: dict[int, tuple[struct.Struct, Callable[[Any], Any]]] = {
    code: (struct.Struct(layout), wrap)
    for code, layout, wrap in (
        (0x50, ">B", UByte),
        (0x51, ">b", Byte),
        (0x52, ">B", UInt),
        (0x53, ">B", ULong),
        (0x54, ">b", Int),
        (0x55, ">b", _same),
        (0x56, ">B", _bool),
        (0x60, ">H", UShort),
        (0x61, ">h", Short),
        (0x70, ">I", UInt),
        (0x71, ">i", Int),
        (0x72, ">f", Float),
        (0x73, ">I", _char),
        (0x74, ">4s", Decimal32),
        (0x80, ">Q", ULong),
        (0x81, ">q", _same),
        (0x82, ">d", _same),
        (0x83, ">q", Timestamp),
        (0x84, ">8s", Decimal64),
        (0x94, ">16s", Decimal128),
        (0x98, ">16s", lambda raw: UUID(bytes=raw)),
    )
}

_VARIABLE: dict[int, Callable[[bytes], Any]] = {
    0xA0: bytes,
    0xA1: lambda raw: raw.decode(),
    # The standard says ASCII, but the Python SDK writes UTF-8, which we accept.
    0xA3: lambda raw: Symbol(raw.decode()),
}
_VARIABLE |= {code + 0x10: wrap for code, wrap in _VARIABLE.items()}


def decode(data: bytes, offset: int = 0) -> tuple[Any, int]:
    """The value at `offset`, and where the next one begins."""
    try:
        # Nearly all values in a message are of these types, and need no further call.
        code = data[offset]
        if code == 0xA1 or code == 0xA3:
            end = offset + 2 + data[offset + 1]
            if end <= len(data):
                text = data[offset + 2 : end].decode()
                return (text if code == 0xA1 else Symbol(text)), end
        elif code == 0x40:
            return None, offset + 1
        elif code == 0x81:
            return _i64(data, offset + 1)[0], offset + 9
        elif code == 0x83:
            return Timestamp(_i64(data, offset + 1)[0]), offset + 9
        return _decode(data, offset, len(data), 0)
    except PAST_THE_END as error:
        raise MalformedMessage(f"offset {offset}: the value has no end") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"offset {offset}: a string is not UTF-8: {error}") from error


def _decode(data: bytes, pos: int, limit: int, depth: int) -> tuple[Any, int]:
    if pos >= limit:
        raise MalformedMessage(f"offset {pos}: a value is missing")
    if data[pos] == 0x00:
        depth = _deeper(depth, pos)
        descriptor, pos = _decode(data, pos + 1, limit, depth)
        value, pos = _decode(data, pos, limit, depth)
        return Described(descriptor, value), pos
    return _decode_as(data[pos], data, pos + 1, limit, depth)


def _decode_as(code: int, data: bytes, pos: int, limit: int, depth: int) -> tuple[Any, int]:
    """A value without its constructor, which is `code`: elements of an array share one."""
    if code in _FIXED:
        layout, wrap = _FIXED[code]
        end = pos + layout.size
        if end > limit:
            raise MalformedMessage(f"offset {pos}: a value of {layout.size} bytes is cut off")
        return wrap(layout.unpack_from(data, pos)[0]), end
    if code in _CONSTANTS:
        return _CONSTANTS[code](), pos
    step = STEP[code]
    if step == VAR8:
        size, pos = data[pos], pos + 1
    elif step == VAR32:
        size, pos = u32(data, pos)[0], pos + 4
    else:
        raise MalformedMessage(f"offset {pos}: 0x{code:02x} is not an AMQP type")
    end = pos + size
    if end > limit:
        raise MalformedMessage(f"offset {pos}: {size} bytes claimed, {limit - pos} left")
    if code in _VARIABLE:
        return _VARIABLE[code](data[pos:end]), end
    depth = _deeper(depth, pos)
    if step == VAR8:
        count, pos = data[pos], pos + 1
    else:
        count, pos = u32(data, pos)[0], pos + 4
    if pos > end:
        raise MalformedMessage(f"offset {pos}: a size of {size} has no room for the count")
    if code in (0xE0, 0xF0):
        return _decode_array(data, pos, end, count, depth), end
    items, pos = [], pos
    for _ in range(count):  # the bytes bound the loop: each value takes at least one
        item, pos = _decode(data, pos, end, depth)
        items.append(item)
    if pos != end:
        raise MalformedMessage(f"offset {pos}: {end - pos} bytes too many in a list or map")
    return (items if code in (0xC0, 0xD0) else _mapping(items, pos)), end


def _decode_array(data: bytes, pos: int, end: int, count: int, depth: int) -> Array:
    descriptor = None
    if pos == end and not count:
        return Array()  # some encoders omit the constructor of an empty array
    if data[pos] == 0x00:
        descriptor, pos = _decode(data, pos + 1, end, depth)
    if pos >= end:
        raise MalformedMessage(f"offset {pos}: an array without a constructor")
    code, pos = data[pos], pos + 1
    if STEP[code] >= DESCRIBED:
        raise MalformedMessage(f"offset {pos}: 0x{code:02x} is not a type for array elements")
    if STEP[code] == 1 and count > EMPTY_ELEMENTS_MAX:
        raise MalformedMessage(f"offset {pos}: an array of {count} elements of no size")
    items = Array(code=code, descriptor=descriptor)
    for _ in range(count):  # bounded by the bytes left, or by EMPTY_ELEMENTS_MAX
        item, pos = _decode_as(code, data, pos, end, depth)
        items.append(item)
    if pos != end:
        raise MalformedMessage(f"offset {pos}: {end - pos} bytes too many in an array")
    return items


def _mapping(items: list[Any], pos: int) -> dict[Any, Any]:
    if len(items) % 2:
        raise MalformedMessage(f"offset {pos}: a map of {len(items)} values lacks one")
    try:
        return dict(zip(items[::2], items[1::2], strict=True))
    except TypeError as error:  # a list, map or array: legal, but not a key of a dict
        raise MalformedMessage(f"offset {pos}: unsupported map key: {error}") from error


def _deeper(depth: int, pos: int) -> int:
    if depth >= DEPTH_MAX:
        raise MalformedMessage(f"offset {pos}: nested deeper than {DEPTH_MAX}")
    return depth + 1


# -- encoding ---------------------------------------------------------------------------------

_pack_u8 = struct.Struct(">B").pack
_pack_u32 = struct.Struct(">I").pack


def encode(value: Any) -> bytes:
    """The shortest encoding of `value`. Raises ValueError or TypeError with the value."""
    short = _SHORT.get(kind := _kind(value))
    if short is not None:
        return short(value)
    code, content = _WIDE[kind]
    return _pack_u8(code) + content(value)


def encode_list(fields: list[bytes], count: int | None = None) -> bytes:
    """A list of values that are encoded already: one in each field, or `count` in all of them."""
    if count is None:
        count = len(fields)
    return _compound(0xC0, b"".join(fields), count) if fields else b"\x45"


def encode_map(pairs: bytes, count: int) -> bytes:
    """A map of `count` pairs that are encoded already."""
    return _compound(0xC1, pairs, 2 * count)


def _compound(code: int, content: bytes, count: int) -> bytes:
    if len(content) < 255 and count < 256:
        return bytes((code, len(content) + 1, count)) + content
    return _pack_u8(code + 0x10) + _wide_compound(content, count)


def _wide_compound(content: bytes, count: int) -> bytes:
    return _pack_u32(len(content) + 4) + _pack_u32(count) + content


def _variable(code: int, content: bytes) -> bytes:
    if len(content) < 256:
        return bytes((code, len(content))) + content
    return _pack_u8(code + 0x10) + _pack_u32(len(content)) + content


def _items(values: Iterable[Any]) -> bytes:
    return b"".join(map(encode, values))


def _pairs(mapping: dict[Any, Any]) -> bytes:
    return b"".join([encode(key) + encode(value) for key, value in mapping.items()])


def _array(array: Array) -> tuple[bytes, int]:
    if array.code is not None:
        kind = _KIND_OF_CODE[array.code]
    else:
        kind = _kind(array[0]) if array else type(None)
    if any(_kind(item) is not kind for item in array):
        raise TypeError(f"elements of an array share one type: {kind.__name__}, not {array!r}")
    code, content = _WIDE[kind]
    constructor = _pack_u8(code)
    if array.descriptor is not None:
        constructor = b"\x00" + encode(array.descriptor) + constructor
    return constructor + b"".join(map(content, array)), len(array)


def _number(layout: str, name: str) -> Callable[[Any], bytes]:
    pack = struct.Struct(layout).pack

    def content(value: Any) -> bytes:
        try:
            return pack(value)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{value!r} does not fit into an AMQP {name}") from error

    return content


def _raw(size: int) -> Callable[[bytes], bytes]:
    def content(value: bytes) -> bytes:
        if len(value) != size:
            raise ValueError(f"a decimal of {size} bytes, not {value!r}")
        return bytes(value)

    return content


def _sized(value: bytes) -> bytes:
    return _pack_u32(len(value)) + value


# The constructor that fits every value of a type: for arrays, and for types without a short form.
_WIDE: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    type(None): (0x40, lambda value: b""),
    bool: (0x56, lambda value: b"\x01" if value else b"\x00"),
    UByte: (0x50, _number(">B", "ubyte")),
    Byte: (0x51, _number(">b", "byte")),
    UShort: (0x60, _number(">H", "ushort")),
    Short: (0x61, _number(">h", "short")),
    UInt: (0x70, _number(">I", "uint")),
    Int: (0x71, _number(">i", "int")),
    Float: (0x72, _number(">f", "float")),
    Char: (0x73, lambda value: _pack_u32(ord(value))),
    Decimal32: (0x74, _raw(4)),
    ULong: (0x80, _number(">Q", "ulong")),
    int: (0x81, _number(">q", "long")),
    float: (0x82, _number(">d", "double")),
    Timestamp: (0x83, _number(">q", "timestamp")),
    Decimal64: (0x84, _raw(8)),
    Decimal128: (0x94, _raw(16)),
    UUID: (0x98, lambda value: value.bytes),
    bytes: (0xB0, _sized),
    str: (0xB1, lambda value: _sized(value.encode())),
    Symbol: (0xB3, lambda value: _sized(value.encode())),
    list: (0xD0, lambda value: _wide_compound(_items(value), len(value))),
    dict: (0xD1, lambda value: _wide_compound(_pairs(value), 2 * len(value))),
    Array: (0xF0, lambda value: _wide_compound(*_array(value))),
}

_SHORT: dict[type, Callable[[Any], bytes]] = {
    bool: lambda value: b"\x41" if value else b"\x42",
    bytes: lambda value: _variable(0xA0, value),
    str: lambda value: _variable(0xA1, value.encode()),
    Symbol: lambda value: _variable(0xA3, value.encode()),
    list: lambda value: _compound(0xC0, _items(value), len(value)) if value else b"\x45",
    dict: lambda value: _compound(0xC1, _pairs(value), 2 * len(value)),
    Array: lambda value: _compound(0xE0, *_array(value)),
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
    UInt: lambda value: _unsigned(value, 0x43, 0x52, UInt),
    ULong: lambda value: _unsigned(value, 0x44, 0x53, ULong),
    Int: lambda value: _signed(value, 0x54, Int),
    int: lambda value: _signed(value, 0x55, int),
}


def _unsigned(value: int, zero: int, small: int, kind: type) -> bytes:
    if value == 0:
        return _pack_u8(zero)
    if 0 < value < 256:
        return bytes((small, value))
    code, content = _WIDE[kind]
    return _pack_u8(code) + content(value)


def _signed(value: int, small: int, kind: type) -> bytes:
    if -128 <= value < 128:
        return bytes((small, value & 0xFF))
    code, content = _WIDE[kind]
    return _pack_u8(code) + content(value)


_ALIASES: dict[type, type] = {Long: int, bytearray: bytes, memoryview: bytes, tuple: list}

_KIND_OF_CODE: dict[int, type] = {code: kind for kind, (code, _) in _WIDE.items()}
_KIND_OF_CODE |= {code - 0x10: _KIND_OF_CODE[code] for code in (0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0)}
_KIND_OF_CODE |= {0x41: bool, 0x42: bool, 0x43: UInt, 0x44: ULong, 0x45: list}
_KIND_OF_CODE |= {0x52: UInt, 0x53: ULong, 0x54: Int, 0x55: int}


def _kind(value: Any) -> type:
    """The AMQP type of a value; a subclass has that of its ancestor, so an IntEnum is a long."""
    kind = type(value)
    if kind in _WIDE or kind is Described:
        return kind
    for ancestor in kind.__mro__:
        found = _ALIASES.get(ancestor, ancestor)
        if found in _WIDE:
            return found
    raise TypeError(f"AMQP has no type for {value!r} of {kind.__name__}")
