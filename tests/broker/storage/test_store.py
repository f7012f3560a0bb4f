"""What the store is told comes back from the file, in the order that the broker relies on."""

import sqlite3
from contextlib import closing

import pytest

from pairbus.broker.message import Message, MessageState
from pairbus.broker.storage import reads
from pairbus.broker.storage import store as store_module
from pairbus.broker.storage.store import Counters, Store
from pairbus.broker.storage.writes import ranges

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


def message(sequence, *, state=MessageState.ACTIVE, session_id=None, size=10, **times):
    facts = {"enqueued_ms": NOW, "expires_ms": None, "ttl_ms": None, "due_ms": None} | times
    return Message(
        sequence, state, facts["enqueued_ms"], facts["expires_ms"], facts["ttl_ms"],
        facts["due_ms"], 0, session_id, None, None, b"", 0, b"", 0, sequence, None, None, size,
        b"bytes %d" % sequence,
    )  # fmt: skip


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
    store.insert(box, message(1))
    assert store.has_changes
    assert store.read_one(box.mailbox_id, 1) is None

    store.apply()
    assert not store.has_changes
    assert store.read_one(box.mailbox_id, 1) is None
    store.commit()

    assert store.read_one(box.mailbox_id, 1).bare == b"bytes 1"


def test_rolled_back_changes_are_not_stored(store, box):
    store.insert(box, message(1))
    store.apply()

    store.rollback()
    store.rollback()

    assert store.read_one(box.mailbox_id, 1) is None
    assert not store.has_changes


def test_a_failed_transaction_leaves_nothing_behind_and_the_next_is_fine(store, box):
    put(store, box, message(1))
    store.insert(box, message(2))
    store.insert(box, message(1))  # the same row again

    with pytest.raises(sqlite3.IntegrityError):
        store.save()

    assert not store.has_changes
    assert sequences(store.read_from(box.mailbox_id, first=0, count=9)) == [1]
    put(store, box, message(3))
    assert sequences(store.read_from(box.mailbox_id, first=0, count=9)) == [1, 3]


def test_a_commit_that_fails_in_save_is_rolled_back(store, box, monkeypatch):
    def refuse():
        raise sqlite3.OperationalError("disk full")

    store.insert(box, message(1))
    with monkeypatch.context() as patch:
        patch.setattr(store, "commit", refuse)
        with pytest.raises(sqlite3.OperationalError, match="disk full"):
            store.save()

    put(store, box, message(2))
    assert sequences(store.read_from(box.mailbox_id, first=0, count=9)) == [2]


def test_discarded_changes_are_not_stored(store, box):
    store.insert(box, message(1))

    store.discard()

    assert not store.has_changes


def test_a_message_can_be_inserted_changed_and_deleted_in_one_transaction(store, box):
    first, second = message(1), message(2)
    store.insert(box, first)
    store.insert(box, second)
    second.delivery_count, second.state = 4, MessageState.DEFERRED
    store.update(box, second)
    store.delete(box, [first])
    store.save()

    found = store.read_from(box.mailbox_id, first=0, count=9)

    assert [(m.sequence, m.delivery_count, m.state) for m in found] == [
        (2, 4, MessageState.DEFERRED)
    ]


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


def test_a_rewritten_message_has_its_new_bytes(store, box):
    put(store, box, message(1))
    changed = message(1)
    changed.bare = b"other"

    store.rewrite(box, changed)
    store.save()

    assert store.read_one(box.mailbox_id, 1).bare == b"other"


@pytest.mark.req("B-12")
def test_counters_are_stored_with_the_changes_that_moved_them(path):
    store = Store(path)
    entity, counters = store.create_entity("q", "queue", {}, 3, now_ms=NOW)
    put(
        store,
        counters[0],
        message(1),
        message(2, state=MessageState.SCHEDULED),
        message(3, state=MessageState.DEFERRED),
    )
    store.close()

    store = Store(path)
    found = store.mailboxes(entity.entity_id)
    store.close()

    assert found[0] == Counters(1, last_sequence=3, active=1, deferred=1, scheduled=1, bytes=30)
    assert found[1:] == [Counters(2), Counters(3)]


def test_a_number_given_to_nothing_is_not_given_again(path):
    store = Store(path)
    entity, counters = store.create_entity("q", "queue", {}, 1, now_ms=NOW)
    store.save()
    counters[0].last_sequence = 5
    store.keep_count(counters[0])
    store.close()

    store = Store(path)

    assert store.mailboxes(entity.entity_id)[0].last_sequence == 5
    store.close()


def test_closing_saves_pending_changes(path):
    store = Store(path)
    counters = boxes(store)[0]
    store.insert(counters, message(1))
    store.close()

    store = Store(path)

    assert store.read_one(counters.mailbox_id, 1) is not None
    store.close()


# -- reading ----------------------------------------------------------------------------------


def test_active_messages_are_read_in_order_and_in_bounds(store, box):
    put(store, box, *(message(n) for n in (5, 1, 3)), message(2, state=MessageState.DEFERRED))

    def read(after, upto, count):
        return sequences(store.read_active(box.mailbox_id, after=after, upto=upto, count=count))

    assert read(0, 9, 9) == [1, 3, 5]
    assert read(1, 5, 9) == [3, 5]
    assert read(0, 4, 9) == [1, 3]
    assert read(0, 9, 1) == [1]


def test_mailboxes_do_not_see_each_others_messages(store):
    first, second, _ = boxes(store)
    put(store, first, message(1, session_id="s"))
    put(store, second, message(1), message(2))

    for read in (
        lambda box: store.read_active(box.mailbox_id, after=0, upto=9, count=9),
        lambda box: store.read_from(box.mailbox_id, first=0, count=9),
    ):
        assert sequences(read(first)) == [1]
        assert sequences(read(second)) == [1, 2]
    assert store.session_counts(second.mailbox_id) == []
    assert store.read_session(second.mailbox_id, "s", after=0, upto=9, count=9) == []


def test_peek_sees_messages_of_every_state_from_a_number_on(store, box):
    put(
        store,
        box,
        message(1),
        message(2, state=MessageState.SCHEDULED, due_ms=NOW, session_id="s"),
        message(3, state=MessageState.DEFERRED),
        message(4, session_id="s"),
    )

    def read(**what):
        return sequences(store.read_from(box.mailbox_id, **what))

    assert read(first=0, count=9) == [1, 2, 3, 4]
    assert read(first=2, count=2) == [2, 3]
    assert read(first=0, count=9, session_id="s") == [2, 4]
    assert read(first=5, count=9) == []


@pytest.mark.req("B-06")
def test_sessions_are_counted_in_the_order_of_their_oldest_message(store, box):
    put(
        store,
        box,
        message(1, session_id="b", state=MessageState.DEFERRED),
        message(2, session_id="a"),
        message(3, session_id="b"),
        message(4, session_id="a"),
        message(5, session_id="0"),
    )

    assert store.session_counts(box.mailbox_id) == [("a", 2), ("b", 1), ("0", 1)]
    found = store.read_session(box.mailbox_id, "a", after=2, upto=9, count=9)
    assert sequences(found) == [4]


def test_a_read_stops_after_some_megabytes(store, box, monkeypatch):
    monkeypatch.setattr(reads, "READ_BYTES_MAX", 1000)
    put(store, box, *(message(n, size=100) for n in range(1, 201)))

    found = store.read_active(box.mailbox_id, after=0, upto=999, count=999)

    assert sequences(found) == list(range(1, 11))


def test_due_and_expired_are_found_earliest_first(store, box):
    put(
        store,
        box,
        message(1, expires_ms=NOW + 5),
        message(2, expires_ms=NOW - 5),
        message(3, expires_ms=NOW),
        message(4, state=MessageState.SCHEDULED, due_ms=NOW),
        message(5, state=MessageState.SCHEDULED, due_ms=NOW - 1),
        message(6, state=MessageState.SCHEDULED, due_ms=NOW + 1),
    )
    mailbox = box.mailbox_id

    assert store.read_expired(now_ms=NOW, count=9) == [(mailbox, 2), (mailbox, 3)]
    assert store.read_expired(now_ms=NOW, count=9, skip=1) == [(mailbox, 3)]
    assert store.read_due(now_ms=NOW, count=9) == [(mailbox, 5), (mailbox, 4)]
    assert store.read_due(now_ms=NOW, count=1) == [(mailbox, 5)]
    assert store.next_expiry_ms() == NOW - 5
    assert store.next_due_ms() == NOW - 1


def test_an_empty_store_expects_nothing(store):
    assert store.next_expiry_ms() is None
    assert store.next_due_ms() is None


def test_messages_enqueued_before_a_time_are_found_for_deletion(store, box):
    put(
        store,
        box,
        message(1, enqueued_ms=NOW - 1),
        message(2, enqueued_ms=NOW),
        message(3, enqueued_ms=NOW - 2, session_id="s"),
        message(4, enqueued_ms=NOW - 3, state=MessageState.DEFERRED),
    )

    def read(**what):
        return store.read_enqueued_before(box.mailbox_id, before_ms=NOW, **what)

    assert read(count=9, session_id=None) == [1, 3]
    assert read(count=1, session_id=None) == [1]
    assert read(count=9, session_id="s") == [3]


# -- what else is kept ------------------------------------------------------------------------


@pytest.mark.req("B-07")
def test_a_message_id_is_known_until_its_window_ends(store, box):
    store.remember(box.mailbox_id, "x", NOW + 10)
    store.save()

    assert store.was_seen(box.mailbox_id, "x", now_ms=NOW + 9)
    assert not store.was_seen(box.mailbox_id, "x", now_ms=NOW + 10)
    assert not store.was_seen(box.mailbox_id, "y", now_ms=NOW)
    assert not store.was_seen(box.mailbox_id + 1, "x", now_ms=NOW)


def test_message_ids_past_their_window_are_cleaned_away(store, box, path):
    store.remember(box.mailbox_id, "old", NOW)
    store.remember(box.mailbox_id, "young", NOW + 1)
    store.save()

    store.clean(now_ms=NOW)
    store.save()

    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT message_id FROM seen").fetchall() == [("young",)]
    store.clean(now_ms=NOW)
    assert not store.has_changes


@pytest.mark.req("B-06")
def test_session_state_is_kept_replaced_and_cleared(store, box):
    def state():
        return store.session_state(box.mailbox_id, "s")

    assert state() is None
    store.set_session_state(box.mailbox_id, "s", b"one", NOW)
    store.save()
    assert state() == b"one"
    store.set_session_state(box.mailbox_id, "s", b"", NOW + 1)
    store.save()
    assert state() == b""
    assert store.sessions_with_state(box.mailbox_id, after_ms=None) == ["s"]
    assert store.sessions_with_state(box.mailbox_id, after_ms=NOW) == ["s"]
    assert store.sessions_with_state(box.mailbox_id, after_ms=NOW + 1) == []
    store.set_session_state(box.mailbox_id, "s", None, NOW + 2)
    store.save()

    assert state() is None


# -- entities ---------------------------------------------------------------------------------


def test_entities_are_kept_with_their_descriptions(store):
    entity, _ = store.create_entity("Orders", "queue", {"max_delivery_count": 3}, 3, now_ms=NOW)
    store.save()
    store.update_entity(entity.entity_id, {"max_delivery_count": 4}, now_ms=NOW + 1)
    store.touch_entity(entity.entity_id, NOW + 2)
    store.save()

    (found,) = store.entities()

    assert (found.name, found.kind, found.description) == (
        "Orders",
        "queue",
        {"max_delivery_count": 4},
    )
    assert (found.created_ms, found.updated_ms, found.accessed_ms) == (NOW, NOW + 1, NOW + 2)


def test_names_differ_by_more_than_case(store):
    boxes(store, "orders")
    store.create_entity("ORDERS", "queue", {}, 3, now_ms=NOW)

    with pytest.raises(sqlite3.IntegrityError):
        store.save()


def test_a_dropped_entity_is_gone_at_once_and_its_messages_in_portions(store, path, monkeypatch):
    monkeypatch.setattr(store_module, "GARBAGE_ROWS", 2)
    entity, counters = store.create_entity("q", "queue", {}, 3, now_ms=NOW)
    put(store, counters[0], *(message(n) for n in range(1, 6)))
    other = boxes(store, "other")[0]
    put(store, other, message(1))
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
    put(store, counters[2], message(1))
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
