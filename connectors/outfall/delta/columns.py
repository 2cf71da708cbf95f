"""Columns: the fit between rows and tables, new tables for rows, and columns that a table lacks.

Delta finds columns by name, including nested ones. A type is accepted if no value changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from outfall.errors import ConfigurationError
from outfall.tables.arrow_types import Takes, binary, decimal, is_list, moment, one_of, text
from outfall.values import spark_type

_is = pa.types
_NANOS = "it may have nanoseconds, and the table stores microseconds"


class _MisfitError(Exception):
    """The reason why a column cannot be written."""


def file_schema(table: pa.Schema, rows: pa.Schema, partitioned_by: Collection[str]) -> pa.Schema:
    """Return the schema of a data file for rows with these columns. It lacks columns that the rows lack.

    Top-level columns have the table's order and names. Inside a struct, fields keep the order of the rows.

    Args:
        table: the columns of the table.
        rows: the columns of the rows.
        partitioned_by: the partition columns of the table.

    Raises:
        ConfigurationError: with each column that does not fit.
    """
    problems: list[str] = []
    fields = dict(_fitted(list(table), list(rows), "", partitioned_by, problems))
    if problems:
        raise ConfigurationError(
            "the rows do not fit the table: " + "; ".join(problems),
            do="rename, cast or drop these columns, or add them to the table: by hand, or new ones by"
            ' schema_evolution="add_columns"',
        )
    if not fields:
        raise ConfigurationError("the rows have no column", do="select the columns of the table")
    if fields.keys() <= set(partitioned_by):
        raise ConfigurationError(
            "the rows have only partition columns",
            why="these are not stored in the files, which would have no column at all",
            do="select another column of the table too",
        )
    return pa.schema([fields[field.name] for field in table if field.name in fields])


def _fitted(
    columns: Sequence[pa.Field], rows: Sequence[pa.Field], path: str, needed: Collection[str], problems: list[str]
) -> Iterator[tuple[str, pa.Field]]:
    """Yield each table column that the rows have, with its file field; report the columns that do not fit."""
    found = {name: column for column, name in _matched(columns, rows)}
    for row in rows:
        column, name = found.get(row.name), f"{path}{row.name}"
        if column is None or (path and column.name != row.name):
            near = next((other.name for other in columns if other.name.lower() == row.name.lower()), None)
            problems.append(
                f"{name} is not in the table" if near is None else f"{name} differs only in case from {path}{near}"
            )
            continue
        if path and not column.nullable and row.nullable:
            problems.append(f"{name} may be NULL, and the table requires it")
        try:
            yield column.name, column.with_type(_fits(column.type, row.type, name, problems))
        except _MisfitError as error:
            problems.append(str(error))
    for column in columns:
        if column not in found.values():
            if not column.nullable:
                problems.append(f"{path}{column.name} is missing, and the table requires it")
            elif column.name in needed:
                problems.append(f"{path}{column.name} is missing, and the table is partitioned by it")


def _matched(columns: Iterable[pa.Field], rows: Sequence[pa.Field]) -> Iterator[tuple[pa.Field, str]]:
    """Yield each table column with the name of its row column: an exact match, else a case-insensitive one."""
    for column in columns:
        alike = [row.name for row in rows if row.name.lower() == column.name.lower()]
        if column.name in alike:
            yield column, column.name
        elif len(alike) == 1:
            yield column, alike[0]


def _fits(kind: pa.DataType, given: pa.DataType, name: str, problems: list[str]) -> pa.DataType:
    """Return the type in the file for values of a given type.

    Raises:
        _MisfitError: values would change.
    """
    given = _plain(given)
    if _is.is_null(given) or given == kind:
        return kind
    if _is.is_struct(kind) and _is.is_struct(given):
        return pa.struct([field for _, field in _fitted(list(kind), list(given), f"{name}.", (), problems)])
    if _is.is_list(kind) and is_list(given):
        element = _inside(kind.value_field, given.value_field, f"{name}.element", problems)
        return pa.large_list(element) if _is.is_large_list(given) else pa.list_(element)
    if _is.is_map(kind) and _is.is_map(given):
        key = _fits(kind.key_type, given.key_type, f"{name}.key", problems)
        return pa.map_(key, _inside(kind.item_field, given.item_field, f"{name}.value", problems))
    takes = next((takes for stored, takes in _TAKES if stored == kind), None)
    file_type = decimal(kind, given) if _is.is_decimal(kind) else takes(given) if takes is not None else None
    if file_type is None:
        nanoseconds = _is.is_timestamp(given) and given.unit == "ns"
        raise _MisfitError(
            f"{name} is {spark_type(given)}, and {spark_type(kind)} in the table"
            + (f": {_NANOS}" if nanoseconds else "")
        )
    return file_type


def _inside(column: pa.Field, given: pa.Field, name: str, problems: list[str]) -> pa.Field:
    if given.nullable and not column.nullable:
        problems.append(f"{name} may be NULL, and the table requires it")
    return column.with_type(_fits(column.type, given.type, name, problems))


def _plain(given: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary, or the storage type of an extension."""
    if _is.is_dictionary(given):
        return _plain(given.value_type)
    return _plain(given.storage_type) if isinstance(given, pa.BaseExtensionType) else given


_TAKES: tuple[tuple[pa.DataType, Takes], ...] = (
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
)
"""Delta's primitive types, as Arrow types, with the accepted types of rows and their types in the file."""


def new_schema(rows: pa.Schema) -> pa.Schema:
    """Return the columns of a table created for rows. All are optional.

    Raises:
        ConfigurationError: with each column that has no table type.
    """
    problems: list[str] = []
    made = _new_fields(list(rows), "", problems)
    if problems or not made:
        raise ConfigurationError(
            "cannot create a table for these rows: " + ("; ".join(problems) or "they have no column"),
            do="rename, cast or drop these columns",
        )
    return pa.schema(made)


def _new_fields(given: Sequence[pa.Field], path: str, problems: list[str]) -> list[pa.Field]:
    made: dict[str, pa.Field] = {}
    for field in given:
        other = made.get(field.name.lower())
        if other is not None:
            problems.append(f"{path}{field.name} differs only in case from {path}{other.name}")
        try:
            made[field.name.lower()] = pa.field(field.name, _new_type(field.type, f"{path}{field.name}", problems))
        except _MisfitError as error:
            problems.append(str(error))
    return list(made.values())


def _new_type(given: pa.DataType, name: str, problems: list[str]) -> pa.DataType:
    """Return the type of a new table column for values of a type.

    Raises:
        _MisfitError: no type preserves the values.
    """
    given = _plain(given)
    if _is.is_struct(given):
        return pa.struct(_new_fields(list(given), f"{name}.", problems))
    if is_list(given):
        return pa.list_(pa.field("element", _new_type(given.value_type, f"{name}.element", problems)))
    if _is.is_map(given):
        key = _new_type(given.key_type, f"{name}.key", problems)
        return pa.map_(key, _new_type(given.item_type, f"{name}.value", problems))
    if _is.is_decimal(given) and given.precision <= 38 and 0 <= given.scale <= given.precision:
        return pa.decimal128(given.precision, given.scale)
    # The first match: an int before a long, a float before a double.
    for stored, takes in _TAKES:
        if takes(given) is not None:
            return stored
    why = (
        "it has no type, because all its values are NULL"
        if _is.is_null(given)
        else f"Delta has no type for {spark_type(given)}"
    )
    raise _MisfitError(f"{name}: {why}")


def lacking(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of the rows that a table lacks, with their new types.

    For a struct that lacks some fields it is a struct of those fields.

    Raises:
        ConfigurationError: with each column that has no table type.
    """
    problems: list[str] = []
    found = _lacking(list(table), list(rows), "", problems)
    if problems:
        raise ConfigurationError(
            "columns cannot be added to the table: " + "; ".join(problems), do="rename, cast or drop these columns"
        )
    return found


def _lacking(columns: Sequence[pa.Field], rows: Sequence[pa.Field], path: str, problems: list[str]) -> list[pa.Field]:
    known = {column.name.lower(): column for column in columns}
    found = _new_fields([row for row in rows if row.name.lower() not in known], path, problems)
    matched = {name: column for column, name in _matched(columns, rows)}
    for row in rows:
        column = matched.get(row.name)
        if column is None and row.name.lower() in known:
            problems.append(f"{path}{row.name} differs only in case from {path}{known[row.name.lower()].name}")
        elif column is not None and _is.is_struct(column.type) and _is.is_struct(row.type):
            inner = _lacking(list(column.type), list(row.type), f"{path}{column.name}.", problems)
            if inner:
                found.append(pa.field(column.name, pa.struct(inner)))
    return found


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
