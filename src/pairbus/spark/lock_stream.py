"""A stream that receives messages: `receiveMode` peekLock and receiveAndDelete.

The driver's process receives, keeps the messages of a batch in memory, and hands them to the tasks.
So a repeated task reads the same messages, and one process renews and settles all locks. A batch is
safe in the sink when Spark asks for the offset after it: Spark calls `latestOffset(start)` only
when the batch that ends at `start` is done. Spark calls its own `commit` later, and never for the
last batch of a run.

A query that is started again has lost the messages that it held. Its unfinished batch is repeated
without rows. The messages are delivered again, in a later batch, after their locks have expired.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from azure.core.exceptions import AzureError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pairbus.errors import OptionsError
from pairbus.fast.errors import SettleFailed
from pairbus.fast.message import ReceivedMessage
from pairbus.fast.peek import PartitionedEntity, Peeker, with_retries
from pairbus.fast.receiver import Receiver
from pairbus.fast.rows import read
from pairbus.spark.options import PEEK_LOCK, ReadOptions
from pairbus.spark.renewal import LockRenewal
from pairbus.spark.schema import READ_AHEAD_BYTES_MAX, checked_for_reading, to_batches
from pairbus.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

log = logging.getLogger("pairbus.spark")

Offset = dict[str, int]
_RECEIVED: Final = "received"
_CREDIT_MAX: Final = 2_000
_GATHER_SECONDS: Final = 0.2
"""A batch grows while messages arrive at shorter intervals than this. So it gets the messages in
transit, but not later ones.
"""
_PARTITION_BYTES_MAX: Final = 8 * 1024 * 1024
"""Spark limits the size of a task."""


@dataclass
class MessagePartition(InputPartition):
    """The encoded messages for one task, with their lock tokens."""

    messages: list[tuple[bytes, UUID | None]]


class LockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked_for_reading(schema)
        self._held: _HeldBatches | None = None
        # The ends of the last batch that Spark has planned, and of the last one that it got.
        self._planned = self._offered = 0
        # With availableNow: the stream ends after the messages that existed at its start.
        self._ends = False
        self._target: int | None = None
        self._is_done = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    # -- in the driver's process ------------------------------------------------------------

    def initialOffset(self) -> Offset:
        return {_RECEIVED: 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.trigger_messages_max or 1)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = True
        # The numbers of a partitioned entity show no end, so its stream ends when no more messages
        # arrive.
        with contextlib.suppress(PartitionedEntity):
            self._target = self._open_held().peeker.end(0)

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        if isinstance(limit, ReadAllAvailable) and self._options.mode == PEEK_LOCK:
            raise OptionsError(
                "trigger(once=True) ends before the source learns that the batch is safe, so it "
                "would never settle a message; use trigger(availableNow=True)"
            )
        if start is None and self._offered > self._planned:
            return {_RECEIVED: self._offered}
        # Spark 4.0 and 4.1 pass no start. A batch is done if they have planned it and ask again.
        at = start[_RECEIVED] if start else self._planned
        held = self._open_held()
        held.settle_until(at)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = 0 if self._is_done else self._take(held, at, most)
        self._offered = at + found
        return {_RECEIVED: self._offered}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        # After a restart, Spark 4.0 and 4.1 pass the last offset as the start and as the end.
        self._planned = end[_RECEIVED]
        batch = self._open_held().batches.get(end[_RECEIVED], [])
        messages = [(one.data, one.lock_token if one.lock_token_bytes else None) for one in batch]
        return [MessagePartition(part) for part in _parts(messages, self._options.partitions)]

    def commit(self, end: Offset) -> None:
        self._open_held().settle_until(end[_RECEIVED])

    def stop(self) -> None:
        """Settles nothing, because it is not known whether the last batch is done."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def _open_held(self) -> _HeldBatches:
        if self._held is None:
            self._held = _HeldBatches(self._options)
        return self._held

    def _take(self, held: _HeldBatches, at: int, most: int | None) -> int:
        most = most or self._options.trigger_messages_max or 1
        if not self._ends:
            return held.take(at, most, self._options.wait_seconds)
        until = time.monotonic() + self._options.locked_wait_seconds
        while held.has_messages or self._has_messages_left(held):
            found = held.take(at, most, self._options.wait_seconds)
            if found:
                return found
            if self._target is None:
                break
            # The rest is locked, perhaps by this query before it was restarted.
            if time.monotonic() >= until:
                log.warning(
                    "%r still has messages that other receivers have locked for more than %g "
                    "seconds; they are not read",
                    self._options.path,
                    self._options.locked_wait_seconds,
                )
                break
        self._is_done = True
        return 0

    def _has_messages_left(self, held: _HeldBatches) -> bool:
        """Whether messages from before the start are left. True if that is unknown."""
        return self._target is None or held.peeker.has_active_before(self._target)

    # -- in a task --------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, MessagePartition)
        path = self._options.path
        return to_batches(
            (read(data, entity=path, lock_token=token) for data, token in partition.messages),
            self._schema,
        )


class _HeldBatches:
    """The connection, and the messages that are received but not settled yet."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._deletes = options.mode != PEEK_LOCK
        self.batches: dict[int, list[ReceivedMessage]] = {}
        """By their end offset."""
        self._left: list[ReceivedMessage] = []
        """Messages that are deleted from the queue but are in no batch yet."""
        self._client = options.client()
        self.peeker = Peeker(self._client, options.path)
        credit = min(options.trigger_messages_max or 1, _CREDIT_MAX)
        self._receiver: Receiver = self._client.receiver(
            options.path,
            credit=credit,
            mode="receiveAndDelete" if self._deletes else "peekLock",
            bytes_max=READ_AHEAD_BYTES_MAX,
        )
        self._renewal: LockRenewal | None = None

    @property
    def has_messages(self) -> bool:
        return bool(self._left)

    def take(self, at: int, most: int, wait_seconds: float) -> int:
        """Receive a batch that begins at the offset `at`; returns its number of messages."""
        taken: list[ReceivedMessage] = self._left[:most]
        self._left = self._left[most:]
        size = sum(len(one.data) for one in taken)
        wait = 0.0 if taken else wait_seconds
        self._receiver.limit_to(most - len(taken))
        while len(taken) < most and size < self._options.trigger_bytes_max:
            found = self._receive(most - len(taken), wait, bool(taken))
            if not found:
                break
            taken += found
            size += sum(len(one.data) for one in found)
            wait = min(wait_seconds, _GATHER_SECONDS)
        if taken:
            # Release them, because the locks of buffered messages would expire.
            self._left += self._receiver.stop()
            self.batches[at + len(taken)] = taken
            if not self._deletes:
                self._lock_renewal().watch(taken)
        return len(taken)

    def _receive(self, most: int, wait: float, has_some: bool) -> list[ReceivedMessage]:
        def receive() -> list[ReceivedMessage]:
            return self._receiver.receive(most, max_wait_seconds=wait)

        if not has_some:
            return with_retries(receive)
        try:
            return receive()
        except AzureError:
            return []  # the batch is smaller, and the next one raises the error

    def settle_until(self, offset: int) -> None:
        """The batches that end at or before the offset are safe."""
        for end in sorted(self.batches):
            if end > offset:
                continue
            batch = self.batches[end]
            if not self._deletes:
                self._complete(batch)
            del self.batches[end]

    def _complete(self, batch: list[ReceivedMessage]) -> None:
        self._lock_renewal().forget(batch)
        try:
            with_retries(lambda: self._receiver.complete(batch))
        except SettleFailed as failed:
            log.warning(
                "%d of %d messages of %r were read but could not be completed, so they will be "
                "read again: %s",
                len(failed.failed),
                len(batch),
                self._options.path,
                failed.error,
            )

    def _lock_renewal(self) -> LockRenewal:
        if self._renewal is None:
            self._renewal = LockRenewal(self._options)
        return self._renewal

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
        self._receiver.close()
        self._client.close()


def _parts(
    messages: list[tuple[bytes, UUID | None]], count: int
) -> Iterator[list[tuple[bytes, UUID | None]]]:
    """Splits into `count` parts, or more if they would be too large. Without messages, there are no
    parts.
    """
    share = max(1, -(-len(messages) // count))
    part: list[tuple[bytes, UUID | None]] = []
    size = 0
    for one in messages:
        if part and (len(part) >= share or size + len(one[0]) > _PARTITION_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[0])
    if part:
        yield part
