"""The file of an outbox: messages that neither namespace accepted, in SQLite, in their order.

A message is on the disk when `put` returns (WAL, `synchronous=FULL`, and the folder is synced when
the file is created). If the process dies in `put`, the call has not returned, and the message is
there or not. If it dies between the acknowledgement of a namespace and `delete`, the message is
sent once more at the next start, under the same id.

One client uses a file at a time: SQLite keeps it locked as long as it is open. Nothing is opened
before `open` is called. Every method may wait for the disk, and may be called from any thread.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakSet

from pairbus.errors import OutboxError

APPLICATION_ID: Final = 0x70616F62  # "paob"
VERSION: Final = 1
ROW_BYTES: Final = 256
"""What a message needs in the file, in addition to its own bytes; a generous estimate."""
_SHRINK_BYTES: Final = 1 << 20

_SCHEMA: Final = """
CREATE TABLE outbox (namespace TEXT NOT NULL);
CREATE TABLE message (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order
    entity     TEXT    NOT NULL COLLATE NOCASE,
    stored_ms  INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    held       TEXT,                               -- why it is not sent any more
    amqp       BLOB    NOT NULL
);
CREATE INDEX message_by_entity ON message (entity, id) WHERE held IS NULL;
"""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: int
    entity: str
    stored_ms: int
    message_id: str
    held: str | None
    """Why it is not sent any more. None while it waits."""
    amqp: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCounts:
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Messages that wait, by entity in lower case."""
    held: int = 0
    message_bytes: int = 0
    """With `ROW_BYTES` for each message."""
    oldest_ms: int | None = None
    """When the oldest message that waits was stored, in milliseconds since 1970."""


class OutboxFile:
    def __init__(
        self,
        path: Path,
        *,
        namespace: str | None = None,
        bytes_max: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`namespace`: the primary's name. The file of another one is refused, if it holds
        messages. None accepts any file, and creates none.
        """
        self.path = path
        self._namespace = namespace
        self._bytes_max = bytes_max
        self.clock = clock
        # Reentrant: a signal handler may send, or close the client, while its thread is in here.
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._is_closed = False
        self._sent: dict[int, StoredMessage] = {}
        """By id: messages that a namespace has, but that could not be deleted yet."""
        self.counts = OutboxCounts()
        """What the file held after the last change."""
        self.entities: dict[str, str] = {}
        """By entity in lower case: how it was spelled first."""

    @property
    def is_open(self) -> bool:
        return self._db is not None

    @property
    def file_bytes(self) -> int:
        """The size of the file and of its log, as long as the file is open."""
        if self._db is None:
            return 0
        size = 0
        for each in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with suppress(FileNotFoundError):  # SQLite deletes the log when the file is closed
                size += each.stat().st_size
        return size

    def open(self) -> None:
        """Open the file, or create it. No effect if it is open. Raises OutboxError."""
        with self._lock:
            self._open()

    def _open(self) -> sqlite3.Connection:
        if self._is_closed:
            raise OutboxError(_CLOSED.format(self.path))
        if self._db is None:
            with _translated(self.path):
                if self._namespace is not None:
                    _create(self.path)
                self._db = self._connect()
            _opened.add(self)
        return self._db

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        db = sqlite3.connect(
            uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first lock: it is kept
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN EXCLUSIVE")
            self._check(db)
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA journal_size_limit = 1048576")
            _sync_folder(self.path.parent)  # the names of the file and of its log
            self._count_rows(db)
        except BaseException:
            db.close()
            raise
        return db

    def _check(self, db: sqlite3.Connection) -> None:
        """Creates the tables of a new file. Raises OutboxError if it is not a file of ours."""
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables and self._namespace is not None:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute("INSERT INTO outbox VALUES (?)", (self._namespace,))
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            return
        if application != APPLICATION_ID:
            raise OutboxError(
                f"{self.path} is not the file of an outbox: give the outbox another path"
            )
        if version > VERSION:
            raise OutboxError(
                f"outbox file {self.path} has format {version}, made by a newer pairbus; this one "
                f"reads up to {VERSION}: update pairbus, or give the outbox another path"
            )
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        (owner,) = db.execute("SELECT namespace FROM outbox").fetchone()
        if self._namespace is None or owner == self._namespace:
            return
        (messages,) = db.execute("SELECT count(*) FROM message").fetchone()
        if messages:
            raise OutboxError(
                f"outbox file {self.path} holds {messages} messages for namespace {owner!r}, and "
                f"this client sends to {self._namespace!r}: give the outbox another path, or set "
                f"primary_namespace_name to {owner!r} if they are the same"
            )
        db.execute("UPDATE outbox SET namespace = ?", (self._namespace,))

    # --- messages ---------------------------------------------------------------------------------

    def put(self, entity: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """Store messages, each with its id, all or none. They are on the disk when this returns."""
        added = sum(len(amqp) + ROW_BYTES for _, amqp in messages)
        now_ms = int(self.clock() * 1000)
        with self._lock:
            self._check_room(added)
            with self._change() as db:
                entity = self._spelled(entity)
                db.executemany(
                    "INSERT INTO message (entity, stored_ms, message_id, amqp) VALUES (?, ?, ?, ?)",
                    [(entity, now_ms, message_id, amqp) for message_id, amqp in messages],
                )
                self._count(db, {entity: len(messages)}, message_bytes=added)

    def _check_room(self, added: int) -> None:
        """Before the transaction: a Ctrl-C while it is rolled back would leave it open."""
        self.open()  # the counts are known then
        before = self.counts.message_bytes
        if self._bytes_max is not None and before + added > self._bytes_max:
            raise OutboxError(
                f"outbox file {self.path} is full: its messages have {before} bytes, "
                f"{added} more are needed, and max_bytes is {self._bytes_max}; it has room "
                "again when a namespace accepts messages"
            )

    def oldest(self, entity: str, *, count: int, bytes_max: int) -> list[StoredMessage]:
        """The oldest messages of an entity that wait: at least one, if there is one."""
        found: list[StoredMessage] = []
        size = 0
        with self._lock, _translated(self.path):
            rows = self._open().execute(
                f"{_SELECT} WHERE entity = ? AND held IS NULL ORDER BY id",
                (self._spelled(entity),),
            )
            for row in rows:
                message = StoredMessage(*row)
                if message.id in self._sent:
                    continue
                size += len(message.amqp)
                if found and (len(found) == count or size > bytes_max):
                    break
                found.append(message)
        return found

    def delete(self, messages: Sequence[StoredMessage]) -> None:
        """A namespace has these messages. If the file cannot be written, they are not returned
        again by `oldest`, and the next call deletes them.
        """
        with self._lock, _translated(self.path):
            self._sent.update({each.id: each for each in messages})
            gone = self._sent.values()
            with self._transaction() as db:
                db.executemany("DELETE FROM message WHERE id = ?", [(each.id,) for each in gone])
                waiting = Counter(each.entity for each in gone if each.held is None)
                self._count(
                    db,
                    {entity: -count for entity, count in waiting.items()},
                    held=-sum(each.held is not None for each in gone),
                    message_bytes=-sum(len(each.amqp) + ROW_BYTES for each in gone),
                )
            self._sent.clear()
            if not self.counts.message_bytes and self.file_bytes > _SHRINK_BYTES:
                self._shrink()

    def hold(self, messages: Sequence[StoredMessage], reason: str) -> None:
        """These messages, which wait, stay in the file and are not sent any more."""
        with self._change() as db:
            rows = [(reason, each.id) for each in messages]
            db.executemany("UPDATE message SET held = ? WHERE id = ?", rows)
            waiting = Counter(each.entity for each in messages)
            self._count(
                db, {entity: -count for entity, count in waiting.items()}, held=len(messages)
            )

    def messages(self) -> Iterator[StoredMessage]:
        """All messages, oldest first, those that are held as well."""
        last = 0
        while True:
            with self._lock, _translated(self.path):
                found = self._open().execute(f"{_SELECT} WHERE id > ? ORDER BY id LIMIT 1", (last,))
                row = found.fetchone()
            if row is None:
                return
            message = StoredMessage(*row)
            last = message.id
            yield message

    @property
    def namespace(self) -> str:
        """The name of the primary for which the file was made."""
        with self._lock, _translated(self.path):
            (name,) = self._open().execute("SELECT namespace FROM outbox").fetchone()
        return str(name)

    def close(self) -> None:
        """For good. The messages stay in the file."""
        with self._lock:
            self._is_closed = True
            db, self._db = self._db, None
            _opened.discard(self)
            if db is not None:
                with suppress(sqlite3.Error):  # on a full disk; its log keeps everything
                    db.close()

    def _spelled(self, entity: str) -> str:
        """All messages of an entity have its first spelling: SQLite compares letters without regard
        to case only if they are ASCII.
        """
        return self.entities.get(entity.lower(), entity)

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translated(self.path), self._transaction() as db:
            yield db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Under the lock. What it yields is committed at the end."""
        db = self._open()
        self._check_idle(db)
        try:
            db.execute("BEGIN IMMEDIATE")  # in the `try`: a Ctrl-C can come right after it
            yield db
            db.execute("COMMIT")
        except BaseException:
            # SQLite may have rolled back already. After a Ctrl-C, the change may be committed.
            with suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
                self._count_rows(db)
            raise

    def _check_idle(self, db: sqlite3.Connection) -> None:
        if db.in_transaction:
            raise OutboxError(
                f"outbox file {self.path} is being written by the call that this signal handler "
                "interrupts: send again when the handler has returned"
            )

    def _count(
        self,
        db: sqlite3.Connection,
        waiting: Mapping[str, int],
        *,
        held: int = 0,
        message_bytes: int = 0,
    ) -> None:
        """Adds to the counts. Counting the rows would take longer with each of them."""
        counts = Counter(self.counts.waiting)
        for entity, count in waiting.items():
            counts[entity.lower()] += count
            self.entities.setdefault(entity.lower(), entity)
        oldest = db.execute(
            "SELECT stored_ms FROM message WHERE held IS NULL ORDER BY id LIMIT 1"
        ).fetchone()
        self.counts = OutboxCounts(
            waiting={entity: count for entity, count in counts.items() if count},
            held=self.counts.held + held,
            message_bytes=self.counts.message_bytes + message_bytes,
            oldest_ms=None if oldest is None else oldest[0],
        )

    def _count_rows(self, db: sqlite3.Connection) -> None:
        waiting = db.execute(
            "SELECT entity, count(*) FROM message WHERE held IS NULL GROUP BY entity"
        ).fetchall()
        held, size = db.execute(
            "SELECT count(held), coalesce(sum(length(amqp) + ?), 0) FROM message", (ROW_BYTES,)
        ).fetchone()
        self.counts = OutboxCounts()
        self._count(db, dict(waiting), held=held, message_bytes=size)

    def _shrink(self) -> None:
        """Give the disk space of an empty file back. The file stays: another process may be about
        to open it.
        """
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.execute("VACUUM")
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


_CLOSED: Final = "outbox file {} has been closed with its client"
_SELECT: Final = "SELECT id, entity, stored_ms, message_id, held, amqp FROM message"


def _create(path: Path) -> None:
    """Only the owner may read the file: it holds messages. SQLite gives its log the same mode."""
    try:
        # Not if it exists: closing a descriptor would end the locks of another client's connection
        # to it in this process.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        path.chmod(0o600)


def _sync_folder(folder: Path) -> None:
    """A name that was created in a folder survives a power cut only after this."""
    if hasattr(os, "O_DIRECTORY"):  # not on Windows
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Errors name the file, and what would help."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        if isinstance(error, sqlite3.ProgrammingError):  # by a signal handler, during this call
            text = _CLOSED.format(path)
        elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            text = (
                f"outbox file {path} is in use by another client or process: give each client a "
                "file of its own"
            )
        elif name.startswith("SQLITE_FULL"):
            text = f"outbox file {path} cannot be written: the disk is full; free some space"
        elif name.startswith("SQLITE_NOTADB"):
            text = (
                f"{path} is not the file of an outbox, or its beginning is damaged: give another "
                "path, or restore the file from a backup; until then its messages are not sent"
            )
        elif name.startswith("SQLITE_CORRUPT") or not name:
            text = (
                f"outbox file {path} is damaged ({error}): restore it from a backup, or move it "
                "away; its messages are then not sent"
            )
        else:
            text = f"outbox file {path} cannot be used: {error}"
        raise OutboxError(text) from error
    except OSError as error:
        raise OutboxError(f"outbox file {path} cannot be used: {error.strerror}") from error


# --- forks ----------------------------------------------------------------------------------------

_opened: WeakSet[OutboxFile] = WeakSet()


def _keep_connections() -> None:
    """In a child process: never close the parent's connections. SQLite would delete the log, with
    the messages that the parent has stored there.
    """
    connections = [each._db for each in list(_opened) if each._db is not None]
    if connections:
        import ctypes  # not every program needs it

        for connection in connections:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_keep_connections)
