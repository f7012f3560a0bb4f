"""A line for each message in the ledger, for those who must account for every single one.

A task writes the lines of a batch after the primary has acknowledged its messages, and before it
settles them. So a message that has left the backlog has a line, whatever is killed. A message that
was not settled goes home again, and then has two lines: it may have arrived twice. A merge of files
that was interrupted leaves lines twice as well, but these are equal in every column.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from pairbus.errors import requires_extra
from pairbus.syphon.parquet_files import TIME, write_rows
from pairbus.syphon.receipts import MessageLine

with requires_extra("--ledger-messages", "spark"):
    import pyarrow as pa

logger = logging.getLogger("pairbus.syphon")

FOLDER: Final = "_messages"
"""Inside the ledger. Spark ignores names with an underscore when it reads the ledger itself."""
SCHEMA: Final = pa.schema(
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


def write_lines(folder: Path, lines: Sequence[MessageLine]) -> list[MessageLine]:
    """Returns when the lines are on the disk. Returns those that could not be written.

    A disk that is full must not hold up messages, so the caller tries these again later.
    """
    # Tasks on several machines write to the folder, and the same task may run twice.
    name = f"message-{lines[0].run}-{lines[0].round:08d}{uuid4().hex[:12]}.parquet"
    try:
        write_rows(folder, name, lines, SCHEMA)
    except OSError as error:
        logger.warning("cannot write to the ledger, will try again: %s", error)
        return list(lines[-UNWRITTEN_MAX:])
    return []


def files_of(folder: Path, run: str) -> list[Path]:
    """The files that tasks of a run have written and nobody has merged yet."""
    return sorted(folder.glob(f"day=*/message-{run}-*.parquet"))
