"""A stream that leaves the messages where they are: `receiveMode` peek.

Its offset is the next sequence number to read. So any process can read a batch again at any time,
and gets the same messages, except those that were removed meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pairbus.fast.peek import Peeker, SequenceRange, split
from pairbus.spark.options import ReadOptions
from pairbus.spark.schema import checked_for_reading, to_batches
from pairbus.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

Offset = dict[str, int]
_NEXT = "sequenceNumber"


@dataclass
class SequencePartition(InputPartition):
    """The sequence numbers for one task."""

    range: SequenceRange


def read_range(options: ReadOptions, schema: StructType, numbers: SequenceRange) -> Iterator[Any]:
    """In a task: the messages in the range, as record batches."""
    with options.lent_peeker() as peeker:
        messages = peeker.messages(numbers, scheduled=options.include_scheduled)
        yield from to_batches(messages, schema)


class PeekStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked_for_reading(schema)
        # Only in the driver's process, which plans the stream; never pickled.
        self._peeker: Peeker | None = None
        self._first: Offset | None = None
        self._planned: Offset | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_peeker": None}

    def initialOffset(self) -> Offset:
        if self._first is None:
            first = self._options.from_sequence
            self._first = {_NEXT: self._open_peeker().end(0) if first == -1 else first or 0}
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.trigger_messages_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._open_peeker().end(0)

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        # Spark 4.0 and 4.1 pass neither.
        at = (start or self._planned or self.initialOffset())[_NEXT]
        limit = limit or self.getDefaultReadLimit()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._target is not None:
            end = at if at >= self._target else self._open_peeker().end(at, most)
            return {_NEXT: max(at, min(end, self._target))}
        end = self._open_peeker().end(at, most)
        if end == at and self._options.wait_seconds:
            # Spark would ask again at once, a hundred times a second, and each request is billed.
            time.sleep(self._options.wait_seconds)
            end = self._open_peeker().end(at, most)
        return {_NEXT: end}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._planned = end
        whole = SequenceRange(start[_NEXT], end[_NEXT])
        return [SequencePartition(part) for part in split(whole, self._options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SequencePartition)
        return read_range(self._options, self._schema, partition.range)

    def commit(self, end: Offset) -> None:
        """Does nothing: the messages stay in the queue."""

    def stop(self) -> None:
        if self._peeker is not None:
            self._peeker.close()
            self._peeker = None

    def _open_peeker(self) -> Peeker:
        if self._peeker is None:
            self._peeker = self._options.peeker()
        return self._peeker
