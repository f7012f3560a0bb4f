"""Rows written to queues and topics: each at least once, under an id that it keeps.

A task sends its rows in batches and waits for the service to have them. What failed for a reason
that may pass is sent again, and so is all of a task that Spark repeats: with the same ids, so that
an entity with duplicate detection takes each row once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from uuid import uuid4

from azure.core.exceptions import AzureError
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pairbus.client.sdk.failures import Kind, kind_of
from pairbus.errors import PairbusError
from pairbus.fast.client import FastClient
from pairbus.fast.columns import COLUMNS, DESTINATION
from pairbus.fast.compose import RowError, message_of
from pairbus.fast.errors import SendFailed
from pairbus.fast.sender import Sender
from pairbus.spark import arrow
from pairbus.spark.options import WriteOptions

_WRITABLE: Final = frozenset(column.name for column in COLUMNS if column.writable) | {DESTINATION}
_BUSY_SECONDS: Final = 10.0
_PAUSE_SECONDS_MAX: Final = 30.0


class WriteFailed(PairbusError):
    """A queue or topic did not take rows. The text names it, how many it took, and why."""


@dataclass
class Sent(WriterCommitMessage):
    """What one task has sent."""

    count: int
    size: int


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._run = uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Sent:
        context = TaskContext.get()
        return write(iterator, self._options, f"{self._run}/{_partition(context)}")


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Sent:
        return write(iterator, self._options, stream_seed(TaskContext.get()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what was sent is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent cannot be taken back; it is sent again, under the same ids."""


def stream_seed(context: Any) -> str:
    """What is the same whenever a task of this batch is repeated, by a restarted query too."""
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        # Without them a later batch might get the ids of an earlier one, and be dropped.
        return uuid4().hex
    return f"{query}/{batch}/{_partition(context)}"


def _partition(context: Any) -> int:
    return int(context.partitionId()) if context else 0


# -- one task ---------------------------------------------------------------------------------


def write(
    record_batches: Iterator[Any],
    options: WriteOptions,
    seed: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Sent:
    """All rows are with the service when this returns."""
    count = size = 0
    client: FastClient | None = None
    senders: dict[str, _Postbox] = {}
    try:
        for batch in record_batches:
            if client is None:
                client = options.address.client(timeout_seconds=options.timeout_seconds)
            for path, messages in _grouped(batch, options.path, seed, count, clock).items():
                postbox = senders.get(path)
                if postbox is None:
                    postbox = senders[path] = _Postbox(client.sender(path), options, sleep)
                postbox.send(messages)
                size += sum(map(len, messages))
            count += batch.num_rows
    finally:
        if client is not None:
            client.close()
    return Sent(count, size)


def _grouped(
    batch: Any, path: str | None, seed: str, first: int, clock: Callable[[], float]
) -> dict[str, list[bytes]]:
    """Encoded, by destination, in their order."""
    now_ms = int(clock() * 1000)
    groups: dict[str, list[bytes]] = {}
    for index, row in enumerate(arrow.rows_of(batch, _WRITABLE.__contains__), first):

        def name(said: bytes, index: int = index) -> str:
            return hashlib.sha256(f"{seed}/{index}/".encode() + said).hexdigest()[:32]

        try:
            target = row.get(DESTINATION) or path
            if not target:
                raise RowError(
                    DESTINATION,
                    "it is null, and there is no option queue or topic; the name of a queue or "
                    "topic is expected",
                )
            message = message_of(row, now_ms=now_ms, name=name)
        except RowError as error:
            raise RowError(error.column, f"{error.fault} (row {index} of the task)") from None
        groups.setdefault(target.strip("/"), []).append(message)
    return groups


class _Postbox:
    """One queue or topic, and what is done when it does not take something."""

    def __init__(
        self, sender: Sender, options: WriteOptions, sleep: Callable[[float], None]
    ) -> None:
        self._sender = sender
        self._options = options
        self._sleep = sleep

    def send(self, messages: Sequence[bytes]) -> None:
        left = list(messages)
        pause = self._options.retry_seconds
        for attempt in range(self._options.retries + 1):
            try:
                self._sender.send(left)
            except SendFailed as failed:
                ranges = chain(failed.refused_ranges, failed.doubtful_ranges)
                left = [left[index] for index in sorted(chain.from_iterable(ranges))]
                kind = kind_of(failed.error)
                if kind not in (Kind.OUTAGE, Kind.THROTTLED) or attempt == self._options.retries:
                    raise self._failure(failed.error, len(messages), len(left)) from failed
                self._sleep(max(pause, _BUSY_SECONDS) if kind is Kind.THROTTLED else pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            else:
                return

    def _failure(self, error: AzureError, total: int, left: int) -> WriteFailed:
        return WriteFailed(
            f"{self._sender.path!r} (option queue or topic, or column {DESTINATION}) took "
            f"{total - left} of {total} rows: {error}"
        )
