"""Service Bus in Spark: the `servicebus` data source, and what travels to Spark's tasks.

    settings.py   where a namespace is and how to get in
    options.py    pure: the data source's options, checked
    typed.py      pure: AMQP values as a type and a text
    columns.py    pure: what a row has
    rows.py       pure: messages as rows
    outgoing.py   pure: rows as messages
    schema.py     the columns in Spark's types;  arrow.py  the rows in Arrow's
    source.py     the data source, and the reading of a batch
    peeking.py    looking through an entity by sequence number;  peeked.py  the stream that looks
    held.py       the stream that takes;  renewal.py  its locks
    sink.py       writing

Nothing of Spark or of Arrow is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pairbus.errors import requires_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairbus.spark.source import ServiceBusDataSource as ServiceBusDataSource

__all__ = ["ServiceBusDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("servicebus")` known to a session."""
    from pairbus.spark.source import ServiceBusDataSource

    spark.dataSource.register(ServiceBusDataSource)


def __getattr__(name: str) -> Any:
    if name == "ServiceBusDataSource":
        with requires_extra("pairbus.spark", "spark"):
            from pairbus.spark.source import ServiceBusDataSource

        return ServiceBusDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
