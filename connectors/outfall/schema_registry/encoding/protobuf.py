"""Rows and keys as Protobuf in the wire format of a registry, by Google's library.

All checks are made by column, and columns are changed to what the constructor of a message takes: numbers, names of
symbols, and structs for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from outfall.errors import ConfigurationError
from outfall.formats.strings import check_utf8
from outfall.schema_registry.encoding.places import Place
from outfall.schema_registry.protobuf_schema import DURATION, TIMESTAMP, WRAPPERS, compiled, is_map, message_class
from outfall.schema_registry.schemas import RegisteredSchema, Schema, WholeSchema
from outfall.schema_registry.wire import head, index_bytes
from outfall.values import spark_type

Change = Callable[[pa.Array], pa.Array]
_Fits = tuple[Callable[[Any], bool], Any, str]

_LARGE = "is out of the range of the schema"


class ProtobufEncoder:
    """Encodes the rows of batches as messages. For columns as in `AvroEncoder`.

    Raises `ConfigurationError` with both names where a column and the message differ.
    """

    def __init__(
        self,
        registered: RegisteredSchema,
        referenced: Mapping[str, Schema],
        columns: pa.Schema,
        *,
        message: str | None = None,
        optional: str | None = None,
    ) -> None:
        """Leave the column `optional` out if the message has no such field. `message`: `None` for the first one."""
        file = compiled(WholeSchema(registered.schema, tuple(referenced.items())))
        descriptor = file.message(message)
        names = {field.name for field in descriptor.fields}
        self.schema = pa.schema([one for one in columns if one.name != optional or one.name in names])
        self._fit = _fit_message(descriptor, list(self.schema), None)
        self._message = message_class(descriptor)
        self._head = head(registered.id) + index_bytes(file.indexes(descriptor.full_name))

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a message for each row. Raises `ValueRefusedError` for a value that the schema does not allow."""
        rows = self._fit(batch.to_struct_array())
        make, start = self._message, self._head
        found = [
            start + make(**row).SerializeToString(deterministic=True)
            for row in rows.to_pylist(maps_as_pydicts="strict")
        ]
        return pa.array(found, pa.large_binary())


class ProtobufKeyEncoder:
    """Encodes a column as keys: a struct as a message, another one as its field of the same name. NULL is no key."""

    def __init__(
        self,
        registered: RegisteredSchema,
        referenced: Mapping[str, Schema],
        column: pa.Field,
        *,
        message: str | None = None,
    ) -> None:
        self._whole = pa.types.is_struct(column.type)
        self._name = column.name
        columns = pa.schema(list(column.type) if self._whole else [column])
        self._rows = ProtobufEncoder(registered, referenced, columns, message=message)

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a message for each value; NULL for none. Raises `ValueRefusedError`."""
        valid = column.is_valid()
        present = column.drop_null()
        rows = present if self._whole else pa.StructArray.from_arrays([present], names=[self._name])
        found = self._rows.encode(pa.RecordBatch.from_struct_array(rows))
        positions = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return found.take(pc.if_else(valid, positions, pa.scalar(None, pa.int64())))


def _fit_message(descriptor: Any, columns: list[pa.Field], place: Place | None) -> Change:
    """Return how a struct of columns without NULL becomes a struct for the constructor of a message.

    Raises `ConfigurationError` if a column has no field, or a type differs.
    """
    fields = {field.name: field for field in descriptor.fields}
    where = f" of {place.path!r}" if place else ""
    given = {column.name: column for column in columns}
    if lacking := [name for name in given if name not in fields]:
        raise ConfigurationError(
            f"the column {lacking[0]!r}{where} is not in the schema",
            why=f"the message {descriptor.full_name} has the fields {', '.join(fields) or 'none'}",
            do="drop or rename the column, or register a version of the schema with such a field",
        )
    if lacking := [name for name, field in fields.items() if field.is_required and name not in given]:
        raise ConfigurationError(
            f"the field {lacking[0]!r} of the message {descriptor.full_name} is required and has no column{where}",
            why=f"the columns are {', '.join(given)}",
            do="add or rename a column, or register a version of the schema that does not require it",
        )
    changes = {
        name: _fit_field(fields[name], column.type, place.inside(name) if place else Place(name))
        for name, column in given.items()
    }
    choices = [
        [field.name for field in each.fields if field.name in given]
        for each in descriptor.oneofs
        if len(each.fields) > 1
    ]
    shown = place or Place(descriptor.name)

    def change(rows: pa.Array) -> pa.Array:
        for names in choices:
            _refuse_several(rows, names, shown)
        found = [one(pc.struct_field(rows, [name])) for name, one in changes.items()]
        return pa.StructArray.from_arrays(found, names=list(changes)) if found else rows

    return change


def _refuse_several(rows: pa.Array, names: list[str], place: Place) -> None:
    """Refuse rows with a value for several fields of a oneof, of which only one can have it."""
    if len(names) > 1:
        present = [pc.struct_field(rows, [name]).is_valid().cast(pa.int32()) for name in names]
        total = present[0]
        for each in present[1:]:
            total = pc.add(total, each)
        what = f"has values for several of {', '.join(names)}, which are a oneof"
        place.refuse(pc.greater(total, 1), what, "set all but one of them to NULL")


def _fit_field(field: Any, arrow: Any, place: Place) -> Change:
    """Return how a column becomes an array for a field. Raises `ConfigurationError` if it cannot."""
    if is_map(field):
        return _without_nulls(_map(field, arrow, place), place)
    if field.is_repeated:
        return _without_nulls(_list(field, arrow, place), place)
    change = _single(field, arrow, place)
    # Without presence, NULL would be read as zero or an empty text.
    return change if field.has_presence and not field.is_required else _without_nulls(change, place)


def _without_nulls(change: Change, place: Place) -> Change:
    def checked(array: pa.Array) -> pa.Array:
        if array.null_count:
            do = "remove such rows, replace NULL, or make the field optional"
            place.refuse(array.is_null(), "is NULL", do)
        return change(array)

    return checked


def _list(field: Any, arrow: Any, place: Place) -> Change:
    if not (pa.types.is_list(arrow) or pa.types.is_large_list(arrow)):
        raise _differs(field, arrow, place, "repeated")
    inside = place.inside("element")
    items = _without_nulls(_single(field, arrow.value_type, inside), inside)

    def change(array: pa.Array) -> pa.Array:
        lengths = pc.list_value_length(array).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
        return pa.ListArray.from_arrays(offsets, items(array.flatten()))

    return change


def _map(field: Any, arrow: Any, place: Place) -> Change:
    if not pa.types.is_map(arrow):
        raise _differs(field, arrow, place, "map")
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    keys = _single(key, arrow.key_type, place.inside("key"))
    items = _without_nulls(_single(value, arrow.item_type, place.inside("value")), place.inside("value"))

    def change(array: pa.Array) -> pa.Array:
        # Copied, since keys and items are those of the whole buffer, also of a slice.
        whole = array.take(pa.array(range(len(array)), pa.int64()))
        return pa.MapArray.from_arrays(whole.offsets, keys(whole.keys), items(whole.items))

    return change


def _single(field: Any, arrow: Any, place: Place) -> Change:
    """Return how a column of single values becomes an array for a field."""
    if field.enum_type is not None:
        return _enum(field, arrow, place)
    if field.message_type is None:
        return _scalar(field, arrow, place)
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return _moment(field, arrow, place)
    if name == DURATION:
        return _duration(field, arrow, place)
    if name in WRAPPERS:
        inner = _scalar(field.message_type.fields_by_name["value"], arrow, place)
        return lambda array: _nullable_struct({"value": inner(array)}, array)
    if not pa.types.is_struct(arrow):
        raise _differs(field, arrow, place, name)
    return _nested(_fit_message(field.message_type, list(arrow), place))


def _nested(change: Change) -> Change:
    """Return a change of structs that may be NULL: their fields may then have any content."""

    def changed(array: pa.Array) -> pa.Array:
        if not array.null_count:
            return change(array)
        valid = array.is_valid()
        positions = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return change(array.drop_null()).take(pc.if_else(valid, positions, pa.scalar(None, pa.int64())))

    return changed


def _nullable_struct(fields: dict[str, pa.Array], like: pa.Array) -> pa.Array:
    mask = like.is_null() if like.null_count else None
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=mask)


def _enum(field: Any, arrow: Any, place: Place) -> Change:
    if not _is_text(arrow):
        raise _differs(field, arrow, place, f"enum {field.enum_type.full_name}")
    names = [each.name for each in field.enum_type.values]
    symbols = pa.array(names, pa.string())

    def change(array: pa.Array) -> pa.Array:
        found = array.cast(pa.string())
        unknown = pc.and_(pc.is_valid(found), pc.invert(pc.is_in(found, value_set=symbols)))
        place.refuse(
            unknown, f"is no symbol of the enum {field.enum_type.full_name}", f"write one of {', '.join(names)}"
        )
        return found

    return change


def _scalar(field: Any, arrow: Any, place: Place) -> Change:
    fits, kind, what = _SCALARS[field.type]
    if not fits(arrow):
        raise _differs(field, arrow, place, _NAMES[field.type])

    def change(array: pa.Array) -> pa.Array:
        if field.type == FieldDescriptor.TYPE_STRING:
            check_utf8(array, place.path)
        return place.cast(array, kind, what)

    return change


def _moment(field: Any, arrow: Any, place: Place) -> Change:
    if not (pa.types.is_timestamp(arrow) and arrow.tz is not None):
        raise _differs(field, arrow, place, TIMESTAMP, "cast the column to timestamp")

    def change(array: pa.Array) -> pa.Array:
        micros = array.cast(pa.timestamp("us", "UTC")).view(pa.int64())
        outside = pc.or_(pc.less(micros, _FIRST), pc.greater(micros, _LAST))
        place.refuse(pc.fill_null(outside, False), "is outside of the years 1 to 9999", "correct such rows")
        left = _remainder(micros)
        seconds = pc.divide(pc.subtract(micros, left), 1_000_000)
        nanos = pc.multiply(left, 1000).cast(pa.int32())
        return _nullable_struct({"seconds": seconds, "nanos": nanos}, array)

    return change


def _remainder(micros: pa.Array) -> pa.Array:
    """Return the microseconds since the last whole second, also before 1970."""
    left = pc.subtract(micros, pc.multiply(pc.divide(micros, 1_000_000), 1_000_000))
    return pc.if_else(pc.less(left, 0), pc.add(left, 1_000_000), left)


def _duration(field: Any, arrow: Any, place: Place) -> Change:
    if not pa.types.is_duration(arrow):
        raise _differs(field, arrow, place, DURATION, "cast the column to an interval of days and seconds")

    def change(array: pa.Array) -> pa.Array:
        micros = array.cast(pa.duration("us")).view(pa.int64())
        outside = pc.greater(pc.abs(micros), _LONGEST)
        place.refuse(pc.fill_null(outside, False), "is longer than 10,000 years", "correct such rows")
        # Rounded towards zero, since both have the same sign.
        seconds = pc.divide(micros, 1_000_000)
        nanos = pc.multiply(pc.subtract(micros, pc.multiply(seconds, 1_000_000)), 1000).cast(pa.int32())
        return _nullable_struct({"seconds": seconds, "nanos": nanos}, array)

    return change


_FIRST, _LAST = -62135596800 * 10**6, 253402300799 * 10**6 + 999_999
_LONGEST = 315_576_000_000 * 10**6


def _differs(field: Any, arrow: Any, place: Place, name: str, do: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"column {place.path!r} of type {spark_type(arrow)} does not fit the Protobuf type {name} of {field.full_name}",
        do=do or "cast the column, or change the schema",
    )


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_unsigned(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def _is_double(kind: Any) -> bool:
    small = pa.types.is_signed_integer(kind) and kind.bit_width <= 32
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind) or small)


_INT32: _Fits = (pa.types.is_signed_integer, pa.int32(), _LARGE)
_INT64: _Fits = (pa.types.is_signed_integer, pa.int64(), _LARGE)
_UINT32: _Fits = (pa.types.is_signed_integer, pa.uint32(), _LARGE)
_UINT64: _Fits = (_is_unsigned, pa.uint64(), _LARGE)
_SCALARS: dict[int, _Fits] = {
    FieldDescriptor.TYPE_BOOL: (pa.types.is_boolean, pa.bool_(), ""),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_SINT32: _INT32,
    FieldDescriptor.TYPE_SFIXED32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_SINT64: _INT64,
    FieldDescriptor.TYPE_SFIXED64: _INT64,
    FieldDescriptor.TYPE_UINT32: _UINT32,
    FieldDescriptor.TYPE_FIXED32: _UINT32,
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_FIXED64: _UINT64,
    FieldDescriptor.TYPE_FLOAT: (pa.types.is_float32, pa.float32(), ""),
    FieldDescriptor.TYPE_DOUBLE: (_is_double, pa.float64(), ""),
    FieldDescriptor.TYPE_STRING: (_is_text, pa.string(), ""),
    FieldDescriptor.TYPE_BYTES: (_is_bytes, pa.binary(), ""),
}
"""By type: the Arrow types of columns, the one that messages take, and what a value is that does not fit."""
_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}
