"""The ledger: receipts as Parquet files, in one folder for each day.

Each round's rows are on the disk, under their final name, before the next round begins. Many small
files are made into one from time to time and at the end, and many of these again, so that a day of
rounds every other second is some dozens of files. If that is interrupted, rows are there twice,
never missing; they have keys (`KEY`), so whoever reads drops the second.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.errors import OptionsError
from pairbus.syphon.receipts import COLUMNS, Receipt, row

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger("pairbus.syphon")

KEY: Final = ("run", "round", "queue", "path", "outcome", "reason")
FILES_MAX: Final = 50


class ParquetLedger:
    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionsError(
                f"the ledger's folder {self._folder} cannot be made: {error}"
            ) from None
        self._written: dict[str, list[list[Path]]] = {}
        """By day: files of rounds, files made of such, and so on."""
        self._merged = 0

    def append(self, receipts: Sequence[Receipt]) -> None:
        """Returns when they are on the disk. Raises OSError where that cannot be; then it may be
        tried again, for what is there twice counts once."""
        by_day: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            day = datetime.fromtimestamp(receipt.at_ms / 1000, UTC).strftime("%Y-%m-%d")
            by_day.setdefault(day, []).append(receipt)
        for day, some in by_day.items():
            name = f"round-{some[0].run}-{some[0].round:08d}.parquet"
            self._keep(day, 0, self._write(day, name, _table(some)))
        for day in [each for each in self._written if by_day and each < min(by_day)]:
            self._finish(day)  # nothing more will come for it

    def close(self) -> None:
        for day in list(self._written):
            self._finish(day)

    def _finish(self, day: str) -> None:
        files = [file for level in self._written.pop(day) for file in level]
        if len(files) > 1:
            self._merge(day, files)

    def _keep(self, day: str, level: int, path: Path) -> None:
        levels = self._written.setdefault(day, [])
        if level == len(levels):
            levels.append([])
        levels[level].append(path)
        if len(levels[level]) >= FILES_MAX:
            files, levels[level] = levels[level], []
            merged = self._merge(day, files)
            if merged is not None:
                self._keep(day, level + 1, merged)

    def _merge(self, day: str, files: list[Path]) -> Path | None:
        """One file of many. Where that is not possible they stay as they are."""
        import pyarrow as arrow
        from pyarrow import parquet

        run = files[0].name.removeprefix("rounds-").removeprefix("round-").rsplit("-", 1)[0]
        self._merged += 1
        try:
            tables = [parquet.read_table(file, partitioning=None) for file in files]
            name = f"rounds-{run}-{self._merged:04d}.parquet"
            merged = self._write(day, name, arrow.concat_tables(tables))
            for file in files:
                file.unlink()
        except (OSError, arrow.ArrowException) as error:
            logger.warning("files of the ledger in %s stay many: %s", self._folder, error)
            return None
        return merged

    def _write(self, day: str, name: str, table: pyarrow.Table) -> Path:
        from pyarrow import parquet

        folder = self._folder / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        path, unfinished = folder / name, folder / f".{name}.part"
        with unfinished.open("wb") as file:
            parquet.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        # Its name is to outlive a power cut, too.
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
        return path


def _table(receipts: Sequence[Receipt]) -> pyarrow.Table:
    import pyarrow as arrow

    rows = [row(receipt) for receipt in receipts]
    columns: dict[str, list[Any]] = {
        column.name: [values[place] for values in rows] for place, column in enumerate(COLUMNS)
    }
    return arrow.table(columns, schema=schema())


def schema() -> pyarrow.Schema:
    import pyarrow as arrow

    kinds = {
        "string": arrow.string(),
        "int": arrow.int32(),
        "long": arrow.int64(),
        "timestamp": arrow.timestamp("ms", tz="UTC"),
        "longs": arrow.list_(arrow.int64()),
    }
    return arrow.schema(
        [arrow.field(each.name, kinds[each.type], nullable=each.is_nullable) for each in COLUMNS]
    )
