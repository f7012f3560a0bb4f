"""Rows as Arrow's record batches, which Spark takes and gives without looking at each value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pairbus.fast.columns import reader_of
from pairbus.fast.rows import MessageView
from pairbus.spark.schema import checked_for_reading

BATCH_ROWS_MAX = 2_000
BATCH_BYTES_MAX = 8 * 1024 * 1024


def batches(messages: Iterable[MessageView], schema: StructType) -> Iterator[Any]:
    """In the columns of `schema`; in batches that are small enough to be passed on early."""
    names = checked_for_reading(schema)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    values = reader_of(names)
    rows: list[list[Any]] = []
    size = 0
    for message in messages:
        rows.append(values(message))
        size += len(message.data)
        if len(rows) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            yield _batch(rows, arrow_schema)
            rows, size = [], 0
    if rows:
        yield _batch(rows, arrow_schema)


def _batch(rows: list[list[Any]], schema: Any) -> Any:
    if not schema.names:  # a count() of everything asks for no column
        return pa.RecordBatch.from_pylist([{}] * len(rows), schema=schema)
    arrays = [
        _properties(column, kind) if pa.types.is_map(kind) else pa.array(column, type=kind)
        for column, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _properties(column: Iterable[list[tuple[str, tuple[str, str | None]]]], kind: Any) -> Any:
    """By hand: several times as quick as letting Arrow guess at tuples in lists."""
    offsets, names, types, texts = [0], [], [], []
    for pairs in column:
        for name, (word, text) in pairs:
            names.append(name)
            types.append(word)
            texts.append(text)
        offsets.append(len(names))
    items = pa.StructArray.from_arrays(
        [pa.array(types, pa.string()), pa.array(texts, pa.string())],
        fields=list(kind.item_type),
    )
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(names, pa.string()), items, type=kind
    )


def rows_of(batch: Any, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """The rows of a batch that is to be written, without the columns that nobody asks for."""
    names = [name for name in batch.schema.names if wanted(name)]
    rows: list[dict[str, Any]] = batch.select(names).to_pylist()
    return rows
