"""How messages get into a queue: batches, the quota, pings, partitions."""

import pytest

from pairbus.amqp.codec.sections import message_id, read_annotations, slice_message
from pairbus.amqp.codec.types import ULong
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import QueueDescription, Status
from pairbus.broker.messages.lifecycle import PING_CONTENT_TYPE, MailboxKind, Settlement
from tests.broker.world import Receiver, encoded, ping

DEAD, TRANSFER = MailboxKind.DEAD_LETTER, MailboxKind.TRANSFER_DEAD_LETTER


def queue(name="q", **settings):
    return QueueDescription(name=name, **settings)


# -- batches ----------------------------------------------------------------------------------


@pytest.mark.req("B-01", "B-10")
def test_a_batch_is_numbered_in_its_order(world):
    assert world.send(encoded(b"a"), encoded(b"b")) == [1, 2]
    assert world.send(encoded(b"c")) == [3]

    assert [lock.message.bare[-1:] for lock in world.receive(9)] == [b"a", b"b", b"c"]


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


@pytest.mark.req("B-10", "B-12")
def test_a_batch_is_in_one_transaction(world):
    _, told = world.submit(encoded(), encoded(), encoded())
    world.namespace.store.apply()  # and the power goes before the commit

    world.crash()

    assert told == []
    assert world.sequences() == []
    world.check_counters()


@pytest.mark.req("B-12")
def test_acknowledged_messages_survive_a_crash(world):
    numbers = world.send(encoded(b"a"), encoded(b"b"))

    world.crash()

    assert world.sequences() == numbers
    assert [lock.message.sequence for lock in world.receive(9)] == numbers


@pytest.mark.parametrize("status", [Status.DISABLED, Status.SEND_DISABLED])
def test_a_queue_that_is_disabled_for_sending_accepts_nothing(make_world, status):
    world = make_world(queue(status=status))

    assert world.send(encoded()).condition == "com.microsoft:entity-disabled"


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


def test_words_that_are_the_brokers_own_are_dropped_on_the_way_in(world):
    world.send(
        encoded(annotations={"x-opt-sequence-number": 99, "x-opt-locked-until": 5, "x-mine": 1})
    )

    stored = world.receive()[0].message

    assert read_annotations(stored.annotations) == {"x-mine": 1}


def test_a_message_without_an_id_gets_one_and_keeps_its_other_bytes(world):
    world.send(encoded(b"body", properties={"a": 1}))

    bare = world.receive()[0].message.bare

    assert message_id(slice_message(bare))
    assert bare.endswith(slice_message(encoded(b"body", properties={"a": 1})).bare)


# -- pings ------------------------------------------------------------------------------------


@pytest.mark.req("B-11")
def test_a_ping_is_accepted_and_leaves_no_trace(make_world):
    world = make_world(queue(dead_lettering_on_message_expiration=True))
    receiver = Receiver(world.queue())
    receiver.mailbox.attach()
    receiver.flow(5)

    assert isinstance(world.send(ping()), list)
    world.pass_time(5)

    assert receiver.locks == []
    assert world.sequences() == world.sequences(kind=DEAD) == []
    assert world.ask("peek-message", {"from-sequence-number": 0, "message-count": 9}).status == 204
    world.check_counters()


@pytest.mark.req("B-11")
def test_a_ping_among_messages_is_the_only_one_to_vanish(world):
    world.send(encoded(b"a"), ping(), encoded(b"b"))

    assert [lock.message.bare[-1:] for lock in world.receive(9)] == [b"a", b"b"]


@pytest.mark.req("B-11")
def test_a_ping_proves_that_a_session_queue_accepts_sends(make_world):
    world = make_world(queue(requires_session=True))

    assert isinstance(world.send(ping(session="random")), list)
    assert world.send(ping()).condition == "amqp:not-allowed"
    assert world.queue().main.sessions.next_available() is None


@pytest.mark.req("B-11")
def test_a_ping_to_a_disabled_queue_is_refused(make_world):
    world = make_world(queue(status=Status.SEND_DISABLED))

    assert world.send(ping()).condition == "com.microsoft:entity-disabled"


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


# -- partitions -------------------------------------------------------------------------------


@pytest.mark.req("B-07")
def test_a_partitioned_queue_shows_the_partition_in_the_number(make_world):
    world = make_world(queue(enable_partitioning=True))

    numbers = world.send(*(encoded(message_id=f"m{n}") for n in range(30)))
    found = world.receive(99)

    assert [number & (2**48 - 1) for number in numbers] == list(range(1, 31))
    assert [lock.message.wire_sequence for lock in found] == numbers
    assert len({number >> 48 for number in numbers}) > 5
    assert all(number >> 48 < 16 for number in numbers)


@pytest.mark.req("B-07")
def test_a_key_stays_in_its_partition(make_world):
    world = make_world(queue(enable_partitioning=True))

    numbers = world.send(
        *(encoded(message_id=f"m{n}", annotations={"x-opt-partition-key": "k"}) for n in range(9))
    )

    assert len({number >> 48 for number in numbers}) == 1
