"""The ledger: receipts as Parquet files, in one folder for each day.

The rows of a round are on the disk, under their final name, before the next round begins. From time
to time, and at the end, many small files are merged into one, and many of those again, so that a
day of rounds every other second is some dozens of files. If a merge is interrupted, rows exist
twice, but none is missing. Rows have a key (`KEY`), so a reader drops the second copy.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pairbus.cost.estimate import LedgerTotals
from pairbus.errors import OptionsError, requires_extra
from pairbus.syphon.receipts import Receipt, ReceiptOutcome

with requires_extra("the syphon's ledger", "spark"):
    import pyarrow as pa
    from pyarrow import parquet

logger = logging.getLogger("pairbus.syphon")

_TIME: Final = pa.timestamp("ms", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("at", _TIME, nullable=False),
        pa.field("first_enqueued", _TIME),
        pa.field("last_enqueued", _TIME),
        pa.field("longest_wait_ms", pa.int64(), nullable=False),
        pa.field("duplicates_possible", pa.int64(), nullable=False),
        pa.field("waits", pa.list_(pa.int64()), nullable=False),
    ]
)
"""One row is one receipt. A column of times is the field of the same name with `_ms` at its end."""
KEY: Final = ("run", "round", "queue", "path", "outcome", "reason")
FILES_MAX: Final = 50
UNWRITTEN_MAX: Final = 10_000
READ_ATTEMPTS: Final = 20
_DAY_MS: Final = 86_400_000


class ParquetLedger:
    """Writes a ledger. Any number of syphons may write to the same folder.

    A disk that is full must not hold up messages. So rows that cannot be written are kept, up to
    10,000 of them, and written with the next round.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        try:
            _make_folder(self._folder)
        except OSError as error:
            raise OptionsError(
                f"cannot create the ledger's folder {self._folder}: {error}"
            ) from None
        self._files: dict[str, list[list[Path]]] = {}
        """By day: files of rounds, files merged from these, files merged from those, and so on."""
        self._merge_count = 0
        self._unwritten: list[Receipt] = []
        self.error = ""
        """Why the last rows could not be written; empty if all were."""

    def append(self, receipts: Sequence[Receipt]) -> None:
        """Returns when the rows are on the disk, or when writing has failed: see `error`."""
        self._unwritten = [*self._unwritten, *receipts][-UNWRITTEN_MAX:]
        try:
            self._write_receipts(self._unwritten)
        except OSError as error:
            if str(error) != self.error:
                logger.warning("cannot write to the ledger, will try again: %s", error)
            self.error = str(error)
        else:
            self._unwritten, self.error = [], ""

    def close(self) -> None:
        """Write what is left, and merge the files of each day into one."""
        self.append(())
        for day in list(self._files):
            self._finish(day)

    def _write_receipts(self, receipts: Sequence[Receipt]) -> None:
        # If this fails halfway, some rows are written twice. A reader counts them once.
        by_day: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            day = datetime.fromtimestamp(receipt.at_ms / 1000, UTC).strftime("%Y-%m-%d")
            by_day.setdefault(day, []).append(receipt)
        for day, some in by_day.items():
            name = f"round-{some[0].run}-{some[0].round:08d}.parquet"
            self._keep(day, 0, self._write(day, name, _table(some)))
        for day in [each for each in self._files if by_day and each < min(by_day)]:
            self._finish(day)  # that day is over

    def _finish(self, day: str) -> None:
        files = [file for level in self._files.pop(day) for file in level]
        if len(files) > 1:
            self._merge(day, files)

    def _keep(self, day: str, level: int, path: Path) -> None:
        levels = self._files.setdefault(day, [])
        if level == len(levels):
            levels.append([])
        levels[level].append(path)
        if len(levels[level]) >= FILES_MAX:
            files, levels[level] = levels[level], []
            merged = self._merge(day, files)
            if merged is not None:
                self._keep(day, level + 1, merged)

    def _merge(self, day: str, files: list[Path]) -> Path | None:
        """Replace several files by one. If that fails they stay as they are."""
        run = files[0].name.removeprefix("rounds-").removeprefix("round-").rsplit("-", 1)[0]
        self._merge_count += 1
        try:
            tables = [parquet.read_table(file, partitioning=None) for file in files]
            name = f"rounds-{run}-{self._merge_count:04d}.parquet"
            merged = self._write(day, name, pa.concat_tables(tables))
            for file in files:
                file.unlink()
        except (OSError, pa.ArrowException) as error:
            logger.warning("cannot merge %s files of the ledger: %s", len(files), error)
            return None
        return merged

    def _write(self, day: str, name: str, table: pa.Table) -> Path:
        folder = self._folder / f"day={day}"
        # Every time, because the folder may have been deleted.
        _make_folder(folder)
        path, unfinished = folder / name, folder / f".{name}.part"
        with unfinished.open("wb") as file:
            parquet.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        _sync_names(folder)
        return path


def _make_folder(folder: Path) -> None:
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


def _table(receipts: Sequence[Receipt]) -> pa.Table:
    return pa.table(
        {
            field.name: [getattr(receipt, _attribute(field)) for receipt in receipts]
            for field in SCHEMA
        },
        schema=SCHEMA,
    )


def _attribute(field: pa.Field) -> str:
    return f"{field.name}_ms" if field.type == _TIME else str(field.name)


# --- reading --------------------------------------------------------------------------------------


def read_ledger(folder: str | Path) -> list[Receipt]:
    """All rows of a ledger, each once. A syphon may write to it at the same time.

    Raises OptionsError if the folder holds no ledger; the text says what is wrong.
    """
    for _ in range(READ_ATTEMPTS):
        try:
            receipts = [each for file in ledger_files(Path(folder)) for each in _read(file)]
        except FileNotFoundError:
            continue  # a syphon has just merged it with others: list the folder again
        return list({receipt.key: receipt for receipt in receipts}.values())
    raise OptionsError(f"cannot read the ledger in {folder}: its files change all the time")


def ledger_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise OptionsError(f"there is no ledger: {folder} is not a folder")
    files = sorted(folder.glob("day=*/*.parquet"))
    if not files:
        raise OptionsError(
            f"there is no ledger in {folder}: no file matches day=*/*.parquet. `pairbus syphon "
            "--ledger DIR` writes one as soon as it finds messages"
        )
    return files


def _read(file: Path) -> list[Receipt]:
    try:
        table = parquet.read_table(file, partitioning=None)
        missing = sorted(set(SCHEMA.names) - set(table.column_names))
        if missing:
            raise OptionsError(
                f"{file} is not a file of a syphon's ledger: it has no column {', '.join(missing)}"
            )
        table = table.select(SCHEMA.names).cast(SCHEMA)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise OptionsError(
            f"{file} is not a readable Parquet file: {str(error).splitlines()[0]}"
        ) from None
    columns: dict[str, Any] = {}
    for field, column in zip(SCHEMA, table.columns, strict=True):
        values = column.cast(pa.int64()) if field.type == _TIME else column
        columns[_attribute(field)] = values.to_pylist()
    columns["outcome"] = map(ReceiptOutcome, columns["outcome"])
    columns["waits"] = map(tuple, columns["waits"])
    rows = zip(*columns.values(), strict=True)
    return [Receipt(**dict(zip(columns, row, strict=True))) for row in rows]


def totals_of(receipts: Sequence[Receipt]) -> LedgerTotals:
    """What a ledger adds up to, to compute its price."""
    counts: Counter[ReceiptOutcome] = Counter()
    sizes: Counter[ReceiptOutcome] = Counter()
    for receipt in receipts:
        counts[receipt.outcome] += receipt.count
        sizes[receipt.outcome] += receipt.bytes
    home, waiting = ReceiptOutcome.BROUGHT_HOME, ReceiptOutcome.WAITING
    times = [receipt.at_ms for receipt in receipts]
    return LedgerTotals(
        brought_home=counts[home],
        brought_home_bytes=sizes[home],
        waiting=counts[waiting],
        waiting_bytes=sizes[waiting],
        other=counts.total() - counts[home] - counts[waiting],
        other_bytes=sizes.total() - sizes[home] - sizes[waiting],
        queues=len({receipt.queue.lower() for receipt in receipts}),
        days=(max(times) - min(times)) / _DAY_MS if times else 0.0,
    )
