"""Rows as Python values, for sinks that take or engines that bring values and not batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError, ValueRefusedError


def to_values(batch: pa.RecordBatch, value_column: str | None) -> list[Any]:
    """Turn rows into values.

    Args:
        batch: the rows.
        value_column: the column whose values are wanted; `None` for a dict of all columns per row.

    Returns:
        One value per row. Structs and maps are dicts, timestamps with a zone are aware datetimes.

    Raises:
        ConfigurationError: two columns have the same name, of which a dict would keep one.
    """
    if value_column is not None:
        return _column(batch.column(value_column))
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"two columns have the name {twice!r}", do="rename one, or leave it out")
    columns = [_column(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    convert = _map_converter(column.type)
    return values if convert is None else [convert(value) for value in values]


def _map_converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """How a value of this type gets its maps as dicts; `None` where it has none. Arrow gives them as lists of pairs."""
    if pa.types.is_map(kind):
        item = _map_converter(kind.item_type) or _same
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _map_converter(kind.value_type)
        return inner and (lambda items: None if items is None else [inner(item) for item in items])
    if pa.types.is_struct(kind):
        fields = {field.name: _map_converter(field.type) for field in kind}
        if any(fields.values()):
            return lambda row: None if row is None else {k: (fields[k] or _same)(v) for k, v in row.items()}
    return None


def _same(value: Any) -> Any:
    return value


def to_batch(values: list[Any], value_column: str | None) -> pa.RecordBatch:
    """Turn values into rows; the inverse of `to_values`, for engines without Arrow.

    Raises:
        ValueRefusedError: the values of a column have no common type.
    """
    if value_column is None:
        return rows_to_batch(values)
    return pa.RecordBatch.from_arrays([_inferred(value_column, values)], names=[value_column])


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
    columns = [_inferred(name, [row.get(name) for row in rows]) for name in names]
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array(rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _inferred(name: str, values: list[Any]) -> pa.Array:
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
