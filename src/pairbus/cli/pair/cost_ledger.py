"""What a ledger adds up to, for its price: read with Arrow alone, which needs no Java machine.

A row that is there twice, because a merge of files was interrupted, counts once.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pairbus.cost.estimate import LedgerTotals
from pairbus.syphon.ledger import KEY
from pairbus.syphon.receipts import Outcome
from pairbus.syphon.report import files_of

_COLUMNS: Final = (*KEY, "count", "bytes", "at")
_DAY_SECONDS: Final = 86_400


def ledger_totals(folder: Path) -> LedgerTotals:
    """Raises OptionsError for a folder without a ledger."""
    rows = _rows(folder)
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    times: list[datetime] = []
    queues: set[str] = set()
    for row in rows:
        counts[row["outcome"]] += row["count"]
        sizes[row["outcome"]] += row["bytes"]
        times.append(row["at"])
        queues.add(row["queue"].lower())
    home, waiting = Outcome.BROUGHT_HOME.value, Outcome.WAITING.value
    return LedgerTotals(
        brought_home=counts[home],
        brought_home_bytes=sizes[home],
        waiting=counts[waiting],
        waiting_bytes=sizes[waiting],
        other=counts.total() - counts[home] - counts[waiting],
        other_bytes=sizes.total() - sizes[home] - sizes[waiting],
        queues=len(queues),
        days=(max(times) - min(times)).total_seconds() / _DAY_SECONDS if times else 0.0,
    )


def _rows(folder: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    while True:
        files = files_of(folder)
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        try:
            for file in files:
                table = parquet.read_table(file, columns=list(_COLUMNS), partitioning=None)
                for row in table.to_pylist():
                    found[tuple(row[name] for name in KEY)] = row
        except FileNotFoundError:
            continue  # a syphon has just made one file of several
        return list(found.values())
