"""Messages in a backlog queue that no paired sender wrote, and bytes that are no message."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from azure.servicebus import ServiceBusMessage
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import read_annotations, read_property, slice_message
from pairbus.amqp.codec.types import Described, Int, Symbol, Timestamp, UInt, ULong
from pairbus.amqp.codec.values import encode
from pairbus.client.route.envelope import (
    PATH,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    EnvelopeError,
    unwrap,
)
from pairbus.syphon.restore import restore
from tests.syphon.backlog import NOW_MS, backlogged, by_hand, delivered, encoded
from tests.syphon.originals import messages

GROUP_ID = 10

REFUSALS = {
    "no properties": (None, "x-ms-path is missing"),
    "no path": ({"a": "b", SESSION_ID: "s"}, "x-ms-path is missing"),
    "an empty path": ({PATH: ""}, "x-ms-path is empty"),
    "a path that is null": ({PATH: None}, "x-ms-path is missing"),
    "a path that is a number": ({PATH: 5}, "x-ms-path is 5, of type int: it should be a string"),
    "a session that is a number": ({PATH: "q", SESSION_ID: Int(5)}, "x-ms-sessionid is 5"),
    "a time to live that is text": ({PATH: "q", TIME_TO_LIVE: "1"}, "x-ms-timetolive is '1'"),
    "one that is negative": ({PATH: "q", TIME_TO_LIVE: -1}, "x-ms-timetolive is -1"),
    "one that is a boolean": ({PATH: "q", TIME_TO_LIVE: True}, "x-ms-timetolive is True"),
    "a time span of .NET": (
        {PATH: "q", TIME_TO_LIVE: Described(Symbol("com.microsoft:timespan"), 5)},
        "x-ms-timetolive is Described",
    ),
    "a schedule that is text": ({PATH: "q", SCHEDULED: "2031"}, "utc is '2031', of type str"),
    "a schedule that is a float": ({PATH: "q", SCHEDULED: 1.5}, "x-ms-scheduledenqueuetimeutc"),
    "a schedule beyond all time": ({PATH: "q", SCHEDULED: ULong(2**63)}, str(2**63)),
}


@pytest.mark.req("S-05")
@pytest.mark.parametrize(("properties", "words"), REFUSALS.values(), ids=REFUSALS)
def test_an_invalid_envelope_is_refused_with_the_reason(properties, words):
    with pytest.raises(EnvelopeError) as raised:
        restore(by_hand(properties), now_ms=NOW_MS)
    assert words in str(raised.value)
    assert "should be" in str(raised.value)


@pytest.mark.req("S-05")
def test_a_path_that_is_not_text_is_named_in_the_error():
    data = by_hand({PATH: "qqqq"}).replace(b"qqqq", b"q\xff\xfeq")
    with pytest.raises(EnvelopeError, match="x-ms-path is b'q"):
        restore(data, now_ms=NOW_MS)


def test_other_types_are_accepted_if_their_meaning_is_clear():
    properties = {
        PATH: Symbol("orders"),
        SESSION_ID: b"session",
        TIME_TO_LIVE: UInt(70_000),
        SCHEDULED: 5,
    }
    restored = restore(by_hand(properties), now_ms=NOW_MS)
    meant = unwrap(properties)
    assert restored.path == meant.path
    assert type(restored.path) is str
    parts = slice_message(restored.data)
    assert parts.ttl_ms == 70_000
    assert read_annotations(parts.annotations) == {"x-opt-scheduled-enqueue-time": Timestamp(5)}
    assert read_property(parts.bare, parts.properties, GROUP_ID) == "session"


def test_an_alias_wins_over_the_value_that_the_service_saw():
    data = by_hand(
        {PATH: "orders", SESSION_ID: "mine", SCHEDULED: Timestamp(5)},
        annotations={"x-opt-scheduled-enqueue-time": Timestamp(7), "x-own": 1},
        fields=["id", *[None] * 9, "another"],
    )
    parts = slice_message(restore(data, now_ms=NOW_MS).data)
    assert read_annotations(parts.annotations) == {
        "x-opt-scheduled-enqueue-time": 5,
        "x-own": 1,
    }
    assert read_property(parts.bare, parts.properties, GROUP_ID) == "mine"


def test_values_without_an_alias_stay():
    annotations = {"x-opt-scheduled-enqueue-time": Timestamp(7)}
    fields = ["id", *[None] * 9, "session", UInt(3), "reply"]
    data = by_hand({PATH: "orders", "a": 1}, annotations=annotations, fields=fields)
    expected = by_hand({"a": 1}, annotations=annotations, fields=fields)
    assert restore(data, now_ms=NOW_MS).data == expected


def test_missing_fields_are_filled_up_as_far_as_needed():
    data = by_hand({PATH: "orders", SESSION_ID: "s"}, fields=["id"])
    assert restore(data, now_ms=NOW_MS).data == by_hand(None, fields=["id", *[None] * 9, "s"])


def test_sections_in_another_order_and_encoding_are_put_in_order():
    message = ServiceBusMessage("x", message_id="id", session_id="s", partition_key="s")
    data = backlogged(message)
    parts = slice_message(data)
    notes = {Symbol(name): note for name, note in read_annotations(parts.annotations).items()}
    start, end = parts.application_properties
    tail = b"\x00\x53\x72" + encode(notes)
    shuffled = parts.bare[start:end] + parts.bare[:start] + parts.bare[end:] + tail
    assert restore(shuffled, now_ms=NOW_MS).data == encoded(message)
    long_descriptors = shuffled.replace(b"\x00\x53\x74", b"\x00\x80" + struct.pack(">Q", 0x74))
    assert restore(long_descriptors, now_ms=NOW_MS).data == encoded(message)


def test_names_of_annotations_may_have_other_types():
    raw = encode("x-opt-enqueued-time") + encode(Timestamp(5)) + encode(ULong(1)) + encode("one")
    raw += encode(Symbol("x-opt-sequence-number")) + encode(7)
    raw += b"\xb3" + struct.pack(">I", 5) + b"x-own" + encode(True)
    annotations = b"\x00\x53\x72\xc1" + bytes((len(raw) + 1, 8)) + raw
    restored = restore(annotations + by_hand({PATH: "orders"}), now_ms=NOW_MS)
    assert restored.enqueued_ms == 5
    assert read_annotations(slice_message(restored.data).annotations) == {"x-own": True}
    assert slice_message(restored.data).annotation_count == 2


def test_stamps_of_the_broker_are_removed_in_any_order_and_size():
    annotations = {
        "x-own": "first",
        "x-opt-sequence-number": 7,
        "x-opt-partition-key": "key",
        "x-opt-enqueued-time": Timestamp(5),
        "x-opt-deadletter-source": "elsewhere",
        "x-last": ULong(5),
    }
    restored = restore(by_hand({PATH: "orders"}, annotations=annotations), now_ms=NOW_MS)
    own = {name: annotations[name] for name in ("x-own", "x-opt-partition-key", "x-last")}
    assert restored.data == by_hand(None, annotations=own)
    assert restored.enqueued_ms == 5


def test_a_stamp_of_the_wrong_type_is_removed_and_ignored():
    annotations = {"x-opt-sequence-number": "many", "x-opt-enqueued-time": None}
    restored = restore(by_hand({PATH: "orders"}, annotations=annotations), now_ms=NOW_MS)
    assert restored.enqueued_ms is None
    assert restored.data == by_hand(None)


def test_names_that_are_not_strings_are_no_aliases():
    own = {Symbol(SESSION_ID): "symbol", ULong(1): "one"}
    restored = restore(by_hand(own | {PATH: "orders"}), now_ms=NOW_MS)
    assert restored.path == "orders"
    assert restored.data == by_hand(own)


# --- any bytes ----------------------------------------------------------------------------------


@given(message=messages(), data=st.data())
def test_a_truncated_or_changed_message_is_restored_or_refused(message, data):
    whole = backlogged(message)
    at = data.draw(st.integers(0, len(whole) - 1))
    torn = data.draw(
        st.sampled_from(
            [whole[:at], whole[at:], whole[:at] + b"\xff" + whole[at + 1 :], whole[:at] * 2]
        )
    )
    with suppress(EnvelopeError):
        assert restore(torn, now_ms=NOW_MS).path


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    with pytest.raises(EnvelopeError):
        restore(noise, now_ms=NOW_MS)


def test_maps_and_lists_that_lie_about_their_size_are_refused():
    good = by_hand({PATH: "orders", "a": 1}, annotations={"x": 1}, fields=["id", *[None] * 12])
    for section in (b"\x00\x53\x72\xc1", b"\x00\x53\x74\xc1"):
        at = good.index(section) + 5
        for wrong in (0, good[at] - 1, good[at] + 2):
            with pytest.raises(EnvelopeError, match="cannot be read"):
                restore(good[:at] + bytes((wrong,)) + good[at + 1 :], now_ms=NOW_MS)
    empty_size = good.replace(b"\x00\x53\x73\xc0\x11", b"\x00\x53\x73\xc0\x00")
    assert empty_size != good
    with pytest.raises(EnvelopeError, match="cannot be read"):
        restore(empty_size, now_ms=NOW_MS)


def test_too_many_properties_are_refused():
    data = by_hand({PATH: "orders", SESSION_ID: "s"}, fields=["id", *[None] * 13])
    with pytest.raises(EnvelopeError, match="properties do not end"):
        restore(data, now_ms=NOW_MS)


@pytest.mark.parametrize("header", [["yes"], [None, 5], [None, None, "1"]])
def test_a_header_of_wrong_types_is_refused(header):
    data = b"\x00\x53\x70" + encode(header) + by_hand({PATH: "orders"})
    with pytest.raises(EnvelopeError, match="header"):
        restore(data, now_ms=NOW_MS)


def test_a_long_header_is_read_too():
    header = [True, None, None, None, UInt(1), "x" * 40]
    data = b"\x00\x53\x70" + encode(header) + by_hand({PATH: "orders"})
    assert slice_message(restore(data, now_ms=NOW_MS).data).durable is True


def test_an_envelope_within_an_envelope_is_removed_one_at_a_time():
    """Our primary may be the secondary of another pair."""
    inner = encoded(ServiceBusMessage("x", message_id="id", session_id="s"))
    first = backlogged(ServiceBusMessage("x", message_id="id", session_id="s"), "inner")
    once = restore(first, now_ms=NOW_MS)
    assert (once.path, once.data) == ("inner", inner)
    again = delivered(once.data)
    with pytest.raises(EnvelopeError, match="x-ms-path is missing"):
        restore(again, now_ms=NOW_MS)
