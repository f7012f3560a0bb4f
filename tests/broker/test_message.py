"""A message survives its row in the data file, and what a receiver gets of it."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.codec.sections import EXPIRY_TIME, read_property, slice_message
from pairbus.broker.message import (
    COLUMNS,
    MAILBOX_SHIFT,
    Message,
    MessageState,
    from_row,
    stamped,
)
from tests.broker.world import encoded, stored_message

MAYBE_TIME = st.none() | st.integers(0, 2**53)
PAIRS = st.just((b"", 0)) | st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 9))


def message(annotations, delivery_annotations, **facts):
    return Message(
        annotations=annotations[0],
        annotation_count=annotations[1],
        delivery_annotations=delivery_annotations[0],
        delivery_annotation_count=delivery_annotations[1],
        **facts,
    )


MESSAGES = st.builds(
    message,
    sequence=st.integers(1, (1 << MAILBOX_SHIFT) - 1),
    state=st.sampled_from([int(state) for state in MessageState]),
    enqueued_ms=st.integers(0, 2**53),
    expires_ms=MAYBE_TIME,
    ttl_ms=MAYBE_TIME,
    due_ms=MAYBE_TIME,
    delivery_count=st.integers(0, 2**31 - 1),
    session_id=st.none() | st.text(max_size=9),
    durable=st.none() | st.booleans(),
    priority=st.none() | st.integers(0, 255),
    annotations=PAIRS,
    delivery_annotations=PAIRS,
    enqueued_sequence=st.integers(1, 2**40),
    dead_letter_source=st.none() | st.text(min_size=1, max_size=9),
    partition_id=st.none() | st.integers(0, 15),
    size=st.integers(0, 2**27),
    bare=st.binary(max_size=9),
)


@given(MESSAGES, st.integers(1, 2**20))
def test_a_message_comes_back_from_its_row(message, mailbox_id):
    row = message.row(mailbox_id)

    again = from_row((*row, None))

    assert len(row) == len(COLUMNS)
    assert row[0] == mailbox_id << MAILBOX_SHIFT | message.sequence
    for slot in Message.__slots__:
        assert getattr(again, slot) == getattr(message, slot), slot


@given(MESSAGES, st.binary(max_size=9))
def test_a_row_with_shared_bytes_has_the_id_of_the_body(message, shared):
    message.body_id, message.bare = 7, shared

    row = message.row(1)
    again = from_row((*row, shared))

    assert row[-1] == 7
    assert (again.body_id, again.bare) == (7, shared)


@given(MESSAGES)
def test_a_partition_shows_in_the_top_bits_of_the_number(message):
    shown = message.wire_sequence

    assert shown & ((1 << 48) - 1) == message.sequence
    assert shown >> 48 == (message.partition_id or 0)


def test_an_expiry_beyond_the_calendar_of_clients_is_the_last_one_in_it():
    message = stored_message(expires_ms=2**53, bare=encoded())

    parts = slice_message(stamped(message))

    expiry = read_property(parts.bare, parts.properties, EXPIRY_TIME)
    assert datetime.fromtimestamp(expiry / 1000, UTC).year == 9999
