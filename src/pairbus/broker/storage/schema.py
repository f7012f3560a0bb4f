"""The data file: its tables, its lock, and the checks before it is used.

One SQLite file per namespace. A message's row id is its mailbox and its sequence number in one
integer (see `message.py`), so the messages of a mailbox lie together and in order. Indexes are
partial: a plain message pays for none of them.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from pairbus.errors import DataFileError

APPLICATION_ID: Final = 0x70616972  # "pair"
VERSION: Final = 1

SCHEMA: Final = """
CREATE TABLE namespace (created_ms INTEGER NOT NULL);
INSERT INTO namespace VALUES (CAST(strftime('%s', 'now') AS INTEGER) * 1000);
CREATE TABLE entity (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT    NOT NULL UNIQUE COLLATE NOCASE,
    kind        TEXT    NOT NULL,
    description TEXT    NOT NULL,      -- JSON
    created_ms  INTEGER NOT NULL,
    updated_ms  INTEGER NOT NULL,
    accessed_ms INTEGER NOT NULL       -- written from time to time: enough for AutoDeleteOnIdle
);
CREATE TABLE mailbox (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: rows may linger
    entity        INTEGER NOT NULL,
    kind          INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL DEFAULT 0,
    active        INTEGER NOT NULL DEFAULT 0,
    deferred      INTEGER NOT NULL DEFAULT 0,
    scheduled     INTEGER NOT NULL DEFAULT 0,
    bytes         INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE message (
    id             INTEGER PRIMARY KEY,
    state          INTEGER NOT NULL,
    enqueued_ms    INTEGER NOT NULL,
    expires_ms     INTEGER,
    due_ms         INTEGER,
    delivery_count INTEGER NOT NULL,
    session_id     TEXT,               -- only where the queue requires sessions
    size           INTEGER NOT NULL,
    extra          BLOB,               -- what a plain message does not have; see message.py
    bare           BLOB    NOT NULL    -- the bytes, or the id of the row of body that has them
);
CREATE TABLE body (                    -- what several subscriptions of a topic share
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    refs INTEGER NOT NULL,
    bare BLOB    NOT NULL
);
CREATE INDEX message_by_expiry  ON message (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX message_by_due     ON message (due_ms)     WHERE due_ms IS NOT NULL;
CREATE INDEX message_by_session ON message (session_id, state) WHERE session_id IS NOT NULL;
CREATE TABLE seen (                    -- message ids inside the duplicate detection window
    mailbox    INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    until_ms   INTEGER NOT NULL,
    PRIMARY KEY (mailbox, message_id)
) WITHOUT ROWID;
CREATE INDEX seen_by_end ON seen (until_ms);
CREATE TABLE session_state (
    mailbox    INTEGER NOT NULL,
    session_id TEXT    NOT NULL,
    state      BLOB    NOT NULL,
    updated_ms INTEGER NOT NULL,
    PRIMARY KEY (mailbox, session_id)
) WITHOUT ROWID;
CREATE TABLE garbage (mailbox INTEGER PRIMARY KEY);  -- deleted; its rows go in small portions
"""


def lock_file(path: Path) -> IO[str]:
    """Lock the data file against other brokers while the returned file is open."""
    try:
        handle = open(path.with_suffix(".lock"), "a+", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise DataFileError(
            f"the lock of data file {path} cannot be opened: {error.strerror}"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        handle.close()
        raise DataFileError(
            f"data file {path} is in use by another broker (process {owner}): stop it, or use "
            "another folder"
        ) from None
    handle.seek(0)
    handle.truncate()
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around the first read of a file: errors name the file."""
    try:
        yield
    except (sqlite3.DatabaseError, ValueError) as error:
        raise DataFileError(
            f"data file {path} cannot be used: {error}. It is damaged, or not a pairbus file"
        ) from error


def open_writer(path: Path, *, durable: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    _check(db, path)
    db.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on the disk when it returns. A temporary file does not need that.
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    db.execute("PRAGMA wal_autocheckpoint = 4000")
    db.execute("PRAGMA journal_size_limit = 67108864")
    db.execute("PRAGMA cache_size = -16384")
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA cache_size = -8192")
    return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        db.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {VERSION}; COMMIT;"
        )
    elif application != APPLICATION_ID:
        raise DataFileError(f"{path} is a database, but not one of a pairbus broker")
    elif version > VERSION:
        raise DataFileError(
            f"data file {path} has format {version}, made by a newer pairbus; this one reads up to "
            f"{VERSION}"
        )
