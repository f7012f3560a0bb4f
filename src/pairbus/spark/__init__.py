"""Service Bus in Spark: the `servicebus` data source, and Spark sessions.

    source.py       the data source, and the batch reader
    options.py      its options, checked
    schema.py       its columns in Spark's types, and rows as Arrow's batches
    peek_stream.py  the stream that leaves messages where they are
    lock_stream.py  the stream that receives them;  renewal.py  renews their locks
    sink.py         writing
    versions.py     what Spark 4.0 and 4.1 lack
    session.py      sessions for the syphon;  java.py  the Java process of a session

Neither Spark nor Arrow is imported before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.errors import requires_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.source import ServiceBusDataSource as ServiceBusDataSource

__all__ = ["ServiceBusDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("servicebus")` with a session."""
    spark.dataSource.register(_data_source())


def _data_source() -> type[ServiceBusDataSource]:
    with requires_extra("pairbus.spark", "spark"):
        from pairbus.spark.source import ServiceBusDataSource

    return ServiceBusDataSource


def __getattr__(name: str) -> Any:
    if name == "ServiceBusDataSource":
        return _data_source()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
