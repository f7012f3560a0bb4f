"""A queue at work: settlement, a disk that refuses, and answers that come late.

What each settlement and each moment does is proved in test_lifecycle.py and test_queue_model.py.
"""

import asyncio
import sqlite3

import pytest

from pairbus.broker.message import MessageState
from pairbus.broker.messages.lifecycle import MailboxKind, Settlement
from tests.broker.world import Receiver, application_properties, encoded, queue

MAIN, DEAD, TRANSFER = MailboxKind
COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE = Settlement
LOCK_LOST = "lock lost"


def sequences(locks):
    return [lock.message.sequence for lock in locks]


# -- settling ---------------------------------------------------------------------------------


@pytest.mark.req("B-03")
def test_messages_that_are_completed_together_are_deleted_and_no_others(world):
    world.send(*[encoded()] * 9)
    locks, reported = world.receive(9), []
    completed = [lock.message for lock in locks if lock.message.sequence in (1, 2, 4, 6, 7, 8)]

    world.queue().complete(world.queue().main, completed, reported.append, now_ms=world.now_ms)
    assert reported == []
    assert world.settle(locks[0], COMPLETE) == LOCK_LOST, "it is being deleted"
    world.flush()

    assert reported == [None]
    assert world.sequences() == [3, 5, 9]
    assert [lock.message.sequence for lock in world.queue().main.locks.values()] == [3, 5, 9]
    assert world.queue().tally.settle == 6
    world.check_counters()
    world.crash()
    assert sequences(world.receive(9)) == [3, 5, 9]


def test_a_deferred_message_that_is_released_is_deferred_as_before(world):
    world.send(encoded())
    world.settle(world.receive()[0], DEFER)
    body = {"sequence-numbers": [1], "receiver-settle-mode": 1}
    world.ask("receive-by-sequence-number", body)
    (lock,) = world.queue().main.locks.values()

    assert world.settle(lock, RELEASE) is None

    assert world.rows() == {1: (MessageState.DEFERRED, 0)}
    assert world.ask("receive-by-sequence-number", body).status == 200


def test_dead_letters_are_delivered_in_the_order_of_their_numbers(world):
    world.send(*[encoded()] * 4)
    locks = world.receive(4)
    receiver = Receiver(world.queue(), DEAD)
    receiver.mailbox.attach()
    for index in (2, 0, 3):
        world.settle(locks[index], DEAD_LETTER)

    receiver.flow(9)

    assert receiver.sequences == [1, 3, 4]


@pytest.mark.req("B-03")
@pytest.mark.parametrize("settlement", [ABANDON, DEFER, DEAD_LETTER])
def test_properties_may_be_changed_on_the_way(world, settlement):
    world.send(encoded(message_id="m", properties={"a": 1, "b": 2}))

    world.settle(world.receive()[0], settlement, properties={"b": 3, "c": "new"})
    world.crash()

    kind = DEAD if settlement is DEAD_LETTER else MAIN
    mailbox_id = world.queue().mailboxes[kind].counters.mailbox_id
    stored = world.namespace.store.read_one(mailbox_id, 1)
    assert application_properties(stored) == {"a": 1, "b": 3, "c": "new"}
    world.check_counters()


# -- receive and delete -----------------------------------------------------------------------


@pytest.mark.req("B-03")
def test_receive_and_delete_deletes_before_it_gives(world):
    world.send(encoded())
    mailbox, reported = world.queue().main, []
    [message] = mailbox.take(None, 1)

    world.queue().remove(mailbox, [message], reported.append)
    assert reported == []
    world.flush()

    assert reported == [None]
    assert world.sequences() == []


def test_an_undelivered_message_returns_to_its_place(world):
    world.send(encoded(), encoded())
    mailbox, reported = world.queue().main, []
    [message] = mailbox.take(None, 1)
    world.queue().remove(mailbox, [message], reported.append)
    world.flush()

    world.queue().put_back(mailbox, message)
    world.flush()

    assert sequences(world.receive(9)) == [1, 2]
    world.check_counters()


def test_an_undelivered_message_of_a_deleted_queue_leaves_no_row(world):
    world.send(encoded(ttl_ms=1000))
    q = world.queue()
    [message] = q.main.take(None, 1)
    q.remove(q.main, [message], lambda error: None)
    world.namespace.delete(q)
    world.flush()
    world.pass_time(6)  # what it had is cleaned away

    q.put_back(q.main, message)
    world.flush()

    assert world.look("SELECT count(*) FROM message") == [(0,)]


# -- dead letters that are forwarded ----------------------------------------------------------


def test_dead_letters_whose_target_is_missing_are_kept(make_world):
    world = make_world(queue(forward_dead_lettered_messages_to="missing"))
    world.send(encoded(message_id="m"))

    world.settle(world.receive()[0], DEAD_LETTER, reason="why")

    dead = world.receive(kind=TRANSFER)[0].message
    assert application_properties(dead)["DeadLetterReason"] == "ForwardingFailed"
    assert "'missing'" in application_properties(dead)["DeadLetterErrorDescription"]


@pytest.mark.parametrize("bad", [encoded(session=5), encoded(message_id=5)], ids=["session", "id"])
def test_an_unreadable_id_does_not_stop_time(make_world, bad):
    world = make_world(
        queue(forward_dead_lettered_messages_to="graves", max_delivery_count=1),
        queue("graves"),
        queue("other"),
    )
    world.send(bad)
    world.send(encoded(), to="other")
    world.receive()
    world.receive(of="other")

    world.pass_time(60)

    assert world.rows(of="other") == {1: (0, 1)}
    assert world.sequences() == []
    world.check_counters()


# -- a disk that refuses ----------------------------------------------------------------------


@pytest.mark.req("B-07", "B-12")
def test_a_duplicate_of_a_send_that_failed_is_not_acknowledged(make_world):
    world = make_world(queue(requires_duplicate_detection=True))
    with world.broken_disk():
        _, first = world.submit(encoded(message_id="x"))
        world.loop.run_until_complete(asyncio.sleep(0))  # on its way to the disk
        _, second = world.submit(encoded(message_id="x"))

    assert [error.condition for error in first] == ["amqp:internal-error"]
    stored = world.sequences()
    assert (second == [None]) == bool(stored)
    assert len(second) == 1


@pytest.mark.req("B-12")
@pytest.mark.parametrize("settlement", [COMPLETE, ABANDON, DEFER, DEAD_LETTER])
def test_a_settlement_that_the_disk_refuses_changes_nothing(world, settlement):
    world.send(encoded(message_id="m"), encoded())
    lock = world.receive()[0]
    bare = lock.message.bare

    with world.broken_disk():
        answer = world.settle(lock, settlement, properties={"new": 1})

    assert answer.condition == "amqp:internal-error"
    assert world.rows() == {1: (0, 0), 2: (0, 0)}
    assert world.rows(kind=DEAD) == {}
    assert (lock.message.delivery_count, lock.message.state) == (0, MessageState.ACTIVE)
    assert lock.message.bare == bare
    world.check_counters()
    assert world.settle(lock, COMPLETE) is None  # the lock is still good
    assert sequences(world.receive(9)) == [2]
    world.check_counters()


@pytest.mark.req("B-12")
def test_an_expired_lock_that_the_disk_refuses_counts_no_delivery(make_world):
    world = make_world(queue(max_delivery_count=1))
    world.send(encoded(), encoded())
    world.receive()

    with world.broken_disk():
        world.pass_time(60)

    assert sequences(world.receive(9)) == [1, 2]
    assert world.rows() == {1: (0, 0), 2: (0, 0)}
    world.check_counters()


@pytest.mark.req("B-12")
def test_a_large_deferred_message_keeps_its_bytes_if_the_disk_refuses_the_end_of_its_lock(world):
    data = bytes(range(256)) * 20
    world.send(encoded(data))
    world.settle(world.receive()[0], DEFER)
    body = {"sequence-numbers": [1], "receiver-settle-mode": 1}
    world.ask("receive-by-sequence-number", body)

    with world.broken_disk():
        world.pass_time(60)
    answer = world.ask("receive-by-sequence-number", body)

    assert answer.body["messages"][0]["message"].endswith(data)
    world.check_counters()


def unreadable(*_, **__):
    raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.req("B-12")
@pytest.mark.parametrize("session", [None, "s"])
def test_a_lock_whose_end_needs_an_unreadable_disk_ends_later(make_world, monkeypatch, session):
    world = make_world(queue(max_delivery_count=1, requires_session=session is not None))
    data = bytes(range(256)) * 20
    world.send(encoded(data, session=session))
    [lock] = world.accept("s", credit=1).locks if session else world.receive()
    lock.message.bare = b""  # as a link does while a receiver has a large message

    with monkeypatch.context() as patched:
        patched.setattr(world.namespace.store, "read_one", unreadable)
        world.pass_time(60)
        assert world.loop.delays[-1] == pytest.approx(5)
    world.pass_time(5)

    [dead] = world.receive(kind=DEAD)
    assert data in dead.message.bare
    world.check_counters()


@pytest.mark.req("B-12")
def test_a_message_that_comes_back_from_an_unreadable_disk_is_read_later(world, monkeypatch):
    data = bytes(range(256)) * 20
    world.send(encoded(data), encoded(b"next"))
    receiver = Receiver(world.queue())
    receiver.mailbox.attach()
    receiver.flow(1)
    [lock] = receiver.locks
    lock.message.bare = b""

    with monkeypatch.context() as patched:
        patched.setattr(world.namespace.store, "read_active", unreadable)
        assert world.settle(lock, ABANDON) is None
    receiver.flow(2)

    assert receiver.sequences == [1, 1, 2]
    assert data in receiver.locks[1].message.bare
    world.check_counters()


@pytest.mark.req("B-12")
def test_an_activation_that_the_disk_refuses_is_tried_again(world):
    world.send(encoded(due_ms=world.now_ms + 1000))
    with world.broken_disk():
        world.pass_time(1)
    assert world.rows(columns="state") == {1: MessageState.SCHEDULED}
    world.check_counters()

    world.tick()

    assert len(world.receive(9)) == 1
    world.check_counters()


@pytest.mark.req("B-12")
@pytest.mark.parametrize("kept", [True, False])
def test_an_expiry_that_the_disk_refuses_is_tried_again(make_world, kept):
    world = make_world(queue(dead_lettering_on_message_expiration=kept))
    world.send(encoded(ttl_ms=1000))
    with world.broken_disk():
        world.pass_time(1)
    assert world.sequences() == [1]
    world.check_counters()

    world.tick()

    assert world.sequences() == []
    assert len(world.sequences(kind=DEAD)) == kept
    world.check_counters()


@pytest.mark.req("B-12")
def test_an_expiry_that_the_disk_refused_happens_once_if_a_receiver_comes_first(make_world):
    world = make_world(queue(dead_lettering_on_message_expiration=True))
    world.send(encoded(), encoded(ttl_ms=1000), encoded())
    receiver = Receiver(world.queue())
    receiver.mailbox.attach()
    receiver.flow(1)  # the others are in memory now
    with world.broken_disk():
        world.pass_time(1)

    receiver.flow(9)
    world.flush()

    assert receiver.sequences == [1, 3]

    assert world.sequences() == [1, 3]
    assert world.sequences(kind=DEAD) == [2]
    world.check_counters()


def test_a_receive_and_delete_that_the_disk_refuses_keeps_the_message(world):
    world.send(encoded(), encoded())
    reported = []
    with world.broken_disk():
        world.queue().remove(world.queue().main, world.queue().main.take(None, 1), reported.append)

    assert reported[0].condition == "amqp:internal-error"
    assert sequences(world.receive(9)) == [1, 2]
    world.check_counters()


def test_messages_that_are_completed_together_are_all_kept_if_the_disk_refuses(world):
    world.send(*[encoded()] * 3)
    locks, reported = world.receive(3), []
    with world.broken_disk():
        messages = [lock.message for lock in locks]
        world.queue().complete(world.queue().main, messages, reported.append, now_ms=world.now_ms)

    assert [error.condition for error in reported] == ["amqp:internal-error"]
    world.check_counters()
    assert world.settle(locks[1], COMPLETE) is None, "the receiver still holds the locks"
    assert world.sequences() == [1, 3]


def test_a_message_that_can_neither_be_delivered_nor_put_back_is_not_counted(world):
    """Its deletion is durable already; that is the risk of receive-and-delete."""
    world.send(encoded(), encoded())
    queue = world.queue()
    [message] = queue.main.take(None, 1)
    queue.remove(queue.main, [message], lambda error: None)
    world.flush()

    with world.broken_disk():
        queue.put_back(queue.main, message)

    assert sequences(world.receive(9)) == [2]
    world.check_counters()


# -- between the commit and the news of it ----------------------------------------------------


def test_a_dead_letter_is_delivered_once_even_if_the_disk_has_it_before_we_know(world):
    world.send(*[encoded()] * 3)
    world.settle(world.receive(3)[2], DEAD_LETTER)
    world.restart()
    lock = world.receive()[0]
    world.start_settling(lock, DEAD_LETTER)
    world.commit_unheard()

    receiver = Receiver(world.queue(), DEAD)
    receiver.mailbox.attach()
    receiver.flow(5)
    world.flush()

    assert sorted(receiver.sequences) == [1, 3]
    for lock in receiver.locks:
        assert world.settle(lock, COMPLETE, kind=DEAD) is None
    world.check_counters()


def test_a_message_is_delivered_or_batch_deleted_and_never_both(world):
    receiver = Receiver(world.queue())
    receiver.mailbox.attach()
    world.submit(encoded())
    world.commit_unheard()

    body = {"message-count": 5, "enqueued-time-utc": world.now_ms + 1}
    answers = world.ask("batch-delete-messages", body, wait=False)
    receiver.flow(5)
    world.flush()

    deleted = int(answers[0].body["message-count"])
    assert deleted + len(receiver.locks) == 1
    for lock in receiver.locks:
        assert world.settle(lock, COMPLETE) is None
    world.check_counters()


def test_a_message_is_not_expired_before_it_has_arrived(world):
    world.submit(encoded(ttl_ms=1000))
    world.commit_unheard()
    world.clock.advance(2)

    world.tick()
    world.tick()

    assert world.receive(9) == []
    assert world.sequences() == []
    world.check_counters()


def test_properties_may_not_make_a_message_larger_than_the_queue_takes(make_world):
    world = make_world(queue(max_message_size_in_kilobytes=1))
    world.send(encoded())
    lock = world.receive()[0]

    said = world.settle(lock, Settlement.ABANDON, properties={"note": "x" * 2000})

    assert "accepts at most 1024" in str(said)
    assert world.settle(lock, Settlement.COMPLETE) is None


@pytest.mark.parametrize("settlement", [ABANDON, DEFER, DEAD_LETTER])
def test_properties_may_not_make_it_larger_in_several_steps_either(make_world, settlement):
    world = make_world(queue(max_message_size_in_kilobytes=1))
    world.send(encoded())
    assert world.settle(world.receive()[0], ABANDON, properties={"one": "x" * 700}) is None

    said = world.settle(world.receive()[0], settlement, properties={"two": "x" * 700})

    assert "accepts at most 1024" in str(said)
