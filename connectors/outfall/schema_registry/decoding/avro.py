"""Decodes Avro values of one writer's schema to a column of the reader's schema.

fastavro is the reference: it decodes any schema, value by value. A batch goes through pyruhvro instead, in a tenth of
the time or less, if both schemas consist of types for which a test has compared the two. Only what pyruhvro decodes
without an error counts, so each value that cannot be read is found by fastavro, with its reason.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
import pyarrow as pa
import pyruhvro

from outfall.errors import ConfigurationError
from outfall.schema_registry.avro_schema import AvroType, parse_avro
from outfall.schema_registry.decoding.avro_bytes import value_check
from outfall.schema_registry.decoding.avro_columns import (
    check_resolution,
    column_type,
    converted,
    encoded_type,
)
from outfall.schema_registry.decoding.by_value import UnreadableTypeError, by_value
from outfall.schema_registry.schemas import Schema
from outfall.serde import parse_json

_FAST = frozenset({"boolean", "int", "long", "float", "double", "string", "enum", "record", "array", "map"})
_MOST_DECODERS = 1000


@dataclass(frozen=True)
class AvroText:
    """A schema, and before it those that it refers to, each after those that it refers to itself."""

    text: str
    referenced: tuple[str, ...] = ()

    def type(self, *, recursive: bool = False) -> AvroType:
        """Return what it describes. Raises `ConfigurationError` as `parse_avro` does."""
        referenced = {each: Schema(each) for each in self.referenced}
        return parse_avro(Schema(self.text), referenced, recursive=recursive).type

    def parsed(self) -> Any:
        """Return it as fastavro needs it, without logical types."""
        names: dict[str, Any] = {}
        for each in self.referenced:
            fastavro.parse_schema(_without_logical_types(parse_json(each)), named_schemas=names)
        return fastavro.parse_schema(_without_logical_types(parse_json(self.text)), named_schemas=names)


class AvroReader:
    """Decodes the values of one writer's schema. Use `avro_reader`, which keeps them."""

    def __init__(self, writer: AvroText, reader: AvroText) -> None:
        """Compare the schemas. Raises `ConfigurationError` or `UnreadableTypeError` if no value can be read."""
        self._reader = reader.type()
        self._type, self._encoded = column_type(self._reader), encoded_type(self._reader)
        self._fast = self._bare = ""
        """How whole batches are decoded, with the head of messages and without; empty if they are not."""
        # A writer's may contain itself: what the reader keeps of it may be readable.
        self._writer = writer.type(recursive=True)
        check_resolution(self._writer, self._reader)
        if self._writer.kind == "record" and _is_fast(self._writer) and _is_fast_to_read(self._reader):
            form = _encoded_form(self._writer, iter(range(1 << 30)))
            self._bare = json.dumps(form)
            self._fast = json.dumps(form | {"fields": [*_head(self._writer), *form["fields"]]})
        self._check = value_check(self._writer)
        try:
            # Resolving a schema to itself would take twice the time.
            self._schemas = writer.parsed(), None if writer == reader else reader.parsed()
        except Exception as error:
            raise UnreadableTypeError(f"it is not an Avro schema: {error}") from error

    @property
    def is_fast(self) -> bool:
        """Whether whole batches are decoded."""
        return bool(self._fast)

    def column(self, values: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return the column of encoded values, and why some of them, by position, cannot be read: these are NULL.

        `start`: as in `Decoder`.
        """
        if self._fast:
            try:
                batch = pyruhvro.deserialize_array(values, self._fast if start else self._bare)
                # It accepts strings that are not UTF-8.
                batch.validate(full=True)
                own = batch.columns[-len(self._writer.fields) :]
                rows = pa.StructArray.from_arrays(own, names=[each.name for each in self._writer.fields])
                return converted(rows, self._writer, self._reader), {}
            except Exception:  # noqa: S110 - the reference finds which value it is
                pass
        return self.by_value(values, start)

    def by_value(self, values: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Do the same with the reference."""
        return by_value(
            values,
            start,
            self._decoded,
            lambda found: converted(pa.array(found, self._encoded), self._reader, self._reader),
            self._type,
        )

    def _decoded(self, value: bytes) -> Any:
        self._check(value)
        return fastavro.schemaless_reader(io.BytesIO(value), *self._schemas)


@lru_cache(_MOST_DECODERS)
def avro_reader(writer: AvroText, reader: AvroText) -> AvroReader | str:
    """Return the reader of a pair of schemas, which the process keeps, or why there is none."""
    try:
        return AvroReader(writer, reader)
    except (ConfigurationError, UnreadableTypeError) as error:
        return str(error)
    except RecursionError:
        return "it is nested too deeply"


def _is_fast(kind: AvroType) -> bool:
    """Whether pyruhvro decodes all of a writer's values as fastavro does."""
    parts = [each.type for each in kind.fields] + ([kind.items] if kind.items is not None else [])
    return kind.base in _FAST and all(map(_is_fast, parts)) and (kind.kind != "record" or bool(kind.fields))


def _is_fast_to_read(kind: AvroType) -> bool:
    """Whether nothing of a reader's schema depends on the branch of a union."""
    parts = [each.type for each in kind.fields] + ([kind.items] if kind.items is not None else [])
    return kind.kind != "union" and all(map(_is_fast_to_read, parts))


def _without_logical_types(node: Any) -> Any:
    """Return a schema as JSON whose values are those that are encoded, such as a number instead of a date."""
    if isinstance(node, list):
        return [_without_logical_types(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {name: each for name, each in node.items() if name not in ("logicalType", "precision", "scale")}
    for name in ("type", "items", "values"):
        if name in made:
            made[name] = _without_logical_types(made[name])
    if "fields" in made:
        made["fields"] = [_field_without(each) for each in made["fields"]]
    return made


def _field_without(node: Mapping[str, Any]) -> dict[str, Any]:
    return {**node, "type": _without_logical_types(node["type"])}


def _head(writer: AvroType) -> list[dict[str, str]]:
    """Return fields that take the bytes of a head, since a copy of each value without them takes as long as decoding.

    The zero byte is a number, and a float is any four bytes.
    """
    known = {each.name for each in writer.fields}
    names = (name for name in (f"head{number}" for number in itertools.count()) if name not in known)
    return [{"name": next(names), "type": kind} for kind in ("int", "float")]


def _encoded_form(kind: AvroType, numbers: Iterator[int]) -> Any:
    """Return a schema as JSON that decodes the same bytes, and whose named types all have different names.

    Integers are long, since both are encoded alike, and no type is logical.
    """
    made: Any = {"int": "long"}.get(kind.base, kind.base)
    if kind.kind in ("record", "enum"):
        made = {"type": kind.kind, "name": f"t{next(numbers)}"}
    if kind.kind == "record":
        made["fields"] = [{"name": each.name, "type": _encoded_form(each.type, numbers)} for each in kind.fields]
    elif kind.kind == "enum":
        made["symbols"] = list(kind.symbols)
    elif kind.items is not None:
        member = "items" if kind.kind == "array" else "values"
        made = {"type": kind.kind, member: _encoded_form(kind.items, numbers)}
    if not kind.nullable:
        return made
    return ["null", made] if kind.null_first else [made, "null"]
