"""How messages get into a queue: batches, the quota, pings, duplicates.

Numbers, order, windows of duplicates and crashes: test_queue_model.py.
"""

import pytest

from pairbus.amqp.codec.sections import message_id, slice_message
from pairbus.amqp.codec.types import Char, ULong
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.messages.lifecycle import PING_CONTENT_TYPE, Settlement
from tests.broker.world import encoded, queue

# -- batches ----------------------------------------------------------------------------------


BAD_MEMBERS = {
    "too large": (encoded(b"x" * 300_000), "amqp:link:message-size-exceeded"),
    "without its session": (encoded(b"x"), "amqp:not-allowed"),
    "with a session id that is a number": (encoded(session=5), "amqp:decode-error"),
    "with a partition key that is not its session": (
        encoded(session="s", annotations={"x-opt-partition-key": "other"}),
        "com.microsoft:argument-error",
    ),
    "due beyond all time": (
        encoded(session="s", annotations={"x-opt-scheduled-enqueue-time": ULong(2**64 - 1)}),
        "amqp:decode-error",
    ),
}


@pytest.mark.req("B-09", "B-10")
@pytest.mark.parametrize(("bad", "condition"), BAD_MEMBERS.values(), ids=BAD_MEMBERS)
def test_a_batch_with_one_bad_message_is_refused_whole(make_world, bad, condition):
    world = make_world(queue(requires_session=True))

    answer = world.send(encoded(session="s"), bad, encoded(session="s"))

    assert isinstance(answer, AmqpError)
    assert answer.condition == condition
    assert "'q'" in answer.description
    assert world.sequences() == []
    world.check_counters()
    assert world.send(encoded(session="s"))


@pytest.mark.req("B-05")
def test_a_full_queue_says_so_and_has_room_again_when_messages_leave(make_world):
    world = make_world(queue(max_size_in_megabytes=1))
    large = encoded(b"x" * 250_000)
    for _ in range(4):
        assert world.send(large)

    assert world.send(large).condition == "amqp:resource-limit-exceeded"
    assert world.send(encoded(b"small"), large).condition == "amqp:resource-limit-exceeded"
    assert len(world.sequences()) == 4
    world.settle(world.receive()[0], Settlement.DEAD_LETTER)
    assert world.send(large).condition == "amqp:resource-limit-exceeded"  # dead letters count
    world.settle(world.receive()[0], Settlement.COMPLETE)

    assert world.send(large)
    world.check_counters()


def test_a_message_without_an_id_gets_one_and_keeps_its_other_bytes(world):
    world.send(encoded(b"body", properties={"a": 1}))

    bare = world.receive()[0].message.bare

    assert message_id(slice_message(bare))
    assert bare.endswith(slice_message(encoded(b"body", properties={"a": 1})).bare)


def test_a_surrogate_is_no_partition_key(make_world):
    world = make_world(queue(enable_partitioning=True))

    assert world.send(encoded(annotations={"x-opt-partition-key": Char("\ud83d")}))

    assert len(world.receive()) == 1


# -- pings ------------------------------------------------------------------------------------


LIKE_PINGS = {
    "it has a body": encoded(b"x", content_type=PING_CONTENT_TYPE, ttl_ms=1000),
    "another content type": encoded(b"", content_type="text/plain", ttl_ms=1000),
    "the type is only talked about": encoded(PING_CONTENT_TYPE.encode(), ttl_ms=1000),
    "it lives for ever": encoded(b"", content_type=PING_CONTENT_TYPE),
    "it lives longer": encoded(b"", content_type=PING_CONTENT_TYPE, ttl_ms=1001),
    "it lives shorter": encoded(b"", content_type=PING_CONTENT_TYPE, ttl_ms=999),
}


@pytest.mark.req("B-11")
@pytest.mark.parametrize("message", LIKE_PINGS.values(), ids=LIKE_PINGS)
def test_a_message_that_only_looks_like_a_ping_is_stored(world, message):
    world.send(message)

    assert world.sequences() == [1]


def test_a_ping_without_any_body_section_is_a_ping(world):
    world.send(encoded(None, content_type=PING_CONTENT_TYPE, ttl_ms=1000))

    assert world.sequences() == []


# -- duplicate detection: a message id counts once within the window --------------------------


def without_duplicates(**settings):
    return queue(requires_duplicate_detection=True, **settings)


@pytest.mark.req("B-07")
def test_duplicates_within_one_batch_and_while_the_first_is_on_its_way(make_world):
    world = make_world(without_duplicates())

    _, first = world.submit(encoded(message_id="x"), encoded(message_id="x"))
    _, second = world.submit(encoded(message_id="x"), encoded(message_id="y"))
    world.flush()

    assert (first, second) == ([None], [None])
    assert len(world.sequences()) == 2


def test_a_refused_batch_leaves_no_ids_behind(make_world):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"), encoded(b"x" * 300_000))

    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 1
