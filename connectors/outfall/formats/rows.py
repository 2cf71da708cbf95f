"""Python values as a record batch, for engines that bring values and not batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from outfall.errors import ValueRefusedError


def rows_to_batch(values: Sequence[Any]) -> pa.RecordBatch:
    """Make a batch from rows (dicts), or from single values, which become a column named `value`.

    A column that is in one row only is NULL in the others. Types are inferred from all rows.

    Raises:
        ValueRefusedError: a column holds values that have no common type, or its name is no text.
    """
    rows = [value if isinstance(value, dict) else {"value": value} for value in values]
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if not isinstance(name, str):
            raise ValueRefusedError(
                f"the column name {name!r} is no text", why="columns are found by name", do="name columns by text"
            )
    columns = [_column(name, [row.get(name) for row in rows]) for name in names]
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise ValueRefusedError(
            f"the values of column {name!r} have no common type", why=str(error), do="cast the column before writing it"
        ) from error


def detached(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a small slice, which would keep the whole of its batch in memory; return others as they are."""
    if batch.get_total_buffer_size() <= 2 * batch.nbytes:
        return batch
    return batch.take(pa.array(range(batch.num_rows), pa.int64()))
