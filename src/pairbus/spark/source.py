"""The data source `servicebus`: what Spark is given, and the reading of a batch.

Everything here is pickled and sent about, so nothing here holds a connection: who reads or writes,
opens one and closes it. Streams are in `peeked.py` and `held.py`, writing is in `sink.py`.
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
from pairbus.spark import arrow
from pairbus.spark.lock_stream import HeldStreamReader
from pairbus.spark.options import PEEK, ReadOptions, WriteOptions, read_options, write_options
from pairbus.spark.peek_stream import Numbers, PeekedStreamReader, read_range
from pairbus.spark.schema import checked_for_reading, checked_for_writing, full
from pairbus.spark.sink import BatchSink, StreamSink


class ServiceBusDataSource(DataSource):
    """Queues, topics and subscriptions of Azure Service Bus, and of a local broker, as tables.

    Name: ``servicebus``. Read a queue without touching it::

        spark.dataSource.register(ServiceBusDataSource)
        orders = (spark.read.format("servicebus")
                  .option("connectionString.env", "SERVICEBUS_CONNECTION_STRING")
                  .option("queue", "orders").load())

    Take from one and write to a topic, each message at least once::

        (spark.readStream.format("servicebus").option("receiveMode", "peekLock")...load()
         .writeStream.format("servicebus").option("topic", "events")...
         .option("checkpointLocation", "/tmp/orders").start())

    All options, the columns, and what each way of reading guarantees: docs/spark.md.
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
            return PeekedStreamReader(options, schema)
        return HeldStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchSink(*_writing(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamSink(*_writing(self.options, schema, overwrite))


class _Options(UserDict[str, str]):
    """As Spark gave them, but for showing them: a connection string is among them."""

    def __repr__(self) -> str:
        return f"<options {', '.join(sorted(self))}>"

    __str__ = __repr__


def _writing(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> tuple[WriteOptions, StructType]:
    if overwrite:
        raise OptionsError(
            "a queue or topic cannot be overwritten: write with mode('append'), and streams with "
            "outputMode('append')"
        )
    return write_options(options, has_destination=checked_for_writing(schema)), schema


# -- reading a batch --------------------------------------------------------------------------


@dataclass
class Share(InputPartition):
    """What one task may receive; None: all there is."""

    count: int | None


class BatchReader(DataSourceReader):
    """Looks at what is there, or takes it (receiveAndDelete)."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        checked_for_reading(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.mode != PEEK:
            most, tasks = options.messages_max, options.partitions
            if most is None:
                return [Share(None)] * tasks
            shares = split(SequenceRange(0, most), tasks)
            return [Share(share.end - share.start) for share in shares]
        start = options.from_sequence or 0
        with options.peeker() as peeker:
            end = peeker.end(start, options.messages_max)
        if options.to_sequence is not None:
            end = max(start, min(end, options.to_sequence + 1))
        return [Numbers(part) for part in split(SequenceRange(start, end), options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Numbers):
            return read_range(self._options, self._schema, partition.range)
        assert isinstance(partition, Share)
        messages = _received(self._options, partition.count)
        return arrow.batches(
            (read(data, entity=self._options.path) for data in messages), self._schema
        )


_CREDIT = 1000


def _received(options: ReadOptions, count: int | None) -> Iterator[bytes]:
    """Until none came for a while, or there are enough: no more than `count` are asked for, because
    what is given out is deleted in the queue already."""
    with options.address.client(timeout_seconds=options.timeout_seconds) as client:
        receiver = client.receiver(
            options.path, credit=_CREDIT, mode="receiveAndDelete", at_most=count
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
