from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    REPLY_TO_GROUP_ID,
    SUBJECT,
    TO,
    content_type,
    group_id,
    identifier_text,
    identifier_value,
    message_id,
    pairs,
    read_annotations,
    read_application_properties,
    read_property,
    scan,
    slice_message,
)
from pairbus.amqp.codec.types import Char, Described, Symbol, Timestamp, UByte, UInt, ULong
from pairbus.amqp.codec.values import MalformedMessage, decode, encode
from tests.amqp.codec.delivered import section
from tests.amqp.wire import (
    APPLICATION_PROPERTIES,
    MESSAGE_IDS,
    NAMES,
    SYMBOLS,
    TEXT,
    descriptors,
    joined,
    messages,
    proton,
    readable_by_proton,
    same,
    scalars,
    to_proton,
    with_proton,
)

FRONT = (0x70, 0x71, 0x72)


def find(message, code):
    return next((each for each in message if each.code == code), None)


# -- what comes in goes out -------------------------------------------------------------------


@given(messages())
def test_the_bare_message_is_what_came_to_the_byte_and_in_its_order(message):
    parts = slice_message(joined(message))

    assert parts.bare == joined(each for each in message if each.code not in FRONT)


@given(messages(any_descriptor=True))
def test_a_descriptor_in_long_form_means_the_same_and_leaves_in_short_form(message):
    parts = slice_message(joined(message))

    bare = b"".join(
        bytes((0x00, 0x53, each.code)) + each.raw[decode(each.raw, 1)[1] :]
        for each in message
        if each.code not in FRONT
    )
    assert parts.bare == bare


@given(messages())
def test_header_and_annotations_are_read_wherever_they_stand(message):
    parts = slice_message(joined(message))

    header = find(message, 0x70)
    fields = ([*header.value] if header else []) + [None] * 5
    assert [parts.durable, parts.priority, parts.ttl_ms] == fields[:3]
    for code, raw, count in (
        (0x71, parts.delivery_annotations, parts.delivery_annotation_count),
        (0x72, parts.annotations, parts.annotation_count),
    ):
        sent = find(message, code)
        assert same(read_annotations(raw), _plain_keys(sent.value if sent else {}))
        assert count == (len(sent.value) if sent else 0)
        assert sent is None or sent.raw.endswith(raw)


@given(messages())
def test_spans_are_of_the_sections_as_they_came(message):
    parts = slice_message(joined(message))

    for code, span in ((0x73, parts.properties), (0x74, parts.application_properties)):
        sent = find(message, code)
        assert (span is None) == (sent is None)
        if span is not None:
            assert parts.bare[slice(*span)] == sent.raw


@given(messages())
def test_properties_are_read_one_by_one(message):
    parts = slice_message(joined(message))

    sent = find(message, 0x73)
    fields = (sent.value if sent else []) + [None] * 13
    for index in range(13):
        assert same(read_property(parts.bare, parts.properties, index), fields[index])


@given(messages())
def test_application_properties_are_read_by_name(message):
    parts = slice_message(joined(message))

    sent = find(message, 0x74)
    found = read_application_properties(parts.bare, parts.application_properties)
    assert same(found, sent.value if sent else {})


def _plain_keys(mapping):
    return {str(key): value for key, value in mapping.items()}


# -- Proton's own codec -----------------------------------------------------------------------


@st.composite
def proton_messages(draw):
    message = proton.Message()
    message.id = to_proton(draw(MESSAGE_IDS))
    message.correlation_id = to_proton(draw(MESSAGE_IDS))
    message.durable = draw(st.booleans())
    message.priority = draw(st.integers(0, 255))
    message.ttl = draw(st.integers(0, 2**32 - 1)) / 1000
    message.subject = draw(st.none() | TEXT)
    message.address = draw(st.none() | TEXT)
    message.reply_to = draw(st.none() | TEXT)
    message.content_type = draw(st.none() | SYMBOLS)
    message.group_id = draw(st.none() | TEXT)
    message.reply_to_group_id = draw(st.none() | TEXT)
    message.creation_time = draw(st.integers(0, 2**31))
    message.properties = to_proton(draw(st.none() | APPLICATION_PROPERTIES))
    annotations = st.dictionaries(SYMBOLS.map(Symbol), scalars, max_size=4)
    message.annotations = to_proton(draw(st.none() | annotations))
    message.instructions = to_proton(draw(st.none() | annotations))
    message.inferred = draw(st.booleans())
    if draw(st.booleans()):
        message.body = draw(st.binary(max_size=300))
    else:
        message.body = to_proton(
            draw(readable_by_proton.filter(lambda body: "Array" not in repr(body)))
        )
    return message


@with_proton
@given(proton_messages())
def test_what_proton_encodes_is_read_as_proton_means_it(message):
    parts = slice_message(bytes(message.encode()))

    assert bool(parts.durable) == message.durable
    assert (4 if parts.priority is None else parts.priority) == message.priority
    assert (parts.ttl_ms or 0) == round(message.ttl * 1000)
    assert field(parts, SUBJECT) == message.subject
    assert field(parts, TO) == message.address
    assert field(parts, REPLY_TO) == message.reply_to
    # Proton says symbol("None") where there is none.
    assert (content_type(parts) or "None") == message.content_type
    assert (group_id(parts) or "") == (message.group_id or "")
    assert (field(parts, REPLY_TO_GROUP_ID) or "") == (message.reply_to_group_id or "")
    assert read_annotations(parts.annotations).keys() == (message.annotations or {}).keys()
    assert (
        read_annotations(parts.delivery_annotations).keys() == (message.instructions or {}).keys()
    )


@with_proton
@given(proton_messages())
def test_the_bare_message_decodes_by_proton_to_the_same_message(message):
    raw = bytes(message.encode())
    parts = slice_message(raw)

    again = proton.Message()
    again.decode(parts.bare)

    assert raw.endswith(parts.bare)
    assert again.id == message.id
    assert again.body == message.body
    assert (again.properties or {}) == (message.properties or {})
    assert again.group_id == message.group_id


def field(parts, index):
    return read_property(parts.bare, parts.properties, index)


# -- cases ------------------------------------------------------------------------------------


def test_a_header_longer_than_any_honest_one_is_read_all_the_same():
    parts = slice_message(section(0x70, [None, None, UInt(5), None, None, "x" * 100]))

    assert parts.ttl_ms == 5


def test_numbers_of_the_header_are_plain_ints():
    parts = slice_message(section(0x70, [True, UByte(4), UInt(5)]))

    assert (type(parts.priority), type(parts.ttl_ms)) == (int, int)


def test_annotations_whose_key_is_a_number_are_kept_but_have_no_name():
    parts = slice_message(section(0x72, {ULong(1): "reserved", Symbol("a"): 1}))

    assert parts.annotation_count == 2
    assert read_annotations(parts.annotations) == {"a": 1}


IDS = {
    "a string is itself": ("order 1", "order 1"),
    "a uuid is not its text": (UUID(int=1), "AMQP_UUID:00000000-0000-0000-0000-000000000001"),
    "a ulong is not its digits": (ULong(7), "AMQP_ULONG:7"),
    "binary is not its text": (b"\x01\xab", "AMQP_BINARY:01AB"),
    "a string that looks like another id": ("AMQP_ULONG:7", "AMQP_STRING:AMQP_ULONG:7"),
    "none": (None, None),
}


@pytest.mark.parametrize(("value", "expected"), IDS.values(), ids=IDS)
def test_ids_of_all_types_are_told_apart_as_strings(value, expected):
    parts = slice_message(section(0x73, [value, None, None, None, None, value]))

    assert message_id(parts) == expected
    assert identifier_text(field(parts, CORRELATION_ID)) == expected
    if expected is not None:
        assert same(identifier_value(expected), value)


@pytest.mark.parametrize("text", ["AMQP_UUID:x", "AMQP_ULONG:-1x", "AMQP_BINARY:0", "AMQP_FLOAT:1"])
def test_a_text_that_is_the_notation_of_no_id_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        identifier_value(text)


def test_a_long_group_id_behind_long_fields_is_found():
    fields = [f"{'x' * 300}{index}" for index in range(13)]

    parts = slice_message(section(0x73, fields))

    assert group_id(parts) == fields[10]


MISREAD = {
    "a message-id that is a list": (message_id, [["a"]], "message-id must be a string, ulong"),
    "a message-id that is half a character": (message_id, [Char("\ud83d")], "message-id must be"),
    "a group-id that is half a character": (
        group_id,
        [None] * 10 + [Char("\ud83d")],
        "group-id must be a string",
    ),
    "a group-id that is binary": (group_id, [None] * 10 + [b"a"], "group-id must be a string"),
    "a content type that is a timestamp": (
        content_type,
        [None] * CONTENT_TYPE + [Timestamp(1)],
        "content-type must",
    ),
}


@pytest.mark.parametrize(("read", "fields", "text"), MISREAD.values(), ids=MISREAD)
def test_a_property_of_a_wrong_type_is_refused_by_name(read, fields, text):
    with pytest.raises(MalformedMessage, match=text):
        read(slice_message(section(0x73, fields)))


LONG = "x" * 100_000
LONG_VALUES = {
    "header": lambda: slice_message(section(0x70, [LONG])),
    "message-id": lambda: message_id(slice_message(section(0x73, [[LONG]]))),
    "group-id": lambda: group_id(slice_message(section(0x73, [None] * 10 + [[LONG]]))),
}


@pytest.mark.parametrize("read", LONG_VALUES.values(), ids=LONG_VALUES)
def test_an_error_quotes_only_the_beginning_of_a_long_value(read):
    """A broker logs it, and sends it in one frame, which has a maximum size."""
    with pytest.raises(MalformedMessage, match="xxx") as caught:
        read()

    assert len(str(caught.value)) < 200


def test_a_property_that_is_not_utf8_is_refused():
    parts = slice_message(bytes.fromhex("005373c00401a101ff"))

    with pytest.raises(MalformedMessage, match="UTF-8"):
        message_id(parts)


@pytest.mark.parametrize("code", NAMES)
def test_every_form_of_a_descriptor_is_known(code):
    value = {0x75: b"body", 0x77: "body"}.get(code, [] if NAMES[code].endswith("list") else {})

    for descriptor in descriptors(code):
        parts = slice_message(descriptor + encode(value))
        assert parts.bare == (b"" if code in FRONT else section(code, value))


MALFORMED = {
    "bytes that are no section": b"hello",
    "one byte": b"\x00",
    "a descriptor cut off": b"\x00\x53",
    "a section cut off behind its descriptor": b"\x00\x53\x75",
    "a data section without its size": b"\x00\x53\x75\xa0",
    "a data section cut off": b"\x00\x53\x75\xa0\x05abc",
    "a data section of 4 GB": b"\x00\x53\x75\xb0\xff\xff\xff\xff",
    "a data section whose size is cut off": b"\x00\x53\x75\xb0\xff",
    "a data section that is a string": section(0x75, "text"),
    "properties that are a map": section(0x73, {}),
    "annotations that are a list": section(0x72, []),
    "a section that does not exist": section(0x79, []),
    "a descriptor that is of another type": encode(Described(UInt(0x75), b"body")),
    "a descriptor in long form of another type": b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x24\x45",
    "a descriptor larger than a byte": encode(Described(ULong(0x13700000006), [])),
    "a symbol that is no section": encode(Described(Symbol("amqp:open:list"), [])),
    "a section in long form, then nothing": b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75",
    "a section in long form, then a wrong one": descriptors(0x70)[0] + b"\x45" + section(0x75, "x"),
    "a section in long form, then an empty one": descriptors(0x70)[0] + b"\x45\x00\x53\x75",
    "a section in long form, then garbage": descriptors(0x70)[0] + b"\x45\x01",
    "two headers": section(0x70, []) * 2,
    "two properties": section(0x73, ["a"]) * 2,
    "two footers": section(0x78, {}) * 2,
    "more properties than there are": section(0x73, [None] * 14),
    "properties with a wrong count": b"\x00\x53\x73\xc0\x02\x02\x40",
    "a map with a key only": b"\x00\x53\x74\xc1\x02\x01\x40",
    "a map without its count": b"\x00\x53\x74\xc1\x00",
    "a header without its count": b"\x00\x53\x70\xc0\x00" + section(0x75, b""),
    "properties without their count": b"\x00\x53\x73\xc0\x00" + section(0x75, b""),
    "a map of 4 billion pairs": b"\x00\x53\x72\xd1\x00\x00\x00\x04\xff\xff\xff\xfe",
    "a map of 4 billion bytes": b"\x00\x53\x72\xd1\xff\xff\xff\xff\x00\x00\x00\x00",
    "a pair that leaves its map": b"\x00\x53\x72\xc1\x04\x02\x40\xa1\x05abcdef",
    "a ttl that is a string": section(0x70, [None, None, "5"]),
    "a priority that is an int": section(0x70, [None, 4]),
    "a value section of nothing": b"\x00\x53\x77",
    "a value section of an unknown type": b"\x00\x53\x77\x01",
    "a value section of descriptors": b"\x00\x53\x77" + b"\x00" * 100_000,
    "a descriptor of descriptors": b"\x00" * 100_000,
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_messages_are_refused(raw):
    with pytest.raises(MalformedMessage):
        slice_message(raw)


def test_the_reason_says_where():
    with pytest.raises(MalformedMessage, match=r"offset 4: section 0x75 holds 0xa1"):
        slice_message(section(0x70, []) + section(0x75, "text"))


# -- where the sections are -------------------------------------------------------------------


def test_a_delivered_message_is_scanned_in_place():
    header, properties = section(0x70, [True]), section(0x73, ["an id", None, "to"])
    own = section(0x74, {"a": 1, "b": "two"})
    body = section(0x75, b"body") + section(0x78, {Symbol("f"): 1})
    raw = header + properties + own + body

    data, found = scan(raw)

    assert data is raw
    assert found.annotations == found.delivery_annotations == (0, 0, 0, 0)
    start, _, end, count = found.properties
    assert (raw[start:end], count) == (properties, 3)
    _, first, end, count = found.application_properties
    named = {name: (value, raw[at:after]) for name, value, at, after in pairs(raw, first, end)}
    assert (named, count) == ({"a": (1, encode(1)), "b": ("two", encode("two"))}, 4)
    assert raw[found.body :] == body


def test_sections_in_another_order_are_put_in_order_and_nothing_is_lost():
    header = section(0x70, [True, None, None, None, UInt(3)])
    properties, own, body = section(0x73, ["id"]), section(0x74, {"a": 1}), section(0x75, b"body")
    empty = b"\x00\x53\x73\x45"

    assert scan(own + body + properties + header)[0] == header + properties + own + body
    assert scan(own + properties + body)[0] == properties + own + body
    assert scan(own + empty + body)[0] == own + body


@pytest.mark.parametrize("raw", [b"\x00\x53\x75\xa0\x05x", b"\x00\x53\x72\xd1\x00", b"no message"])
def test_what_is_no_message_is_refused(raw):
    with pytest.raises(MalformedMessage):
        scan(raw)


def test_pairs_that_do_not_end_with_their_map_are_refused():
    raw = encode("a") + encode("value")
    with pytest.raises(MalformedMessage, match="do not end"):
        list(pairs(raw, 0, len(raw) - 1))
