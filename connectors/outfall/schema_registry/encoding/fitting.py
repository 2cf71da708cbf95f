"""Columns that fit an Avro schema: checked types, refused values, and arrays as encoders expect them.

All checks are made here, by column, so that an encoder never sees a value that its schema does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.formats.strings import check_utf8
from outfall.schema_registry.avro_schema import NO_DEFAULT, AvroField, AvroType
from outfall.schema_registry.encoding.places import Place
from outfall.values import spark_type

Change = Callable[[pa.Array], pa.Array]
UTC_MICROS = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Fit:
    """How a column becomes an array of a type: with `plain`, of numbers in place of dates and times."""

    type: pa.DataType
    change: Change


def fit_record(avro: AvroType, columns: list[pa.Field], place: Place | None, *, plain: bool) -> list[Fit | None]:
    """Return how each field of a record is made of the columns of the same names; `None` if by its default.

    Raises `ConfigurationError` if a column has no field, a field without default has no column, or a type differs.
    """
    given = {column.name: column for column in columns}
    fields = {field.name: field for field in avro.fields}
    where = f" of {place.path!r}" if place else ""
    if lacking := [name for name in given if name not in fields]:
        raise ConfigurationError(
            f"the column {lacking[0]!r}{where} is not in the schema",
            why=f"the record {avro.name} has the fields {', '.join(fields) or 'none'}",
            do="drop or rename the column, or register a version of the schema with such a field",
        )
    if lacking := [name for name, field in fields.items() if name not in given and field.default is NO_DEFAULT]:
        raise ConfigurationError(
            f"the field {lacking[0]!r} of the record {avro.name} has no column{where}, and no default",
            why=f"the columns are {', '.join(given)}",
            do="add or rename a column, or register a version of the schema with a default",
        )
    for name, field in fields.items():
        if name not in given:
            _check_default(field, plain)
    return [
        None if field.name not in given else fit(field.type, given[field.name].type,
            place.inside(field.name) if place else Place(field.name), plain=plain)
        for field in avro.fields
    ]  # fmt: skip


def fit(avro: AvroType, arrow: Any, place: Place, *, plain: bool) -> Fit:
    """Return how a column becomes an array for a type. Raises `ConfigurationError` if it cannot."""
    maker = {"record": _struct, "array": _list, "map": _map}.get(avro.kind, _scalar)
    found = maker(avro, arrow, place, plain)
    if found is None:
        raise ConfigurationError(
            f"column {place.path!r} of type {spark_type(arrow)} does not fit the Avro type {_shown(avro)}",
            why="only a union of null and one type has a type in Spark" if avro.kind == "union" else None,
            do=_ADVICE.get(avro.kind, "cast the column, or change the schema"),
        )
    return found if avro.nullable or avro.kind == "null" else _without_nulls(found, place)


def rebuilt(array: pa.Array, fields: list[Fit | None], avro: AvroType, *, plain: bool) -> pa.Array:
    """Return a struct array without NULLs of the fields of a record, of one with the columns of the same names."""
    children = []
    for field, one in zip(avro.fields, fields, strict=True):
        if one is None:
            children.append(default_array(field, len(array), plain=plain))
        else:
            children.append(one.change(pc.struct_field(array, [field.name])))
    if not children:
        return pa.array([{}] * len(array), pa.struct([]))
    return pa.StructArray.from_arrays(children, names=[field.name for field in avro.fields])


def default_array(field: AvroField, count: int, *, plain: bool) -> pa.Array:
    """Return the default of a field as a column."""
    kind = arrow_of(field.type, plain=plain)
    if field.default is None:
        return pa.nulls(count, kind)
    return pa.repeat(pa.scalar(_default(field.type, field.default), kind), count)


def _check_default(field: AvroField, plain: bool) -> None:
    """Raise `ConfigurationError` for a default that is no value of its type: fastavro checks its kind only."""
    try:
        default_array(field, 1, plain=plain)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigurationError(
            f"the default of the field {field.name!r} is no value of the Avro type {_shown(field.type)}",
            why=str(error),
            do="correct the default in the schema, or add a column for the field",
        ) from error


def arrow_of(avro: AvroType, *, plain: bool) -> pa.DataType:
    """Return the Arrow type that encoders expect for a type."""
    if avro.kind == "record":
        return pa.struct([(field.name, arrow_of(field.type, plain=plain)) for field in avro.fields])
    if avro.items is not None:
        items = arrow_of(avro.items, plain=plain)
        return pa.list_(items) if avro.kind == "array" else pa.map_(pa.string(), items)
    if avro.kind == "decimal":
        return _decimal(avro)
    found, number = _ARROW[avro.kind]
    return number if plain else found


_ARROW: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "null": (pa.null(), pa.null()),
    "boolean": (pa.bool_(), pa.bool_()),
    "int": (pa.int32(), pa.int32()),
    "long": (pa.int64(), pa.int64()),
    "float": (pa.float32(), pa.float32()),
    "double": (pa.float64(), pa.float64()),
    "bytes": (pa.binary(), pa.binary()),
    "fixed": (pa.binary(), pa.binary()),
    "string": (pa.string(), pa.string()),
    "enum": (pa.string(), pa.string()),
    "uuid": (pa.string(), pa.string()),
    "union": (pa.null(), pa.null()),
    "date": (pa.date32(), pa.int32()),
    "time-millis": (pa.time32("ms"), pa.int32()),
    "time-micros": (pa.time64("us"), pa.int64()),
    "timestamp-millis": (pa.timestamp("ms", "UTC"), pa.int64()),
    "timestamp-micros": (UTC_MICROS, pa.int64()),
    "local-timestamp-millis": (pa.timestamp("ms"), pa.int64()),
    "local-timestamp-micros": (pa.timestamp("us"), pa.int64()),
    "timestamp-nanos": (pa.int64(), pa.int64()),
    "local-timestamp-nanos": (pa.int64(), pa.int64()),
}
"""By type: what a fast encoder expects, and with `plain` a number in place of a date or time."""

_ADVICE = {
    "union": "select a schema whose unions have one type besides null",
    "timestamp-millis": "cast the column to timestamp",
    "timestamp-micros": "cast the column to timestamp",
    "local-timestamp-millis": "cast the column to timestamp_ntz",
    "local-timestamp-micros": "cast the column to timestamp_ntz",
    "decimal": "cast the column to a decimal of at most the schema's scale",
    "record": "make it a struct with the fields of the record",
    "map": "make it a map whose keys are strings",
}


def _shown(avro: AvroType) -> str:
    extra = f"({avro.precision},{avro.scale})" if avro.kind == "decimal" else ""
    return f"{avro.kind}{f' {avro.name}' if avro.name else ''}{extra}"


def _decimal(avro: AvroType) -> Any:
    return (pa.decimal128 if avro.precision <= 38 else pa.decimal256)(avro.precision, avro.scale)


def _default(avro: AvroType, value: Any) -> Any:
    """Convert a default from JSON: bytes are text in Latin-1 there."""
    if avro.kind in ("bytes", "fixed") and isinstance(value, str):
        return value.encode("latin-1")
    if avro.kind == "decimal" and isinstance(value, str):
        return _as_decimal(avro, value.encode("latin-1"))
    if avro.kind == "enum" and value is not None and value not in avro.symbols:
        raise ValueError(f"the enum has no symbol {value!r}")
    if avro.kind == "record":
        given = {field.name: value.get(field.name, field.default) for field in avro.fields}
        return {field.name: _default(field.type, given[field.name]) for field in avro.fields}
    if avro.items is not None and value is not None:
        if avro.kind == "map":
            return [(name, _default(avro.items, item)) for name, item in value.items()]
        return [_default(avro.items, item) for item in value]
    return value


def _as_decimal(avro: AvroType, raw: bytes) -> Any:
    from decimal import Decimal

    return Decimal(int.from_bytes(raw, signed=True)).scaleb(-avro.scale)


def _without_nulls(found: Fit, place: Place) -> Fit:
    def change(array: pa.Array) -> pa.Array:
        if array.null_count:
            place.refuse(array.is_null(), "is NULL", "remove such rows, or let the schema allow null")
        return found.change(array)

    return Fit(found.type, change)


def _scalar(avro: AvroType, arrow: Any, place: Place, plain: bool) -> Fit | None:
    """Return how a column of a scalar type is converted, if it can."""
    if avro.kind == "decimal":
        fits = pa.types.is_decimal(arrow) and arrow.scale <= avro.scale
        return Fit(_decimal(avro), _cast(_decimal(avro), place, "has more digits than the schema")) if fits else None
    accepts, what = _ACCEPTED.get(avro.kind, (lambda kind: False, ""))
    if not accepts(arrow):
        return None
    kind, number = _ARROW[avro.kind]
    change = _cast(kind, place, what)
    if avro.kind in _CHECKED:
        change = _CHECKED[avro.kind](avro, change, place)
    if not plain or kind == number:
        return Fit(kind, change)
    return Fit(number, lambda array: change(array).view(number))


def _cast(kind: Any, place: Place, what: str) -> Change:
    return lambda array: place.cast(array, kind, what)


def _text(avro: AvroType, change: Change, place: Place) -> Change:
    def checked(array: pa.Array) -> pa.Array:
        check_utf8(array, place.path)
        return change(array)

    return checked


def _enum(avro: AvroType, change: Change, place: Place) -> Change:
    symbols = pa.array(avro.symbols, pa.string())

    def checked(array: pa.Array) -> pa.Array:
        found = change(array)
        unknown = pc.and_(pc.is_valid(found), pc.invert(pc.is_in(found, value_set=symbols)))
        place.refuse(unknown, f"is no symbol of the enum {avro.name}", f"write one of {', '.join(avro.symbols)}")
        return found

    return checked


def _uuid(avro: AvroType, change: Change, place: Place) -> Change:
    def checked(array: pa.Array) -> pa.Array:
        found = change(array)
        good = pc.fill_null(pc.match_substring_regex(found, _UUID), True)
        place.refuse(pc.invert(good), "is no UUID (RFC 9562)", "write 32 hexadecimal digits in five groups")
        return found

    return checked


def _fixed(avro: AvroType, change: Change, place: Place) -> Change:
    def checked(array: pa.Array) -> pa.Array:
        found = change(array)
        other = pc.fill_null(pc.not_equal(pc.binary_length(found), avro.size), False)
        place.refuse(other, f"has not {avro.size} bytes", f"write {avro.size} bytes")
        return found

    return checked


_UUID = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_CHECKED: dict[str, Callable[[AvroType, Change, Place], Change]] = {
    "string": _text, "enum": _enum, "uuid": _uuid, "fixed": _fixed
}  # fmt: skip


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_integer(kind: Any) -> bool:
    return bool(pa.types.is_signed_integer(kind))


def _is_instant(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_local(kind: Any) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is None)


def _is_double(kind: Any) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind) or (_is_integer(kind) and kind.bit_width <= 32))


_TOO_LARGE = "is too large for the schema"
_TOO_FINE = "is more precise than the schema"
_ACCEPTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "null": (pa.types.is_null, ""),
    "boolean": (pa.types.is_boolean, ""),
    "int": (_is_integer, _TOO_LARGE),
    "long": (_is_integer, _TOO_LARGE),
    "float": (pa.types.is_float32, ""),
    "double": (_is_double, ""),
    "bytes": (_is_bytes, ""),
    "fixed": (_is_bytes, ""),
    "string": (_is_text, ""),
    "enum": (_is_text, ""),
    "uuid": (_is_text, ""),
    "date": (pa.types.is_date32, ""),
    "time-millis": (pa.types.is_time, _TOO_FINE),
    "time-micros": (pa.types.is_time, _TOO_FINE),
    "timestamp-millis": (_is_instant, _TOO_FINE),
    "timestamp-micros": (_is_instant, _TOO_FINE),
    "local-timestamp-millis": (_is_local, _TOO_FINE),
    "local-timestamp-micros": (_is_local, _TOO_FINE),
    "timestamp-nanos": (_is_integer, _TOO_LARGE),
    "local-timestamp-nanos": (_is_integer, _TOO_LARGE),
}
"""By type: the Arrow types of columns, and what a value is that does not fit."""


def _struct(avro: AvroType, arrow: Any, place: Place, plain: bool) -> Fit | None:
    if not pa.types.is_struct(arrow):
        return None
    fields = fit_record(avro, [arrow.field(index) for index in range(arrow.num_fields)], place, plain=plain)

    def change(array: pa.Array) -> pa.Array:
        if not array.null_count:
            return rebuilt(array, fields, avro, plain=plain)
        # The fields of a NULL may have any content, which must not be refused.
        valid = array.is_valid()
        found = rebuilt(array.filter(valid), fields, avro, plain=plain)
        positions = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return found.take(pc.if_else(valid, positions, pa.scalar(None, pa.int64())))

    return Fit(arrow_of(avro, plain=plain), change)


def _list(avro: AvroType, arrow: Any, place: Place, plain: bool) -> Fit | None:
    if avro.items is None or not (pa.types.is_list(arrow) or pa.types.is_large_list(arrow)):
        return None
    items = fit(avro.items, arrow.value_type, place.inside("element"), plain=plain)

    def change(array: pa.Array) -> pa.Array:
        values = items.change(array.flatten())
        return pa.ListArray.from_arrays(_offsets(array), values, mask=array.is_null() if array.null_count else None)

    return Fit(pa.list_(items.type), change)


def _map(avro: AvroType, arrow: Any, place: Place, plain: bool) -> Fit | None:
    if avro.items is None or not pa.types.is_map(arrow) or not _is_text(arrow.key_type):
        return None
    items = fit(avro.items, arrow.item_type, place.inside("value"), plain=plain)

    def change(array: pa.Array) -> pa.Array:
        # Copied, since keys and items are those of the whole buffer, also of a slice.
        whole = array.take(pa.array(range(len(array)), pa.int64()))
        keys = whole.keys
        check_utf8(keys, place.path)
        values = items.change(whole.items)
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(whole.offsets, keys.cast(pa.string()), values, mask=mask)

    return Fit(pa.map_(pa.string(), items.type), change)


def _offsets(array: pa.Array) -> pa.Array:
    """Return where each list begins in the values of all, and where the last one ends."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    return pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
