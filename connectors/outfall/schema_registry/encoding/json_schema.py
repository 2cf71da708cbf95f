"""Rows and keys as JSON in the wire format of a registry, by the encoder of the JSON formats.

Checked are what a column can show: types, required properties, symbols of an `enum`, and properties that a closed
object lacks. Other constraints of JSON Schema are left to readers, as Confluent's serializer for Java does by default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.formats import FormatOptions
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.types import check_json_type
from outfall.schema_registry.encoding.places import Place
from outfall.schema_registry.schemas import RegisteredSchema, Schema
from outfall.schema_registry.wire import head
from outfall.values import spark_type

_OPTIONS = FormatOptions(format="jsonl")
_TEXT = pa.string()
_Values = Callable[[pa.Array], pa.Array]


class JsonSchemaEncoder:
    """Encodes the rows of batches as objects. NULL fields are left out. For columns as in `AvroEncoder`.

    Raises `ConfigurationError` with both names where a column and the schema differ.
    """

    def __init__(self, registered: RegisteredSchema, columns: pa.Schema, *, optional: str | None = None) -> None:
        """Leave the column `optional` out if the schema has no such property."""
        schema = _parsed(registered)
        if "object" not in _types(schema, "object"):
            raise ConfigurationError(
                f"the schema with the id {registered.id} is not that of an object",
                do="set the subject of an object, or write this value with Spark's Kafka columns",
            )
        known = _properties(schema)
        self.schema = pa.schema([one for one in columns if one.name != optional or one.name in known])
        check_object(schema, list(self.schema), None)
        self._json = JsonlEncoder(_OPTIONS, self.schema)
        checks = {
            one.name: _Check(known.get(one.name), one.type, Place(one.name), required=one.name in _required(schema))
            for one in self.schema
        }
        self._checks = {name: check for name, check in checks.items() if check.needed}
        self._head = pa.scalar(head(registered.id), pa.large_binary())

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a message for each row. Raises `ValueRefusedError` for a value that the schema does not allow."""
        for name, check in self._checks.items():
            check(batch.column(name))
        return _message(self._head, self._json.objects(batch))


class JsonSchemaKeyEncoder:
    """Encodes a column as keys. NULL is no key."""

    def __init__(self, registered: RegisteredSchema, column: pa.Field) -> None:
        schema = _parsed(registered)
        check_json_type(column.type, column.name)
        _check_type(schema, column.type, Place(column.name))
        self._json = JsonlEncoder(_OPTIONS, pa.schema([column]))
        self._name, self._check = column.name, _Check(schema, column.type, Place(column.name))
        self._head = pa.scalar(head(registered.id), pa.large_binary())

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a message for each value; NULL for none. Raises `ValueRefusedError`."""
        self._check(column)
        return _message(self._head, self._json.values(column, self._name))


class _Check:
    """What is checked of the values of a column, and of those inside of them."""

    def __init__(self, schema: Any, kind: Any, place: Place, *, required: bool = False) -> None:
        self._place, self._required = place, required
        part = _branch(schema, kind)
        symbols = part.get("enum") if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
        self._symbols = [one for one in symbols if isinstance(one, str)] if isinstance(symbols, list) else None
        says = isinstance(schema, dict)
        self._finite = says and pa.types.is_floating(kind) and "string" not in _types(schema, "number")
        self._inner = [(values, check) for values, check in _inner_checks(part, kind, place) if check.needed]

    @property
    def needed(self) -> bool:
        """Whether any value may be refused."""
        return self._required or self._finite or self._symbols is not None or bool(self._inner)

    def __call__(self, column: pa.Array) -> None:
        if self._required and column.null_count:
            self._place.refuse(column.is_null(), "is NULL", "remove such rows, or do not require the property")
        if self._symbols is not None:
            known = pc.is_in(column.cast(_TEXT), value_set=pa.array(self._symbols, _TEXT))
            unknown = pc.and_(column.is_valid(), pc.invert(known))
            self._place.refuse(unknown, "is not in the enum", f"write one of {', '.join(self._symbols)}")
        if self._finite:
            odd = pc.fill_null(pc.invert(pc.is_finite(column)), False)
            self._place.refuse(odd, "is NaN or infinite", "remove such rows, or allow a string, which JSON has for it")
        for values, check in self._inner:
            check(values(column.drop_null()))


def _inner_checks(schema: Mapping[str, Any], kind: Any, place: Place) -> Iterator[tuple[_Values, _Check]]:
    """Yield the checks of fields, elements or values, and how a column without NULL becomes a column of these."""
    if pa.types.is_struct(kind):
        for field in (kind.field(index) for index in range(kind.num_fields)):
            required, inside = field.name in _required(schema), place.inside(field.name)
            found = _Check(_properties(schema).get(field.name), field.type, inside, required=required)
            yield partial(pc.struct_field, indices=[field.name]), found
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield pc.list_flatten, _Check(schema.get("items"), kind.value_type, place.inside("element"))
    elif pa.types.is_map(kind):
        yield _map_values, _Check(schema.get("additionalProperties"), kind.item_type, place.inside("value"))


def _map_values(column: pa.Array) -> pa.Array:
    """Return the values of maps. Copied, since those of a slice are the whole buffer's."""
    return column.take(pa.array(range(len(column)), pa.int64())).items


def _branch(schema: Any, kind: Any) -> Mapping[str, Any]:
    """Return the part of a schema for a column, such as the one besides null."""
    if not isinstance(schema, dict):
        return {}
    written = _json_type(kind)["type"]
    for several in ("oneOf", "anyOf"):
        found = [one for one in schema.get(several) or () if written in _types(one, "")]
        if len(found) == 1:
            return found[0]  # type: ignore[no-any-return]
    return schema


def json_schema_of(columns: pa.Schema, name: str) -> Schema:
    """Return the schema of columns, as a closed object with this title; those that are not nullable are required.

    Closed, since Confluent's registry refuses a new property where earlier messages may have any. Raises
    `ConfigurationError` for a type without JSON text.
    """
    for column in columns:
        check_json_type(column.type, column.name)
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "title": name}
    return Schema(json.dumps(draft | _object(list(columns))), "JSON")


def json_schema_of_value(field: pa.Field, name: str) -> Schema:
    """Return the schema of a single column, such as a key."""
    check_json_type(field.type, field.name)
    return Schema(json.dumps({"title": name} | _json_type(field.type)), "JSON")


def check_object(schema: Any, columns: list[pa.Field], place: Place | None) -> None:
    """Compare columns with the properties of an object, by name and type.

    Raises `ConfigurationError` with both names where they differ.
    """
    known = _properties(schema)
    where = f" of {place.path!r}" if place else ""
    names = [column.name for column in columns]
    if schema.get("additionalProperties") is False and (lacking := [name for name in names if name not in known]):
        raise ConfigurationError(
            f"the column {lacking[0]!r}{where} is not in the schema",
            why=f"the object {schema.get('title', '')} is closed, with the properties {', '.join(known) or 'none'}",
            do="drop or rename the column, or register a version of the schema with such a property",
        )
    if lacking := [name for name in _required(schema) if name not in names]:
        raise ConfigurationError(
            f"the property {lacking[0]!r} is required{where} and has no column",
            why=f"the columns are {', '.join(names)}",
            do="add or rename a column, or register a version of the schema that does not require it",
        )
    for column in columns:
        inside = place.inside(column.name) if place else Place(column.name)
        _check_type(known.get(column.name), column.type, inside)


def _parsed(registered: RegisteredSchema) -> Any:
    try:
        found = json.loads(registered.schema.text)
    except ValueError as error:
        raise ConfigurationError(
            f"the JSON schema with the id {registered.id} cannot be parsed", why=str(error), do="correct the schema"
        ) from error
    return found if isinstance(found, dict) else {}


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Mapping[str, Any]) -> list[str]:
    found = schema.get("required")
    return found if isinstance(found, list) else []


def _check_type(schema: Any, arrow: Any, place: Place) -> None:
    """Compare a column with a schema, as far as that says which types there may be."""
    wanted, written = _types(schema, ""), _json_type(arrow)["type"]
    if wanted and written not in wanted and not (written == "integer" and "number" in wanted):
        types = " or ".join(sorted(wanted))
        raise ConfigurationError(
            f"column {place.path!r} of type {spark_type(arrow)} does not fit the JSON type {types}",
            do="cast the column, or change the schema",
        )
    if isinstance(schema, dict) and pa.types.is_struct(arrow) and "properties" in schema:
        check_object(schema, [arrow.field(index) for index in range(arrow.num_fields)], place)
    if isinstance(schema, dict) and (pa.types.is_list(arrow) or pa.types.is_large_list(arrow)):
        _check_type(schema.get("items"), arrow.value_type, place.inside("element"))


def _types(schema: Any, default: str) -> set[str]:
    """Return the types that a schema allows; the default, or none, if it does not say."""
    if not isinstance(schema, dict):
        return {default} - {""}
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {one for one in named if isinstance(one, str)}
    for several in ("oneOf", "anyOf"):
        branches = [_types(one, "") for one in schema.get(several) or ()]
        if branches and all(branches):
            return set().union(*branches)
    return {default} - {""}


def _object(columns: list[pa.Field]) -> dict[str, Any]:
    properties = {column.name: _json_type(column.type) for column in columns}
    required = [column.name for column in columns if not column.nullable]
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": required} if required else {})


def _json_type(kind: Any) -> dict[str, Any]:
    """Return the type of the text that a column is encoded as."""
    types = pa.types
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_integer(kind):
        return {"type": "integer"}
    if types.is_floating(kind) or types.is_decimal(kind):
        return {"type": "number"}
    if types.is_struct(kind):
        return _object([kind.field(index) for index in range(kind.num_fields)])
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _element(kind.item_field)}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": _element(kind.value_field)}
    return {"type": "null" if types.is_null(kind) else "string"}


def _element(field: pa.Field) -> dict[str, Any]:
    found = _json_type(field.type)
    return {"oneOf": [{"type": "null"}, found]} if field.nullable else found


def _message(first: pa.Scalar, text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(first, text.cast(pa.large_binary()), pa.scalar(b"", pa.large_binary()))
