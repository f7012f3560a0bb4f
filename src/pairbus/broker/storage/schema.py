"""The data file: its tables, and the checks before it is used.

One SQLite file per namespace. A message's row id is its mailbox and its sequence number in one
integer (see `message.py`), so the messages of a mailbox lie together and in order. Indexes are
partial: a plain message pays for none of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from pairbus.broker.storage.lock import check_content
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

_DISK_CAUSES: Final = {
    sqlite3.SQLITE_FULL: "Make room on its disk, and start again",
    sqlite3.SQLITE_IOERR: "Its disk does not work, or is full",
}


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around the first read of a file: errors name the file."""
    try:
        yield
    except (sqlite3.DatabaseError, ValueError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        cause = _DISK_CAUSES.get(code, "It is damaged, or not a pairbus file")
        raise DataFileError(f"data file {path} cannot be used: {error}. {cause}") from error


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is wrong, and not the disk or a statement."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def find_damage(path: Path, should_stop: Callable[[], bool] = lambda: False) -> list[str]:
    """Read the whole file, on any thread. Returns what is wrong, at most ten findings."""
    with closing(open_reader(path)) as db:
        db.set_progress_handler(should_stop, 10_000)
        try:
            findings = [str(row[0]) for row in db.execute("PRAGMA quick_check(10)")]
        except sqlite3.DatabaseError as error:
            return [] if should_stop() else [str(error)]
    return [] if findings == ["ok"] else findings


def examine(path: Path) -> list[str]:
    """What is wrong with a data file, which a broker may be using. Changes nothing."""
    try:
        check_content(path)
        with readable(path), closing(open_reader(path)) as db:
            if _format(db, path) is None:
                return ["it is empty"]
    except DataFileError as error:
        return [str(error)]
    return find_damage(path)


def open_writer(path: Path, *, durable: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    if _format(db, path) is None:
        db.executescript(
            f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {VERSION}; COMMIT;"
        )
    db.execute("PRAGMA journal_mode = WAL")
    # FULL: a commit is on the disk when it returns. A temporary file does not need that.
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    # A checkpoint, which a commit waits for, every 16 MB. After a peak the log shrinks to 64 MB.
    db.execute("PRAGMA wal_autocheckpoint = 4000")
    db.execute("PRAGMA journal_size_limit = 67108864")
    db.execute("PRAGMA cache_size = -16384")
    return db


def open_reader(path: Path) -> sqlite3.Connection:
    # Read-only also in that it leaves the log alone when it is the last one to close the file.
    uri = f"{path.absolute().as_uri()}?mode=ro"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA cache_size = -8192")
    return db


def _format(db: sqlite3.Connection, path: Path) -> int | None:
    """The version of the file's format; None if the file is empty."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0:
        return None
    if application != APPLICATION_ID:
        raise DataFileError(f"{path} is a database, but not one of a pairbus broker")
    if version > VERSION:
        raise DataFileError(
            f"data file {path} has format {version}, made by a newer pairbus; this one reads up to "
            f"{VERSION}"
        )
    return int(version)
