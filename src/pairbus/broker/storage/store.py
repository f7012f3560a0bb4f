"""The data file of a namespace: SQLite, written in groups of changes.

Changes are collected; `apply` puts a group into a transaction, `commit` makes it durable. Nothing
may be acknowledged before its commit has returned. The two steps are separate because of Python's
global lock: the statements run on the event loop's thread, where they cost a few microseconds each,
and only the commit, which waits for the disk, runs on another (`committer.py`). Statements on a
second thread would wait up to the interpreter's switch interval for each row.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from pairbus.broker.storage.lock import DataFileLock
from pairbus.broker.storage.reads import Reads
from pairbus.broker.storage.schema import open_reader, open_writer, readable
from pairbus.broker.storage.writes import Counters, Group, StoredEntity, Writes

__all__ = ["Counters", "Group", "Store", "StoredEntity"]

GARBAGE_ROWS: Final = 2000


class Store(Writes, Reads):
    """Reads and writes on one file, each with a connection of its own."""

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        self._lock = DataFileLock(path)
        try:
            with readable(path):
                self._db = open_writer(path, durable=durable)
                Reads.__init__(self, open_reader(path))
                Writes.__init__(
                    self,
                    last_entity_id=_last_id(self._db, "entity"),
                    last_mailbox_id=_last_id(self._db, "mailbox"),
                    last_body_id=_last_id(self._db, "body"),
                )
                self.created_ms = _created_ms(self._db)
            self._lock.mark_open()
        except BaseException:
            self._lock.release()
            raise

    @property
    def was_closed(self) -> bool:
        """Whether the file was closed cleanly before it was opened."""
        return self._lock.was_closed

    def clean(self, *, now_ms: int) -> None:
        """Delete some of the message ids past their window, and of the rows of deleted entities.

        Do not call it again before that is committed: it would read, and release, the same rows.
        """
        until_ms = self.end_of_old_ids(now_ms=now_ms, count=GARBAGE_ROWS)
        if until_ms is not None:
            self._add("DELETE FROM seen WHERE until_ms <= ?", until_ms)
        found = self.garbage(GARBAGE_ROWS)
        if found is None:
            return
        mailbox_id, rows = found
        for row_id, body_id in rows:
            self._group.deletes.append(row_id)
            if body_id is not None:
                self._group.released.append((body_id,))
        if not rows:
            self._add("DELETE FROM garbage WHERE mailbox = ?", mailbox_id)

    def apply(self, group: Group | None = None) -> None:
        """Put a group into a transaction; raises sqlite3.Error, and then nothing has happened."""
        group = self.take() if group is None else group
        try:
            self._db.execute("BEGIN IMMEDIATE")
            group.apply(self._db)
        except BaseException:
            self.rollback()
            raise

    def commit(self) -> None:
        """Runs on the committer's thread; nothing else uses the writing connection meanwhile."""
        self._db.execute("COMMIT")

    def rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def save(self) -> None:
        """Apply and commit at once, on start and stop."""
        if self.has_changes:
            self.apply()
            try:
                self.commit()
            except BaseException:
                self.rollback()
                raise

    def close(self) -> None:
        try:
            self.save()
        finally:
            self._lock.mark_closing()
            self._reader.close()
            self._db.close()
            self._lock.mark_closed()
            self._lock.release()


def _last_id(db: sqlite3.Connection, table: str) -> int:
    """The highest id ever used, including deleted rows."""
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return 0 if row is None else int(row[0])


def _created_ms(db: sqlite3.Connection) -> int:
    (value,) = db.execute("SELECT created_ms FROM namespace").fetchone()
    return int(value)
