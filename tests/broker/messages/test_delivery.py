"""What a receiver gets: the sender's bytes behind the broker's stamps."""

from uuid import UUID

import pytest

from pairbus.amqp.codec.sections import read_annotations, slice_message
from pairbus.amqp.codec.types import Int
from pairbus.amqp.codec.values import decode
from pairbus.broker.messages.delivery import stamped
from tests.broker.world import encoded


@pytest.mark.req("B-03")
def test_a_locked_message_carries_its_token_and_until_when(world):
    world.send(
        encoded(b"body", message_id="m", annotations={"x-mine": "kept"}, properties={"a": 1})
    )
    lock = world.receive()[0]

    parts = slice_message(stamped(lock.message, lock))

    notes = read_annotations(parts.annotations)
    assert notes["x-opt-sequence-number"] == 1
    assert notes["x-opt-enqueue-sequence-number"] == 1
    assert notes["x-opt-enqueued-time"] == world.now_ms
    assert notes["x-opt-locked-until"] == world.now_ms + 60_000
    assert (notes["x-opt-message-state"], type(notes["x-opt-message-state"])) == (0, Int)
    assert notes["x-mine"] == "kept"
    tokens = read_annotations(parts.delivery_annotations)
    assert tokens == {"x-opt-lock-token": UUID(bytes_le=lock.token)}
    assert parts.bare == slice_message(encoded(b"body", message_id="m", properties={"a": 1})).bare


def test_a_peeked_message_has_neither(world):
    world.send(encoded())
    lock = world.receive()[0]

    parts = slice_message(stamped(lock.message, None))

    assert "x-opt-locked-until" not in read_annotations(parts.annotations)
    assert parts.delivery_annotation_count == 0


def test_the_delivery_count_is_on_the_wire_even_when_it_is_zero(world):
    world.send(encoded(ttl_ms=60_000))
    lock = world.receive()[0]

    header, _ = decode(stamped(lock.message, lock), 0)

    assert header.descriptor == 0x70
    assert header.value == [None, None, 60_000, None, 0]
