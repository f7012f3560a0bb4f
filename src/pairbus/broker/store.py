"""The namespace's memory: SQLite, written in groups.

Changes gather; `apply` puts them into a transaction, `commit` makes it last. Nothing may be
acknowledged before its commit has returned. The two steps are apart because of Python's global
lock: the statements run on the event loop's thread, where they cost a few microseconds each, and
only the commit, which waits for the disk, runs on another (`committer.py`). Statements on a second
thread would wait up to the interpreter's switch interval for each row.

Reads use a connection of their own and see what is committed, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pairbus.broker.message import (
    COLUMNS,
    MAILBOX_SHIFT,
    ROW_SEQUENCE_MASK,
    Message,
    Row,
    State,
    from_row,
)
from pairbus.broker.schema import lock_file, open_reader, open_writer, readable

_COLUMN_LIST: Final = ", ".join(COLUMNS)
_SELECT: Final = f"SELECT {_COLUMN_LIST} FROM message"
# In this order inside one transaction: a row's insert comes before its update before its deletion.
_INSERT: Final = f"INSERT INTO message VALUES ({', '.join('?' * len(COLUMNS))})"
_UPDATE: Final = (
    "UPDATE message SET state = ?, delivery_count = ?, enqueued_ms = ?, expires_ms = ?, due_ms = ? "
    "WHERE id = ?"
)
_DELETE: Final = "DELETE FROM message WHERE id = ?"
_COUNTERS: Final = (
    "UPDATE mailbox SET last_sequence = ?, active = ?, deferred = ?, scheduled = ?, bytes = ? "
    "WHERE id = ?"
)
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
_GARBAGE_BITE: Final = 2000


@dataclass(frozen=True, slots=True)
class StoredEntity:
    entity_id: int
    name: str
    kind: str
    description: dict[str, Any]
    created_ms: int
    updated_ms: int
    accessed_ms: int


@dataclass(slots=True)
class Counters:
    """What a mailbox holds. Kept in memory, written with the changes that moved it."""

    mailbox_id: int
    last_sequence: int = 0
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0

    def add(self, state: int, size: int, sign: int = 1) -> None:
        if state == State.ACTIVE:
            self.active += sign
        elif state == State.DEFERRED:
            self.deferred += sign
        else:
            self.scheduled += sign
        self.bytes += sign * size


class Store:
    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._lock = lock_file(path)
        try:
            with readable(path):
                self._db = open_writer(path, durable=durable)
                self._reader = open_reader(path)
                self._next_entity_id = self._last_id("entity") + 1
                self._next_mailbox_id = self._last_id("mailbox") + 1
                self._next_body_id = self._last_id("body") + 1
        except BaseException:
            self._lock.close()
            raise
        self._inserts: list[Row] = []
        self._updates: list[Row] = []
        self._deletes: list[tuple[int]] = []
        self._others: list[tuple[str, Sequence[Any]]] = []
        self._counters: dict[int, Counters] = {}

    # changes, gathered

    @property
    def has_changes(self) -> bool:
        return bool(
            self._inserts or self._deletes or self._updates or self._others or self._counters
        )

    def insert(self, counters: Counters, message: Message) -> None:
        self._inserts.append(message.row(counters.mailbox_id))
        self._counters[counters.mailbox_id] = counters

    def keep_count(self, counters: Counters) -> None:
        """A number was given to a message that is stored elsewhere, or nowhere."""
        self._counters[counters.mailbox_id] = counters

    def update(self, counters: Counters, message: Message) -> None:
        self._updates.append(
            (
                message.state,
                message.delivery_count,
                message.enqueued_ms,
                message.expires_ms,
                message.due_ms,
                counters.mailbox_id << MAILBOX_SHIFT | message.sequence,
            )
        )
        self._counters[counters.mailbox_id] = counters

    def rewrite(self, counters: Counters, message: Message) -> None:
        """Its bytes have changed (a receiver modified properties), not only its state."""
        row_id = counters.mailbox_id << MAILBOX_SHIFT | message.sequence
        self._others.append(("UPDATE message SET bare = ? WHERE id = ?", (message.bare, row_id)))
        if message.body_id is not None:
            self._release(message.body_id, 1)
            message.body_id = None

    def delete(self, counters: Counters, message: Message) -> None:
        self._deletes.append((counters.mailbox_id << MAILBOX_SHIFT | message.sequence,))
        self._counters[counters.mailbox_id] = counters
        if message.body_id is not None:
            self._release(message.body_id, 1)

    def share(self, bare: bytes, refs: int) -> int:
        """Keep the bytes once for so many messages, which are inserted with the id."""
        body_id = self._next_body_id
        self._next_body_id += 1
        self._others.append(("INSERT INTO body VALUES (?, ?, ?)", (body_id, refs, bare)))
        return body_id

    def _release(self, body_id: int, refs: int) -> None:
        self._others += [
            ("UPDATE body SET refs = refs - ? WHERE id = ?", (refs, body_id)),
            ("DELETE FROM body WHERE id = ? AND refs <= 0", (body_id,)),
        ]

    def remember(self, mailbox_id: int, message_id: str, until_ms: int) -> None:
        self._others.append(
            ("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (mailbox_id, message_id, until_ms))
        )

    def set_session_state(
        self, mailbox_id: int, session_id: str, state: bytes | None, now_ms: int
    ) -> None:
        if state is None:
            self._others.append(
                (
                    "DELETE FROM session_state WHERE mailbox = ? AND session_id = ?",
                    (mailbox_id, session_id),
                )
            )
        else:
            self._others.append(
                (
                    "INSERT OR REPLACE INTO session_state VALUES (?, ?, ?, ?)",
                    (mailbox_id, session_id, state, now_ms),
                )
            )

    def touch_entity(self, entity_id: int, accessed_ms: int) -> None:
        self._others.append(
            ("UPDATE entity SET accessed_ms = ? WHERE id = ?", (accessed_ms, entity_id))
        )

    def drop_entity(self, entity_id: int) -> None:
        """The entity is gone at once; its messages' rows follow in small bites."""
        self._others += [
            ("INSERT INTO garbage SELECT id FROM mailbox WHERE entity = ?", (entity_id,)),
            (
                "DELETE FROM seen WHERE mailbox IN (SELECT id FROM mailbox WHERE entity = ?)",
                (entity_id,),
            ),
            (
                "DELETE FROM session_state WHERE mailbox IN "
                "(SELECT id FROM mailbox WHERE entity = ?)",
                (entity_id,),
            ),
            ("DELETE FROM mailbox WHERE entity = ?", (entity_id,)),
            ("DELETE FROM entity WHERE id = ?", (entity_id,)),
        ]

    def clean(self, *, now_ms: int) -> None:
        """Forget message ids past their window, and a bite of what dropped entities left."""
        row = self._reader.execute("SELECT min(until_ms) FROM seen").fetchone()
        if row[0] is not None and row[0] <= now_ms:
            self._others.append(("DELETE FROM seen WHERE until_ms <= ?", (now_ms,)))
        row = self._reader.execute("SELECT mailbox FROM garbage LIMIT 1").fetchone()
        if row is not None:
            bounds = (row[0] << MAILBOX_SHIFT, (row[0] + 1) << MAILBOX_SHIFT)
            bite = self._reader.execute(
                "SELECT id, CASE typeof(bare) WHEN 'integer' THEN bare END FROM message "
                "WHERE id >= ? AND id < ? LIMIT ?",
                (*bounds, _GARBAGE_BITE),
            ).fetchall()
            for _, body_id in bite:
                if body_id is not None:
                    self._release(body_id, 1)
            self._deletes += [(row_id,) for row_id, _ in bite]
            self._others += [
                (
                    "DELETE FROM garbage WHERE mailbox = ? AND NOT EXISTS "
                    "(SELECT 1 FROM message WHERE id >= ? AND id < ?)",
                    (row[0], *bounds),
                ),
            ]

    # the transaction

    def apply(self) -> None:
        """Put what has gathered into a transaction; raises sqlite3.Error, and then nothing did."""
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            for statement, parameters in self._others:
                db.execute(statement, parameters)
            if self._inserts:
                db.executemany(_INSERT, self._inserts)
            if self._updates:
                db.executemany(_UPDATE, self._updates)
            if self._deletes:
                db.executemany(_DELETE, self._deletes)
            for c in self._counters.values():
                db.execute(
                    _COUNTERS,
                    (c.last_sequence, c.active, c.deferred, c.scheduled, c.bytes, c.mailbox_id),
                )
        except BaseException:
            self.rollback()
            raise
        finally:
            self.discard()

    def commit(self) -> None:
        """Runs on the committer's thread; nothing else uses the writing connection meanwhile."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def save(self) -> None:
        """Apply and commit at once, for start-up, shutdown and tests."""
        if self.has_changes:
            self.apply()
            try:
                self.commit()
            except BaseException:
                self.rollback()
                raise

    def discard(self) -> None:
        """Forget what has gathered, as if it had never been asked for."""
        self._inserts, self._updates, self._deletes = [], [], []
        self._others, self._counters = [], {}

    def close(self) -> None:
        self.save()
        self._reader.close()
        self._db.close()
        self._lock.close()

    # entities

    def entities(self) -> list[StoredEntity]:
        rows = self._db.execute(
            "SELECT id, name, kind, description, created_ms, updated_ms, accessed_ms FROM entity "
            "ORDER BY id"
        )
        return [
            StoredEntity(row[0], row[1], row[2], json.loads(row[3]), row[4], row[5], row[6])
            for row in rows
        ]

    def create_entity(
        self, name: str, kind: str, description: dict[str, Any], mailboxes: int, *, now_ms: int
    ) -> tuple[StoredEntity, list[Counters]]:
        """The ids are given here, so that messages for it may join the same transaction."""
        entity_id = self._next_entity_id
        self._next_entity_id += 1
        self._others.append(
            (
                "INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?, ?)",
                (entity_id, name, kind, json.dumps(description), now_ms, now_ms, now_ms),
            )
        )
        counters = []
        for number in range(mailboxes):
            counters.append(Counters(self._next_mailbox_id))
            self._others.append(
                (
                    "INSERT INTO mailbox (id, entity, kind) VALUES (?, ?, ?)",
                    (self._next_mailbox_id, entity_id, number),
                )
            )
            self._next_mailbox_id += 1
        stored = StoredEntity(entity_id, name, kind, description, now_ms, now_ms, now_ms)
        return stored, counters

    def update_entity(self, entity_id: int, description: dict[str, Any], *, now_ms: int) -> None:
        self._others.append(
            (
                "UPDATE entity SET description = ?, updated_ms = ? WHERE id = ?",
                (json.dumps(description), now_ms, entity_id),
            )
        )

    def mailboxes(self, entity_id: int) -> list[Counters]:
        rows = self._db.execute(
            "SELECT id, last_sequence, active, deferred, scheduled, bytes FROM mailbox "
            "WHERE entity = ? ORDER BY kind",
            (entity_id,),
        )
        return [Counters(*row) for row in rows]

    # reads

    def read_active(self, mailbox_id: int, *, after: int, upto: int, count: int) -> list[Message]:
        base = mailbox_id << MAILBOX_SHIFT
        return self._read(
            f"{_SELECT} WHERE id > ? AND id <= ? AND state = 0 ORDER BY id LIMIT ?",
            (base | after, base | upto, count),
        )

    def read_session(
        self, mailbox_id: int, session_id: str, *, after: int, upto: int, count: int
    ) -> list[Message]:
        base = mailbox_id << MAILBOX_SHIFT
        return self._read(
            f"{_SELECT} WHERE session_id = ? AND state = 0 AND id > ? AND id <= ? "
            "ORDER BY id LIMIT ?",
            (session_id, base | after, base | upto, count),
        )

    def read_from(
        self,
        mailbox_id: int,
        *,
        first: int,
        count: int,
        session_id: str | None = None,
        alive_ms: int = 0,
    ) -> list[Message]:
        """Of any state, for peek; without those that have expired at `alive_ms`."""
        alive = "(expires_ms IS NULL OR expires_ms > ?)"
        low, high = mailbox_id << MAILBOX_SHIFT | first, (mailbox_id + 1) << MAILBOX_SHIFT
        if session_id is None:
            return self._read(
                f"{_SELECT} WHERE id >= ? AND id < ? AND {alive} ORDER BY id LIMIT ?",
                (low, high, alive_ms, count),
            )
        return self._read(
            f"{_SELECT} WHERE session_id = ? AND id >= ? AND id < ? AND {alive} "
            "ORDER BY id LIMIT ?",
            (session_id, low, high, alive_ms, count),
        )

    def read_one(self, mailbox_id: int, sequence: int) -> Message | None:
        row = self._reader.execute(
            f"{_SELECT} WHERE id = ?", (mailbox_id << MAILBOX_SHIFT | sequence,)
        ).fetchone()
        return None if row is None else self._with_body(from_row(row))

    def read_enqueued_before(
        self, mailbox_id: int, *, before_ms: int, count: int, session_id: str | None
    ) -> list[int]:
        """Sequence numbers of active messages, oldest first, for batch deletion."""
        low, high = mailbox_id << MAILBOX_SHIFT, (mailbox_id + 1) << MAILBOX_SHIFT
        where = "" if session_id is None else " AND session_id = ?"
        rows = self._reader.execute(
            f"SELECT id FROM message WHERE id >= ? AND id < ? AND state = 0 AND enqueued_ms < ?"
            f"{where} ORDER BY id LIMIT ?",
            (low, high, before_ms, *(() if session_id is None else (session_id,)), count),
        )
        return [row[0] & ROW_SEQUENCE_MASK for row in rows]

    def read_due(self, *, now_ms: int, count: int) -> list[tuple[int, int]]:
        """(mailbox, sequence) of scheduled messages whose time has come, earliest first."""
        return self._read_keys("due_ms", now_ms, count, 0)

    def read_expired(self, *, now_ms: int, count: int, skip: int = 0) -> list[tuple[int, int]]:
        return self._read_keys("expires_ms", now_ms, count, skip)

    def next_due_ms(self) -> int | None:
        return self._first("SELECT min(due_ms) FROM message WHERE due_ms IS NOT NULL")

    def next_expiry_ms(self) -> int | None:
        return self._first("SELECT min(expires_ms) FROM message WHERE expires_ms IS NOT NULL")

    def was_seen(self, mailbox_id: int, message_id: str, *, now_ms: int) -> bool:
        row = self._reader.execute(
            "SELECT 1 FROM seen WHERE mailbox = ? AND message_id = ? AND until_ms > ?",
            (mailbox_id, message_id, now_ms),
        ).fetchone()
        return row is not None

    def session_counts(self, mailbox_id: int) -> Iterable[tuple[str, int]]:
        """How many active messages each session has, sessions in the order of their oldest."""
        low, high = mailbox_id << MAILBOX_SHIFT, (mailbox_id + 1) << MAILBOX_SHIFT
        return self._reader.execute(
            "SELECT session_id, count(*) FROM message WHERE session_id IS NOT NULL AND state = 0 "
            "AND id >= ? AND id < ? GROUP BY session_id ORDER BY min(id)",
            (low, high),
        ).fetchall()

    def session_state(self, mailbox_id: int, session_id: str) -> bytes | None:
        row = self._reader.execute(
            "SELECT state FROM session_state WHERE mailbox = ? AND session_id = ?",
            (mailbox_id, session_id),
        ).fetchone()
        return None if row is None else bytes(row[0])

    def sessions_with_state(self, mailbox_id: int, *, after_ms: int | None) -> list[str]:
        rows = self._reader.execute(
            "SELECT session_id FROM session_state WHERE mailbox = ? AND updated_ms > ? "
            "ORDER BY session_id",
            (mailbox_id, -1 if after_ms is None else after_ms),
        )
        return [row[0] for row in rows]

    def _last_id(self, table: str) -> int:
        """The highest ever given, also to rows that are gone."""
        row = self._db.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)
        ).fetchone()
        return 0 if row is None else int(row[0])

    def _first(self, query: str) -> int | None:
        (value,) = self._reader.execute(query).fetchone()
        return None if value is None else int(value)

    def _read_keys(self, column: str, now_ms: int, count: int, skip: int) -> list[tuple[int, int]]:
        rows = self._reader.execute(
            f"SELECT id FROM message WHERE {column} <= ? ORDER BY {column}, id LIMIT ? OFFSET ?",
            (now_ms, count, skip),
        )
        return [(row[0] >> MAILBOX_SHIFT, row[0] & ROW_SEQUENCE_MASK) for row in rows]

    def _with_body(self, message: Message) -> Message:
        if message.body_id is not None:
            (message.bare,) = self._reader.execute(
                "SELECT bare FROM body WHERE id = ?", (message.body_id,)
            ).fetchone()
        return message

    def _read(self, query: str, parameters: Sequence[Any]) -> list[Message]:
        """Stops early at some megabytes: a window of the largest messages must fit in memory."""
        cursor = self._reader.execute(query, parameters)
        messages: list[Message] = []
        size = 0
        while size < _READ_BYTES_MAX and (rows := cursor.fetchmany(64)):
            for row in rows:
                message = self._with_body(from_row(row))
                size += message.size
                messages.append(message)
        cursor.close()
        return messages
