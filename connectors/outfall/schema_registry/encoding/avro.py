"""Rows and keys as Avro in the wire format of a registry.

fastavro is the reference. pyruhvro (Rust on Arrow) encodes schemas whose types are proven to give the same bytes, by
`tests/unit/schema_registry/test_encoders_agree.py`; what it does not do right is never given to it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError
from outfall.schema_registry.avro_schema import AvroField, AvroSchema, AvroType, parse_avro
from outfall.schema_registry.encoding.fitting import arrow_of, fit, fit_record, rebuilt
from outfall.schema_registry.encoding.places import Place
from outfall.schema_registry.schemas import RegisteredSchema, Schema
from outfall.schema_registry.wire import head

FAST = {
    "boolean", "int", "long", "float", "double", "string", "date", "timestamp-millis", "timestamp-micros", "enum",
    "array", "map", "record",
}  # fmt: skip
"""Types of which pyruhvro writes the same bytes as fastavro. It lacks the others, or panics on them."""
_KEY = "key"


class AvroEncoder:
    """Encodes the rows of batches as records of one schema. For columns of the same names and types as `columns`.

    Raises `ConfigurationError` with both names where a column and the schema differ.
    """

    def __init__(
        self,
        registered: RegisteredSchema,
        referenced: Mapping[str, Schema],
        columns: pa.Schema,
        *,
        optional: str | None = None,
        fast: bool | None = None,
    ) -> None:
        """Leave the column `optional` out if the schema has no such field.

        `fast` chooses the encoder; `None`: the fast one if the schema allows it.
        """
        schema = parse_avro(registered.schema, referenced)
        if schema.type.kind != "record":
            raise ConfigurationError(
                f"the schema with the id {registered.id} is no record, but the Avro type {schema.type.kind}",
                do="set the subject of a record, or write this value with Spark's Kafka columns",
            )
        names = {field.name for field in schema.type.fields}
        self.schema = pa.schema([one for one in columns if one.name != optional or one.name in names])
        self.type = schema.type
        self._avro = schema
        self.fast = is_fast(schema, schema.type, registered.schema.text) if fast is None else fast
        self._fields = fit_record(schema.type, list(self.schema), None, plain=not self.fast)
        self._head = pa.scalar(head(registered.id), pa.binary())
        self._text = registered.schema.text

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return a message for each row. Raises `ValueRefusedError` for a value that the schema does not allow."""
        rows = rebuilt(batch.to_struct_array(), self._fields, self.type, plain=not self.fast)
        data = _by_pyruhvro(rows, self._text) if self.fast else _by_fastavro(rows, self._avro.parsed)
        return pc.binary_join_element_wise(self._head, data, pa.scalar(b"", pa.binary()))


class AvroKeyEncoder:
    """Encodes a column as keys of one schema, which may be any type. NULL is no key, unless the schema allows it."""

    def __init__(
        self,
        registered: RegisteredSchema,
        referenced: Mapping[str, Schema],
        column: pa.Field,
        *,
        fast: bool | None = None,
    ) -> None:
        """`fast` as in `AvroEncoder`."""
        schema = parse_avro(registered.schema, referenced)
        self._nullable = schema.type.nullable
        # A record of one field has the bytes of the field.
        alone = json.dumps({"type": "record", "name": "outfall_key", "fields": [
            {"name": _KEY, "type": json.loads(registered.schema.text)}]})  # fmt: skip
        row = AvroType("record", fields=(AvroField(_KEY, schema.type),))
        self._fast = is_fast(schema, row, alone) if fast is None else fast
        self._parsed = parse_avro(Schema(alone), referenced).parsed
        self._text = alone
        self._fit = fit(schema.type, column.type, Place(column.name), plain=not self._fast)
        self._head = pa.scalar(head(registered.id), pa.binary())

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a message for each value; NULL for none. Raises `ValueRefusedError`."""
        present = column if self._nullable or not column.null_count else column.drop_null()
        rows = pa.StructArray.from_arrays([self._fit.change(present)], names=[_KEY])
        data = _by_pyruhvro(rows, self._text) if self._fast else _by_fastavro(rows, self._parsed)
        found = pc.binary_join_element_wise(self._head, data, pa.scalar(b"", pa.binary()))
        if len(present) == len(column):
            return found
        valid = column.is_valid()
        positions = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
        return found.take(pc.if_else(valid, positions, pa.scalar(None, pa.int64())))


def is_fast(schema: AvroSchema, row: AvroType, text: str) -> bool:
    """Whether the fast encoder is installed, writes all types as fastavro does, and takes the text of rows' schema."""
    return has_pyruhvro() and schema.alone and _all_fast(row) and _is_parsed(row, text)


def _is_parsed(row: AvroType, text: str) -> bool:
    """Whether pyruhvro parses a schema: it refuses more than fastavro, such as `$` in a namespace."""
    import pyruhvro

    try:
        pyruhvro.serialize_record_batch(_as_batch(pa.array([], arrow_of(row, plain=False))), text, 1)
    except ValueError:
        return False
    return True


@cache
def has_pyruhvro() -> bool:
    """Whether the fast encoder is installed."""
    return find_spec("pyruhvro") is not None


def _all_fast(avro: AvroType) -> bool:
    inner = [field.type for field in avro.fields] + ([avro.items] if avro.items is not None else [])
    return avro.kind in FAST and all(map(_all_fast, inner))


def _by_pyruhvro(rows: pa.StructArray, text: str) -> pa.Array:
    import pyruhvro

    if not len(rows):
        return pa.array([], pa.binary())
    found = [pa.array(piece) for piece in pyruhvro.serialize_record_batch(_as_batch(rows), text, 1)]
    return found[0] if len(found) == 1 else pa.concat_arrays(found)


def _by_fastavro(rows: pa.StructArray, parsed: Any) -> pa.Array:
    buffer = io.BytesIO()
    write, ends = fastavro.schemaless_writer, [0]
    names = [field.name for field in rows.type]
    # By column, which takes a third of the time of whole rows.
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in rows.flatten()]
    for row in zip(*columns, strict=True) if columns else [()] * len(rows):
        write(buffer, parsed, dict(zip(names, row, strict=True)))
        ends.append(buffer.tell())
    offsets = pa.array(ends, pa.int64()).buffers()[1]
    large = pa.Array.from_buffers(pa.large_binary(), len(rows), [None, offsets, pa.py_buffer(buffer.getvalue())])
    return large.cast(pa.binary())


def _as_batch(rows: pa.StructArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(rows)


__all__ = ["FAST", "AvroEncoder", "AvroKeyEncoder", "arrow_of", "has_pyruhvro", "is_fast"]
