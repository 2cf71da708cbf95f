"""What a value is, for sinks that take Python values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def to_values(batch: pa.RecordBatch, value_column: str | None) -> list[Any]:
    """Turn rows into values.

    Args:
        batch: the rows.
        value_column: the column whose values are wanted; `None` for a dict of all columns per row.

    Returns:
        One value per row. Structs and maps are dicts, timestamps with a zone are aware datetimes.
    """
    rows: list[Any]
    if value_column is not None:
        rows = batch.column(value_column).to_pylist(maps_as_pydicts="strict")
    else:
        rows = batch.to_pylist(maps_as_pydicts="strict")
    return rows


def to_batch(values: list[Any], value_column: str | None) -> pa.RecordBatch:
    """Turn values into rows; the inverse of `to_values`, for engines without Arrow."""
    if value_column is not None:
        return pa.RecordBatch.from_pydict({value_column: values})
    return pa.RecordBatch.from_pylist(values)
