"""The data source `servicebus`: the class that Spark registers, and the batch reader.

Spark pickles everything here and sends it to the tasks, so nothing here holds a connection: Spark's
Python workers keep them for a while, in `fast.connection_cache`. Streams are in `peek_stream.py`
and `lock_stream.py`, writing is in `sink.py`.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pairbus.errors import OptionsError
from pairbus.fast.peek import SequenceRange, split
from pairbus.fast.rows import read
from pairbus.spark.lock_stream import LockStreamReader
from pairbus.spark.options import PEEK, ReadOptions, WriteOptions, read_options, write_options
from pairbus.spark.peek_stream import PeekStreamReader, SequencePartition, read_range
from pairbus.spark.schema import (
    READ_AHEAD_BYTES_MAX,
    checked_for_reading,
    checked_for_writing,
    full,
    to_batches,
)
from pairbus.spark.sink import BatchSink, StreamSink


class ServiceBusDataSource(DataSource):
    """Queues, topics and subscriptions of Azure Service Bus, and of a local broker, as tables.

    Name: ``servicebus``. Read a queue without touching it::

        spark.dataSource.register(ServiceBusDataSource)
        orders = (spark.read.format("servicebus")
                  .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
                  .option("queue", "orders").load())

    Move messages from a queue to a topic, each at least once::

        (spark.readStream.format("servicebus").option("receiveMode", "peekLock")...load()
         .writeStream.format("servicebus").option("topic", "events")...
         .option("checkpointLocation", "/tmp/orders").start())

    docs/spark.md lists all options and columns, and the guarantees of each receive mode.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(_Options(options))

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        return full()

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self.options, streaming=True)
        if options.mode == PEEK:
            return PeekStreamReader(options, schema)
        return LockStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(*_writing(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamSink(*_writing(self.options, schema, overwrite))


class _Options(UserDict[str, str]):
    """The options as Spark gives them; their values are not shown: one is a connection string."""

    def __repr__(self) -> str:
        return f"<options {', '.join(sorted(self))}>"

    __str__ = __repr__


def _writing(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> tuple[WriteOptions, StructType]:
    if overwrite:
        raise OptionsError(
            "a queue or topic cannot be overwritten; use mode('append'), or outputMode('append') "
            "for a stream"
        )
    return write_options(options, has_destination=checked_for_writing(schema)), schema


# -- reading a batch --------------------------------------------------------------------------


@dataclass
class ReceiveShare(InputPartition):
    """The maximum number of messages that one task receives. None: all."""

    count: int | None


class BatchReader(DataSourceReader):
    """Peeks at the messages, or receives and deletes them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked_for_reading(schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.mode != PEEK:
            most, tasks = options.messages_max, options.partitions
            if most is None:
                return [ReceiveShare(None)] * tasks
            shares = split(SequenceRange(0, most), tasks)
            return [ReceiveShare(share.end - share.start) for share in shares]
        with options.lent_peeker() as peeker:
            whole = peeker.all_from(options.from_sequence or 0, options.messages_max)
        if whole is None:
            return [SequencePartition(SequenceRange(0, 0))]
        if options.to_sequence is not None:
            whole = SequenceRange(whole.start, min(whole.end, options.to_sequence + 1))
        return [SequencePartition(part) for part in split(whole, options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, SequencePartition):
            return read_range(self._options, self._schema, partition.range)
        assert isinstance(partition, ReceiveShare)
        messages = _received(self._options, partition.count)
        return to_batches(
            (read(data, entity=self._options.path) for data in messages), self._schema
        )


_CREDIT = 1000


def _received(options: ReadOptions, count: int | None) -> Iterator[bytes]:
    """Receives until no message arrives for `wait_seconds`, or `count` have arrived. It requests no
    more than that, because the service deletes a message when it delivers it.
    """
    with options.client() as client:
        receiver = client.receiver(
            options.path,
            credit=_CREDIT,
            mode="receiveAndDelete",
            at_most=count,
            bytes_max=READ_AHEAD_BYTES_MAX,
        )
        taken = 0
        while count is None or taken < count:
            found = receiver.receive(_CREDIT, max_wait_seconds=options.wait_seconds)
            if not found:
                break
            taken += len(found)
            for one in found:
                yield one.data
        for one in receiver.close():
            yield one.data
