"""The data source `servicebus`: what Spark is given, and the reading of a batch.

Everything here is pickled and sent about, so nothing here holds a connection: who reads or writes,
opens one and closes it. Streams are in `peeked.py` and `held.py`, writing is in `sink.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
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

from pairbus.spark import arrow, schema
from pairbus.spark.held import HeldStreamReader
from pairbus.spark.options import PEEK, ReadOptions, read_options, write_options
from pairbus.spark.peeked import PeekedStreamReader
from pairbus.spark.peeking import Range, end_of, peeked, split
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
        return schema.full()

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
