"""Avro schemas as types that encoders follow, and the schema that a DataFrame's columns have.

Avro 1.12, "Schema Declaration" and "Logical Types". An unknown logical type, or one whose base or arguments are
invalid, is its base, as the specification requires.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import fastavro.schema
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from outfall.errors import ConfigurationError
from outfall.formats.types import refuse
from outfall.schema_registry.schemas import Schema, check_field_name

NO_DEFAULT: Final = object()
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_MOST_PARTS = 50_000
"""Types of a schema, those of a record again wherever its name is used. A short text may have any number."""
_LOGICAL = {
    "date": "int", "time-millis": "int", "time-micros": "long", "timestamp-millis": "long",
    "timestamp-micros": "long", "timestamp-nanos": "long", "local-timestamp-millis": "long",
    "local-timestamp-micros": "long", "local-timestamp-nanos": "long", "uuid": "string",
}  # fmt: skip
"""Logical types without arguments, and their bases."""


@dataclass(frozen=True)
class AvroType:
    """A type, with its logical type in place of the base."""

    kind: str
    """A primitive or complex type of Avro, or one of its logical types. A union of `null` and one type is that type."""
    nullable: bool = False
    """Whether it is a union with `null`."""
    null_first: bool = False
    """Whether `null` is the first of such a union with one other type."""
    name: str = ""
    """Full name of a record, enum or fixed."""
    symbols: tuple[str, ...] = ()
    size: int = 0
    """Bytes of a fixed; 0 for others."""
    precision: int = 0
    scale: int = 0
    items: AvroType | None = None
    """Of an array, and the values of a map."""
    fields: tuple[AvroField, ...] = ()
    branches: tuple[AvroType, ...] = ()
    """Of another union, with `null`."""
    aliases: tuple[str, ...] = ()
    """Full names by which a reader knows a record, enum or fixed too."""
    default: str | None = None
    """The symbol of an enum that a reader takes for one that it does not know."""

    @property
    def base(self) -> str:
        """The type without its logical type: how a value is encoded."""
        if self.kind == "decimal":
            return "fixed" if self.size else "bytes"
        return _LOGICAL.get(self.kind, self.kind)

    @property
    def short_name(self) -> str:
        """The name without its namespace, by which schemas are resolved."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvroSchema:
    """A schema of a registry, parsed."""

    type: AvroType
    parsed: Any
    """For fastavro."""
    alone: bool
    """Whether it refers to no other schema."""


def parse_avro(schema: Schema, referenced: Mapping[str, Schema], *, recursive: bool = False) -> AvroSchema:
    """Parse a schema after those that it refers to, directly or indirectly.

    With `recursive`, a type is inside of itself a union without branches. Raises `ConfigurationError` for an invalid
    schema, or without `recursive` for a type that contains itself.
    """
    named: dict[str, Any] = {}
    try:
        for each in referenced.values():
            fastavro.schema.parse_schema(json.loads(each.text), named_schemas=named)
        given = json.loads(schema.text)
        parsed = fastavro.schema.parse_schema(given, named_schemas=dict(named))
        type_ = _Types(named, recursive).of(given, "")
        if parts(type_) > _MOST_PARTS:
            raise ValueError(f"it has more than {_MOST_PARTS:,} types, with those of records again at each use")
    except (SchemaParseException, UnknownType, *_WRONG) as error:
        raise ConfigurationError(
            "the Avro schema cannot be parsed",
            why=f"{type(error).__name__}: {error}",
            do="correct the schema; types that contain themselves are not supported",
        ) from error
    return AvroSchema(type_, parsed, not referenced)


def parts(kind: AvroType) -> int:
    """Return the number of types that a type consists of, with itself."""
    return _parts(kind, {})


def _parts(kind: AvroType, records: dict[str, int]) -> int:
    """Return the same, in one step for each use of a record but the first."""
    if kind.kind == "record" and kind.name in records:
        return records[kind.name]
    inner = (*kind.branches, *(field.type for field in kind.fields), *((kind.items,) if kind.items else ()))
    found = 1 + sum(_parts(each, records) for each in inner)
    if kind.kind == "record":
        records[kind.name] = found
    return found


class _Types:
    """Reads types, with the named ones that come before."""

    def __init__(self, named: Mapping[str, Any], recursive: bool) -> None:
        self._named: dict[str, AvroType] = {}
        self._recursive = recursive
        self._texts = named
        self._open: set[str] = set()

    def of(self, schema: Any, space: str) -> AvroType:
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            return self._by_name(schema, space)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, space)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(schema, space)
        if kind == "array":
            return AvroType("array", items=self.of(schema["items"], space))
        if kind == "map":
            return AvroType("map", items=self.of(schema["values"], space))
        return _logical(schema, self._by_name(kind, space))

    def _union(self, schema: list[Any], space: str) -> AvroType:
        branches = [self.of(each, space) for each in schema]
        others = [branch for branch in branches if branch.kind != "null"]
        nullable = len(others) < len(branches)
        if len(branches) == 2 and len(others) == 1:
            return replace(others[0], nullable=True, null_first=branches[0].kind == "null")
        # Also of a single type, since the position in the union is a part of the bytes.
        return AvroType("union", nullable, branches=tuple(branches))

    def _by_name(self, name: str, space: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name)
        full = name if "." in name or not space else f"{space}.{name}"
        for known in (full, name):
            if known in self._named:
                return self._named[known]
            if known in self._open and self._recursive:
                return AvroType("union", name=known)
            if known in self._texts and known not in self._open:
                return self.of(self._texts[known], "")
        raise ValueError(f"the type {full} is not defined before its use, or contains itself")

    def _named_type(self, schema: Mapping[str, Any], space: str) -> AvroType:
        name = schema["name"]
        space = name.rpartition(".")[0] if "." in name else schema.get("namespace", space)
        full = name if "." in name or not space else f"{space}.{name}"
        aliases = tuple(each if "." in each or not space else f"{space}.{each}" for each in schema.get("aliases", ()))
        found = AvroType(schema["type"], name=full, aliases=aliases)
        if schema["type"] == "enum":
            found = replace(found, symbols=tuple(schema["symbols"]), default=schema.get("default"))
        elif schema["type"] == "fixed":
            found = _logical(schema, replace(found, size=int(schema["size"])))
        else:
            self._open.add(full)
            fields = tuple(
                AvroField(
                    field["name"],
                    self.of(field["type"], space),
                    field.get("default", NO_DEFAULT),
                    tuple(field.get("aliases", ())),
                )
                for field in schema["fields"]
            )
            self._open.discard(full)
            found = replace(found, kind="record", fields=fields)
        self._named[full] = found
        return found


_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def _logical(schema: Mapping[str, Any], base: AvroType) -> AvroType:
    name = schema.get("logicalType")
    if isinstance(name, str) and _LOGICAL.get(name) == base.kind:
        return replace(base, kind=name)
    if name == "decimal" and base.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and 0 < precision <= 76:
            return replace(base, kind="decimal", precision=precision, scale=scale)
    return base


def avro_of(columns: pa.Schema, name: str) -> Schema:
    """Return the schema of columns, as a record of this full name.

    A nullable column becomes a union with null, with the default null, so that a column that is added later is
    compatible with earlier messages. Raises `ConfigurationError` for a type that Avro does not have, or a name that is
    invalid there.
    """
    return Schema(json.dumps(_record(list(columns), name, "")))


def avro_of_value(field: pa.Field, name: str) -> Schema:
    """Return the schema of a single column, such as a key: that of its type, not null; a struct has this full name."""
    return Schema(json.dumps(_avro_type(field.type, field.name, name)))


def _record(columns: list[pa.Field], name: str, path: str) -> dict[str, Any]:
    space, _, short = name.rpartition(".")
    fields = []
    for column in columns:
        where = f"{path}{column.name}"
        check_field_name(column.name, where, "an Avro record")
        # Without the namespace, which inner records inherit: registries with Avro for Java return them without it.
        kind = _avro_type(column.type, where, f"{short}_{column.name}")
        nullable = {"type": ["null", kind], "default": None}
        fields.append({"name": column.name} | (nullable if column.nullable else {"type": kind}))
    return {"type": "record", "name": short} | ({"namespace": space} if space else {}) | {"fields": fields}


def _avro_type(kind: Any, path: str, name: str) -> Any:
    for matches, found in _BY_ARROW:
        if matches(kind):
            return found
    types = pa.types
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_timestamp(kind) and kind.unit != "ns":
        local = "" if kind.tz is not None else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{'micros' if kind.unit == 'us' else 'millis'}"}
    if types.is_list(kind) or types.is_large_list(kind):
        items = _avro_type(kind.value_type, f"{path}.element", f"{name}_element")
        return {"type": "array", "items": ["null", items] if kind.value_field.nullable else items}
    if types.is_map(kind) and (types.is_string(kind.key_type) or types.is_large_string(kind.key_type)):
        values = _avro_type(kind.item_type, f"{path}.value", f"{name}_value")
        return {"type": "map", "values": ["null", values] if kind.item_field.nullable else values}
    if not types.is_struct(kind):
        do = "cast its keys to strings" if types.is_map(kind) else "cast it to a string, or drop it"
        refuse("Avro", kind, path, "Avro has no such type", do)
    return _record([kind.field(index) for index in range(kind.num_fields)], name, f"{path}.")


_BY_ARROW: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, "boolean"),
    (lambda kind: pa.types.is_signed_integer(kind) and kind.bit_width <= 32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "string"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)
