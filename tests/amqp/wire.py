"""Hypothesis strategies for AMQP's wire: values, each in any of its encodings, and sections.

Written from the standard and on its own, so that the tests do not agree with the code by sharing
it. `Wire` is a value together with bytes that mean it.
"""

import struct
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import strategies as st

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
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


class Wire(NamedTuple):
    value: Any
    raw: bytes


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SYMBOLS = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=12)


def integers(kind, bits, *, signed):
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1 if signed else bits)) - 1
    return (
        (st.integers(-130, 260) | st.integers(low, high))
        .filter(lambda number: low <= number <= high)
        .map(kind)
    )


def fixed_bytes(kind, size):
    return st.binary(min_size=size, max_size=size).map(kind)


SCALARS: dict[type, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    UByte: integers(UByte, 8, signed=False),
    UShort: integers(UShort, 16, signed=False),
    UInt: integers(UInt, 32, signed=False),
    ULong: integers(ULong, 64, signed=False),
    Byte: integers(Byte, 8, signed=True),
    Short: integers(Short, 16, signed=True),
    Int: integers(Int, 32, signed=True),
    int: integers(int, 64, signed=True),
    Timestamp: integers(Timestamp, 64, signed=True),
    Float: st.floats(width=32, allow_nan=False).map(Float),
    float: st.floats(allow_nan=False),
    Char: st.characters(codec="utf-8").map(Char),
    Decimal32: fixed_bytes(Decimal32, 4),
    Decimal64: fixed_bytes(Decimal64, 8),
    Decimal128: fixed_bytes(Decimal128, 16),
    UUID: st.uuids(),
    bytes: st.binary(max_size=12) | st.binary(min_size=250, max_size=300),
    str: TEXT | st.integers(250, 300).map(lambda size: "ä" * (size // 2)),
    Symbol: SYMBOLS.map(Symbol),
}
scalars = st.one_of(list(SCALARS.values()))
arrays = st.one_of([st.lists(each, max_size=4).map(Array) for each in SCALARS.values()])
keys = TEXT | SYMBOLS.map(Symbol) | SCALARS[UUID]


def _compounds(children):
    return (
        st.lists(children, max_size=4)
        | st.dictionaries(keys, children, max_size=4)
        | st.builds(Described, SCALARS[ULong] | SCALARS[Symbol], children)
    )


values = st.recursive(scalars | arrays, _compounds, max_leaves=6)


def _holds(value, found) -> bool:
    if found(value):
        return True
    if isinstance(value, Described):
        return _holds(value.value, found)
    if isinstance(value, dict):
        return any(_holds(each, found) for each in value.values())
    return isinstance(value, list) and any(_holds(each, found) for each in value)


# Proton 0.40 loses what follows a described value inside a described value.
readable_by_proton = values.filter(
    lambda value: (
        not _holds(
            value, lambda each: isinstance(each, Described) and isinstance(each.value, Described)
        )
    )
)
# ... and its Python wants arrays in a form of its own; they are compared in the other direction.
writable_by_proton = values.filter(
    lambda value: not _holds(value, lambda each: isinstance(each, Array))
)


def same(one, other):
    """Equal, and of the same types all the way down; Array's constructor is an encoding."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Described):
        return same(one.descriptor, other.descriptor) and same(one.value, other.value)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return one == other


# -- any encoding of a value ------------------------------------------------------------------

_ONE = {
    UByte: (">BB", 0x50),
    Byte: (">Bb", 0x51),
    UShort: (">BH", 0x60),
    Short: (">Bh", 0x61),
    UInt: (">BI", 0x70),
    Int: (">Bi", 0x71),
    Float: (">Bf", 0x72),
    Decimal32: (">B4s", 0x74),
    ULong: (">BQ", 0x80),
    int: (">Bq", 0x81),
    float: (">Bd", 0x82),
    Timestamp: (">Bq", 0x83),
    Decimal64: (">B8s", 0x84),
    Decimal128: (">B16s", 0x94),
}
_SMALL = {UInt: (">BB", 0x52), ULong: (">BB", 0x53), Int: (">Bb", 0x54), int: (">Bb", 0x55)}


def forms(value) -> list[bytes]:
    """All encodings the standard has for a scalar."""
    kind = type(value)
    found = []
    if value is None:
        return [b"\x40"]
    if kind is bool:
        return [b"\x41" if value else b"\x42", b"\x56\x01" if value else b"\x56\x00"]
    if kind is Char:
        return [struct.pack(">BI", 0x73, ord(value))]
    if kind is UUID:
        return [b"\x98" + value.bytes]
    if kind in (bytes, str, Symbol):
        code = {bytes: 0xA0, str: 0xA1, Symbol: 0xA3}[kind]
        raw = value if kind is bytes else value.encode()
        found = [struct.pack(">BI", code + 0x10, len(raw)) + raw]
        return found + ([bytes((code, len(raw))) + raw] if len(raw) < 256 else [])
    found.append(struct.pack(_ONE[kind][0], _ONE[kind][1], value))
    if kind in _SMALL and (0 <= value < 256 if kind in (UInt, ULong) else -128 <= value < 128):
        found.append(struct.pack(_SMALL[kind][0], _SMALL[kind][1], value))
    if value == 0 and kind in (UInt, ULong):
        found.append(b"\x43" if kind is UInt else b"\x44")
    return found


def compound_forms(code, raws) -> list[bytes]:
    """The short and the long encoding of a list (0xc0) or map (0xc1) of encoded values."""
    content, count = b"".join(raws), len(raws)
    found = [struct.pack(">BII", code + 0x10, len(content) + 4, count) + content]
    if len(content) < 255 and count < 256:
        found.append(bytes((code, len(content) + 1, count)) + content)
    if code == 0xC0 and not raws:
        found.append(b"\x45")
    return found


@st.composite
def encodings(draw, value) -> bytes:
    """Some encoding of `value`, whatever it is."""
    if isinstance(value, Array):
        return draw(_array_encodings(value))
    if isinstance(value, Described):
        return b"\x00" + draw(encodings(value.descriptor)) + draw(encodings(value.value))
    if isinstance(value, list):
        return draw(st.sampled_from(compound_forms(0xC0, [draw(encodings(v)) for v in value])))
    if isinstance(value, dict):
        raws = [draw(encodings(v)) for pair in value.items() for v in pair]
        return draw(st.sampled_from(compound_forms(0xC1, raws)))
    return draw(st.sampled_from(forms(value)))


def _array_encodings(array):
    wide = [forms(item)[0] if not isinstance(item, bool) else forms(item)[1] for item in array]
    content = (wide[0][:1] if wide else b"\x40") + b"".join(raw[1:] for raw in wide)
    found = [struct.pack(">BII", 0xF0, len(content) + 4, len(array)) + content]
    if len(content) < 255:
        found.append(bytes((0xE0, len(content) + 1, len(array))) + content)
    return st.sampled_from(found)


wires = values.flatmap(lambda value: st.builds(Wire, st.just(value), encodings(value)))

# -- sections ---------------------------------------------------------------------------------

NAMES = {
    0x70: "amqp:header:list",
    0x71: "amqp:delivery-annotations:map",
    0x72: "amqp:message-annotations:map",
    0x73: "amqp:properties:list",
    0x74: "amqp:application-properties:map",
    0x75: "amqp:data:binary",
    0x76: "amqp:amqp-sequence:list",
    0x77: "amqp:amqp-value:*",
    0x78: "amqp:footer:map",
}


def descriptors(section) -> list[bytes]:
    return [b"\x00" + raw for raw in forms(ULong(section)) + forms(Symbol(NAMES[section]))]


HEADERS = st.tuples(
    st.none() | st.booleans(),
    st.none() | SCALARS[UByte],
    st.none() | SCALARS[UInt],
    st.none() | st.booleans(),
    st.none() | SCALARS[UInt],
).flatmap(lambda fields: st.integers(0, 5).map(lambda size: list(fields[:size])))
MESSAGE_IDS = st.none() | TEXT | st.uuids() | SCALARS[ULong] | SCALARS[bytes]
PROPERTIES = st.tuples(
    MESSAGE_IDS,
    st.none() | SCALARS[bytes],
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    MESSAGE_IDS,
    st.none() | SCALARS[Symbol],
    st.none() | SCALARS[Symbol],
    st.none() | SCALARS[Timestamp],
    st.none() | SCALARS[Timestamp],
    st.none() | SCALARS[str],
    st.none() | SCALARS[UInt],
    st.none() | TEXT,
).flatmap(lambda fields: st.integers(0, 13).map(lambda size: list(fields[:size])))
ANNOTATIONS = st.dictionaries(SYMBOLS.map(Symbol), values, max_size=4)
APPLICATION_PROPERTIES = st.dictionaries(SCALARS[str], scalars, max_size=4)

_ONCE = {
    0x70: HEADERS,
    0x71: ANNOTATIONS,
    0x72: ANNOTATIONS,
    0x73: PROPERTIES,
    0x74: APPLICATION_PROPERTIES,
    0x78: ANNOTATIONS,
}
_BODIES = {0x75: SCALARS[bytes], 0x76: st.lists(values, max_size=3), 0x77: values}


class Section(NamedTuple):
    code: int
    value: Any
    raw: bytes  # with the descriptor


@st.composite
def messages(draw, *, any_descriptor=False) -> list[Section]:
    """The sections of a message in any order, each with its value and its bytes."""
    found = []
    codes = draw(st.lists(st.sampled_from(sorted(_ONCE)), unique=True))
    codes += draw(st.lists(st.sampled_from(sorted(_BODIES)), max_size=3))
    for code in draw(st.permutations(codes)):
        value = draw((_ONCE | _BODIES)[code])
        descriptor = b"\x00\x53" + bytes((code,))
        if any_descriptor:
            descriptor = draw(st.sampled_from(descriptors(code)))
        found.append(Section(code, value, descriptor + draw(encodings(value))))
    return found


def joined(sections) -> bytes:
    return b"".join(section.raw for section in sections)


# -- Proton's own codec -----------------------------------------------------------------------

try:
    import proton
except ImportError:  # it is built from source, where there is a compiler
    proton: Any = None

with_proton = pytest.mark.skipif(proton is None, reason="python-qpid-proton is not installed")

_TO_PROTON = (
    {}
    if proton is None
    else {
        UByte: proton.ubyte,
        UShort: proton.ushort,
        UInt: proton.uint,
        ULong: proton.ulong,
        Byte: proton.byte,
        Short: proton.short,
        Int: proton.int32,
        Timestamp: proton.timestamp,
        Float: proton.float32,
        Char: proton.char,
        Symbol: proton.symbol,
        Decimal32: lambda raw: proton.decimal32(int.from_bytes(raw)),
        Decimal64: lambda raw: proton.decimal64(int.from_bytes(raw)),
        Decimal128: proton.decimal128,
    }
)
_FROM_PROTON = {_TO_PROTON[kind]: kind for kind in _TO_PROTON if isinstance(_TO_PROTON[kind], type)}
_FROM_PROTON |= (
    {}
    if proton is None
    else {
        proton.decimal32: lambda number: Decimal32(number.to_bytes(4)),
        proton.decimal64: lambda number: Decimal64(number.to_bytes(8)),
    }
)


def from_proton(value):
    """A value that Proton decoded, in our types."""
    kind = type(value)
    if kind is memoryview:  # binary, in Proton's Python
        return bytes(value)
    if kind is proton.Described:
        return Described(from_proton(value.descriptor), from_proton(value.value))
    if kind is proton.Array:
        return Array(map(from_proton, value.elements))
    if isinstance(value, list):
        return list(map(from_proton, value))
    if isinstance(value, dict):
        return {from_proton(key): from_proton(each) for key, each in value.items()}
    return _FROM_PROTON[kind](value) if kind in _FROM_PROTON else value


def to_proton(value):
    if isinstance(value, Described):
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    if isinstance(value, list):
        return list(map(to_proton, value))
    if isinstance(value, dict):
        return {to_proton(key): to_proton(each) for key, each in value.items()}
    convert = _TO_PROTON.get(type(value))
    return value if convert is None else convert(value)


def proton_decode(raw):
    data = proton.Data()
    consumed = data.decode(raw)
    assert consumed == len(raw)
    data.rewind()
    data.next()
    return from_proton(data.get_object())


def proton_encode(value):
    data = proton.Data()
    data.put_object(to_proton(value))
    return data.encode()
