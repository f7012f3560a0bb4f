"""The columns of `rows.py` in Spark's types, and the schemas of others checked against them.

Made of objects and not of DDL text, which only a process with a Spark session can read.
"""

from __future__ import annotations

from typing import Final

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
from pairbus.fast.columns import COLUMNS, DESTINATION, Column

PROPERTY: Final = StructType(
    [StructField("type", StringType(), False), StructField("value", StringType(), True)]
)
PROPERTIES: Final = MapType(StringType(), PROPERTY, True)
PLAIN_PROPERTIES: Final = MapType(StringType(), StringType(), True)

_TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "long": LongType(),
    "timestamp": TimestampType(),
    "properties": PROPERTIES,
}
_BY_NAME: Final = {column.name: column for column in COLUMNS}


def full() -> StructType:
    return StructType([StructField(column.name, _TYPES[column.kind]) for column in COLUMNS])


def checked_for_reading(schema: StructType) -> tuple[str, ...]:
    """The columns that somebody wants, in their order: any of ours, in our types."""
    for field in schema.fields:
        column = _BY_NAME.get(field.name)
        if column is None:
            raise OptionsError(
                f"column {field.name} of the schema is none of the source's; there are "
                f"{', '.join(_BY_NAME)}"
            )
        if not _is_of(field.dataType, _TYPES[column.kind]):
            raise OptionsError(
                f"column {field.name} of the schema is a {field.dataType.simpleString()}; the "
                f"source has {_TYPES[column.kind].simpleString()}"
            )
    return tuple(field.name for field in schema.fields)


def checked_for_writing(schema: StructType) -> bool:
    """Whether the rows say where they go. What the service says of a message is left out."""
    for field in schema.fields:
        if field.name == DESTINATION:
            _check_kind(field, StringType())
            continue
        column = _BY_NAME.get(field.name)
        if column is None:
            writable = [one.name for one in COLUMNS if one.writable]
            raise OptionsError(
                f"column {field.name} is nothing that a message has: there are {DESTINATION}, "
                f"{', '.join(writable)}. Drop it, or put it into applicationProperties"
            )
        if column.writable:
            _check_kind(field, *_writable_as(column))
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


def _check_kind(field: StructField, *kinds: DataType) -> None:
    if not any(_is_of(field.dataType, kind) for kind in kinds):
        expected = " or ".join(kind.simpleString() for kind in kinds)
        raise OptionsError(
            f"column {field.name} is a {field.dataType.simpleString()}; {expected} is expected"
        )


def _is_of(given: DataType, wanted: DataType) -> bool:
    """The same, whatever may be null in it."""
    if isinstance(wanted, StringType):
        return isinstance(given, StringType)
    return given.simpleString() == wanted.simpleString()
