import enum
from uuid import UUID

import pytest
from hypothesis import given

from pairbus.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Decimal64,
    Described,
    Int,
    Long,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)
from pairbus.amqp.codec.values import (
    MalformedMessage,
    check,
    decode,
    encode,
    encode_list,
    encode_map,
    skip,
)
from tests.amqp.wire import (
    proton_decode,
    proton_encode,
    readable_by_proton,
    same,
    values,
    wires,
    with_proton,
    writable_by_proton,
)


@given(wires)
def test_every_encoding_of_a_value_decodes_to_it(wire):
    value, end = decode(b"\x41" + wire.raw + b"\x40", 1)

    assert same(value, wire.value)
    assert end == len(wire.raw) + 1


@given(wires)
def test_skipping_a_value_ends_where_decoding_it_ends(wire):
    assert skip(b"\x41" + wire.raw + b"\x40", 1) == len(wire.raw) + 1


@given(values)
def test_what_is_encoded_decodes_to_the_same_types(value):
    raw = encode(value)

    decoded, end = decode(raw)

    assert end == len(raw)
    assert same(decoded, value)


@given(values)
def test_what_is_decoded_encodes_again_to_the_same_bytes(value):
    raw = encode(value)

    assert encode(decode(raw)[0]) == raw


@with_proton
@given(readable_by_proton)
def test_proton_reads_what_we_write(value):
    assert same(proton_decode(encode(value)), value)


@with_proton
@given(writable_by_proton)
def test_we_read_what_proton_writes(value):
    raw = proton_encode(value)

    decoded, end = decode(raw)

    assert end == len(raw)
    assert same(decoded, value)


SHORTEST = {
    "a plain int is a long": (5, "5505"),
    "a large int is a long of eight bytes": (1 << 40, "81 0000010000000000"),
    "a negative int": (-1, "55ff"),
    "an explicit long": (Long(5), "5505"),
    "an IntEnum is the long it stands for": (enum.IntEnum("Colour", "RED").RED, "5501"),
    "a uint of 0": (UInt(0), "43"),
    "a ulong of a byte": (ULong(0x70), "5370"),
    "an int": (Int(-2), "54fe"),
    "a ubyte": (UByte(4), "5004"),
    "a byte": (Byte(-4), "51fc"),
    "a timestamp": (Timestamp(1), "83 0000000000000001"),
    "a char": (Char("a"), "73 00000061"),
    "a str": ("ä", "a102c3a4"),
    "a symbol": (Symbol("a"), "a30161"),
    "binary": (b"a", "a00161"),
    "a bytearray": (bytearray(b"a"), "a00161"),
    "a tuple is a list": ((), "45"),
    "a map": ({Symbol("a"): None}, "c10502a3016140"),
    "an array of long": (Array([1]), "e00a0181 0000000000000001"),
    "an array of nothing": (Array(), "e0020040"),
    "an array that knows its type": (Array(code=0x98), "e0020098"),
    "an array of described elements": (
        Array([UInt(1)], descriptor=ULong(5)),
        "e009 01 005305 70 00000001",
    ),
    "a described value": (Described(ULong(0x77), "a"), "005377a10161"),
}


@pytest.mark.parametrize(("value", "raw"), SHORTEST.values(), ids=SHORTEST)
def test_the_shortest_encoding_is_written(value, raw):
    assert encode(value) == bytes.fromhex(raw)


def test_an_array_of_described_elements_keeps_its_descriptor():
    raw = encode(Array([UInt(1), UInt(2)], descriptor=Symbol("a:b")))

    decoded, _ = decode(raw)

    assert decoded == [1, 2]
    assert decoded.descriptor == "a:b"
    assert encode(decoded) == raw


def test_an_empty_array_may_leave_its_constructor_out():
    assert decode(bytes.fromhex("e00100")) == (Array(), 3)


def test_arrays_of_lists_maps_and_arrays_come_back():
    for array in (
        Array([[1], ["a", None]]),
        Array([{"a": 1}, {}]),
        Array([Array([1]), Array([2])]),
    ):
        assert same(decode(encode(array))[0], array)


def test_a_map_may_be_asked_by_str_where_the_key_is_a_symbol():
    assert (
        decode(encode({Symbol("com.microsoft:timeout"): UInt(5)}))[0]["com.microsoft:timeout"] == 5
    )


def test_encoded_pieces_make_lists_and_maps():
    assert encode_list([encode(1), encode("a")]) == encode([1, "a"])
    assert encode_list([]) == encode([])
    assert encode_map(encode("a") + encode(1), 1) == encode({"a": 1})
    assert decode(encode_list([b"\x40"] * 300))[0] == [None] * 300


@pytest.mark.parametrize("kind", [int, Int])
@pytest.mark.parametrize("number", [-129, -128, 127, 128])
def test_signed_numbers_at_the_edge_of_a_byte_come_back(kind, number):
    assert same(decode(encode(kind(number)))[0], kind(number))


@pytest.mark.parametrize("kind", [UInt, ULong])
@pytest.mark.parametrize("number", [0, 1, 255, 256])
def test_unsigned_numbers_at_the_edge_of_a_byte_come_back(kind, number):
    assert same(decode(encode(kind(number)))[0], kind(number))


@pytest.mark.parametrize("size", range(245, 260))
def test_lists_maps_arrays_and_text_at_the_edge_of_a_byte_come_back(size):
    text = "x" * size

    for value in (text, [text], {"": text}, Array([text]), [None] * size, Array([True] * size)):
        assert same(decode(encode(value))[0], value)


UNENCODABLE = {
    "a ubyte of 256": (UByte(256), ValueError, "256 does not fit into an AMQP ubyte"),
    "a negative ulong": (ULong(-1), ValueError, "-1 does not fit into an AMQP ulong"),
    "an int of 64 bits": (Int(1 << 40), ValueError, "does not fit into an AMQP int"),
    "an int of 65 bits": (1 << 64, ValueError, "does not fit into an AMQP long"),
    "a decimal of a wrong size": (Decimal64(b"1"), ValueError, "a decimal of 8 bytes"),
    "an object": (object(), TypeError, "AMQP has no type for"),
    "a mixed array": (Array([1, "a"]), TypeError, "elements of an array share one type: int"),
}


@pytest.mark.parametrize(("value", "error", "text"), UNENCODABLE.values(), ids=UNENCODABLE)
def test_what_amqp_cannot_say_is_refused_by_name(value, error, text):
    with pytest.raises(error, match=text):
        encode(value)


MALFORMED = {
    "nothing at all": "",
    "a type AMQP does not know": "5f",
    "a number cut off": "7000",
    "a string cut off": "a10561",
    "a long string without its size": "b1ff",
    "a string of 4 GB": "b1ffffffff61",
    "text that is not utf-8": "a101ff",
    "a symbol that is not utf-8": "a301ff",
    "a boolean that is neither": "5602",
    "a char beyond unicode": "7300110000",
    "a list without its count": "c000",
    "a list with a value missing": "c0020155",
    "a list of 4 billion values": "d000000004ffffffff",
    "a list that is longer than its values": "c003014040",
    "a value that leaves its list": "c00301a10561",
    "a number that leaves its list": "c0027000" + "00" * 8,
    "a map with a key only": "c1020140",
    "a map with a list for a key": "c103024540",
    "a map with a described list for a key": "c10602005301" + "4540",
    "an array without a constructor": "e00101",
    "an array with nothing behind its descriptor": "e004010053" + "01",
    "an array of an unknown type": "e002015f",
    "an array of described described values": "e006010053010000",
    "an array that is longer than its elements": "e00301404040",
    "an array of 4 billion nulls": "f000000005ffffffff40",
    "an array of 200 empty lists": "e002c845",
    "a described value without its value": "005301",
    "a descriptor only": "00",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_values_are_refused(raw):
    with pytest.raises(MalformedMessage):
        decode(bytes.fromhex(raw))


NESTED = {
    "lists": b"\xd0\x00\x00\x00\x05\x00\x00\x00\x01" * 5000 + b"\x45",
    "descriptors": b"\x00" * 100_000,
    "described values": b"\x00\x44" * 50_000 + b"\x40",
    "arrays": b"\xe0\xff\x01" * 5000,
}


@pytest.mark.parametrize("raw", NESTED.values(), ids=NESTED)
def test_nesting_without_end_is_refused_and_not_recursed_into(raw):
    with pytest.raises(MalformedMessage):
        decode(raw)


def test_sixty_four_levels_are_read_and_sixty_five_refused():
    value = []
    for _ in range(63):
        value = [value, None]
    nested = encode([value])
    deeper = encode([[value]])

    assert decode(nested)[0] == [value]
    with pytest.raises(MalformedMessage, match="nested deeper than 64"):
        decode(deeper)


UNSKIPPABLE = {
    "nothing": "",
    "an unknown type": "01",
    "a fixed value cut off": "98",
    "a string cut off": "a10561",
    "a size cut off": "b100",
    "a size missing": "a1",
    "4 GB": "b0ffffffff",
    "a descriptor only": "00",
}


@pytest.mark.parametrize("raw", UNSKIPPABLE.values(), ids=UNSKIPPABLE)
def test_what_has_no_end_cannot_be_skipped(raw):
    with pytest.raises(MalformedMessage):
        skip(bytes.fromhex(raw))


UNCHECKED = {
    "a value too many": ("4041", 2, 1),
    "a value missing": ("40", 1, 2),
    "4 billion said": ("40", 1, 0xFFFFFFFF),
    "a value that leaves the range": ("a10240404040", 2, 1),
    "a value cut off": ("a1", 1, 1),
    "a size cut off": ("b100", 2, 1),
    "an unknown type": ("01", 1, 1),
}


@pytest.mark.parametrize(("raw", "end", "count"), UNCHECKED.values(), ids=UNCHECKED)
def test_a_range_that_its_values_do_not_fill_is_refused(raw, end, count):
    with pytest.raises(MalformedMessage):
        check(bytes.fromhex(raw), 0, end, count)


def test_a_range_that_its_values_fill_passes():
    raw = encode("a") + encode("b" * 300) + encode(Described(ULong(1), None)) + encode(1 << 40)

    check(raw, 0, len(raw), 4)


def test_a_uuid_is_written_in_the_order_of_the_rfc():
    token = UUID("00112233-4455-6677-8899-aabbccddeeff")

    assert encode(token) == b"\x98" + token.bytes
