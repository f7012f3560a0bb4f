"""Changes to the data file, collected in groups. Each group becomes one transaction.

A group keeps its statements by kind, because many statements of one kind are much cheaper than a
mix. They run in an order in which a row's insert comes before its update, and its update before its
deletion. Nothing is written here: `Group.apply` runs the statements, and the committer commits.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.broker.message import COLUMNS, MAILBOX_SHIFT, Message, MessageState, Row

_INSERT: Final = f"INSERT INTO message VALUES ({', '.join('?' * len(COLUMNS))})"
# Binding a null costs as much as binding a value, so plain messages leave those columns out.
_INSERT_PLAIN: Final = (
    "INSERT INTO message (id, state, enqueued_ms, delivery_count, size, bare) "
    "VALUES (?, ?, ?, ?, ?, ?)"
)
_INSERT_TIMELESS: Final = (
    "INSERT INTO message (id, state, enqueued_ms, delivery_count, size, bare, extra) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    "UPDATE message SET state = ?, delivery_count = ?, enqueued_ms = ?, expires_ms = ?, due_ms = ? "
    "WHERE id = ?"
)
_DELETE: Final = "DELETE FROM message WHERE id BETWEEN ? AND ?"
_COUNTERS: Final = (
    "UPDATE mailbox SET last_sequence = ?, active = ?, deferred = ?, scheduled = ?, bytes = ? "
    "WHERE id = ?"
)


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
    """The counts of a mailbox. They are kept in memory and written together with the changes."""

    mailbox_id: int
    last_sequence: int = 0
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    bytes: int = 0

    def add(self, state: int, size: int, sign: int = 1) -> None:
        if state == MessageState.ACTIVE:
            self.active += sign
        elif state == MessageState.DEFERRED:
            self.deferred += sign
        else:
            self.scheduled += sign
        self.bytes += sign * size

    def remove(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.add(message.state, message.size, -1)


@dataclass(slots=True)
class Group:
    """The changes of one transaction."""

    plain: list[Row] = field(default_factory=list)
    """New messages without expiry, schedule and session, and without `extra`."""
    timeless: list[Row] = field(default_factory=list)
    """The same, with `extra`: the copies of a topic."""
    inserts: list[Row] = field(default_factory=list)
    updates: list[Row] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    """Row ids."""
    others: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    counters: dict[int, Counters] = field(default_factory=dict)
    released: list[tuple[int]] = field(default_factory=list)
    """Shared bodies that lose one reference each."""
    totals: list[Row] = field(default_factory=list)
    """The counters as they were when the group was closed."""

    def __bool__(self) -> bool:
        return bool(self.counters or self.others or self.deletes or self.released)

    def close(self) -> None:
        self.totals = [
            (c.last_sequence, c.active, c.deferred, c.scheduled, c.bytes, c.mailbox_id)
            for c in self.counters.values()
        ]

    def apply(self, db: sqlite3.Connection) -> None:
        for statement, parameters in self.others:
            db.execute(statement, parameters)
        if self.plain:
            db.executemany(_INSERT_PLAIN, self.plain)
        if self.timeless:
            db.executemany(_INSERT_TIMELESS, self.timeless)
        if self.inserts:
            db.executemany(_INSERT, self.inserts)
        if self.updates:
            db.executemany(_UPDATE, self.updates)
        if self.deletes:
            db.executemany(_DELETE, ranges(self.deletes))
        if self.released:
            db.executemany("UPDATE body SET refs = refs - 1 WHERE id = ?", self.released)
            db.executemany("DELETE FROM body WHERE id = ? AND refs <= 0", self.released)
        db.executemany(_COUNTERS, self.totals)


def ranges(ids: Sequence[int]) -> list[tuple[int, int]]:
    """The first and last id of each run of consecutive ids. A receiver settles messages in the
    order in which it got them, so hundreds of rows need one statement.
    """
    found: list[tuple[int, int]] = []
    ordered = sorted(ids)
    first = last = ordered[0]
    for row_id in ordered[1:]:
        if row_id > last + 1:
            found.append((first, last))
            first = row_id
        last = row_id
    found.append((first, last))
    return found


class Writes:
    """Collects changes. It assigns the ids of new rows, so that a group can refer to them."""

    def __init__(self, *, last_entity_id: int, last_mailbox_id: int, last_body_id: int) -> None:
        self._group = Group()
        self._next_entity_id = last_entity_id + 1
        self._next_mailbox_id = last_mailbox_id + 1
        self._next_body_id = last_body_id + 1

    @property
    def has_changes(self) -> bool:
        return bool(self._group)

    def take(self) -> Group:
        """Returns the changes collected so far. Later ones go into a new group."""
        group, self._group = self._group, Group()
        group.close()
        return group

    def discard(self) -> None:
        """Discard the changes collected so far."""
        self._group = Group()

    def _add(self, statement: str, *parameters: Any) -> None:
        self._group.others.append((statement, parameters))

    def insert(self, counters: Counters, message: Message) -> None:
        group = self._group
        group.counters[counters.mailbox_id] = counters
        if (
            message.expires_ms is not None
            or message.due_ms is not None
            or message.session_id is not None
        ):
            group.inserts.append(message.row(counters.mailbox_id))
            return
        row = (
            counters.mailbox_id << MAILBOX_SHIFT | message.sequence,
            message.state,
            message.enqueued_ms,
            message.delivery_count,
            message.size,
            message.bare if message.body_id is None else message.body_id,
        )
        extra = message.extra()
        if extra is None:
            group.plain.append(row)
        else:
            group.timeless.append((*row, extra))

    def keep_count(self, counters: Counters) -> None:
        """Write the counters alone: a number was given to a message that is not stored here."""
        self._group.counters[counters.mailbox_id] = counters

    def update(self, counters: Counters, message: Message) -> None:
        self._group.updates.append(
            (
                message.state,
                message.delivery_count,
                message.enqueued_ms,
                message.expires_ms,
                message.due_ms,
                counters.mailbox_id << MAILBOX_SHIFT | message.sequence,
            )
        )
        self._group.counters[counters.mailbox_id] = counters

    def rewrite(self, counters: Counters, message: Message) -> None:
        """Write its bytes, too: a receiver has modified its properties."""
        row_id = counters.mailbox_id << MAILBOX_SHIFT | message.sequence
        self._add("UPDATE message SET bare = ? WHERE id = ?", message.bare, row_id)
        if message.body_id is not None:
            self._group.released.append((message.body_id,))
            message.body_id = None

    def delete(self, counters: Counters, messages: Sequence[Message]) -> None:
        group, first_id = self._group, counters.mailbox_id << MAILBOX_SHIFT
        group.deletes += [first_id | message.sequence for message in messages]
        group.released += [(each.body_id,) for each in messages if each.body_id is not None]
        group.counters[counters.mailbox_id] = counters

    def share(self, bare: bytes, refs: int) -> int:
        """Store bytes that `refs` messages share, and return the id that they are inserted with."""
        body_id = self._next_body_id
        self._next_body_id += 1
        self._add("INSERT INTO body VALUES (?, ?, ?)", body_id, refs, bare)
        return body_id

    def remember(self, mailbox_id: int, message_id: str, until_ms: int) -> None:
        self._add("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", mailbox_id, message_id, until_ms)

    def set_session_state(
        self, mailbox_id: int, session_id: str, state: bytes | None, now_ms: int
    ) -> None:
        if state is None:
            statement = "DELETE FROM session_state WHERE mailbox = ? AND session_id = ?"
            self._add(statement, mailbox_id, session_id)
        else:
            statement = "INSERT OR REPLACE INTO session_state VALUES (?, ?, ?, ?)"
            self._add(statement, mailbox_id, session_id, state, now_ms)

    def touch_entity(self, entity_id: int, accessed_ms: int) -> None:
        self._add("UPDATE entity SET accessed_ms = ? WHERE id = ?", accessed_ms, entity_id)

    def drop_entity(self, entity_id: int) -> None:
        """Removes the entity at once. `Store.clean` deletes its messages in small portions."""
        own = "SELECT id FROM mailbox WHERE entity = ?"
        for statement in (
            f"INSERT INTO garbage {own}",
            f"DELETE FROM seen WHERE mailbox IN ({own})",
            f"DELETE FROM session_state WHERE mailbox IN ({own})",
            "DELETE FROM mailbox WHERE entity = ?",
            "DELETE FROM entity WHERE id = ?",
        ):
            self._add(statement, entity_id)

    def create_entity(
        self, name: str, kind: str, description: dict[str, Any], mailboxes: int, *, now_ms: int
    ) -> tuple[StoredEntity, list[Counters]]:
        """It assigns the ids now, so that the entity's messages can be in the same transaction."""
        entity_id = self._next_entity_id
        self._next_entity_id += 1
        statement = "INSERT INTO entity VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._add(statement, entity_id, name, kind, json.dumps(description), now_ms, now_ms, 0)
        counters = []
        for number in range(mailboxes):
            counters.append(Counters(self._next_mailbox_id))
            statement = "INSERT INTO mailbox (id, entity, kind) VALUES (?, ?, ?)"
            self._add(statement, self._next_mailbox_id, entity_id, number)
            self._next_mailbox_id += 1
        stored = StoredEntity(entity_id, name, kind, description, now_ms, now_ms, 0)
        return stored, counters

    def update_entity(self, entity_id: int, description: dict[str, Any], *, now_ms: int) -> None:
        statement = "UPDATE entity SET description = ?, updated_ms = ? WHERE id = ?"
        self._add(statement, json.dumps(description), now_ms, entity_id)
