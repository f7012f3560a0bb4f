"""Rows written to queues and topics: each at least once, with an id that stays the same.

A task sends its rows in batches and waits until the service has accepted them. Rows that failed for
a temporary reason are sent again, and so are all rows of a task that Spark repeats. The ids stay
the same, so an entity with duplicate detection stores each row once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.errors import PairbusError
from pairbus.fast.columns import DESTINATION
from pairbus.fast.compose import RowError, message_of
from pairbus.fast.connection_cache import OF_THIS_PROCESS, ConnectionCache, Lease
from pairbus.fast.errors import SendIncomplete
from pairbus.fast.peek import with_retries
from pairbus.fast.sender import Sender
from pairbus.spark.options import WriteOptions
from pairbus.spark.schema import rows_to_write
from pairbus.spark.versions import DataSourceStreamArrowWriter


class WriteFailed(PairbusError):
    """A queue or topic did not accept rows. The text says which, how many it accepted, and why."""


@dataclass
class Sent(WriterCommitMessage):
    """The rows of one task."""

    count: int
    size: int


class BatchSink(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._run = uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Sent:
        context = TaskContext.get()
        return write(iterator, self._options, f"{self._run}/{_partition(context)}", run=self._run)


class StreamSink(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Sent:
        context = TaskContext.get()
        return write(iterator, self._options, stream_seed(context), run=stream_run(context))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: the service has the messages."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Sent messages cannot be recalled; they are sent again with the same ids."""


def stream_seed(context: Any) -> str:
    """The seed for ids. It is the same when a task of this batch is repeated, even by a restarted
    query.
    """
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or batch is None:
        # Otherwise a later batch could get the ids of an earlier one, and be dropped as duplicates.
        return uuid4().hex
    return f"{query}/{batch}/{_partition(context)}"


def stream_run(context: Any) -> str:
    """The same for all batches of a query, until it is restarted: their tasks share connections."""
    query = context and context.getLocalProperty("sql.streaming.queryId")
    group = context and context.getLocalProperty("spark.jobGroup.id")
    return f"{query}/{group}" if query and group else uuid4().hex


def _partition(context: Any) -> int:
    return int(context.partitionId()) if context else 0


# -- one task ---------------------------------------------------------------------------------


def write(
    record_batches: Iterator[Any],
    options: WriteOptions,
    seed: str,
    *,
    run: str,
    cache: ConnectionCache = OF_THIS_PROCESS,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Sent:
    """When this returns, the service has accepted all rows. Tasks with the same `run` share
    connections.
    """
    count = size = 0
    lease: Lease | None = None
    senders: dict[str, _RetryingSender] = {}
    is_clean = False
    try:
        for batch in record_batches:
            if lease is None:
                seconds = options.timeout_seconds
                lease = cache.lend(run, options.address, timeout_seconds=seconds)
            for path, messages in _grouped(batch, options.path, seed, count, clock).items():
                sender = senders.get(path)
                if sender is None:
                    sender = _RetryingSender(lease.client.sender(path), options, sleep)
                    senders[path] = sender
                sender.send(messages)
                size += sum(map(len, messages))
            count += batch.num_rows
        is_clean = not any(sender.has_failed for sender in senders.values())
    finally:
        if lease is not None:
            cache.give_back(lease, is_clean=is_clean)
    return Sent(count, size)


def _grouped(
    batch: Any, path: str | None, seed: str, first: int, clock: Callable[[], float]
) -> dict[str, list[bytes]]:
    """The encoded rows by destination, in their order."""
    now_ms = int(clock() * 1000)
    groups: dict[str, list[bytes]] = {}
    for index, row in enumerate(rows_to_write(batch), first):

        def name(content: bytes, index: int = index) -> str:
            return hashlib.sha256(f"{seed}/{index}/".encode() + content).hexdigest()[:32]

        try:
            target = row.get(DESTINATION) or path
            if not target:
                raise RowError(
                    DESTINATION,
                    "it is null, and there is no option queue or topic; expected the name of a "
                    "queue or topic",
                )
            message = message_of(row, now_ms=now_ms, name=name)
        except RowError as error:
            raise RowError(error.column, f"{error.fault} (row {index} of the task)") from None
        groups.setdefault(target.strip("/"), []).append(message)
    return groups


class _RetryingSender:
    """A sender for one queue or topic. It repeats messages that were not accepted."""

    def __init__(
        self, sender: Sender, options: WriteOptions, sleep: Callable[[float], None]
    ) -> None:
        self.has_failed = False
        self._sender = sender
        self._options = options
        self._sleep = sleep

    def send(self, messages: Sequence[bytes]) -> None:
        left = messages

        def send_rest() -> None:
            nonlocal left
            try:
                self._sender.send(left)
            except SendIncomplete as failed:
                self.has_failed = True
                ranges = chain(failed.refused_ranges, failed.doubtful_ranges)
                left = [left[index] for index in sorted(chain.from_iterable(ranges))]
                raise

        try:
            with_retries(
                send_rest,
                attempts=self._options.retries + 1,
                pause_seconds=self._options.retry_seconds,
                sleep=self._sleep,
            )
        except SendIncomplete as failed:
            total = len(messages)
            raise WriteFailed(
                f"{self._sender.path!r} (option queue or topic, or column {DESTINATION}) accepted "
                f"{total - len(left)} of {total} rows: {failed.error}"
            ) from failed
