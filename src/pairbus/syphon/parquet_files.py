"""Parquet files in one folder for each day, written durably, and merged when there are many.

A file is on the disk, whole, under its final name when `write_rows` returns. If a merge is
interrupted, rows exist twice, but none is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pairbus.errors import requires_extra

with requires_extra("the syphon's ledger", "spark"):
    import pyarrow as pa
    from pyarrow import parquet

logger = logging.getLogger("pairbus.syphon")

TIME: Final = pa.timestamp("ms", tz="UTC")
FILES_MAX: Final = 50


def write_rows(folder: Path, name: str, rows: Sequence[Any], schema: pa.Schema) -> list[Path]:
    """Write a file of this name for each day that the rows are of, by their attribute `at_ms`."""
    by_day: dict[str, list[Any]] = {}
    for row in rows:
        day = datetime.fromtimestamp(row.at_ms / 1000, UTC).strftime("%Y-%m-%d")
        by_day.setdefault(day, []).append(row)
    return [
        _write(folder / f"day={day}", name, _table(some, schema)) for day, some in by_day.items()
    ]


def attribute_of(field: pa.Field) -> str:
    """A column of times is the attribute of the same name with `_ms` at its end."""
    return f"{field.name}_ms" if field.type == TIME else str(field.name)


def _table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    columns = {field.name: [getattr(row, attribute_of(field)) for row in rows] for field in schema}
    return pa.table(columns, schema=schema)


def _write(folder: Path, name: str, table: pa.Table) -> Path:
    # Every time, because the folder may have been deleted.
    make_folder(folder)
    path, unfinished = folder / name, folder / f".{name}.part"
    with unfinished.open("wb") as file:
        parquet.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    _sync_names(folder)
    return path


def make_folder(folder: Path) -> None:
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        _sync_names(each.parent)


def _sync_names(folder: Path) -> None:
    """A new name in a folder outlives a power cut only after this."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


class MergedFiles:
    """The files of one writer. 50 of them become one, and 50 of those again, and so on."""

    def __init__(self, *, levels_max: int | None = None) -> None:
        """`levels_max`: files that were merged this often are large, and stay as they are."""
        self._levels_max = levels_max
        self._files: dict[Path, list[list[Path]]] = {}
        """By folder: new files, files merged from these, files merged from those, and so on."""
        self._merge_count = 0

    def __contains__(self, path: Path) -> bool:
        return any(path in level for level in self._files.get(path.parent, []))

    def add(self, path: Path, *, level: int = 0) -> None:
        levels = self._files.setdefault(path.parent, [])
        if level == len(levels):
            levels.append([])
        levels[level].append(path)
        if len(levels[level]) >= FILES_MAX and level != self._levels_max:
            files, levels[level] = levels[level], []
            merged = self._merge(files)
            if merged is not None:
                self.add(merged, level=level + 1)

    def finish(self, *, but: Sequence[Path] = ()) -> None:
        """Merge the files of each day into one, except for the days of these files."""
        for folder in [each for each in self._files if each not in {one.parent for one in but}]:
            levels = self._files.pop(folder)
            files = [file for level in levels[: self._levels_max] for file in level]
            if len(files) > 1:
                self._merge(files)

    def _merge(self, files: list[Path]) -> Path | None:
        """Replace several files by one. If that fails they stay as they are."""
        kind, run = files[0].stem.split("-", 1)
        run = run.rsplit("-", 1)[0]
        self._merge_count += 1
        try:
            tables = [parquet.read_table(file, partitioning=None) for file in files]
            name = f"{kind.removesuffix('s')}s-{run}-{self._merge_count:04d}.parquet"
            merged = _write(files[0].parent, name, pa.concat_tables(tables))
            for file in files:
                file.unlink()
        except (OSError, pa.ArrowException) as error:
            logger.warning("cannot merge %s files of the ledger: %s", len(files), error)
            return None
        return merged
