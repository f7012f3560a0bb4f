"""The lock of a data file: one broker uses it at a time, and the next one learns how it ended.

A small file beside the data file (`NAME.lock`) holds the owner's process id and the state of the
data file: `open`, `closing` or `closed`. It stays when the broker ends. The data file itself is
locked as well, so that two brokers are refused even if somebody deletes the lock file.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from pairbus.broker.storage.folder import sync_folder
from pairbus.errors import DataFileError

_OPEN: Final = "open"
_CLOSING: Final = "closing"
_CLOSED: Final = "closed"


class DataFileLock:
    def __init__(self, path: Path) -> None:
        """Raises DataFileError if another broker has the file, or if messages have disappeared."""
        self.path = path
        self._note_path = path.with_suffix(".lock")
        self._note = self._open(self._note_path)
        self._data = -1
        try:
            owner, self._found = _read(self._note_path)
            self._lock(self._note, owner)
            # SQLite's own locks are of another kind, and do not mind. They end when a process
            # closes any descriptor of the file: this one is closed after the database.
            self._data = self._open(path)
            self._lock(self._data, owner)
            check_content(path)
            if self._found == _OPEN:
                # A start that is refused closes the database, and SQLite then deletes the log.
                self.mark_closing()
        except BaseException:
            self.release()
            raise

    @property
    def was_closed(self) -> bool:
        """Whether the last broker closed the file cleanly. True for a new file."""
        return self._found in ("", _CLOSED)

    def mark_open(self) -> None:
        """The database is open, and its write-ahead log exists."""
        # The log's name first: otherwise, after a power cut, the log would seem to be lost.
        sync_folder(self.path.parent)
        self._write(_OPEN)

    def mark_closing(self) -> None:
        """From now on the write-ahead log may be absent: SQLite deletes it at the end."""
        self._write(_CLOSING)

    def mark_closed(self) -> None:
        self._write(_CLOSED)

    def release(self) -> None:
        for descriptor in (self._data, self._note):
            if descriptor >= 0:
                os.close(descriptor)
        self._data = self._note = -1

    def _open(self, path: Path) -> int:
        """Only the owner may read the file: it holds messages and keys. SQLite gives its log the
        same mode.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(descriptor, 0o600)
        except OSError as error:
            raise DataFileError(f"{path} cannot be opened: {error.strerror}") from error
        return descriptor

    def _lock(self, descriptor: int, owner: str) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataFileError(
                f"data file {self.path} is in use by another broker (process "
                f"{owner or 'unknown'}): stop it, or use another folder"
            ) from None

    def _write(self, state: str) -> None:
        # Always the same length, so that a full disk does not matter, on most file systems.
        try:
            os.pwrite(self._note, f"{os.getpid():>10} {state:<7}\n".encode("ascii"), 0)
            os.fsync(self._note)
        except OSError as error:
            raise DataFileError(f"{self._note_path} cannot be written: {error.strerror}") from error


def check_content(path: Path) -> None:
    """Raises DataFileError if the lock file shows that messages have disappeared."""
    note = path.with_suffix(".lock")
    _, state = _read(note)
    if state and not (path.exists() and path.stat().st_size):
        raise DataFileError(
            f"data file {path} is empty or missing, but a broker has used it: restore it from a "
            f"backup. To start with an empty namespace, delete {note}"
        )
    log = path.with_name(f"{path.name}-wal")
    if state == _OPEN and not log.exists():
        raise DataFileError(
            f"data file {path} was not closed, and its log {log} is missing, so its last messages "
            f"are gone: restore both from a backup. To use what the data file still holds, delete "
            f"{note}"
        )


def _read(note: Path) -> tuple[str, str]:
    """The process id of the last owner, and the state; each empty if it is not known."""
    text = note.read_text("ascii", "replace") if note.exists() else ""
    owner, state = (*text.split(), "", "")[:2]
    return owner, state
