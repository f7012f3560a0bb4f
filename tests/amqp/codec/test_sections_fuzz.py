"""Random bytes: the codec returns a result or raises MalformedMessage, nothing else.

A few seconds in the suite; `HYPOTHESIS_PROFILE=night` tries many times as much.
"""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.codec import sections
from pairbus.amqp.codec.batches import build_batch, split_batch
from pairbus.amqp.codec.sections import (
    read_annotations,
    read_application_properties,
    read_property,
    scan,
    slice_message,
)
from pairbus.amqp.codec.stamp import (
    STAMPED_KEYS,
    stamp,
    with_application_properties,
    with_property,
    without_keys,
)
from pairbus.amqp.codec.values import MalformedMessage, decode, encode, skip
from tests.amqp.wire import joined, messages, wires

often = settings(max_examples=2 * settings.default.max_examples)

# Bytes that mean something to AMQP are likelier to lead somewhere than others.
MEANINGFUL = bytes.fromhex(
    "00 01 02 05 40 41 45 50 52 53 56 70 71 72 73 74 75 76 77 78 80 81 83 98 a0 a1 a3"
    "b0 b1 b3 c0 c1 d0 d1 e0 f0 ff"
)
octets = st.sampled_from(MEANINGFUL) | st.integers(0, 255)


@st.composite
def damaged(draw, originals):
    """A valid message with some bytes changed, lost, doubled or added, or truncated."""
    raw = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        match draw(st.sampled_from(["change", "lose", "insert", "double", "cut"])):
            case "change":
                raw[at : at + 1] = bytes((draw(octets),))
            case "lose":
                del raw[at : at + draw(st.integers(1, 8))]
            case "insert":
                raw[at:at] = bytes(draw(st.lists(octets, min_size=1, max_size=8)))
            case "double":
                raw[at:at] = raw[at : at + draw(st.integers(1, 64))]
            case "cut":
                del raw[at:]
    return bytes(raw)


garbage = st.binary(max_size=64) | st.lists(octets, max_size=64).map(bytes)
sections_alike = st.lists(
    st.builds(
        lambda code, rest: bytes((0x00, 0x53, code, *rest)),
        st.integers(0x70, 0x78),
        st.lists(octets, max_size=24),
    ),
    max_size=4,
).map(b"".join)
whole_messages = messages(any_descriptor=True).map(joined) | messages().map(joined)
strangers = garbage | sections_alike | damaged(whole_messages)


def attempt(function, *arguments):
    try:
        return function(*arguments)
    except MalformedMessage:
        return None


@often
@given(strangers)
def test_slicing_either_succeeds_or_says_malformed(raw):
    parts = attempt(slice_message, raw)

    if parts is not None:
        put_to_use(parts)


@often
@given(strangers)
def test_scanning_agrees_with_slicing(raw):
    parts = attempt(slice_message, raw)
    scanned = attempt(scan, raw)

    if parts is None:
        return  # scanning does not look into the sections, so it may accept more
    assert scanned is not None
    data, found = scanned
    _, first, end, count = found.annotations
    assert (data[first:end], count) == (parts.annotations, 2 * parts.annotation_count)
    for section, span in (
        (found.properties, parts.properties),
        (found.application_properties, parts.application_properties),
    ):
        start, _, end, _ = section
        is_empty = span is None or parts.bare[span[0] + 3] == 0x45
        assert data[start:end] == (b"" if is_empty else parts.bare[slice(*span)])


def put_to_use(parts):
    """What the broker does with an accepted message; it must not fail."""
    mine, count = without_keys(parts.annotations, STAMPED_KEYS)
    hop, hop_count = without_keys(parts.delivery_annotations, STAMPED_KEYS)
    raw = stamp(
        durable=parts.durable,
        priority=parts.priority,
        ttl_ms=parts.ttl_ms,
        delivery_count=1,
        lock_token=bytes(16),
        sequence=1,
        enqueued_ms=1,
        locked_until_ms=1,
        enqueued_sequence=1,
        delivery_annotations=hop,
        delivery_annotation_count=hop_count,
        annotations=mine,
        annotation_count=count,
        bare=parts.bare,
    )
    again = slice_message(raw)
    assert again.bare == parts.bare
    assert again.properties == parts.properties
    assert again.application_properties == parts.application_properties
    assert again.annotation_count == count + 4
    assert again.delivery_annotation_count == hop_count + 1

    span = parts.application_properties
    slice_message(with_application_properties(parts.bare, span, {"DeadLetterReason": "r"}))
    slice_message(with_property(parts.bare, parts.properties, 8, encode(1)))

    # Reading decodes what slicing only stepped over, and may find it wrong.
    for index in range(13):
        attempt(read_property, parts.bare, parts.properties, index)
    for read in (sections.message_id, sections.group_id, sections.content_type):
        attempt(read, parts)
    attempt(read_annotations, parts.annotations)
    attempt(read_application_properties, parts.bare, span)


@often
@given(garbage | damaged(wires.map(lambda wire: wire.raw)))
def test_decoding_either_succeeds_or_says_malformed(raw):
    decoded = attempt(decode, raw)

    end = attempt(skip, raw)
    if decoded is not None:
        value, after = decoded
        assert after == end
        assert encode(value) == encode(decode(encode(value))[0])


@often
@given(garbage | sections_alike | damaged(st.lists(whole_messages, max_size=3).map(build_batch)))
def test_splitting_a_batch_either_succeeds_or_says_malformed(raw):
    batch = attempt(split_batch, raw)

    if batch is not None:
        assert sum(map(len, batch)) <= len(raw)
        for message in batch:
            attempt(slice_message, message)


MEGABYTE = 1 << 20
# (constructor, count, content) of a list or array
BOMBS = {
    "arrays of empty elements": (0xD0, 5_000, b"\xe0\x02\x04\x45" * 5_000),
    "an array of arrays of empty elements": (0xF0, 5_000, b"\xe0" + b"\x02\x04\x45" * 5_000),
    "empty lists": (0xD0, 20_000, b"\x45" * 20_000),
    "claims of 4 GB": (0xD0, 20_000, b"\xb0\xff\xff\xff\xff" * 20_000),
    "claims of 4 billion elements": (0xD0, 9, b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff" * 9),
    "an array of 4 billion nulls": (0xF0, 0xFFFFFFFF, b"\x40"),
}


@pytest.mark.parametrize(("code", "count", "content"), BOMBS.values(), ids=BOMBS)
def test_memory_stays_in_proportion_to_the_bytes_that_came(code, count, content):
    bomb = bytes((code,)) + (len(content) + 4).to_bytes(4) + count.to_bytes(4) + content
    message = b"\x00\x53\x77" + bomb

    tracemalloc.start()
    try:
        attempt(decode, bomb)
        attempt(slice_message, message)
        attempt(split_batch, message)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 200 * len(message) + 10_000


LONG = {
    "sections": b"\x00\x53\x75\xa0\x00" * (MEGABYTE // 5),
    "sections with long descriptors": b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x00" * 80_000,
    "descriptors": b"\x00" * MEGABYTE,
    "described values": b"\x00\x53\x77" + b"\x00\x44" * (MEGABYTE // 2) + b"\x40",
}


@pytest.mark.parametrize("raw", LONG.values(), ids=LONG)
def test_a_megabyte_of_the_smallest_pieces_is_answered(raw):
    attempt(slice_message, raw)
    attempt(split_batch, raw)
    attempt(decode, raw)
