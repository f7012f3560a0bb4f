"""Ways into a queue: whole batches, duplicates, pings, forwarding, schedules."""

from datetime import timedelta
from itertools import pairwise

import pytest

from pairbus.amqp.codec.sections import message_id, read_annotations, read_property, slice_message
from pairbus.amqp.codec.types import ULong
from pairbus.amqp.outcomes import AmqpError
from pairbus.broker.entities.descriptions import QueueDescription, Status
from pairbus.broker.message import State, stamped
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.world import Receiver, application_properties, encoded, ping

DEAD, TRANSFER = MailboxKind.DEAD_LETTER, MailboxKind.TRANSFER_DEAD_LETTER
ABSOLUTE_EXPIRY_TIME = 8


def queue(name="q", **settings):
    return QueueDescription(name=name, **settings)


def without_duplicates(**settings):
    return queue(requires_duplicate_detection=True, **settings)


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


# -- duplicates -------------------------------------------------------------------------------


@pytest.mark.req("B-07")
def test_a_duplicate_is_accepted_and_dropped_within_the_window(make_world):
    world = make_world(without_duplicates())
    assert world.send(encoded(message_id="x")) == [1]

    world.clock.advance(599)
    assert isinstance(world.send(encoded(message_id="x")), list)
    assert world.sequences() == [1]
    world.clock.advance(1)
    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 2
    world.check_counters()


@pytest.mark.req("B-07")
def test_a_duplicate_of_a_message_that_was_consumed_is_still_one(make_world):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"))
    world.settle(world.receive()[0], Settlement.COMPLETE)

    world.send(encoded(message_id="x"))

    assert world.sequences() == []


@pytest.mark.req("B-07")
def test_duplicates_within_one_batch_and_while_the_first_is_on_its_way(make_world):
    world = make_world(without_duplicates())

    _, first = world.submit(encoded(message_id="x"), encoded(message_id="x"))
    _, second = world.submit(encoded(message_id="x"), encoded(message_id="y"))
    world.flush()

    assert (first, second) == ([None], [None])
    assert len(world.sequences()) == 2


@pytest.mark.req("B-07")
@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_the_window_goes_on_after_a_restart(make_world, ending):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"))

    getattr(world, ending)()
    world.clock.advance(300)
    world.send(encoded(message_id="x"))
    assert world.sequences() == [1]
    world.pass_time(300)
    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 2


def test_an_id_of_another_type_is_another_id(make_world):
    world = make_world(without_duplicates())

    world.send(encoded(message_id="5"), encoded(message_id=ULong(5)), encoded(message_id=b"5"))

    assert len(world.sequences()) == 3


def test_messages_without_an_id_are_no_duplicates_of_each_other(make_world):
    world = make_world(without_duplicates())

    world.send(encoded(b"same"), encoded(b"same"))

    assert len(world.sequences()) == 2


def test_without_duplicate_detection_an_id_may_be_used_twice(world):
    world.send(encoded(message_id="x"), encoded(message_id="x"))

    assert world.sequences() == [1, 2]


def test_a_refused_batch_leaves_no_ids_behind(make_world):
    world = make_world(without_duplicates())
    world.send(encoded(message_id="x"), encoded(b"x" * 300_000))

    world.send(encoded(message_id="x"))

    assert len(world.sequences()) == 1


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
    "it has a body": encoded(b"x", content_type="application/vnd.ms-servicebus-ping"),
    "another content type": encoded(b"", content_type="text/plain"),
    "the type is only talked about": encoded(b"application/vnd.ms-servicebus-ping"),
}


@pytest.mark.req("B-11")
@pytest.mark.parametrize("message", LIKE_PINGS.values(), ids=LIKE_PINGS)
def test_a_message_that_only_looks_like_a_ping_is_stored(world, message):
    world.send(message)

    assert world.sequences() == [1]


def test_a_ping_without_any_body_section_is_a_ping(world):
    world.send(encoded(None, content_type="application/vnd.ms-servicebus-ping"))

    assert world.sequences() == []


# -- forwarding -------------------------------------------------------------------------------


def test_a_chain_is_followed_to_its_end(make_world):
    world = make_world(
        queue("a", forward_to="B"), queue("b", forward_to="c"), queue("c", max_delivery_count=1)
    )
    world.send(encoded(b"other"), to="c")

    world.send(encoded(b"one"), encoded(b"two"), to="a")

    found = world.receive(9, of="c")
    assert [lock.message.sequence for lock in found] == [1, 2, 3]
    assert [lock.message.enqueued_sequence for lock in found] == [1, 1, 2]
    assert world.sequences(of="a") == world.sequences(of="b") == []
    world.check_counters()


def test_four_hops_are_allowed_and_five_are_not(make_world):
    names = "abcdef"
    chain = [queue(n, forward_to=m) for n, m in pairwise(names)]
    world = make_world(*chain, queue("f"))

    world.send(encoded(b"fifth"), to="a")
    world.send(encoded(b"fourth"), to="b")

    assert world.sequences(of="f") == [1]
    dead = world.receive(of="a", kind=TRANSFER)[0].message
    reason = application_properties(dead)
    assert reason["DeadLetterReason"] == "MaxTransferHopCountExceeded"
    assert "4 times" in reason["DeadLetterErrorDescription"]


def test_a_circle_ends_in_the_transfer_dead_letter_queue(make_world):
    world = make_world(queue("a", forward_to="b"), queue("b", forward_to="a"))

    assert world.send(encoded(), to="a") == [1]

    assert world.sequences(of="a", kind=TRANSFER) == [1]


DEAD_ENDS = {
    "does not exist": (None, encoded()),
    "is SendDisabled": (queue("t", status=Status.SEND_DISABLED), encoded()),
    "accepts at most": (queue("t", max_message_size_in_kilobytes=1), encoded(b"x" * 2000)),
    "requires sessions": (queue("t", requires_session=True), encoded()),
    "is full": (queue("t", max_size_in_megabytes=1), encoded(b"x" * 250_000)),
}


@pytest.mark.parametrize(("said", "case"), DEAD_ENDS.items(), ids=DEAD_ENDS)
def test_a_message_that_cannot_be_forwarded_is_kept_with_the_reason(make_world, said, case):
    target, message = case
    world = make_world(queue("a", forward_to="t"), *([target] if target else []))
    if said == "is full":
        for _ in range(4):
            world.send(message, to="t")

    assert world.send(message, to="a")

    dead = world.receive(of="a", kind=TRANSFER)[0].message
    assert application_properties(dead)["DeadLetterReason"] == "ForwardingFailed"
    assert said in application_properties(dead)["DeadLetterErrorDescription"]
    world.check_counters()


@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_failed_forwarding_goes_on_after_a_restart(make_world, ending):
    """The forwarding queue's numbers go on, too: a number given twice would be one row twice."""
    world = make_world(queue("a", forward_to="missing"), queue("other"))
    world.send(encoded(), to="a")
    getattr(world, ending)()

    _, bystander = world.submit(encoded(), to="other")
    assert isinstance(world.send(encoded(), to="a"), list)

    assert bystander == [None]
    assert len(world.sequences(of="a", kind=TRANSFER)) == 2


@pytest.mark.req("B-10")
@pytest.mark.parametrize("bad", [encoded(session=5), encoded(message_id=5)], ids=["session", "id"])
def test_an_unreadable_id_does_no_harm_when_forwarded(make_world, bad):
    world = make_world(queue("a", forward_to="b"), queue("b"))

    answer = world.send(encoded(), bad, to="a")

    if isinstance(answer, AmqpError):
        assert answer.condition == "amqp:decode-error"
        assert world.sequences(of="b") == []
    world.check_counters()
    assert world.send(encoded(), to="a")


@pytest.mark.req("B-07")
def test_the_targets_duplicate_detection_applies_to_forwarded_messages(make_world):
    world = make_world(queue("a", forward_to="q"), without_duplicates())

    world.send(encoded(message_id="x"), encoded(message_id="x"), to="a")
    world.send(encoded(message_id="x"), to="q")

    assert len(world.sequences()) == 1


def test_the_target_says_which_session_it_is(make_world):
    world = make_world(queue("a", forward_to="q"), queue(requires_session=True))

    world.send(encoded(session="s"), to="a")

    assert world.accept("s", credit=1).sequences == [1]


# -- schedules and times to live --------------------------------------------------------------


@pytest.mark.req("B-05")
def test_a_scheduled_message_appears_at_its_time_under_a_new_number(world):
    numbers = world.send(encoded(b"later", due_ms=world.now_ms + 10_000), encoded(b"now"))

    assert numbers == [1, 2]
    assert world.rows(columns="state") == {1: State.SCHEDULED, 2: State.ACTIVE}
    world.pass_time(9.999)
    assert [lock.message.sequence for lock in world.receive(9)] == [2]
    world.pass_time(0.001)

    found = world.receive(9)
    assert [lock.message.sequence for lock in found] == [3]
    assert found[0].message.enqueued_sequence == 1
    assert found[0].message.enqueued_ms == world.now_ms
    assert world.queue().main.counters.scheduled == 0
    world.check_counters()


@pytest.mark.req("B-05", "B-12")
@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_a_schedule_outlives_the_broker(world, ending):
    world.send(encoded(due_ms=world.now_ms + 10_000))

    getattr(world, ending)()
    world.pass_time(10)

    assert [lock.message.sequence for lock in world.receive()] == [2]


@pytest.mark.req("B-05")
def test_a_scheduled_message_lives_from_when_it_appears(world):
    world.send(encoded(due_ms=world.now_ms + 10_000, ttl_ms=5000))

    world.pass_time(10)
    world.clock.advance(4.999)
    lock = world.receive()[0]

    assert lock.message.ttl_ms == 5000
    assert lock.message.expires_ms == world.now_ms + 1


def test_scheduled_for_the_past_is_now(world):
    world.send(encoded(due_ms=world.now_ms - 1))

    assert len(world.receive()) == 1


def test_a_scheduled_message_is_forwarded_when_its_time_comes(make_world):
    world = make_world(queue("a", forward_to="b"), queue("b"))
    world.send(encoded(due_ms=world.now_ms + 1000), to="a")
    assert world.sequences(of="b") == []

    world.pass_time(1)

    assert world.sequences(of="a") == []
    assert world.sequences(of="b") == [1]
    world.check_counters()


def test_a_session_is_available_only_when_its_scheduled_message_is(make_world):
    world = make_world(queue(requires_session=True))
    world.send(encoded(session="s", due_ms=world.now_ms + 1000))
    assert world.queue().main.sessions.next_available() is None

    world.pass_time(1)

    assert world.queue().main.sessions.next_available() == "s"


@pytest.mark.req("B-05")
def test_the_expiry_is_written_where_receivers_look_for_it(world):
    world.send(encoded(ttl_ms=60_000))

    lock = world.receive()[0]
    stored = lock.message

    parts = slice_message(stamped(stored, locked_until_ms=lock.until_ms))
    expiry = read_property(parts.bare, parts.properties, ABSOLUTE_EXPIRY_TIME)
    assert expiry == stored.enqueued_ms + 60_000
    assert stored.ttl_ms == 60_000


@pytest.mark.req("B-05")
def test_a_life_longer_than_its_field_is_kept_whole_and_shown_at_its_most(make_world):
    world = make_world(queue(default_message_time_to_live=timedelta(days=60)))
    world.send(encoded(), encoded(due_ms=world.now_ms + 1000))

    answer = world.ask("peek-message", {"from-sequence-number": 0, "message-count": 9})

    shown = [slice_message(entry["message"]).ttl_ms for entry in answer.body["messages"]]
    assert shown[0] == 2**32 - 1
    assert len(shown) == 2
    assert world.receive()[0].message.expires_ms == world.now_ms + 60 * 86_400_000


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
