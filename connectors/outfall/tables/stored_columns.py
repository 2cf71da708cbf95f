"""Columns of data files of any writer as the table has them: other encodings of a type, and structs that have grown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from outfall.tables.arrow_types import is_list

FIELD_ID = b"PARQUET:field_id"
"""The key of a field id in Arrow metadata, which Parquet files take it from."""

_is = pa.types


def identity_in(table: Iterable[Any], field: pa.Field) -> Any:
    """Return what a file's field is found by among the fields of a table: its id if these have ids, else its name."""
    if any(each.metadata and FIELD_ID in each.metadata for each in table):
        return (field.metadata or {}).get(FIELD_ID)
    return field.name


def as_stored(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a file's column with the table's type; fields that the file lacks inside are NULL.

    Fields inside structs are found by their ids if the type has ids, else by name. Raises `pa.ArrowInvalid` for a value
    that the type does not have.
    """
    if column.type.equals(kind, check_metadata=_is.is_nested(kind)):
        return column
    if _is.is_large_list(column.type) and _is.is_list(kind):
        column = column.cast(pa.list_(column.type.value_field))
    if _is.is_struct(kind) and _is.is_struct(column.type):
        return _struct(column, kind)
    if is_list(kind) and _is.is_list(column.type):
        return _with_children(column, kind, lambda values: as_stored(values, kind.value_type))
    if _is.is_map(kind) and _is.is_map(column.type):
        entries = pa.struct([kind.key_field, kind.item_field])
        return _with_children(column, kind, lambda values: _entries(values, entries))
    return column.cast(kind)


def _struct(column: pa.Array, kind: pa.DataType) -> pa.Array:
    fields = list(kind)
    known = (identity_in(fields, field) for field in column.type)
    inside = dict(zip(known, column.flatten(), strict=True))
    arrays = []
    for field in fields:
        found = inside.get(identity_in(fields, field))
        arrays.append(pa.nulls(len(column), field.type) if found is None else as_stored(found, field.type))
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=column.is_null())


def _entries(entries: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the entries of maps, whose fields writers name differently."""
    arrays = [as_stored(array, field.type) for array, field in zip(entries.flatten(), kind, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _with_children(column: pa.Array, kind: pa.DataType, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return a list or map with changed elements. It keeps offsets and NULLs, also of a slice."""
    maps = _is.is_map(column.type)
    values = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"]) if maps else column.values
    return pa.Array.from_buffers(
        kind, len(column), column.buffers()[:2], column.null_count, column.offset, [change(values)]
    )
