"""The ledger: receipts as Parquet files, in one folder for each day.

The rows of a round are on the disk, under their final name, before the next round begins. From time
to time, and at the end, many small files are merged into one, and many of those again, so that a
day of rounds every other second is some dozens of files (`parquet_files.py`). If a merge is
interrupted, rows exist twice. Rows have a key (`Receipt.key`), so a reader drops the second copy.

The ledger can also have a line for each message. A task writes the lines of a batch after the
primary has acknowledged its messages, and before it settles them. So a message that has left the
backlog has a line, even if a process was killed. A message that was not settled goes home again,
and then has two lines: it may have arrived twice. An interrupted merge also leaves lines twice, but
these are equal in every column.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pairbus.cost.estimate import LedgerTotals
from pairbus.errors import OptionsError, requires_extra
from pairbus.syphon.parquet_files import TIME, MergedFiles, attribute_of, make_folder, write_rows
from pairbus.syphon.receipts import MessageLine, Receipt, ReceiptOutcome

with requires_extra("the syphon's ledger", "spark"):
    import pyarrow as pa
    from pyarrow import parquet

logger = logging.getLogger("pairbus.syphon")

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
        pa.field("at", TIME, nullable=False),
        pa.field("first_enqueued", TIME),
        pa.field("last_enqueued", TIME),
        pa.field("longest_wait_ms", pa.int64(), nullable=False),
        pa.field("duplicates_possible", pa.int64(), nullable=False),
        pa.field("waits", pa.list_(pa.int64()), nullable=False),
    ]
)
"""One row is one receipt. A column of times is the field of the same name with `_ms` at its end."""
FOLDER: Final = "_messages"
"""Inside the ledger, for the lines of messages. Spark ignores names with an underscore when it
reads the ledger itself."""
LINE_SCHEMA: Final = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),
        pa.field("round", pa.int32(), nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("sequence_number", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("path", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("at", TIME, nullable=False),
    ]
)
UNWRITTEN_MAX: Final = 10_000
MESSAGE_LEVELS_MAX: Final = 2
"""A file of messages that was merged twice has up to a million rows."""
READ_ATTEMPTS: Final = 20
_DAY_MS: Final = 86_400_000


class ParquetLedger:
    """Writes a ledger. Any number of syphons may write to the same folder.

    A disk that is full must not hold up messages. So rows that cannot be written are kept, up to
    10,000 of them, and written with the next round.
    """

    def __init__(self, folder: str | Path, *, messages: bool = False) -> None:
        """`messages`: also write a line for each message."""
        self._folder = Path(folder).absolute()
        self._messages = self._folder / FOLDER if messages else None
        try:
            make_folder(self._messages or self._folder)
        except OSError as error:
            raise OptionsError(
                f"cannot create the ledger's folder {self._folder}: {error.strerror}"
            ) from None
        self._files = MergedFiles()
        self._message_files = MergedFiles(levels_max=MESSAGE_LEVELS_MAX)
        self._unwritten: list[Receipt] = []
        self._unwritten_lines: list[MessageLine] = []
        self.error = ""
        """Why the last rows could not be written; empty if all were."""

    @property
    def messages_folder(self) -> str | None:
        """Where tasks write a line for each message, on their machine; None: nowhere."""
        return None if self._messages is None else str(self._messages)

    def append(self, receipts: Sequence[Receipt], lines: Sequence[MessageLine] = ()) -> None:
        """Returns when the rows are on the disk, or when writing has failed: see `error`.

        `lines`: of messages, if a task could not write them.
        """
        self._unwritten = [*self._unwritten, *receipts][-UNWRITTEN_MAX:]
        self._unwritten_lines = [*self._unwritten_lines, *lines][-UNWRITTEN_MAX:]
        try:
            self._write_receipts(self._unwritten)
        except OSError as error:
            if str(error) != self.error:
                logger.warning("cannot write to the ledger, will try again: %s", error)
            self.error = str(error)
        else:
            self._unwritten, self.error = [], ""
        if self._messages is not None:
            self._write_lines(self._messages, {each.run for each in receipts})

    def close(self) -> None:
        """Write what is left, and merge the files of each day into one."""
        self.append(())
        self._files.finish()
        self._message_files.finish()

    def _write_receipts(self, receipts: Sequence[Receipt]) -> None:
        # If this fails halfway, some rows are written twice. A reader counts them once.
        if receipts:
            name = f"round-{receipts[0].run}-{receipts[0].round:08d}.parquet"
            written = write_rows(self._folder, name, receipts, SCHEMA)
            for path in written:
                self._files.add(path)
            self._files.finish(but=written)  # other days are over

    def _write_lines(self, folder: Path, runs: Iterable[str]) -> None:
        if self._unwritten_lines:
            self._unwritten_lines = write_lines(folder, self._unwritten_lines)
            if self._unwritten_lines:
                self.error = self.error or f"{len(self._unwritten_lines)} lines of messages"
        # Tasks of this round have ended, so their files can be merged.
        for run in runs:
            for path in sorted(folder.glob(f"day=*/message-{run}-*.parquet")):
                if path not in self._message_files:
                    self._message_files.add(path)


def write_lines(folder: Path, lines: Sequence[MessageLine]) -> list[MessageLine]:
    """Waits until the lines are on the disk. Returns those that could not be written.

    A disk that is full must not hold up messages, so the caller tries these again later.
    """
    # Tasks on several machines write to the folder, and the same task may run twice.
    name = f"message-{lines[0].run}-{lines[0].round:08d}{uuid4().hex[:12]}.parquet"
    try:
        write_rows(folder, name, lines, LINE_SCHEMA)
    except OSError as error:
        logger.warning("cannot write to the ledger, will try again: %s", error)
        return list(lines[-UNWRITTEN_MAX:])
    return []


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
    if not os.path.isdir(folder):  # a Path would raise for an impossible name
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
        values = column.cast(pa.int64()) if field.type == TIME else column
        columns[attribute_of(field)] = values.to_pylist()
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
