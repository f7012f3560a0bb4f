"""What is read and written by hand, against the codec that reads all."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.types import Described, Symbol, UByte, UInt, ULong
from pairbus.amqp.codec.values import decode, encode
from pairbus.amqp.frames import FrameError, decode_performative, encode_frame, read_error
from pairbus.amqp.outcomes import (
    ACCEPTED,
    NO_OUTCOME,
    RELEASED,
    AmqpError,
    Outcome,
    OutcomeKind,
    modified,
    rejected,
)
from pairbus.amqp.performatives import (
    disposition,
    flow,
    read_disposition,
    read_outcome,
    read_transfer,
    statement,
    transfer_frames,
    transfer_head,
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
    start = 6 + len(encoded)
    assert read_transfer(data, 6, len(data)) == (
        handle, number, tag, form or 0, bool(settled), bool(more), aborted, start
    )  # fmt: skip
    with pytest.raises((FrameError, IndexError, struct.error)):
        read_transfer(data[: start - 1], 6, start - 1)


def test_booleans_of_two_bytes_are_read():
    content = b"\x43\x43\xa0\x01t\x43\x56\x00\x56\x01"
    data = b"\xc0" + bytes((len(content) + 1, 6)) + content
    size = len(data)
    assert read_transfer(data, 0, size) == (0, 0, b"t", 0, False, True, False, size)


@pytest.mark.parametrize("content", [b"\x45", b"\xc0\x03\x02\x43\xa1", b"\xc0\x02\x01\x40"])
def test_what_is_no_transfer_is_refused(content):
    with pytest.raises(FrameError):
        read_transfer(content, 0, len(content))


@given(size=st.integers(0, 3000), room=st.integers(512, 1000), form=UINTS, settled=st.booleans())
def test_a_message_is_cut_into_frames_that_fit(size, room, form, settled):
    payload = bytes(index % 251 for index in range(size))
    frames = list(
        transfer_frames(
            channel=3,
            handle=1,
            number=77,
            tag=b"tag",
            data=payload,
            message_format=form,
            settled=settled,
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
        assert value.value == [1, 77, b"tag", form, settled, not is_last]
        parts.append(frame[end:])
    assert b"".join(parts) == payload


@given(
    channel=st.integers(0, 65535),
    handle=UINTS,
    number=UINTS,
    tag=st.binary(min_size=1, max_size=32),
)
def test_the_head_of_a_plain_transfer_is_what_the_codec_would_read(channel, handle, number, tag):
    start, middle = transfer_head(channel, handle, len(tag))
    frame = start + number.to_bytes(4, "big") + middle + tag + b"\x43"
    assert frame[:4] == b"\x02\x00" + channel.to_bytes(2, "big")
    code, fields = decode_performative(frame[4:])
    assert (code, fields) == (0x14, [handle, number, tag, 0])


OUTCOMES = [
    ACCEPTED,
    RELEASED,
    modified(failed=True),
    modified(undeliverable=True),
    rejected(AmqpError("a:b", "text", {"k": "v"})),
    rejected(AmqpError("a:b")),
]


def state_of(outcome):
    return statement(outcome, is_receiver=True, settled=True, tracked=False)[2]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcomes_are_read_as_they_were_written(outcome):
    assert read_outcome(decode(state_of(outcome))[0]) == outcome


def test_a_rejection_needs_no_error():
    refusal = Described(ULong(0x25), [])
    assert read_outcome(refusal).kind is OutcomeKind.REJECTED
    assert read_outcome(refusal).error is None


def test_a_reason_is_sent_as_it_is_and_with_nothing_added():
    error = AmqpError("com.microsoft:dead-letter", "d", {"DeadLetterReason": "r"})
    value, _ = decode(state_of(rejected(error)))
    assert value.value[0].value == [
        "com.microsoft:dead-letter",
        "d",
        {Symbol("DeadLetterReason"): "r"},
    ]


def test_an_error_that_we_find_gets_a_tracking_id():
    said = statement(rejected(AmqpError("a:b")), is_receiver=True, settled=True)
    (error,) = decode(said[2])[0].value
    assert list(error.value[2]) == ["com.microsoft:tracking-id"]


def test_no_outcome_is_null():
    assert state_of(NO_OUTCOME) == b"\x40"
    assert read_outcome(None) is NO_OUTCOME


def test_a_message_that_is_still_arriving_has_no_outcome():
    with pytest.raises(ValueError, match="not an outcome"):
        state_of(Outcome(OutcomeKind.RECEIVED))


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (Described(ULong(0x23), [UInt(0)]), OutcomeKind.RECEIVED),
        (Described(ULong(0x34), [b"txn"]), OutcomeKind.OTHER),
        (Described(Symbol("my:state"), []), OutcomeKind.OTHER),
    ],
)
def test_other_states_are_told_apart(state, kind):
    assert read_outcome(state).kind is kind


@pytest.mark.parametrize("state", ["text", Described(ULong(0x24), "x")])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(FrameError):
        read_outcome(state)


@pytest.mark.parametrize("value", [None, [], Described(ULong(0x1D), []), Described("x", "y")])
def test_an_error_that_cannot_be_read_is_none(value):
    assert read_error(value) is None


def test_an_error_may_lack_everything_but_its_condition():
    error = read_error(Described(ULong(0x1D), [Symbol("a:b"), None, "no map"]))
    assert error == AmqpError("a:b")


@given(first=UINTS, last=UINTS, settled=st.booleans(), outcome=st.sampled_from(OUTCOMES))
def test_a_disposition_is_what_the_codec_would_write(first, last, settled, outcome):
    said = statement(outcome, is_receiver=True, settled=settled, tracked=False)
    frame = disposition(7, said, first, last)
    assert len(frame) == int.from_bytes(frame[:4], "big")
    assert frame[4:8] == b"\x02\x00\x00\x07"
    code, fields = decode_performative(frame[8:])
    assert (code, fields) == (0x15, [True, first, last, settled, decode(said[2])[0]])
    assert read_disposition(frame, 11, len(frame)) == (True, first, last, settled, outcome)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [True],
        [True, None],
        [True, "x"],
        ["x", UInt(1)],
        [True, UInt(1), None, "x"],
        [True, UInt(1), None, None, "text"],
    ],
)
def test_what_is_no_disposition_is_refused(fields):
    frame = encode_frame(0x15, fields)
    with pytest.raises((FrameError, IndexError, struct.error)):
        read_disposition(frame, 11, len(frame))


def test_a_flow_may_be_of_a_link_or_of_the_session():
    _, fields = decode_performative(
        flow(
            1, next_incoming_id=2, next_outgoing_id=3, handle=4, delivery_count=5, credit=6,
            drain=True,
        )[8:]
    )  # fmt: skip
    assert fields == [2, 2**31 - 1, 3, 2**31 - 1, 4, 5, 6, None, True]
    frame = flow(1, next_incoming_id=2, next_outgoing_id=3)
    assert frame == encode_frame(
        0x13, [UInt(2), UInt(2**31 - 1), UInt(3), UInt(2**31 - 1)], channel=1
    )
