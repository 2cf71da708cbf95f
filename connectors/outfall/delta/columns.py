"""The columns of Delta tables. Delta finds columns by name, including nested ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.tables.arrow_types import Takes, binary, moment, one_of, text
from outfall.tables.columns import ColumnRules, Lacking

_is = pa.types

_TYPES: list[tuple[pa.DataType, Takes]] = [
    (pa.bool_(), one_of(pa.bool_())),
    (pa.int8(), one_of(pa.int8())),
    (pa.int16(), one_of(pa.int16(), pa.int8(), pa.uint8())),
    (pa.int32(), one_of(pa.int32(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16())),
    (pa.int64(), one_of(pa.int64(), pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32())),
    (pa.float32(), one_of(pa.float32(), pa.float16(), pa.int8(), pa.int16())),
    (pa.float64(), one_of(pa.float64(), pa.float32(), pa.float16(), pa.int8(), pa.int16(), pa.int32())),
    (pa.date32(), one_of(pa.date32())),
    (pa.timestamp("us", "UTC"), moment("UTC")),
    (pa.timestamp("us"), moment(None)),
    (pa.string(), text),
    (pa.binary(), binary),
]

_RULES = ColumnRules("Delta", _TYPES, by_id=False, has_fixed=False, grows_inside=False)


def file_schema(table: pa.Schema, rows: pa.Schema, partitioned_by: Collection[str]) -> pa.Schema:
    """Return the schema of a data file for rows with these columns. See `ColumnRules.file_schema`."""
    found = _RULES.file_schema(table, rows, lambda column: column.name in partitioned_by)
    if set(found.names) <= set(partitioned_by):
        raise ConfigurationError(
            "the rows have only partition columns",
            why="these are not stored in the files, which would have no column at all",
            do="select another column of the table too",
        )
    return found


def new_schema(rows: pa.Schema) -> pa.Schema:
    """Return the columns of a table created for rows. See `ColumnRules.new_columns`."""
    return _RULES.new_columns(rows)


def lacking(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of the rows that a table lacks, with their new types.

    For a struct that lacks some fields it is a struct of those fields. Raises `ConfigurationError` with each column
    that has no table type.
    """
    return _nested(_RULES.lacking(table, rows))


def _nested(found: Lacking) -> list[pa.Field]:
    """Return one field per top-level column: the new column, or a struct of its new fields."""
    inside: dict[str, Lacking] = {}
    for path, kind in found:
        inside.setdefault(path[0], []).append((path[1:], kind))
    return [pa.field(name, pa.struct(_nested(below)) if below[0][0] else below[0][1]) for name, below in inside.items()]


def merged(columns: Iterable[pa.Field], added: Sequence[pa.Field]) -> list[pa.Field]:
    """Return a table's columns with those of `lacking`, in Delta's order: at the end, also within structs."""
    more = {field.name: field for field in added}
    kept = []
    for column in columns:
        field = more.pop(column.name, None)
        kept.append(column if field is None else column.with_type(pa.struct(merged(column.type, list(field.type)))))
    return [*kept, *more.values()]


def moments_without_zone(fields: Iterable[Any]) -> list[str]:
    """Return the columns that contain timestamps without a time zone, at any depth."""
    return [field.name for field in fields if _has_ntz(field.type)]


def _has_ntz(kind: pa.DataType) -> bool:
    if _is.is_timestamp(kind):
        return kind.tz is None
    return any(_has_ntz(kind.field(index).type) for index in range(kind.num_fields))
