import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.batches import build_batch, split_batch
from pairbus.amqp.codec.sections import group_id, message_id, read_annotations, slice_message
from pairbus.amqp.codec.types import Symbol
from pairbus.amqp.codec.values import MalformedMessage, encode
from tests.amqp.codec.delivered import section
from tests.amqp.wire import ANNOTATIONS, PROPERTIES, descriptors, joined, messages

SIZES = st.sampled_from([0, 1, 255, 256, 70_000])
contents = st.lists(messages().map(joined) | SIZES.map(bytes), max_size=3)


@pytest.mark.req("B-10")
@given(contents)
def test_a_batch_gives_back_its_messages_in_order_to_the_byte(batch):
    assert split_batch(build_batch(batch)) == batch


@given(contents, ANNOTATIONS, PROPERTIES)
def test_the_envelopes_own_sections_are_passed_over(batch, annotations, properties):
    envelope = section(0x72, annotations) + section(0x73, properties)

    assert split_batch(envelope + build_batch(batch) + section(0x78, {})) == batch


@given(contents)
def test_descriptors_in_long_form_mean_the_same(batch):
    raw = b"".join(descriptors(0x75)[index % 4] + encode(each) for index, each in enumerate(batch))

    assert split_batch(raw) == batch


def test_the_envelope_says_what_the_sdks_say_in_it():
    raw = build_batch([b""], message_id="an id", group_id="a session", partition_key="a key")

    parts = slice_message(raw)
    assert message_id(parts) == "an id"
    assert group_id(parts) == "a session"
    assert read_annotations(parts.annotations) == {"x-opt-partition-key": "a key"}


def test_an_envelope_with_an_id_only():
    assert message_id(slice_message(build_batch([], message_id="an id"))) == "an id"


def test_an_empty_envelope_holds_nothing():
    assert split_batch(b"") == []


MALFORMED = {
    "a value for a body": section(0x77, "text"),
    "a sequence for a body": section(0x76, ["text"]),
    "a data section of text": section(0x75, "text"),
    "an unknown section": section(0x79, b""),
    "garbage": b"garbage",
    "garbage behind a message": build_batch([b"a"]) + b"\x01",
    "a message cut off": build_batch([b"a", b"b"])[:-1],
    "a long message cut off": build_batch([b"a" * 300])[:-1],
    "a size cut off": b"\x00\x53\x75\xb0\x00",
    "a size missing": b"\x00\x53\x75\xa0",
    "a message of 4 GB": b"\x00\x53\x75\xb0\xff\xff\xff\xffabc",
    "annotations cut off": section(0x72, {Symbol("a"): 1})[:-1],
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_batches_are_refused(raw):
    with pytest.raises(MalformedMessage):
        split_batch(raw)
