"""A million random values of each Avro type: both libraries write the same bytes, and read back the same columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from outfall.schema_registry.decoding.avro import AvroReader, AvroText
from outfall.schema_registry.encoding.avro import AvroEncoder
from outfall.schema_registry.schemas import RegisteredSchema, Schema
from outfall.schema_registry.wire import HEAD_SIZE

pytestmark = pytest.mark.long

ROWS, BATCH = 1_000_000, 50_000
Make = Callable[[np.random.Generator, int], Any]


def bits(kind: str) -> Make:
    """Numbers of any bits, so that each length of a number occurs: of a random one almost all are the longest."""

    def make(random: np.random.Generator, rows: int) -> Any:
        wide = np.dtype(kind).itemsize * 8
        whole = random.integers(-(2**63), 2**63 - 1, rows, dtype=np.int64, endpoint=True)
        return pa.array((whole >> random.integers(64 - wide, 64, rows)).astype(kind))

    return make


def floats(kind: Any) -> Make:
    def make(random: np.random.Generator, rows: int) -> Any:
        made = random.bytes(rows * np.dtype(kind).itemsize)
        found = np.frombuffer(made, kind).copy()
        found[np.isnan(found)] = 0.5  # equal to nothing, also to itself
        return pa.array(found)

    return make


def texts(random: np.random.Generator, rows: int) -> Any:
    letters = np.array(list('aZ0 \n"\\éß€😀\0'))
    chosen = letters[random.integers(0, len(letters), (rows, 8))]
    lengths = random.integers(0, 9, rows)
    return pa.array(["".join(one[:length]) for one, length in zip(chosen, lengths, strict=True)], pa.string())


def times(kind: Any, first: int, last: int) -> Make:
    return lambda random, rows: pa.array(random.integers(first, last, rows), pa.int64()).cast(kind)


MICROS = 2**50
TYPES: dict[str, tuple[Any, Make]] = {
    "boolean": ("boolean", lambda random, rows: pa.array(random.integers(0, 2, rows) == 1)),
    "int": ("int", bits("int32")),
    "long": ("long", bits("int64")),
    "float": ("float", floats(np.float32)),
    "double": ("double", floats(np.float64)),
    "string": ("string", texts),
    "enum": (
        {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]},
        lambda random, rows: pa.array(np.array(["A", "B", "C"])[random.integers(0, 3, rows)]),
    ),
    "date": (
        {"type": "int", "logicalType": "date"},
        lambda random, rows: pa.array(random.integers(-700_000, 2_900_000, rows), pa.int32()).cast(pa.date32()),
    ),
    "timestamp-micros": (
        {"type": "long", "logicalType": "timestamp-micros"}, times(pa.timestamp("us", "UTC"), -MICROS, MICROS)
    ),
    "timestamp-millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        lambda random, rows: pa.array(random.integers(-(2**40), 2**40, rows) * 1000).cast(pa.timestamp("us", "UTC")),
    ),
}  # fmt: skip


def columns(kind: Any, make: Make, random: np.random.Generator, rows: int) -> tuple[Any, pa.RecordBatch]:
    """Return a schema with the type alone, nullable, in arrays, maps and records, and rows of it."""
    plain = make(random, rows)
    mask = random.integers(0, 3, rows) == 0
    lengths = random.integers(0, 3, rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    items = make(random, int(lengths.sum()))
    # A map has each key once.
    keys = pa.array([f"k{number}" for number in range(len(items))], pa.string())
    arrays = {
        "plain": plain,
        "nullable": pa.array(plain.to_pylist(), plain.type, mask=mask),
        "array": pa.ListArray.from_arrays(offsets, items),
        "map": pa.MapArray.from_arrays(offsets, keys, items),
        "record": pa.StructArray.from_arrays([make(random, rows), pa.nulls(rows, pa.string())], names=["x", "y"]),
    }
    again = kind["name"] if isinstance(kind, dict) and "name" in kind else kind
    fields = [
        {"name": "plain", "type": kind},
        {"name": "nullable", "type": ["null", again]},
        {"name": "array", "type": {"type": "array", "items": again}},
        {"name": "map", "type": {"type": "map", "values": again}},
        {"name": "record", "type": {"type": "record", "name": "In", "fields": [
            {"name": "x", "type": again}, {"name": "y", "type": ["null", "string"]}]}},
    ]  # fmt: skip
    schema = {"type": "record", "name": "R", "fields": fields}
    return schema, pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


@pytest.mark.parametrize("name", TYPES)
def test_a_million_values_are_written_and_read_alike(name: str) -> None:
    kind, make = TYPES[name]
    random = np.random.default_rng(sorted(TYPES).index(name))
    done = 0
    while done < ROWS:
        schema, batch = columns(kind, make, random, BATCH)
        text = json.dumps(schema)
        registered = RegisteredSchema(2**31, Schema(text))
        fast, slow = (AvroEncoder(registered, {}, batch.schema, fast=way) for way in (True, False))
        assert fast.fast
        messages = fast.encode(batch)
        assert messages.equals(slow.encode(batch))
        reader = AvroReader(AvroText(text), AvroText(text))
        values = messages.to_pylist()
        found, errors = reader.column(values, HEAD_SIZE)
        assert errors == {}
        reference, errors = reader.by_value(values, HEAD_SIZE)
        assert errors == {}
        assert found.equals(reference)
        for field in ("plain", "nullable"):
            written = batch.column(field)
            assert found.field(field).cast(written.type).equals(written)
        done += BATCH
