"""Transactions of the store, and what it keeps of entities that are gone.

What it reads, and in which order, is proved by the models in tests/broker/messages.
"""

import sqlite3
from contextlib import closing

import pytest

from pairbus.broker.message import MessageState
from pairbus.broker.storage import reads
from pairbus.broker.storage import store as store_module
from pairbus.broker.storage.store import Store
from pairbus.broker.storage.writes import ranges
from tests.broker.world import stored_message

NOW = 1_800_000_000_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "local.db"


@pytest.fixture
def store(path):
    store = Store(path, durable=False)
    yield store
    store.close()


@pytest.fixture
def box(store):
    return boxes(store)[0]


def boxes(store, name="q"):
    _, counters = store.create_entity(name, "queue", {}, 3, now_ms=NOW)
    store.save()
    return counters


def put(store, counters, *messages):
    for one in messages:
        counters.add(one.state, one.size)
        counters.last_sequence = max(counters.last_sequence, one.sequence)
        store.insert(counters, one)
    store.save()


def sequences(messages):
    return [one.sequence for one in messages]


# -- transactions -----------------------------------------------------------------------------


@pytest.mark.req("B-12")
def test_nothing_is_seen_before_the_commit(store, box):
    store.insert(box, stored_message(1))
    assert store.has_changes
    assert store.read_one(box.mailbox_id, 1) is None

    store.apply()
    assert not store.has_changes
    assert store.read_one(box.mailbox_id, 1) is None
    store.commit()

    assert store.read_one(box.mailbox_id, 1).bare == b"bytes 1"


def test_rolled_back_changes_are_not_stored(store, box):
    store.insert(box, stored_message(1))
    store.apply()

    store.rollback()
    store.rollback()

    assert store.read_one(box.mailbox_id, 1) is None
    assert not store.has_changes


def test_a_failed_transaction_leaves_nothing_behind_and_the_next_is_fine(store, box):
    put(store, box, stored_message(1))
    store.insert(box, stored_message(2))
    store.insert(box, stored_message(1))  # the same row again

    with pytest.raises(sqlite3.IntegrityError):
        store.save()

    assert not store.has_changes
    assert sequences(store.read_from(box.mailbox_id, first=0, count=9)) == [1]
    put(store, box, stored_message(3))
    assert sequences(store.read_from(box.mailbox_id, first=0, count=9)) == [1, 3]


def test_a_commit_that_fails_in_save_is_rolled_back(store, box, monkeypatch):
    def refuse():
        raise sqlite3.OperationalError("disk full")

    store.insert(box, stored_message(1))
    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", refuse)
        with pytest.raises(sqlite3.OperationalError, match="disk full"):
            store.save()

    put(store, box, stored_message(2))
    assert sequences(store.read_from(box.mailbox_id, first=0, count=9)) == [2]


def test_discarded_changes_are_not_stored(store, box):
    store.insert(box, stored_message(1))

    store.discard()

    assert not store.has_changes


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7], [(7, 7)]),
        ([3, 1, 2], [(1, 3)]),
        ([1, 2, 4, 9, 10], [(1, 2), (4, 4), (9, 10)]),
        ([5, 5, 6], [(5, 6)]),
    ],
)
def test_rows_are_deleted_in_ranges(ids, expected):
    assert ranges(ids) == expected


def test_closing_saves_pending_changes(path):
    store = Store(path)
    counters = boxes(store)[0]
    store.insert(counters, stored_message(1))
    store.close()

    store = Store(path)

    assert store.read_one(counters.mailbox_id, 1) is not None
    store.close()


# -- reading ----------------------------------------------------------------------------------


def test_a_read_stops_after_some_megabytes(store, box, monkeypatch):
    monkeypatch.setattr(reads, "READ_BYTES_MAX", 1000)
    put(store, box, *(stored_message(n, size=100) for n in range(1, 201)))

    found = store.read_active(box.mailbox_id, after=0, upto=999, count=999)

    assert sequences(found) == list(range(1, 11))


def test_due_and_expired_are_found_earliest_first(store, box):
    put(
        store,
        box,
        stored_message(1, expires_ms=NOW + 5),
        stored_message(2, expires_ms=NOW - 5),
        stored_message(3, expires_ms=NOW),
        stored_message(4, state=MessageState.SCHEDULED, due_ms=NOW),
        stored_message(5, state=MessageState.SCHEDULED, due_ms=NOW - 1),
        stored_message(6, state=MessageState.SCHEDULED, due_ms=NOW + 1),
    )
    mailbox = box.mailbox_id

    assert store.read_expired(now_ms=NOW, count=9) == [(mailbox, 2), (mailbox, 3)]
    assert store.read_expired(now_ms=NOW, count=9, skip=1) == [(mailbox, 3)]
    assert store.read_due(now_ms=NOW, count=9) == [(mailbox, 5), (mailbox, 4)]
    assert store.read_due(now_ms=NOW, count=1) == [(mailbox, 5)]
    assert store.read_due(now_ms=NOW, count=1, skip=1) == [(mailbox, 4)]
    assert store.next_expiry_ms(after_ms=NOW - 1) == NOW
    assert store.next_expiry_ms(after_ms=NOW) == NOW + 5
    assert store.next_due_ms(after_ms=NOW) == NOW + 1
    assert store.next_due_ms(after_ms=NOW + 1) is None


@pytest.mark.req("B-07")
def test_a_message_id_is_known_in_its_mailbox_until_its_window_ends(store, box):
    store.remember(box.mailbox_id, "x", NOW + 10)
    store.save()

    assert store.was_seen(box.mailbox_id, "x", now_ms=NOW + 9)
    assert not store.was_seen(box.mailbox_id, "x", now_ms=NOW + 10)
    assert not store.was_seen(box.mailbox_id, "y", now_ms=NOW)
    for other in (box.mailbox_id - 1, box.mailbox_id + 1):
        assert not store.was_seen(other, "x", now_ms=NOW)


@pytest.mark.req("B-07")
def test_message_ids_past_their_window_are_deleted_in_portions(store, box, monkeypatch):
    monkeypatch.setattr(store_module, "GARBAGE_ROWS", 2)
    for number in range(5):
        store.remember(box.mailbox_id, f"old {number}", NOW - number)
    store.remember(box.mailbox_id, "new", NOW + 1)
    store.save()

    left = []
    while store.end_of_old_ids(now_ms=NOW, count=1) is not None:
        store.clean(now_ms=NOW)
        store.save()
        known = [f"old {number}" for number in range(5)]
        left.append(sum(store.was_seen(box.mailbox_id, one, now_ms=0) for one in known))

    assert left == [3, 1, 0]
    assert store.was_seen(box.mailbox_id, "new", now_ms=NOW)


@pytest.mark.req("B-06")
def test_active_messages_of_sessions_are_counted_in_the_order_of_the_oldest(store, box):
    sessions = [("b", MessageState.DEFERRED), ("a", 0), ("b", 0), ("a", 0), ("0", 0)]
    for sequence, (name, state) in enumerate(sessions, 1):
        put(store, box, stored_message(sequence, session_id=name, state=state))

    assert store.session_counts(box.mailbox_id) == [("a", 2), ("b", 1), ("0", 1)]


# -- entities ---------------------------------------------------------------------------------


def test_names_differ_by_more_than_case(store):
    boxes(store, "orders")
    store.create_entity("ORDERS", "queue", {}, 3, now_ms=NOW)

    with pytest.raises(sqlite3.IntegrityError):
        store.save()


def test_a_dropped_entity_is_gone_at_once_and_its_messages_in_portions(store, path, monkeypatch):
    monkeypatch.setattr(store_module, "GARBAGE_ROWS", 2)
    entity, counters = store.create_entity("q", "queue", {}, 3, now_ms=NOW)
    put(store, counters[0], *(stored_message(n) for n in range(1, 6)))
    other = boxes(store, "other")[0]
    put(store, other, stored_message(1))
    store.remember(counters[0].mailbox_id, "id", NOW + 99)
    store.set_session_state(counters[0].mailbox_id, "s", b"state", NOW)
    store.save()

    store.drop_entity(entity.entity_id)
    store.save()

    assert [found.name for found in store.entities()] == ["other"]
    assert not store.was_seen(counters[0].mailbox_id, "id", now_ms=NOW)
    assert store.session_state(counters[0].mailbox_id, "s") is None
    left = []
    with closing(sqlite3.connect(path)) as db:
        for _ in range(9):
            left.append(db.execute("SELECT count(*) FROM message").fetchone()[0])
            store.clean(now_ms=NOW)
            store.save()
        assert db.execute("SELECT count(*) FROM garbage").fetchone() == (0,)
    assert left[:4] == [6, 4, 2, 1]
    assert left[-1] == 1


def test_ids_of_dropped_entities_are_never_given_again(path):
    store = Store(path)
    entity, counters = store.create_entity("q", "queue", {}, 3, now_ms=NOW)
    put(store, counters[2], stored_message(1))
    store.drop_entity(entity.entity_id)
    store.close()

    store = Store(path)
    again, fresh = store.create_entity("q", "queue", {}, 3, now_ms=NOW)
    store.close()

    assert again.entity_id > entity.entity_id
    assert min(c.mailbox_id for c in fresh) > max(c.mailbox_id for c in counters)


def test_a_name_is_free_again_in_the_very_transaction_that_drops_it(store):
    entity, _ = store.create_entity("q", "queue", {}, 3, now_ms=NOW)
    store.save()
    store.drop_entity(entity.entity_id)
    store.create_entity("q", "queue", {"max_delivery_count": 2}, 3, now_ms=NOW)

    store.save()

    assert [found.description for found in store.entities()] == [{"max_delivery_count": 2}]
