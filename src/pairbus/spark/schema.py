"""The columns of `fast.columns` in the types of Spark, and rows as Arrow's record batches.

Schemas are made of objects, because DDL text can only be parsed with a Spark session. Spark takes
and returns record batches without converting each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pairbus.errors import OptionsError
from pairbus.fast.columns import BY_NAME, COLUMNS, DESTINATION, Column, reader_of
from pairbus.fast.rows import MessageView
from pairbus.spark.versions import arrow_schema

PROPERTY: Final = StructType(
    [StructField("type", StringType(), False), StructField("value", StringType(), True)]
)
PROPERTIES: Final = MapType(StringType(), PROPERTY, True)
PLAIN_PROPERTIES: Final = MapType(StringType(), StringType(), True)

BATCH_ROWS_MAX: Final = 2_000
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
READ_AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""What a receiver requests before it is needed."""

_TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "long": LongType(),
    "timestamp": TimestampType(),
    "properties": PROPERTIES,
}
_WRITABLE: Final = frozenset(one.name for one in COLUMNS if one.writable) | {DESTINATION}


def full() -> StructType:
    return StructType([StructField(column.name, _TYPES[column.kind]) for column in COLUMNS])


# -- checks -----------------------------------------------------------------------------------


def checked_for_reading(schema: StructType) -> StructType:
    """Returns the schema. Raises OptionsError if it has other columns or types than the source."""
    for field in schema.fields:
        column = BY_NAME.get(field.name)
        if column is None:
            raise OptionsError(
                f"the schema has a column {field.name}, which the source does not have; it has "
                f"{', '.join(BY_NAME)}"
            )
        if not _is_same(field.dataType, _TYPES[column.kind]):
            raise OptionsError(
                f"column {field.name} of the schema is a {field.dataType.simpleString()}; in the "
                f"source it is a {_TYPES[column.kind].simpleString()}"
            )
    return schema


def checked_for_writing(schema: StructType) -> bool:
    """Whether the rows have a destination column. Raises OptionsError for unknown columns."""
    for field in schema.fields:
        if field.name == DESTINATION:
            _check_type(field, StringType())
            continue
        column = BY_NAME.get(field.name)
        if column is None:
            raise OptionsError(
                f"column {field.name} is not part of a message; the columns are {DESTINATION}, "
                f"{', '.join(one.name for one in COLUMNS if one.writable)}. Drop it, or put it "
                "into applicationProperties"
            )
        if column.writable:
            _check_type(field, *_writable_as(column))
    return DESTINATION in schema.fieldNames()


def _writable_as(column: Column) -> tuple[DataType, ...]:
    match column.kind:
        case "long":
            return LongType(), IntegerType(), ShortType(), ByteType()
        case "properties":
            return PROPERTIES, PLAIN_PROPERTIES
        case "timestamp":
            return TimestampType(), TimestampNTZType()
        case "binary" if column.name == "body":
            return BinaryType(), StringType()
    return (_TYPES[column.kind],)


def _check_type(field: StructField, *types: DataType) -> None:
    if not any(_is_same(field.dataType, one) for one in types):
        expected = " or ".join(one.simpleString() for one in types)
        raise OptionsError(
            f"column {field.name} is a {field.dataType.simpleString()}; expected {expected}"
        )


def _is_same(given: DataType, wanted: DataType) -> bool:
    """Whether the types are the same, apart from what may be null."""
    if isinstance(wanted, StringType):
        return isinstance(given, StringType)
    return given.simpleString() == wanted.simpleString()


# -- record batches ---------------------------------------------------------------------------


def to_batches(messages: Iterable[MessageView], schema: StructType) -> Iterator[Any]:
    """Rows with the columns of `schema`, in batches small enough to be passed on early."""
    target = arrow_schema(schema)
    values = reader_of(schema.names)
    rows: list[list[Any]] = []
    size = 0
    for message in messages:
        rows.append(values(message))
        size += len(message.data)
        if len(rows) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(rows, target)
            rows, size = [], 0
    if rows:
        yield _batch(rows, target)


def _batch(rows: list[list[Any]], schema: Any) -> Any:
    if not schema.names:  # count() asks for no column
        return pa.RecordBatch.from_pylist([{}] * len(rows), schema=schema)
    arrays = [
        _properties(column, kind) if pa.types.is_map(kind) else pa.array(column, type=kind)
        for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _properties(column: Iterable[list[tuple[str, tuple[str, str | None]]]], kind: Any) -> Any:
    """Built by hand, which is several times as fast as letting Arrow infer the types."""
    offsets, names, types, texts = [0], [], [], []
    for pairs in column:
        for name, (type_name, text) in pairs:
            names.append(name)
            types.append(type_name)
            texts.append(text)
        offsets.append(len(names))
    items = pa.StructArray.from_arrays(
        [pa.array(types, pa.string()), pa.array(texts, pa.string())],
        fields=list(kind.item_type),
    )
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), items, type=kind
    )


def rows_to_write(batch: Any) -> list[dict[str, Any]]:
    """The rows of a batch, without the columns that the service sets."""
    names = [name for name in batch.schema.names if name in _WRITABLE]
    rows: list[dict[str, Any]] = batch.select(names).to_pylist()
    return rows
