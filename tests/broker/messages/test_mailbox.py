"""A mailbox in memory: who is next, what is locked, and until when."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker.message import MessageState, guid
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.messages.mailbox import LockTokens, Mailbox
from pairbus.broker.storage.store import Store
from tests.broker.world import stored_message


class Taker:
    def __init__(self, credit=1, session=None):
        self.credit = credit
        """Not used up, because nothing is delivered."""
        self.session = session

    def room(self):
        return self.credit

    def deliver(self, messages, *, now_ms):
        raise AssertionError("a mailbox names the next delivery; it makes none")

    session_lost = deliver


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "data.db", durable=False)
    yield store
    store.close()


def make(store, *, has_sessions=False, sequences=()):
    _, counters = store.create_entity("q", "queue", {}, 3, now_ms=0)
    for entry in sequences:
        sequence, session_id = entry if isinstance(entry, tuple) else (entry, None)
        counters[0].add(MessageState.ACTIVE, 10)
        counters[0].last_sequence = sequence
        store.insert(counters[0], stored_message(sequence, session_id=session_id))
    store.save()
    return Mailbox(MailboxKind.MAIN, counters[0], store, LockTokens(), has_sessions=has_sessions)


def lock_next(mailbox, consumer, *, until_ms=100):
    found = mailbox.next_delivery()
    assert found is not None
    assert found[0] is consumer
    return mailbox.lock(*found[1], until_ms=until_ms, session=consumer.session)


# -- tokens -----------------------------------------------------------------------------------


def test_tokens_do_not_repeat():
    tokens = LockTokens()

    given_out = {tokens.next() for _ in range(1000)}

    assert len(given_out) == 1000
    assert {len(token) for token in given_out} == {16}


@given(st.uuids())
def test_a_token_is_a_guid_in_the_order_of_dotnet(uuid):
    assert guid(uuid.bytes_le) == uuid.bytes
    assert guid(guid(uuid.bytes)) == uuid.bytes
    assert UUID(bytes=guid(uuid.bytes_le)) == uuid


# -- giving out -------------------------------------------------------------------------------


@pytest.mark.req("B-01")
def test_receivers_with_credit_take_turns(store):
    mailbox = make(store, sequences=range(1, 5))
    first, second = Taker(credit=10), Taker(credit=10)
    for taker in (first, second):
        mailbox.attach()
        mailbox.has_credit(taker)

    order = [mailbox.next_delivery() for _ in range(4)]

    assert [(found[0], found[1][0].sequence) for found in order] == [
        (first, 1),
        (second, 2),
        (first, 3),
        (second, 4),
    ]
    assert mailbox.next_delivery() is None


def test_a_single_receiver_gets_as_many_messages_at_once_as_it_can_take(store):
    mailbox = make(store, sequences=range(1, 5))
    mailbox.has_credit(Taker(credit=3))

    given = [[one.sequence for one in mailbox.next_delivery()[1]] for _ in range(2)]

    assert given == [[1, 2, 3], [4]]


def test_a_receiver_without_credit_is_skipped_until_it_has_new_credit(store):
    mailbox = make(store, sequences=[1, 2])
    poor, rich = Taker(credit=0), Taker()
    mailbox.has_credit(poor)
    mailbox.has_credit(rich)

    assert mailbox.next_delivery()[0] is rich
    poor.credit = 1
    assert mailbox.next_delivery()[0] is rich
    mailbox.give_back(stored_message(1))
    mailbox.has_credit(poor)
    rich.credit = 0

    assert mailbox.next_delivery()[0] is poor


def test_a_detached_receiver_gets_nothing(store):
    mailbox = make(store, sequences=[1])
    taker = Taker()
    mailbox.attach()
    mailbox.has_credit(taker)

    mailbox.detach(taker)

    assert mailbox.attached == 0
    assert mailbox.next_delivery() is None


def test_messages_that_arrive_without_a_receiver_use_no_memory(store):
    mailbox = make(store, sequences=[1])

    mailbox.arrive(stored_message(1))

    assert mailbox.held == {}


def test_a_message_is_found_in_memory_or_on_the_disk(store):
    mailbox = make(store, sequences=[1])

    from_disk = mailbox.find(1)
    locked = mailbox.lock(from_disk, until_ms=5, session=None)

    assert from_disk.sequence == 1
    assert mailbox.find(1) is locked.message
    assert mailbox.find(2) is None


# -- locks ------------------------------------------------------------------------------------


def test_a_lock_is_not_valid_while_its_message_is_being_changed(store):
    mailbox = make(store, sequences=[1])
    mailbox.has_credit(taker := Taker())
    lock = lock_next(mailbox, taker)

    lock.message.busy = True

    assert mailbox.valid_lock(lock.token, now_ms=0) is None
    assert mailbox.expired_locks(now_ms=1000) == []
    assert mailbox.next_lock_expiry_ms is None


@pytest.mark.req("B-03")
def test_locks_expire_in_order_and_renewal_puts_one_off(store):
    mailbox = make(store, sequences=[1, 2])
    mailbox.has_credit(taker := Taker())
    first = lock_next(mailbox, taker, until_ms=100)
    second = lock_next(mailbox, taker, until_ms=110)
    assert mailbox.next_lock_expiry_ms == 100

    mailbox.renew(first, until_ms=150)

    assert mailbox.next_lock_expiry_ms == 110
    assert mailbox.expired_locks(now_ms=109) == []
    assert mailbox.expired_locks(now_ms=110) == [second]
    assert mailbox.expired_locks(now_ms=150) == [second, first]


# -- sessions ---------------------------------------------------------------------------------


def test_one_session_without_messages_does_not_stop_the_next(store):
    mailbox = make(store, has_sessions=True, sequences=[(1, "b")])
    idle, busy = Taker(), Taker()
    idle.session = mailbox.sessions.hold("a", idle, until_ms=100)
    busy.session = mailbox.sessions.hold("b", busy, until_ms=100)
    for taker in (idle, busy):
        mailbox.attach()
        mailbox.has_credit(taker)

    assert mailbox.next_delivery()[0] is busy
    mailbox.arrive(stored_message(2, session_id="a"))

    assert mailbox.next_delivery()[0] is idle


def test_messages_of_a_free_session_stay_on_the_disk(store):
    mailbox = make(store, has_sessions=True)

    mailbox.arrive(stored_message(1, session_id="a"))
    mailbox.give_back(stored_message(1, session_id="a"))

    assert mailbox.held == {}
    assert mailbox.sessions.next_available() == "a"


@pytest.mark.req("B-06")
def test_a_message_of_a_session_is_locked_as_long_as_its_session(store):
    mailbox = make(store, has_sessions=True, sequences=[(1, "a")])
    taker = Taker()
    taker.session = mailbox.sessions.hold("a", taker, until_ms=100)
    mailbox.has_credit(taker)
    lock = lock_next(mailbox, taker, until_ms=100)

    taker.session.until_ms = 300

    assert mailbox.valid_lock(lock.token, now_ms=299) is lock
    assert mailbox.valid_lock(lock.token, now_ms=300) is None
    assert mailbox.expired_locks(now_ms=1000) == []
    assert mailbox.next_lock_expiry_ms == 300


def test_a_session_that_was_released_gives_nothing(store):
    mailbox = make(store, has_sessions=True, sequences=[(1, "a")])
    taker = Taker()
    taker.session = mailbox.sessions.hold("a", taker, until_ms=100)

    mailbox.sessions.release(taker.session)

    assert mailbox.take(taker.session, 1) == []
