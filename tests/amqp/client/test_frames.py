"""The frames that the client reads and writes by hand, against the codec that reads all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.client.frames import (
    disposition,
    encode_outcome,
    flow,
    read_error,
    read_outcome,
    read_transfer,
    transfer_frames,
)
from pairbus.amqp.codec.types import Described, Symbol, UByte, UInt, ULong
from pairbus.amqp.codec.values import decode, encode
from pairbus.amqp.frames import FrameError, decode_performative, encode_frame
from pairbus.amqp.outcomes import (
    ACCEPTED,
    NO_OUTCOME,
    RELEASED,
    AmqpError,
    OutcomeKind,
    modified,
    rejected,
)

UINTS = st.integers(0, 2**32 - 1)
FLAGS = st.sampled_from([None, True, False])


@given(
    handle=UINTS,
    number=st.none() | UINTS,
    tag=st.none() | st.binary(max_size=32),
    fields=st.tuples(st.none() | UINTS, FLAGS, FLAGS),
    rare=st.none() | st.tuples(st.none() | st.just(UByte(1)), st.none(), FLAGS, FLAGS),
    wide=st.booleans(),
    payload=st.binary(max_size=20),
)
def test_a_transfer_is_read_as_the_codec_reads_it(handle, number, tag, fields, rare, wide, payload):
    form, settled, more = fields
    values = [
        UInt(handle),
        None if number is None else UInt(number),
        tag,
        None if form is None else UInt(form),
        settled,
        more,
        *(rare or ()),
    ]
    while values and values[-1] is None:
        values.pop()
    encoded = encode(values)
    if wide and encoded[0] == 0xC0:
        size, count, content = encoded[1], encoded[2], encoded[3:]
        encoded = b"\xd0" + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big") + content
    data = b"before" + encoded + payload
    aborted = bool(rare and rare[3])
    assert read_transfer(data, 6) == (
        handle, number, tag, bool(more), aborted, 6 + len(encoded)
    )  # fmt: skip


def test_booleans_of_two_bytes_are_read():
    content = b"\x43\x43\xa0\x01t\x43\x56\x00\x56\x01"
    data = b"\xc0" + bytes((len(content) + 1, 6)) + content
    assert read_transfer(data, 0) == (0, 0, b"t", True, False, len(data))


@pytest.mark.parametrize("content", [b"\x45", b"\xc0\x03\x02\x43\xa1", b"\xc0\x02\x01\x40"])
def test_what_is_no_transfer_is_refused(content):
    with pytest.raises(FrameError):
        read_transfer(content, 0)


@given(size=st.integers(0, 3000), room=st.integers(512, 1000), form=UINTS)
def test_a_message_is_cut_into_frames_that_fit(size, room, form):
    payload = bytes(index % 251 for index in range(size))
    frames = list(
        transfer_frames(
            channel=3,
            handle=1,
            delivery_id=77,
            tag=b"tag",
            payload=payload,
            message_format=form,
            frame_size_max=room,
        )
    )
    parts = []
    for frame in frames:
        assert len(frame) == int.from_bytes(frame[:4], "big") <= room
        assert frame[4:8] == b"\x02\x00\x00\x03"
        value, end = decode(frame, 8)
        assert value.descriptor == 0x14
        is_last = frame is frames[-1]
        assert value.value == [1, 77, b"tag", form, False, not is_last]
        parts.append(frame[end:])
    assert b"".join(parts) == payload


OUTCOMES = [
    ACCEPTED,
    RELEASED,
    modified(failed=True),
    modified(undeliverable=True),
    rejected(AmqpError("a:b", "text", {"k": "v"})),
    rejected(AmqpError("a:b")),
]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcomes_are_read_as_they_were_written(outcome):
    assert read_outcome(decode(encode_outcome(outcome))[0]) == outcome


def test_a_rejection_needs_no_error():
    refusal = Described(ULong(0x25), [])
    assert read_outcome(refusal).kind is OutcomeKind.REJECTED
    assert read_outcome(refusal).error is None


def test_a_reason_is_sent_as_it_is_and_with_nothing_added():
    error = AmqpError("com.microsoft:dead-letter", "d", {"DeadLetterReason": "r"})
    value, _ = decode(encode_outcome(rejected(error)))
    assert value.value[0].value == [
        "com.microsoft:dead-letter",
        "d",
        {Symbol("DeadLetterReason"): "r"},
    ]


def test_nothing_is_no_outcome():
    with pytest.raises(ValueError, match="no outcome"):
        encode_outcome(NO_OUTCOME)


@pytest.mark.parametrize(
    "state", [None, "text", Described(ULong(0x23), [UInt(0)]), Described(ULong(0x24), "x")]
)
def test_what_is_not_the_last_word_is_none(state):
    assert read_outcome(state) is None


@pytest.mark.parametrize("value", [None, [], Described(ULong(0x1D), []), Described("x", "y")])
def test_an_error_that_cannot_be_read_is_none(value):
    assert read_error(value) is None


def test_an_error_may_lack_everything_but_its_condition():
    error = read_error(Described(ULong(0x1D), [Symbol("a:b"), None, "no map"]))
    assert error == AmqpError("a:b")


@given(first=UINTS, last=UINTS, settled=st.booleans(), outcome=st.sampled_from(OUTCOMES))
def test_a_disposition_is_what_the_codec_would_write(first, last, settled, outcome):
    state = encode_outcome(outcome)
    frame = disposition(7, first, last, settled=settled, state=state)
    assert len(frame) == int.from_bytes(frame[:4], "big")
    assert frame[4:8] == b"\x02\x00\x00\x07"
    code, fields = decode_performative(frame[8:])
    assert (code, fields) == (0x15, [True, first, last, settled, decode(state)[0]])


def test_a_flow_may_be_of_a_link_or_of_the_session():
    _, fields = decode_performative(
        flow(
            1, next_incoming_id=2, next_outgoing_id=3, handle=4, delivery_count=5, credit=6,
            drain=True,
        )[8:]
    )  # fmt: skip
    assert fields == [2, 2**31 - 1, 3, 2**31 - 1, 4, 5, 6, None, True, False]
    frame = flow(1, next_incoming_id=2, next_outgoing_id=3)
    assert frame == encode_frame(
        0x13, [UInt(2), UInt(2**31 - 1), UInt(3), UInt(2**31 - 1)], channel=1
    )
