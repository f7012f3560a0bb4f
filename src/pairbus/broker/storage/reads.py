"""Reads of the data file. They see only committed data.

They use their own connection, and each method is one statement. So every answer is consistent, even
while the committing thread writes.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pairbus.broker.message import COLUMNS, MAILBOX_SHIFT, ROW_SEQUENCE_MASK, Message, from_row
from pairbus.broker.storage.writes import Counters, StoredEntity

_SELECT: Final = (
    f"SELECT {', '.join(f'm.{column}' for column in COLUMNS)}, b.bare FROM message AS m "
    "LEFT JOIN body AS b ON typeof(m.bare) = 'integer' AND b.id = m.bare"
)
READ_BYTES_MAX: Final = 4 * 1024 * 1024


class Reads:
    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader

    def entities(self) -> list[StoredEntity]:
        rows = self._reader.execute(
            "SELECT id, name, kind, description, created_ms, updated_ms, accessed_ms FROM entity "
            "ORDER BY id"
        )
        return [
            StoredEntity(row[0], row[1], row[2], json.loads(row[3]), row[4], row[5], row[6])
            for row in rows
        ]

    def mailboxes(self, entity_id: int) -> list[Counters]:
        rows = self._reader.execute(
            "SELECT id, last_sequence, active, deferred, scheduled, bytes FROM mailbox "
            "WHERE entity = ? ORDER BY kind",
            (entity_id,),
        )
        return [Counters(*row) for row in rows]

    def read_active(self, mailbox_id: int, *, after: int, upto: int, count: int) -> list[Message]:
        base = mailbox_id << MAILBOX_SHIFT
        where = "m.id > ? AND m.id <= ? AND state = 0"
        return self._read(where, (base | after, base | upto), count)

    def read_session(
        self, mailbox_id: int, session_id: str, *, after: int, upto: int, count: int
    ) -> list[Message]:
        base = mailbox_id << MAILBOX_SHIFT
        where = "session_id = ? AND state = 0 AND m.id > ? AND m.id <= ?"
        return self._read(where, (session_id, base | after, base | upto), count)

    def read_from(
        self,
        mailbox_id: int,
        *,
        first: int,
        count: int,
        session_id: str | None = None,
        alive_ms: int = 0,
    ) -> list[Message]:
        """For peek: messages of any state, without those that have expired at `alive_ms`."""
        low, high = mailbox_id << MAILBOX_SHIFT | first, (mailbox_id + 1) << MAILBOX_SHIFT
        where = "m.id >= ? AND m.id < ? AND (expires_ms IS NULL OR expires_ms > ?)"
        if session_id is None:
            return self._read(where, (low, high, alive_ms), count)
        return self._read(f"session_id = ? AND {where}", (session_id, low, high, alive_ms), count)

    def read_one(self, mailbox_id: int, sequence: int) -> Message | None:
        row = self._reader.execute(
            f"{_SELECT} WHERE m.id = ?", (mailbox_id << MAILBOX_SHIFT | sequence,)
        ).fetchone()
        return None if row is None else from_row(row)

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

    def read_due(self, *, now_ms: int, count: int, skip: int = 0) -> list[tuple[int, int]]:
        """(mailbox, sequence) of scheduled messages that are due, earliest first."""
        return self._read_keys("due_ms", now_ms, count, skip)

    def read_expired(self, *, now_ms: int, count: int, skip: int = 0) -> list[tuple[int, int]]:
        return self._read_keys("expires_ms", now_ms, count, skip)

    def next_due_ms(self, *, after_ms: int) -> int | None:
        return self._first("SELECT min(due_ms) FROM message WHERE due_ms > ?", after_ms)

    def next_expiry_ms(self, *, after_ms: int) -> int | None:
        return self._first("SELECT min(expires_ms) FROM message WHERE expires_ms > ?", after_ms)

    def was_seen(self, mailbox_id: int, message_id: str, *, now_ms: int) -> bool:
        row = self._reader.execute(
            "SELECT 1 FROM seen WHERE mailbox = ? AND message_id = ? AND until_ms > ?",
            (mailbox_id, message_id, now_ms),
        ).fetchone()
        return row is not None

    def session_counts(self, mailbox_id: int) -> Iterable[tuple[str, int]]:
        """The number of active messages of each session. Sessions are ordered by their oldest
        message.
        """
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

    def end_of_old_ids(self, *, now_ms: int, count: int) -> int | None:
        """Takes the `count` oldest message ids whose window has ended, and returns when the last of
        these windows ended. None if there are none.
        """
        oldest = "SELECT until_ms FROM seen WHERE until_ms <= ? ORDER BY until_ms LIMIT ?"
        return self._first(f"SELECT max(until_ms) FROM ({oldest})", now_ms, count)

    @property
    def has_garbage(self) -> bool:
        return self._reader.execute("SELECT 1 FROM garbage LIMIT 1").fetchone() is not None

    def garbage(self, count: int) -> tuple[int, list[tuple[int, int | None]]] | None:
        """A deleted mailbox, and some of the rows that it left, with the shared body of each."""
        row = self._reader.execute("SELECT mailbox FROM garbage LIMIT 1").fetchone()
        if row is None:
            return None
        rows = self._reader.execute(
            "SELECT id, CASE typeof(bare) WHEN 'integer' THEN bare END FROM message "
            "WHERE id >= ? AND id < ? LIMIT ?",
            (row[0] << MAILBOX_SHIFT, (row[0] + 1) << MAILBOX_SHIFT, count),
        ).fetchall()
        return row[0], rows

    def _first(self, query: str, *parameters: int) -> int | None:
        (value,) = self._reader.execute(query, parameters).fetchone()
        return None if value is None else int(value)

    def _read_keys(self, column: str, now_ms: int, count: int, skip: int) -> list[tuple[int, int]]:
        rows = self._reader.execute(
            f"SELECT id FROM message WHERE {column} <= ? "
            f"AND id >> {MAILBOX_SHIFT} NOT IN (SELECT mailbox FROM garbage) "
            f"ORDER BY {column}, id LIMIT ? OFFSET ?",
            (now_ms, count, skip),
        )
        return [(row[0] >> MAILBOX_SHIFT, row[0] & ROW_SEQUENCE_MASK) for row in rows]

    def _read(self, where: str, parameters: Sequence[Any], count: int) -> list[Message]:
        """Stops early after some megabytes: a window of the largest messages must fit in memory."""
        query = f"{_SELECT} WHERE {where} ORDER BY m.id LIMIT ?"
        cursor = self._reader.execute(query, (*parameters, count))
        messages: list[Message] = []
        size = 0
        for row in cursor:
            message = from_row(row)
            size += message.size
            messages.append(message)
            if size >= READ_BYTES_MAX:
                break
        cursor.close()
        return messages
