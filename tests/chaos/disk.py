"""A disk that loses power: rebuilds a folder from the log of what a process did to it.

`disk_log.c` writes the log. What was synced is safe. Anything may have happened to the rest: each
sector of a later write is on the disk or not, in any order, and names that were created, changed or
deleted since the last sync of their folder are as before or as after.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

SECTOR = 512


def recorder(folder: Path, log: Path, library: Path) -> dict[str, str]:
    """Compiles `disk_log.c`; returns the variables of a process that it is to record."""
    source = Path(__file__).with_name("disk_log.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "DISK_LOG_FOLDER": str(folder), "DISK_LOG": str(log)}


class Operation(IntEnum):
    """As in `disk_log.c`."""

    START = 0
    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    SYNCED = 5
    UNLINK = 6
    RENAME = 7
    MKDIR = 8


@dataclass(frozen=True, slots=True)
class Record:
    end: int
    """Its end in the log: a position at which the power can go."""
    operation: Operation
    path: str
    offset: int
    data: bytes


_HEAD = struct.Struct("IIIIq")


def read_log(path: Path) -> Iterator[Record]:
    at = 0
    with path.open("rb") as file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            operation, path_size, data_size, _, offset = _HEAD.unpack(head)
            content = file.read(path_size + data_size)
            if len(content) < path_size + data_size:
                return  # the process was killed while it wrote
            at += len(head) + len(content)
            name, data = content[:path_size].decode(), content[path_size:]
            yield Record(at, Operation(operation), name, offset, data)


# --- what is safe, and what is not ----------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _File:
    safe: bytearray = field(default_factory=bytearray)
    later: list[tuple[int, Record]] = field(default_factory=list)
    """Writes since the last sync, with their numbers."""


@dataclass(slots=True)
class _Folder:
    safe: dict[str, _File | _Folder] = field(default_factory=dict)
    """By path."""
    later: list[tuple[int, Record, _File | _Folder | None]] = field(default_factory=list)
    """Changes of names since the last sync."""


class Disk:
    """`play` the records up to a power cut, then `restore` what is left."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._now: dict[str, _File | _Folder] = {self._root: _Folder()}
        """What a running process sees, by path."""
        self._count = self._base = 0

    @classmethod
    def holding(cls, root: Path) -> Disk:
        """A disk that has what is in this folder, safely."""
        disk = cls(root)
        for path in sorted(root.rglob("*")):
            if path.name.endswith("-shm"):
                continue
            node = _Folder() if path.is_dir() else _File(bytearray(path.read_bytes()))
            parent = disk._now[str(path.parent)]
            assert isinstance(parent, _Folder)
            parent.safe[str(path)] = disk._now[str(path)] = node
        return disk

    def play(self, record: Record) -> None:
        number, self._count = self._count, self._count + 1
        operation, path = record.operation, record.path
        if operation is Operation.START:
            self._base = number
        elif operation is Operation.SYNCED:
            self._synced(self._now[path], before=self._base + record.offset)
        elif operation in (Operation.WRITE, Operation.TRUNCATE):
            file = self._now[path]
            assert isinstance(file, _File)
            file.later.append((number, record))
        elif operation is not Operation.SYNC:
            self._change_names(number, record)

    def _change_names(self, number: int, record: Record) -> None:
        path, made = record.path, None
        if record.operation is Operation.CREATE:
            if path in self._now:
                return
            made = self._now[path] = _File()
        elif record.operation is Operation.MKDIR:
            made = self._now[path] = _Folder()
        elif record.operation is Operation.UNLINK:
            del self._now[path]
        else:
            made = self._now[record.data.decode()] = self._now.pop(path)
        parent = self._now[os.path.dirname(path)]
        assert isinstance(parent, _Folder)
        parent.later.append((number, record, made))

    def _synced(self, node: _File | _Folder, *, before: int) -> None:
        done = [one for one in node.later if one[0] < before]
        del node.later[: len(done)]
        if isinstance(node, _File):
            for _, record in done:
                _apply(node.safe, record)
        else:
            for _, record, made in done:
                _rename(node.safe, record, made)

    # --- after the cut ----------------------------------------------------------------------------

    def restore(self, target: Path, choice: random.Random, kept: float) -> None:
        """Write what is left to `target`. `kept`: the share of what was not synced that is there
        nevertheless, 0 to 1.
        """
        target.mkdir()
        self._restore(self._now[self._root], self._root, target, choice, kept)

    def _restore(
        self,
        node: _File | _Folder,
        path: str,
        target: Path,
        choice: random.Random,
        kept: float,
    ) -> None:
        where = target / os.path.relpath(path, self._root)
        if isinstance(node, _File):
            content = bytearray(node.safe)
            for _, record in node.later:
                for piece in _sectors(record):
                    if choice.random() < kept:
                        _apply(content, piece)
            where.write_bytes(content)
            return
        where.mkdir(exist_ok=True)
        names = dict(node.safe)
        # Names are changed in order: a file system keeps a journal of them.
        for _, record, made in node.later[: round(kept * len(node.later))]:
            _rename(names, record, made)
        for name, below in names.items():
            self._restore(below, name, target, choice, kept)


def _sectors(record: Record) -> Iterator[Record]:
    if record.operation is Operation.TRUNCATE:
        yield record
        return
    at, end = record.offset, record.offset + len(record.data)
    while at < end:
        until = min(end, at - at % SECTOR + SECTOR)
        data = record.data[at - record.offset : until - record.offset]
        yield Record(record.end, record.operation, record.path, at, data)
        at = until


def _apply(content: bytearray, record: Record) -> None:
    if record.operation is Operation.TRUNCATE:
        del content[record.offset :]
        content.extend(bytes(record.offset - len(content)))
        return
    content.extend(bytes(max(0, record.offset - len(content))))
    content[record.offset : record.offset + len(record.data)] = record.data


def _rename(
    names: dict[str, _File | _Folder], record: Record, made: _File | _Folder | None
) -> None:
    if record.operation in (Operation.UNLINK, Operation.RENAME):
        names.pop(record.path, None)
    if made is not None:
        names[record.data.decode() or record.path] = made
