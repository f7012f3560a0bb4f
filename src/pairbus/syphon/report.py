"""What a ledger tells, asked with Spark SQL: how much came home and when, what it waited and cost.

A row that is there twice, because a merge of files was interrupted, counts once. Times are UTC and
leave SQL as milliseconds, so that no session's time zone touches them. Percentiles are taken here,
of the histograms that SQL has added up. Knows nothing of tables on a screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pairbus.errors import OptionsError
from pairbus.syphon.ledger import KEY, schema
from pairbus.syphon.waits import percentile_ms

OPERATIONS: Final = 4
"""Of a message that takes the detour: into the backlog, out of it, to the primary, out of that."""
GAP: Final = timedelta(minutes=10)
"""Diverted messages of one destination that are further apart belong to two outages."""
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    path: str
    hour: datetime
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    path: str
    messages: int
    median_seconds: float
    p99_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """As the backlog has seen it: from its first message for this destination to its last."""

    path: str
    begin: datetime
    end: datetime
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    path: str
    reason: str
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    into_backlog: int
    out_of_backlog: int
    to_primary: int
    out_of_primary: int
    looked_at_again: int
    """Receives of messages whose destination was not there yet."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    runs: int
    first: datetime
    last: datetime
    brought_home: int
    bytes: int
    dead_lettered: int
    expired: int
    duplicates_possible: int
    hours: tuple[Hour, ...]
    waits: tuple[Waits, ...]
    outages: tuple[Outage, ...]
    dead_letters: tuple[DeadLetters, ...]
    operations: Operations

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = _plain(asdict(self))
        plain["operations"]["total"] = self.operations.total
        assert isinstance(plain, dict)
        return plain


def files_of(folder: Path) -> list[Path]:
    """The ledger's files. Raises OptionsError if that is no ledger, and says what is wrong."""
    from pyarrow import ArrowException, parquet

    if not folder.is_dir():
        raise OptionsError(f"there is no ledger: {folder} is not a folder")
    files = sorted(folder.glob("day=*/*.parquet"))
    if not files:
        raise OptionsError(
            f"there is no ledger in {folder}: no file day=*/*.parquet. `pairbus syphon --ledger "
            "DIR` writes one when it has something to tell"
        )
    wanted = set(schema().names)
    for file in files:
        try:
            lacking = wanted - set(parquet.read_schema(file).names)
        except (ArrowException, OSError) as error:
            raise OptionsError(
                f"{file} is not a readable Parquet file: {str(error).splitlines()[0]}"
            ) from None
        if lacking:
            raise OptionsError(
                f"{file} is not of a ledger of the syphon: it lacks {', '.join(sorted(lacking))}"
            )
    return files


def read(spark: Any, folder: str | Path, *, gap: timedelta = GAP) -> Report:
    """With a SparkSession. Raises OptionsError for a folder without a ledger."""
    while True:
        files = files_of(Path(folder))
        try:
            return _read(spark, files, gap)
        except Exception:
            if all(file.exists() for file in files):
                raise
            # A syphon has just made one file of several. That is rare: the next try will do.


def _read(spark: Any, files: list[Path], gap: timedelta) -> Report:
    rows = spark.read.parquet(*map(_spelled, files))
    rows = rows.dropDuplicates(list(KEY)).cache()
    try:
        rows.createOrReplaceTempView("syphon_ledger_rows")
        spark.sql(_LEDGER).createOrReplaceTempView("syphon_ledger")
        [total] = spark.sql(_TOTALS).collect()
        settled = total.brought_home + total.dead_lettered + total.expired
        return Report(
            runs=total.runs,
            first=_time(total.first_ms),
            last=_time(total.last_ms),
            brought_home=total.brought_home,
            bytes=total.bytes,
            dead_lettered=total.dead_lettered,
            expired=total.expired,
            duplicates_possible=total.duplicates_possible,
            hours=tuple(
                Hour(
                    path=row.path,
                    hour=_time(row.hour * _HOUR_MS),
                    messages=row.messages,
                    bytes=row.bytes,
                )
                for row in spark.sql(_HOURS).collect()
            ),
            waits=_waits(spark.sql(_WAITS).collect()),
            outages=tuple(
                Outage(
                    path=row.path,
                    begin=_time(row.begin_ms),
                    end=_time(row.end_ms),
                    messages=row.messages,
                )
                for row in spark.sql(
                    _OUTAGES, args={"gap_ms": int(gap / timedelta(milliseconds=1))}
                ).collect()
            ),
            dead_letters=tuple(
                DeadLetters(path=row.path, reason=row.reason, messages=row.messages)
                for row in spark.sql(_DEAD_LETTERS).collect()
            ),
            operations=Operations(
                into_backlog=settled,
                out_of_backlog=settled,
                to_primary=total.brought_home,
                out_of_primary=total.brought_home,
                looked_at_again=total.waiting,
            ),
        )
    finally:
        rows.unpersist()


def _spelled(file: Path) -> str:
    """For Spark, which takes some letters of a path for wildcards."""
    return "file://" + re.sub(r"([\\*?\[\]{}])", r"\\\1", str(file.resolve()))


# Paths that differ in case only are one, as they are to the service. If the rows are of several
# primaries, which the names of backlog queues tell, a path begins with its own.
_LEDGER: Final = """
    WITH owned AS (
        SELECT *, regexp_extract(queue, '(?i)^(.+)/x-servicebus-transfer/[0-9]+$', 1) AS owner
        FROM syphon_ledger_rows
    ), named AS (
        SELECT * EXCEPT (path), IF(
            path <> '' AND min(lower(owner)) OVER () <> max(lower(owner)) OVER (),
            concat(owner, ': ', path), path
        ) AS path
        FROM owned
    )
    SELECT min(path) OVER (PARTITION BY lower(path)) AS path,
           run, outcome, reason, count, bytes, duplicates_possible, longest_wait_ms, waits,
           unix_millis(at) AS at_ms,
           unix_millis(first_enqueued) AS first_ms,
           unix_millis(last_enqueued) AS last_ms
    FROM named
"""
_TOTALS: Final = """
    SELECT count(DISTINCT run) AS runs,
           min(at_ms) AS first_ms,
           max(at_ms) AS last_ms,
           sum(IF(outcome = 'brought_home', count, 0)) AS brought_home,
           sum(IF(outcome = 'brought_home', bytes, 0)) AS bytes,
           sum(IF(outcome = 'dead_lettered', count, 0)) AS dead_lettered,
           sum(IF(outcome = 'expired', count, 0)) AS expired,
           sum(IF(outcome = 'waiting', count, 0)) AS waiting,
           sum(duplicates_possible) AS duplicates_possible
    FROM syphon_ledger
"""
_HOURS: Final = f"""
    SELECT path, at_ms DIV {_HOUR_MS} AS hour, sum(count) AS messages, sum(bytes) AS bytes
    FROM syphon_ledger
    WHERE outcome = 'brought_home' AND count > 0
    GROUP BY path, hour
    ORDER BY hour, path
"""
_WAITS: Final = """
    SELECT path, bucket, sum(waited) AS messages, max(longest_wait_ms) AS longest_ms
    FROM syphon_ledger LATERAL VIEW posexplode(waits) AS bucket, waited
    WHERE outcome = 'brought_home'
    GROUP BY path, bucket
    ORDER BY path, bucket
"""
# A row tells of a span. Those of a destination that overlap, or nearly do, are one outage.
_OUTAGES: Final = """
    WITH spans AS (
        SELECT path, first_ms, last_ms, IF(outcome = 'waiting', 0, count) AS messages
        FROM syphon_ledger
        WHERE first_ms IS NOT NULL AND path <> ''
    ), marked AS (
        SELECT *, IF(first_ms <= :gap_ms + max(last_ms) OVER (
            PARTITION BY path ORDER BY first_ms, last_ms
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0, 1) AS is_new
        FROM spans
    ), numbered AS (
        SELECT *, sum(is_new) OVER (
            PARTITION BY path ORDER BY first_ms, last_ms
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS number
        FROM marked
    )
    SELECT path, min(first_ms) AS begin_ms, max(last_ms) AS end_ms, sum(messages) AS messages
    FROM numbered
    GROUP BY path, number
    ORDER BY begin_ms, path
"""
_DEAD_LETTERS: Final = """
    SELECT path, reason, sum(count) AS messages
    FROM syphon_ledger
    WHERE outcome = 'dead_lettered'
    GROUP BY path, reason
    ORDER BY messages DESC, path, reason
"""


def _waits(rows: Iterable[Any]) -> tuple[Waits, ...]:
    counts: dict[str, list[int]] = {}
    longest: dict[str, int] = {}
    for row in rows:
        buckets = counts.setdefault(row.path, [])
        buckets.extend([0] * (row.bucket + 1 - len(buckets)))
        buckets[row.bucket] = row.messages
        longest[row.path] = max(longest.get(row.path, 0), row.longest_ms)
    return tuple(
        Waits(
            path=path,
            messages=sum(buckets),
            # To the middle of a bucket, which may lie beyond the longest wait in it.
            median_seconds=min(percentile_ms(buckets, 0.5) or 0, longest[path]) / 1000,
            p99_seconds=min(percentile_ms(buckets, 0.99) or 0, longest[path]) / 1000,
            longest_seconds=longest[path] / 1000,
        )
        for path, buckets in counts.items()
    )


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(math.floor(time_ms / 1000), UTC) + timedelta(
        milliseconds=time_ms % 1000
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
