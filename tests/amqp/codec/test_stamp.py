import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import (
    message_id,
    read_annotations,
    read_application_properties,
    read_property,
    slice_message,
)
from pairbus.amqp.codec.stamp import (
    STAMPED_KEYS,
    with_application_properties,
    with_property,
    without_keys,
)
from pairbus.amqp.codec.types import Int, Short, Symbol, Timestamp, UInt, ULong
from pairbus.amqp.codec.values import decode, encode
from tests.amqp.codec.delivered import TOKEN, section, stamped
from tests.amqp.wire import (
    ANNOTATIONS,
    SCALARS,
    TEXT,
    encodings,
    joined,
    messages,
    proton,
    same,
    scalars,
    with_proton,
)

PLAIN = slice_message(section(0x73, ["an id"]) + section(0x75, b"body"))


# -- stamp ------------------------------------------------------------------------------------


@given(messages(), st.none() | st.just(TOKEN.bytes), st.none() | st.integers(0, 2**60))
def test_a_stamped_message_is_what_came_with_ours_in_front(message, token, locked_until_ms):
    parts = slice_message(joined(message))

    again = slice_message(stamped(parts, lock_token=token, locked_until_ms=locked_until_ms))

    assert again.bare == parts.bare
    assert (again.durable, again.priority, again.ttl_ms) == (
        parts.durable,
        parts.priority,
        parts.ttl_ms,
    )
    assert again.annotations.endswith(parts.annotations)
    assert again.delivery_annotations.endswith(parts.delivery_annotations)
    ours = without_keys(again.annotations, STAMPED_KEYS)
    assert ours == (parts.annotations, parts.annotation_count)
    assert without_keys(again.delivery_annotations, STAMPED_KEYS)[0] == (parts.delivery_annotations)


@with_proton
@given(
    st.integers(1, 2**63 - 1),
    st.integers(0, 2**62),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 2**32 - 1),
)
def test_proton_reads_a_stamped_message(sequence, enqueued_ms, delivery_count, ttl_ms):
    raw = stamped(
        PLAIN,
        sequence=sequence,
        enqueued_ms=enqueued_ms,
        delivery_count=delivery_count,
        ttl_ms=ttl_ms,
    )

    message = proton.Message()
    message.decode(raw)

    assert message.delivery_count == delivery_count
    assert round(message.ttl * 1000) == (ttl_ms or 0)
    assert message.instructions == {"x-opt-lock-token": TOKEN}
    assert message.annotations == {
        "x-opt-sequence-number": sequence,
        "x-opt-enqueued-time": enqueued_ms,
        "x-opt-locked-until": 1_700_000_030_000,
    }
    assert message.id == "an id"
    assert bytes(message.body) == b"body"


def test_the_annotations_have_the_types_that_the_sdks_expect():
    parts = slice_message(
        stamped(PLAIN, enqueued_sequence=3, state=2, partition_id=5, dead_letter_source="orders")
    )

    expected = {
        "x-opt-enqueued-time": Timestamp(1_700_000_000_000),
        "x-opt-sequence-number": 7,
        "x-opt-locked-until": Timestamp(1_700_000_030_000),
        "x-opt-deadletter-source": "orders",
        "x-opt-partition-id": Short(5),
        "x-opt-message-state": Int(2),
        "x-opt-enqueue-sequence-number": 3,
    }
    assert same(read_annotations(parts.annotations), expected)
    assert parts.annotation_count == len(expected)
    assert same(read_annotations(parts.delivery_annotations), {"x-opt-lock-token": TOKEN})


def test_the_delivery_count_is_on_the_wire_even_when_it_is_zero():
    header, _ = decode(stamped(PLAIN))

    assert same(header.value, [None, None, None, None, UInt(0)])


def test_without_a_lock_there_is_an_empty_map_of_delivery_annotations_and_no_locked_until():
    raw = stamped(PLAIN, lock_token=None, locked_until_ms=None)
    parts = slice_message(raw)

    _, after_header = decode(raw)
    delivery_annotations, _ = decode(raw, after_header)
    assert (int(delivery_annotations.descriptor), delivery_annotations.value) == (0x71, {})
    assert list(read_annotations(parts.annotations)) == [
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
    ]


def test_delivery_annotations_of_the_sender_go_on_without_a_lock_too():
    sent = slice_message(section(0x71, {Symbol("x-opt-a"): 1}))

    parts = slice_message(stamped(sent, lock_token=None))

    assert read_annotations(parts.delivery_annotations) == {"x-opt-a": 1}


def test_every_descriptor_leaves_in_the_form_that_the_python_sdk_reads():
    raw = stamped(slice_message(section(0x71, {Symbol("a"): 1}) + PLAIN.bare))

    codes = []
    pos = 0
    while pos < len(raw):
        assert raw[pos : pos + 2] == b"\x00\x53"
        codes.append(raw[pos + 2])
        pos = decode(raw, pos)[1]
    assert codes == [0x70, 0x71, 0x72, 0x73, 0x75]


# -- without_keys ----------------------------------------------------------------------


@given(st.data(), ANNOTATIONS, st.sets(st.sampled_from(["a", "b", "x-opt-lock-token"])))
def test_pairs_are_dropped_by_key_and_the_rest_stays_to_the_byte(data, kept, dropped):
    pairs = [(Symbol(key), value) for key, value in kept.items() if key not in dropped]
    pairs += [(data.draw(st.sampled_from([Symbol, str]))(key), 1) for key in dropped]
    pairs = data.draw(st.permutations(pairs))
    raws = [data.draw(encodings(key)) + data.draw(encodings(value)) for key, value in pairs]

    left, count = without_keys(b"".join(raws), frozenset(key.encode() for key in dropped))

    expected = [raw for raw, (key, _) in zip(raws, pairs, strict=True) if key not in dropped]
    assert left == b"".join(expected)
    assert count == len(expected)


def test_a_key_that_is_a_number_is_never_dropped():
    raw = encode(ULong(5)) + encode("x-opt-lock-token")

    assert without_keys(raw, STAMPED_KEYS) == (raw, 1)


def test_nothing_to_drop_costs_no_copy():
    raw = encode(Symbol("a")) + encode(1)

    assert without_keys(raw, STAMPED_KEYS)[0] is raw


# -- with_application_properties --------------------------------------------------------------


@given(messages(), st.dictionaries(TEXT, scalars, max_size=3))
def test_application_properties_are_added_and_all_else_stays_to_the_byte(message, add):
    parts = slice_message(joined(message))

    again = slice_message(
        with_application_properties(parts.bare, parts.application_properties, add)
    )

    before = read_application_properties(parts.bare, parts.application_properties)
    after = read_application_properties(again.bare, again.application_properties)
    assert {key: after[key] for key in after} == before | add
    assert _others(again, again.application_properties) == _others(
        parts, parts.application_properties
    )


def _others(parts, span):
    return parts.bare if span is None else parts.bare[: span[0]] + parts.bare[span[1] :]


def test_pairs_that_are_not_replaced_keep_their_encoding():
    odd = bytes.fromhex("b10000000161") + bytes.fromhex("70 00000001")  # long forms of "a": 1
    bare = bytes.fromhex("005374 c1") + bytes((len(odd) + 1, 2)) + odd

    changed = with_application_properties(bare, (0, len(bare)), {"DeadLetterReason": "r"})

    assert odd in changed
    parts = slice_message(changed)
    assert read_application_properties(changed, parts.application_properties) == {
        "a": 1,
        "DeadLetterReason": "r",
    }


def test_new_application_properties_stand_behind_the_properties():
    changed = with_application_properties(PLAIN.bare, None, {"DeadLetterReason": "r"})

    assert changed == section(0x73, ["an id"]) + section(0x74, {"DeadLetterReason": "r"}) + (
        section(0x75, b"body")
    )


def test_more_application_properties_than_a_short_map_holds():
    add = {f"key {number}": "value" * 10 for number in range(300)}

    changed = with_application_properties(PLAIN.bare, None, add)

    parts = slice_message(changed)
    assert read_application_properties(changed, parts.application_properties) == add


# -- with_property ----------------------------------------------------------------------------


@given(messages(), st.integers(0, 12), SCALARS[Timestamp] | SCALARS[str])
def test_one_property_is_replaced_and_all_else_stays_to_the_byte(message, index, value):
    parts = slice_message(joined(message))

    again = slice_message(with_property(parts.bare, parts.properties, index, encode(value)))

    for each in range(13):
        expected = value if each == index else read_property(parts.bare, parts.properties, each)
        assert same(read_property(again.bare, again.properties, each), expected)
    assert _others(again, again.properties) == _others(parts, parts.properties)


def test_properties_are_made_in_front_where_there_were_none():
    body = section(0x75, b"body")

    changed = with_property(body, None, 0, encode("an id"))

    assert changed == section(0x73, ["an id"]) + body
    assert message_id(slice_message(changed)) == "an id"


@pytest.mark.parametrize("key", sorted(STAMPED_KEYS))
def test_what_a_sender_says_of_our_keys_is_dropped(key):
    raw = encode(Symbol(key.decode())) + encode(1)

    assert without_keys(raw, STAMPED_KEYS) == (b"", 0)
