"""Arrow columns of Avro types, and how a column of a writer's type becomes one of a reader's type.

The rules are those of Avro's schema resolution (specification 1.12), with the types of Spark's `from_avro`. A decoder
makes *encoded* columns: integers are 64-bit, decimals are bytes, dates and times are integers.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from outfall.schema_registry.avro_schema import NO_DEFAULT, AvroField, AvroType
from outfall.schema_registry.decoding.by_value import UnreadableTypeError, ValueMismatchError

_ENCODED = {
    "boolean": pa.bool_(), "int": pa.int64(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "enum": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(),
}  # fmt: skip
_INSTANT = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")
_TIMES = {
    "timestamp-millis": (_INSTANT, 1000), "timestamp-micros": (_INSTANT, 1),
    "local-timestamp-millis": (_LOCAL, 1000), "local-timestamp-micros": (_LOCAL, 1),
}  # fmt: skip
"""By logical type: the column's type, and microseconds per unit."""
_PROMOTIONS = {
    "long": ("int",), "float": ("int", "long"), "double": ("int", "long", "float"), "string": ("bytes",),
    "bytes": ("string",),
}  # fmt: skip
"""By a reader's type: the other types of writers that it reads."""
_DIGITS = 38


def column_type(kind: AvroType, path: str = "") -> pa.DataType:
    """Return the type of a reader's column. Raises `UnreadableTypeError`."""
    if kind.kind == "record":
        if not kind.fields:
            raise UnreadableTypeError(f"the record {path or kind.name} has no fields")
        return pa.struct([pa.field(each.name, column_type(each.type, _inner(path, each.name))) for each in kind.fields])
    if kind.kind == "array":
        return pa.list_(column_type(_item(kind), _inner(path, "[]")))
    if kind.kind == "map":
        return pa.map_(pa.string(), column_type(_item(kind), _inner(path, "{}")))
    if kind.kind in ("union", "null"):
        raise UnreadableTypeError(f"{path or 'the schema'} is a {kind.kind} that no column type represents")
    if kind.kind in _TIMES:
        return _TIMES[kind.kind][0]
    if kind.kind == "date":
        return pa.date32()
    if kind.kind == "decimal":
        if kind.precision > _DIGITS:
            raise UnreadableTypeError(f"{path or 'the schema'} has {kind.precision} digits, and Spark has {_DIGITS}")
        return pa.decimal128(kind.precision, kind.scale)
    return pa.int32() if kind.base == "int" else _ENCODED[kind.base]


def encoded_type(kind: AvroType) -> pa.DataType:
    """Return the type of an encoded column."""
    if kind.kind == "record":
        return pa.struct([pa.field(each.name, encoded_type(each.type)) for each in kind.fields])
    if kind.kind == "array":
        return pa.list_(encoded_type(_item(kind)))
    if kind.kind == "map":
        return pa.map_(pa.string(), encoded_type(_item(kind)))
    return _ENCODED[kind.base]


def check_resolution(writer: AvroType, reader: AvroType, path: str = "") -> None:
    """Raise `UnreadableTypeError` if a reader would take the values of a writer for other ones, or for none.

    What depends on the values, such as NULL for a type without it, is seen when they are read.
    """
    where = path or "the value"
    if writer.kind == "union":
        # Which of the types a value has is seen when it is read, but not what a number means.
        for branch in writer.branches:
            if not branch.name and branch.base in (reader.base, *_PROMOTIONS.get(reader.base, ())):
                _check_meaning(branch, reader, where)
    if "union" in (writer.kind, reader.kind):
        return
    if writer.base != reader.base and writer.base not in _PROMOTIONS.get(reader.base, ()):
        raise UnreadableTypeError(f"{where} was written as {writer.base}, and the reader's schema has {reader.base}")
    _check_meaning(writer, reader, where)
    known = (reader.short_name, *(each.rpartition(".")[2] for each in reader.aliases))
    if reader.base in ("record", "enum", "fixed") and writer.short_name not in known:
        raise UnreadableTypeError(
            f"{where} was written as {writer.short_name}, and the reader's schema has {reader.short_name}"
        )
    if reader.base == "fixed" and writer.size != reader.size:
        raise UnreadableTypeError(f"{where} was written with {writer.size} bytes, and the reader's has {reader.size}")
    if reader.items is not None:
        check_resolution(_item(writer), reader.items, _inner(path, "[]"))
    for field in reader.fields:
        found = written_field(writer, field)
        if found is None:
            if field.default is NO_DEFAULT:
                raise UnreadableTypeError(f"it was written without {_inner(path, field.name)}, which has no default")
        else:
            check_resolution(writer.fields[found].type, field.type, _inner(path, field.name))


def _check_meaning(writer: AvroType, reader: AvroType, where: str) -> None:
    """Raise `UnreadableTypeError` if both types are logical ones that differ."""
    if writer.kind != writer.base and reader.kind != reader.base and _meaning(writer) != _meaning(reader):
        raise UnreadableTypeError(
            f"{where} was written as {_named(writer)}, and the reader's schema has {_named(reader)}"
        )


def written_field(writer: AvroType, field: AvroField) -> int | None:
    """Return the position of the writer's field that a reader's field reads."""
    for name in (field.name, *field.aliases):
        for index, each in enumerate(writer.fields):
            if each.name == name:
                return index
    return None


def converted(column: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    """Return the reader's column of an encoded column of a writer, after `check_resolution`.

    Raises `ValueMismatchError`, or an error of Arrow, if a value does not fit. Which one it is, is not found here.
    """
    if column.null_count and not reader.nullable:
        raise ValueMismatchError("NULL, and the reader's schema has no null there")
    if reader.items is None and not reader.fields:
        return _leaf(column, writer, reader)
    if column.null_count:
        # What is inside of NULL is undefined, and must not be compared with the reader's schema.
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        return _nested(column.drop_null(), writer, reader).take(places)
    return _nested(column, writer, reader)


def _nested(column: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    """Convert the parts of a column without NULL."""
    if reader.kind == "record":
        parts = []
        for field in reader.fields:
            found = written_field(writer, field)
            if found is None:
                parts.append(_default(field, len(column)))
            else:
                parts.append(converted(column.field(found), writer.fields[found].type, field.type))
        return pa.StructArray.from_arrays(parts, fields=list(column_type(reader)))
    offsets = pc.subtract(column.offsets, column.offsets[0])
    if reader.kind == "array":
        items = converted(column.flatten(), _item(writer), _item(reader))
        return pa.ListArray.from_arrays(offsets, items, type=column_type(reader))
    items = converted(column.items, _item(writer), _item(reader))
    return pa.MapArray.from_arrays(offsets, column.keys, items, type=column_type(reader))


def _leaf(column: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    if reader.kind == "enum":
        known = pc.is_in(column, pa.array(reader.symbols, pa.string()))
        if reader.default is not None:
            column = pc.if_else(pc.or_(known, pc.is_null(column)), column, reader.default)
        elif pc.any(pc.and_(pc.invert(known), pc.is_valid(column))).as_py():
            raise ValueMismatchError("a symbol that the reader's schema lacks")
        return column
    if reader.kind in _TIMES:
        kind, factor = _TIMES[reader.kind]
        return (column if factor == 1 else pc.multiply_checked(column, factor)).cast(kind)
    if reader.kind == "date":
        return column.cast(pa.int32()).cast(pa.date32())
    if reader.kind == "decimal":
        values = [None if each is None else _decimal(each, reader.scale) for each in column.to_pylist()]
        return pa.array(values, column_type(reader))
    if reader.kind in ("float", "double"):
        # As in Avro, large integers lose digits.
        return column.cast(pa.float64(), safe=False).cast(_ENCODED[reader.kind], safe=False)
    return column.cast(column_type(reader))


def _default(field: AvroField, rows: int) -> pa.Array:
    value = pa.array([encoded_default(field.type, field.default)], encoded_type(field.type))
    return converted(value.take(pa.array([0] * rows, pa.int64())), field.type, field.type)


def check_defaults(kind: AvroType) -> None:
    """Raise `UnreadableTypeError` if a field has a default that is no value of its type."""
    if kind.items is not None:
        check_defaults(kind.items)
    for each in kind.fields:
        check_defaults(each.type)
        if each.default is not NO_DEFAULT:
            try:
                _default(each, 1)
            except (ValueError, TypeError, AttributeError) as error:
                raise UnreadableTypeError(f"the default of the field {each.name} is not one: {error}") from error


def encoded_default(kind: AvroType, value: Any) -> Any:
    """Return a default, which is JSON, as a decoder returns values. Raises `UnreadableTypeError` for one it cannot."""
    if value is None:
        return None
    if kind.base in ("bytes", "fixed"):
        if not value.isascii():
            raise UnreadableTypeError("a default of bytes is not ASCII")
        return value.encode()
    if kind.kind == "record":
        return {each.name: encoded_default(each.type, value.get(each.name, each.default)) for each in kind.fields}
    if kind.kind == "array":
        return [encoded_default(_item(kind), each) for each in value]
    if kind.kind == "map":
        return {name: encoded_default(_item(kind), each) for name, each in value.items()}
    return float(value) if kind.kind in ("float", "double") else value


def _decimal(data: bytes, scale: int) -> Decimal:
    if not data:
        # Java refuses it too, and Python would take it for zero.
        raise ValueMismatchError("a decimal has no bytes")
    number = int.from_bytes(data, "big", signed=True)
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, -scale))


def _item(kind: AvroType) -> AvroType:
    if kind.items is None:
        raise UnreadableTypeError(f"a {kind.kind} has no items")
    return kind.items


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _meaning(kind: AvroType) -> tuple[Any, ...]:
    return kind.kind, kind.precision, kind.scale


def _named(kind: AvroType) -> str:
    return f"decimal({kind.precision},{kind.scale})" if kind.kind == "decimal" else kind.kind
