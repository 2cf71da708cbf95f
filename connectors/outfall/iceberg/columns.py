"""The columns of Iceberg tables, as Arrow fields with their field ids, and back.

Iceberg finds columns by field id, so every field of a data file has its id, including nested fields. The accepted types
include Iceberg's promotions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

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
from outfall.tables.arrow_types import Takes, binary, is_list, moment, one_of, text
from outfall.tables.columns import ColumnRules
from outfall.tables.stored_columns import FIELD_ID
from outfall.values import spark_type

_is = pa.types
_SMALL = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())

_TYPES: list[tuple[IcebergType, Takes]] = [
    (BooleanType(), one_of(pa.bool_())),
    (IntegerType(), one_of(pa.int32(), *_SMALL)),
    (LongType(), one_of(pa.int64(), *_SMALL, pa.uint32())),
    (FloatType(), one_of(pa.float32(), pa.float16())),
    (DoubleType(), one_of(pa.float64(), pa.float32(), pa.float16())),
    (DateType(), one_of(pa.date32())),
    (TimeType(), one_of(pa.time64("us"), pa.time32("ms"), pa.time32("s"))),
    (TimestampType(), moment(None)),
    (TimestamptzType(), moment("UTC")),
    (StringType(), text),
    (BinaryType(), binary),
    (UUIDType(), one_of(pa.uuid(), pa.binary(16), pa.binary())),
]


def _type_text(kind: pa.DataType) -> str:
    """Return Spark's name of a table type; Iceberg's if Spark has none."""
    if _is.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if _is.is_time(kind):
        return "time"
    return "uuid" if kind == pa.uuid() else spark_type(kind)


_RULES = ColumnRules(
    "Iceberg",
    [(schema_to_pyarrow(kind), takes) for kind, takes in _TYPES],
    by_id=True,
    has_fixed=True,
    grows_inside=True,
    type_text=_type_text,
)


def file_schema(schema: Schema, rows: pa.Schema, partitioned_by: Collection[int]) -> pa.Schema:
    """Return the schema of a data file; `partitioned_by` has field ids. See `ColumnRules.file_schema`."""
    return _RULES.file_schema(
        _arrow_schema(schema), rows, lambda column: any(number in partitioned_by for number in _numbers(column))
    )


def new_schema(rows: pa.Schema) -> Schema:
    """Return the columns of a table created for rows. See `ColumnRules.new_columns`."""
    _check_paths(rows)
    numbers = iter(range(1, 1 << 31))
    return Schema(*(_iceberg_field(column, numbers) for column in _RULES.new_columns(rows)))


def lacking(schema: Schema, rows: pa.Schema) -> list[tuple[tuple[str, ...], IcebergType]]:
    """Return path and new type of each column that a table lacks. `ConfigurationError` has each without a type."""
    _check_paths(_arrow_schema(schema), rows)
    return [
        (path, _iceberg_type(kind, iter(range(1, 1 << 31))))
        for path, kind in _RULES.lacking(_arrow_schema(schema), rows)
    ]


def _check_paths(*schemas: pa.Schema) -> None:
    """Reject columns that one table cannot have: Iceberg knows each by its names from the outside in, with dots."""
    found: dict[str, tuple[str, ...]] = {}
    for path in (path for schema in schemas for path in _all_paths(schema, ())):
        name = ".".join(path)
        other = found.setdefault(name, path)
        if other != path:
            outer, inner = sorted((path, other), key=len)
            raise ConfigurationError(
                f"the column {outer[0]!r} and a field inside the column {inner[0]!r} are both called {name!r} in"
                " Iceberg",
                why="Iceberg names a field by the names of its columns, joined by dots, and each name only once",
                do=f"rename one of them, for example {outer[0]!r} to {outer[0].replace('.', '_')!r}",
            )


def _all_paths(fields: Iterable[pa.Field], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each column and of each field, element, key and value below it."""
    for column in fields:
        path, kind = (*above, column.name), column.type
        yield path
        if _is.is_struct(kind):
            yield from _all_paths(kind, path)
        elif _is.is_map(kind):
            yield from _all_paths((kind.key_field.with_name("key"), kind.item_field.with_name("value")), path)
        elif is_list(kind):
            yield from _all_paths((kind.value_field.with_name("element"),), path)


def merge_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a table with the types that its rows are compared and rewritten in.

    These are the types of Parquet files: a UUID has no type of its own.
    """
    return pa.schema([column.with_type(_small(column.type)) for column in _arrow_schema(schema)])


def _small(kind: pa.DataType) -> pa.DataType:
    if _is.is_struct(kind):
        return pa.struct([field.with_type(_small(field.type)) for field in kind])
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    if _is.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_small(kind.key_type)), kind.item_field.with_type(_small(kind.item_type))
        )
    if kind == pa.uuid():
        return pa.binary(16)
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def number_of(column: pa.Field) -> int:
    """Return the field id of a column."""
    return int(column.metadata[FIELD_ID])


def _numbers(column: pa.Field) -> Iterator[int]:
    yield number_of(column)
    if _is.is_struct(column.type):  # partition columns are never inside a list or a map
        for inner in column.type:
            yield from _numbers(inner)


def _arrow_schema(schema: Schema) -> pa.Schema:
    return pa.schema([_arrow_field(column) for column in schema.fields])


def _arrow_field(column: NestedField) -> pa.Field:
    """Return a column with its field id, and without its comment, which no file has."""
    number = {FIELD_ID: str(column.field_id).encode()}
    return pa.field(column.name, _arrow_type(column.field_type), nullable=not column.required, metadata=number)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(column) for column in kind.fields])
    if isinstance(kind, ListType):
        return pa.large_list(_arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field))
    return schema_to_pyarrow(kind)


def _iceberg_field(column: pa.Field, numbers: Iterator[int]) -> NestedField:
    kind = _iceberg_type(column.type, numbers)
    return NestedField(next(numbers), column.name, kind, required=False)


def _iceberg_type(kind: pa.DataType, numbers: Iterator[int]) -> IcebergType:
    """Return the type of a new column. Its fields get the next ids."""
    if _is.is_struct(kind):
        return StructType(*(_iceberg_field(column, numbers) for column in kind))
    if is_list(kind):
        element = _iceberg_type(kind.value_type, numbers)
        return ListType(element_id=next(numbers), element=element, element_required=False)
    if _is.is_map(kind):
        key, value = _iceberg_type(kind.key_type, numbers), _iceberg_type(kind.item_type, numbers)
        return MapType(
            key_id=next(numbers), key_type=key, value_id=next(numbers), value_type=value, value_required=False
        )
    if _is.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    if _is.is_fixed_size_binary(kind):
        return FixedType(kind.byte_width)
    return next(made for made, _ in _TYPES if schema_to_pyarrow(made) == kind)


def names_by_id(schema: Schema) -> dict[str, str]:
    """Return the name of each column, under a key that is not an id."""
    return {f"name of {number}": str(schema.find_column_name(number)) for number in sorted(schema.field_ids)}


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
