"""Columns: the fit between rows and tables, new tables for rows, and columns that a table lacks.

Iceberg finds columns by field id, so every field of a data file has its id, including nested fields. A type is accepted
if no value changes; this includes Iceberg's promotions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from outfall.errors import ConfigurationError
from outfall.tables.arrow_types import Takes, binary, decimal, is_list, moment, one_of, text
from outfall.values import spark_type

FIELD_ID = b"PARQUET:field_id"
"""The key of a field id in Arrow metadata, which Parquet files take it from."""

_is = pa.types
_SMALL = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_NANOS = "it may have nanoseconds, and the table stores microseconds"


class _MisfitError(Exception):
    """The reason why a column cannot be written, with the remedy."""


def file_schema(schema: Schema, rows: pa.Schema, partitioned_by: Collection[int]) -> pa.Schema:
    """Return the schema of a data file for rows with these columns. It lacks columns that the rows lack.

    Top-level columns have the table's order and names. Inside a struct, fields keep the order and names of the rows,
    because readers find them by id.

    Args:
        schema: the schema of the table.
        rows: the columns of the rows.
        partitioned_by: the field ids of the partition columns.

    Raises:
        ConfigurationError: with each column that does not fit.
    """
    problems: list[str] = []
    fields = dict(_fitted(schema.fields, rows, "", partitioned_by, problems))
    if problems:
        raise ConfigurationError(
            "the rows do not fit the table: " + "; ".join(problems),
            do="rename, cast or drop these columns, or add them to the table: by hand, or new ones by"
            ' schema_evolution="add_columns"',
        )
    if not fields:
        raise ConfigurationError("the rows have no column", do="select the columns of the table")
    return pa.schema(
        [fields[field.field_id].with_name(field.name) for field in schema.fields if field.field_id in fields]
    )


def _fitted(
    columns: Iterable[NestedField], rows: Iterable[Any], path: str, needed: Collection[int], problems: list[str]
) -> Iterator[tuple[int, pa.Field]]:
    """Yield the id and the file field of each column of the rows; report the columns that do not fit."""
    columns, rows = list(columns), list(rows)
    found = {name: column for column, name in _matched(columns, rows)}
    for row in rows:
        column, name = found.get(row.name), f"{path}{row.name}"
        if column is None:
            near = next((other.name for other in columns if other.name.lower() == row.name.lower()), None)
            problems.append(
                f"{name} is not in the table" if near is None
                else f"{name} differs only in case from {path}{near}, which another column is written to"
            )  # fmt: skip
            continue
        if path and column.required and row.nullable:
            problems.append(f"{name} may be NULL, and the table requires it")
        try:
            kind = _fits(column.field_type, row.type, name, needed, problems)
        except _MisfitError as error:
            problems.append(str(error))
        else:
            yield column.field_id, _numbered(row.name, kind, column.field_id, required=column.required)
    for column in columns:
        if column not in found.values():
            if column.required:
                problems.append(f"{path}{column.name} is missing, and the table requires it")
            elif any(number in needed for number in _numbers(column)):
                problems.append(f"{path}{column.name} is missing, and the table is partitioned by it")


def _matched(columns: Iterable[NestedField], rows: Iterable[Any]) -> Iterator[tuple[NestedField, str]]:
    """Yield each table column with the name of its row column: an exact match, else a case-insensitive one."""
    names = [row.name for row in rows]
    for column in columns:
        alike = [name for name in names if name.lower() == column.name.lower()]
        if column.name in alike:
            yield column, column.name
        elif len(alike) == 1:
            yield column, alike[0]


def _numbered(name: str, kind: pa.DataType, number: int, *, required: bool) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={FIELD_ID: str(number).encode()})


def _numbers(column: NestedField) -> Iterator[int]:
    yield column.field_id
    if isinstance(column.field_type, StructType):  # partition columns are never inside a list or a map
        for field in column.field_type.fields:
            yield from _numbers(field)


def _fits(
    kind: IcebergType, given: pa.DataType, name: str, needed: Collection[int], problems: list[str]
) -> pa.DataType:
    """Return the type in the file for values of a given type.

    Raises:
        _MisfitError: values would change.
    """
    given = _plain(given)
    if _is.is_null(given):
        return schema_to_pyarrow(kind)
    if isinstance(kind, StructType) and _is.is_struct(given):
        return pa.struct([field for _, field in _fitted(kind.fields, given, f"{name}.", needed, problems)])
    if isinstance(kind, ListType) and is_list(given):
        (element,) = _inside([kind.element_field], [given.value_field], name, problems)
        return pa.large_list(element) if _is.is_large_list(given) else pa.list_(element)
    if isinstance(kind, MapType) and _is.is_map(given):
        inside = [kind.key_field, kind.value_field]
        return pa.map_(*_inside(inside, [given.key_field, given.item_field], name, problems))
    file_type = _primitive(kind, given)
    if file_type is None:
        nanoseconds = (_is.is_timestamp(given) or _is.is_time(given)) and given.unit == "ns"
        raise _MisfitError(
            f"{name} is {spark_type(given)}, and {_shown(kind)} in the table" + (f": {_NANOS}" if nanoseconds else "")
        )
    return file_type


def _shown(kind: IcebergType) -> str:
    """Return Spark's name of a table type; Iceberg's if Spark has none."""
    return str(kind) if isinstance(kind, UUIDType | FixedType | TimeType) else spark_type(schema_to_pyarrow(kind))


def _inside(
    columns: Iterable[NestedField], given: Iterable[pa.Field], name: str, problems: list[str]
) -> Iterator[pa.Field]:
    """Yield the element fields of a list or a map. They are never partition columns."""
    for column, field in zip(columns, given, strict=True):
        if column.required and field.nullable and column.name != "key":
            problems.append(f"{name}.{column.name} may be NULL, and the table requires it")
        kind = _fits(column.field_type, field.type, f"{name}.{column.name}", (), problems)
        yield _numbered(column.name, kind, column.field_id, required=column.required)


def _plain(given: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary, or the storage type of an extension other than UUID."""
    if _is.is_dictionary(given):
        return _plain(given.value_type)
    if isinstance(given, pa.BaseExtensionType) and given.extension_name != "arrow.uuid":
        return _plain(given.storage_type)
    return given


def _primitive(kind: IcebergType, given: pa.DataType) -> pa.DataType | None:
    """Return the type in the file for a primitive type; `None` if values would change."""
    if isinstance(kind, DecimalType):
        return decimal(pa.decimal128(kind.precision, kind.scale), given)
    if isinstance(kind, FixedType):
        return pa.binary(len(kind)) if given in (pa.binary(), pa.binary(len(kind))) else None
    takes = _TAKES.get(type(kind))
    return takes(given) if takes is not None else None


_TAKES: dict[type[IcebergType], Takes] = {
    BooleanType: one_of(pa.bool_()),
    IntegerType: one_of(pa.int32(), *_SMALL),
    LongType: one_of(pa.int64(), *_SMALL, pa.uint32()),
    FloatType: one_of(pa.float32(), pa.float16()),
    DoubleType: one_of(pa.float64(), pa.float32(), pa.float16()),
    DateType: one_of(pa.date32()),
    TimeType: one_of(pa.time64("us"), pa.time32("ms"), pa.time32("s")),
    TimestampType: moment(None),
    TimestamptzType: moment("UTC"),
    StringType: text,
    BinaryType: binary,
    UUIDType: one_of(pa.uuid(), pa.binary(16), pa.binary()),
}


def new_schema(rows: pa.Schema) -> Schema:
    """Return the columns of a table created for rows. All are optional.

    Raises:
        ConfigurationError: with each column that has no table type.
    """
    problems: list[str] = []
    folded: dict[str, str] = {}
    for field in rows:
        if folded.setdefault(field.name.lower(), field.name) != field.name:
            problems.append(f"{field.name} differs only in case from {folded[field.name.lower()]}")
    numbers = iter(range(1, 1 << 31))
    fields = _new_fields(rows, "", numbers, problems)
    if problems or not fields:
        raise ConfigurationError(
            "cannot create a table for these rows: " + ("; ".join(problems) or "they have no column"),
            do="rename, cast or drop these columns",
        )
    return Schema(*fields)


def _new_fields(given: Iterable[Any], path: str, numbers: Iterator[int], problems: list[str]) -> list[NestedField]:
    made = []
    for field in given:
        try:
            kind = _new_type(field.type, f"{path}{field.name}", numbers, problems)
        except _MisfitError as error:
            problems.append(str(error))
        else:
            made.append(NestedField(next(numbers), field.name, kind, required=False))
    return made


def _new_type(given: pa.DataType, name: str, numbers: Iterator[int], problems: list[str]) -> IcebergType:
    """Return the type of a new table column for values of a type.

    Raises:
        _MisfitError: no type preserves the values.
    """
    given = _plain(given)
    if _is.is_struct(given):
        return StructType(*_new_fields(given, f"{name}.", numbers, problems))
    if is_list(given):
        element = _new_type(given.value_type, f"{name}.element", numbers, problems)
        return ListType(element_id=next(numbers), element=element, element_required=False)
    if _is.is_map(given):
        key = _new_type(given.key_type, f"{name}.key", numbers, problems)
        value = _new_type(given.item_type, f"{name}.value", numbers, problems)
        return MapType(
            key_id=next(numbers), key_type=key, value_id=next(numbers), value_type=value, value_required=False
        )
    if _is.is_decimal(given) and given.precision <= 38 and 0 <= given.scale <= given.precision:
        return DecimalType(given.precision, given.scale)
    if _is.is_fixed_size_binary(given):
        return FixedType(given.byte_width)
    # The first match: an int before a long, a float before a double.
    for kind, takes in _TAKES.items():
        if takes(given) is not None:
            return kind()
    why = (
        "it has no type, because all its values are NULL"
        if _is.is_null(given)
        else f"Iceberg has no type for {spark_type(given)}"
    )
    raise _MisfitError(f"{name}: {why}")


def lacking(schema: Schema, rows: pa.Schema) -> list[tuple[tuple[str, ...], IcebergType]]:
    """Return the columns of the rows that a table lacks: the path of each, and its new type.

    Raises:
        ConfigurationError: with each column that has no table type.
    """
    problems: list[str] = []
    found = list(_lacking(schema.fields, rows, (), problems))
    if problems:
        raise ConfigurationError(
            "columns cannot be added to the table: " + "; ".join(problems), do="rename, cast or drop these columns"
        )
    return found


def _lacking(
    columns: Iterable[NestedField], rows: Iterable[Any], path: tuple[str, ...], problems: list[str]
) -> Iterator[tuple[tuple[str, ...], IcebergType]]:
    columns, rows = list(columns), list(rows)
    found = {name: column for column, name in _matched(columns, rows)}
    known = {column.name.lower() for column in columns}
    for row in rows:
        here = (*path, row.name)
        if row.name in found:
            yield from _lacking_inside(found[row.name], row.type, path, problems)
        elif row.name.lower() in known:
            problems.append(f"{'.'.join(here)} differs only in case from a column of the table")
        else:
            known.add(row.name.lower())
            try:
                yield here, _new_type(row.type, ".".join(here), iter(range(1, 1 << 31)), problems)
            except _MisfitError as error:
                problems.append(str(error))


def _lacking_inside(
    column: NestedField, given: pa.DataType, path: tuple[str, ...], problems: list[str]
) -> Iterator[tuple[tuple[str, ...], IcebergType]]:
    kind, given, here = column.field_type, _plain(given), (*path, column.name)
    if isinstance(kind, StructType) and _is.is_struct(given):
        yield from _lacking(kind.fields, given, here, problems)
    elif isinstance(kind, ListType) and (_is.is_list(given) or _is.is_large_list(given)):
        yield from _lacking_inside(kind.element_field, given.value_type, here, problems)
    elif isinstance(kind, MapType) and _is.is_map(given):
        yield from _lacking_inside(kind.value_field, given.item_type, here, problems)


def identities(schema: Schema) -> dict[str, str]:
    """Return each column's id with its fixed properties, which determine how a file is read.

    Iceberg's promotions change nothing: a reader widens the numbers of an older file.
    """
    fields = {number: schema.find_field(number) for number in schema.field_ids}
    return {str(number): _identity(field) for number, field in sorted(fields.items())}


def _identity(field: NestedField) -> str:
    kind = field.field_type
    if isinstance(kind, StructType | ListType | MapType):
        text = type(kind).__name__.removesuffix("Type").lower()
    elif isinstance(kind, DecimalType):
        text = f"decimal of scale {kind.scale}"
    else:
        text = {"int": "integer", "long": "integer", "float": "floating", "double": "floating"}.get(
            str(kind), str(kind)
        )
    return f"required {text}" if field.required else text
