"""Rows as Avro messages: both encoders write the same bytes, and what does not fit is refused."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.schema_registry.avro_schema import avro_of
from outfall.schema_registry.encoding.avro import FAST, AvroEncoder, AvroKeyEncoder
from outfall.schema_registry.schemas import Reference, RegisteredSchema, Schema

INSTANT = pa.timestamp("us", "UTC")
INSTANTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda t: t.replace(tzinfo=UTC))  # noqa: DTZ001 - local times
TYPES: dict[str, tuple[Any, pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", pa.bool_(), st.booleans()),
    "int": ("int", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", pa.float32(), st.floats(width=32)),
    "double": ("double", pa.float64(), st.floats()),
    "string": ("string", pa.string(), st.text()),
    "date": ({"type": "int", "logicalType": "date"}, pa.date32(), st.dates()),
    "timestamp-millis": ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("ms", "UTC"),
                         INSTANTS.map(lambda t: t.replace(microsecond=5000))),
    "timestamp-micros": ({"type": "long", "logicalType": "timestamp-micros"}, INSTANT,
                         INSTANTS),
    "enum": ({"type": "enum", "name": "E", "symbols": ["a", "B_2"]}, pa.string(), st.sampled_from(["a", "B_2"])),
}  # fmt: skip
"""By type that the fast encoder writes: how Avro and Arrow name it, and its values."""
NESTED = {"array", "map", "record"}
Drawn = tuple[dict[str, Any], pa.RecordBatch]


def test_each_type_of_the_fast_encoder_is_compared() -> None:
    assert set(TYPES) | NESTED == FAST


@st.composite
def columns(draw: st.DrawFn) -> tuple[dict[str, Any], pa.RecordBatch]:
    """Draw a record of some fields, nullable or not, and rows."""
    count, fields, arrays = draw(st.integers(0, 5)), [], {}
    for number in range(draw(st.integers(1, 4))):
        avro, arrow, values = draw(kinds(f"T{number}", 2))
        if nullable := draw(st.booleans()):
            avro = draw(st.sampled_from([["null", avro], [avro, "null"]]))
            values = st.none() | values
        fields.append({"name": f"f{number}", "type": avro})
        drawn = draw(st.lists(values, min_size=count, max_size=count))
        arrays[pa.field(f"f{number}", arrow, nullable)] = pa.array(drawn, arrow)
    schema = {"type": "record", "name": "R", "fields": fields}
    return schema, pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(list(arrays)))


@st.composite
def kinds(draw: st.DrawFn, name: str, depth: int) -> tuple[Any, pa.DataType, st.SearchStrategy[Any]]:
    """Draw a type: how Avro and Arrow name it, and its values."""
    chosen = draw(st.sampled_from([*TYPES, *(NESTED if depth else ())]))
    if chosen in TYPES:
        avro, arrow, values = TYPES[chosen]
        return (avro | {"name": name} if chosen == "enum" else avro), arrow, values
    avro, arrow, values = draw(kinds(f"{name}x", depth - 1))
    if draw(st.booleans()):
        avro, values = ["null", avro], st.none() | values
    if chosen == "array":
        return {"type": "array", "items": avro}, pa.list_(arrow), st.lists(values, max_size=3)
    if chosen == "map":
        pairs = st.dictionaries(st.text(max_size=3), values, max_size=3).map(lambda found: list(found.items()))
        return {"type": "map", "values": avro}, pa.map_(pa.string(), arrow), pairs
    record = {"type": "record", "name": name, "fields": [{"name": "x", "type": avro}, {"name": "y", "type": "long"}]}
    inner = st.fixed_dictionaries({"x": values, "y": st.integers(0, 9)})
    return record, pa.struct([("x", arrow), ("y", pa.int64())]), inner


def encoded(schema: Any, batch: pa.RecordBatch, *, fast: bool | None = None) -> list[bytes]:
    registered = RegisteredSchema(7, Schema(json.dumps(schema)))
    return [bytes(one) for one in AvroEncoder(registered, {}, batch.schema, fast=fast).encode(batch).to_pylist()]


def decoded(schema: Any, messages: list[bytes]) -> list[Any]:
    assert all(message[:5] == b"\0\0\0\0\7" for message in messages)
    parsed = fastavro.parse_schema(schema)
    return [fastavro.schemaless_reader(io.BytesIO(message[5:]), parsed, None) for message in messages]


@settings(max_examples=60, deadline=None)
@given(columns(), st.integers(0, 2))
def test_the_fast_encoder_writes_the_bytes_of_fastavro(drawn: Drawn, start: int) -> None:
    schema, batch = drawn
    batch = batch.slice(start)
    assert encoded(schema, batch, fast=True) == encoded(schema, batch, fast=False)


@pytest.mark.thorough
@settings(max_examples=1500, deadline=None)
@given(columns(), st.integers(0, 2))
def test_the_fast_encoder_writes_the_bytes_of_fastavro_in_many_cases(drawn: Drawn, start: int) -> None:
    schema, batch = drawn
    batch = batch.slice(start)
    assert encoded(schema, batch, fast=True) == encoded(schema, batch, fast=False)


WIDE = {
    "type": "record", "name": "R", "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 6, "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "kinds", "type": {"type": "array", "items": ["bytes", "null"]}},
        {"name": "added", "type": {"type": "array", "items": "int"}, "default": [1]},
        {"name": "byte", "type": "bytes", "default": "\u00ff"},
        {"name": "none", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip


def test_types_that_only_fastavro_writes_and_defaults() -> None:
    local = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - a local time
    batch = pa.RecordBatch.from_pydict(
        {
            "price": pa.array([Decimal("-1.25")], pa.decimal128(9, 2)),
            "fixed": pa.array([Decimal("-1.2")], pa.decimal128(5, 1)),
            "raw": pa.array([b"\xff"]),
            "hash": pa.array([b"ab"]),
            "key": ["9e2c4a41-6f3b-4d0e-9c85-0a1b2c3d4e5f"],
            "local": pa.array([local], pa.timestamp("us")),
            "clock": pa.array([time(1, 2, 3, 4)], pa.time64("us")),
            "kinds": pa.array([[b"a", None]], pa.list_(pa.binary())),
        }
    )
    (row,) = decoded(WIDE, encoded(WIDE, batch))
    assert row == {
        "price": Decimal("-1.250"), "fixed": Decimal("-1.20"), "raw": b"\xff", "hash": b"ab", "key": row["key"],
        "local": local, "clock": time(1, 2, 3, 4), "kinds": [b"a", None], "added": [1], "byte": b"\xff", "none": None,
    }  # fmt: skip
    assert str(row["key"]) == "9e2c4a41-6f3b-4d0e-9c85-0a1b2c3d4e5f"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "R", "namespace": "shop.Outer$", "fields": [{"name": "x", "type": "long"}]},
        {"type": "record", "name": "R", "fields": [
            {"name": "x", "type": {"type": "long", "logicalType": "timestamp-nanos"}}]},
    ],
    ids=["name", "nanoseconds"],
)  # fmt: skip
def test_what_the_fast_encoder_refuses_is_left_to_fastavro(schema: dict[str, Any]) -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([-1, 64])})
    assert [message[5:] for message in encoded(schema, batch)] == [b"\x01", b"\x80\x01"]


@pytest.mark.parametrize("fast", [None, False])
@pytest.mark.parametrize(
    ("avro", "default"),
    [("int", 2**31), ({"type": "enum", "name": "E", "symbols": ["a"]}, "b")],
    ids=["range", "symbol"],
)
def test_a_default_that_is_no_value_is_an_error_before_the_first_row(
    avro: Any, default: Any, fast: bool | None
) -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "x", "type": avro, "default": default}]
    schema = Schema(json.dumps({"type": "record", "name": "R", "fields": fields}))
    with pytest.raises(ConfigurationError, match="the default of the field 'x' is no value"):
        AvroEncoder(RegisteredSchema(1, schema), {}, pa.schema([("n", pa.int64())]), fast=fast)


def test_the_derived_schema_takes_the_rows_that_it_was_derived_from() -> None:
    inner = pa.struct([("a", pa.int16()), ("day", pa.date32())])
    batch = pa.RecordBatch.from_pydict(
        {"n": pa.array([1, None], pa.int8()), "inner": pa.array([None, {"a": 1, "day": date(2026, 1, 1)}], inner)}
    )
    schema = json.loads(avro_of(batch.schema, "a.R").text)
    assert decoded(schema, encoded(schema, batch)) == batch.to_pylist()


@pytest.mark.parametrize("fast", [True, False])
def test_nested_values_beside_nulls_are_those_of_their_rows(fast: bool) -> None:
    kind = pa.struct([pa.field("x", pa.int64(), False), pa.field("tags", pa.list_(pa.string()))])
    inner = [{"x": 1, "tags": ["a"]}, None, {"x": 2, "tags": None}, None, {"x": 3, "tags": ["b", None]}]
    counts = [[("k", 1)], None, [], [("l", None), ("m", 2)], None]
    columns = {"inner": pa.array(inner, kind), "counts": pa.array(counts, pa.map_(pa.string(), pa.int64()))}
    batch = pa.RecordBatch.from_pydict(columns)
    schema = json.loads(avro_of(batch.schema, "a.R").text)
    wanted = batch.to_pylist(maps_as_pydicts="strict")
    assert decoded(schema, encoded(schema, batch, fast=fast)) == wanted
    assert decoded(schema, encoded(schema, batch.slice(2, 2), fast=fast)) == wanted[2:4]


def one(avro: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": avro}]}


ENUM = {"type": "enum", "name": "E", "symbols": ["a"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize("fast", [None, False])
@pytest.mark.parametrize(
    ("avro", "values", "message"),
    [
        ("int", pa.array([1, 2**31]), "'x' is too large for the schema, in row 1"),
        ("long", pa.array([1, None]), "'x' is NULL, in row 1"),
        (ENUM, pa.array(["a", "b"]), "'x' is no symbol of the enum E, in row 1"),
        (DECIMAL, pa.array([Decimal("1.00"), Decimal("10.00")], pa.decimal128(9, 2)), "more digits.*in row 1"),
        (MILLIS, pa.array([0, 1], INSTANT), "more precise than the schema, in row 1"),
        ({"type": "fixed", "name": "F", "size": 1}, pa.array([b"a", b""]), "has not 1 bytes, in row 1"),
        ({"type": "string", "logicalType": "uuid"}, pa.array(["0" * 32]), "'x' is no UUID"),
        ("string", pa.array([b"\xff"]).view(pa.string()), "not UTF-8"),
        ({"type": "array", "items": "long"}, pa.array([[1], [None]]), "'x.element' is NULL$"),
        ({"type": "map", "values": ENUM}, pa.array([[("k", "b")]], pa.map_(pa.string(), pa.string())), "'x.value'"),
        (["null", one("long") | {"name": "I"}], pa.array([None, {"x": None}], pa.struct([("x", pa.int64())])), "'x.x'"),
    ],
)
def test_a_value_that_the_schema_does_not_allow_is_refused(
    avro: Any, values: pa.Array, message: str, fast: bool | None
) -> None:
    with pytest.raises(ValueRefusedError) as caught:
        encoded(one(avro), pa.RecordBatch.from_pydict({"x": values}), fast=fast)
    assert re.search(message, caught.value.what)


@pytest.mark.parametrize(
    ("avro", "kind", "message"),
    [
        ("long", pa.string(), "'x' of type string does not fit the Avro type long"),
        ("float", pa.float64(), "does not fit the Avro type float"),
        ("double", pa.int64(), "does not fit the Avro type double"),
        ("long", INSTANT, "does not fit the Avro type long"),
        (MILLIS, pa.timestamp("us"), "cast the column to timestamp"),
        (DECIMAL, pa.decimal128(9, 3), r"decimal\(3,2\)"),
        (["int", "string"], pa.string(), "union"),
        (["null", "int", "string"], pa.string(), "union"),
        (["int"], pa.int32(), "union"),
        ({"type": "map", "values": "long"}, pa.map_(pa.int64(), pa.int64()), "Avro type map"),
        (one("long") | {"name": "I"}, pa.struct([("y", pa.int64())]), "the column 'y' of 'x' is not in the schema"),
        (one("long") | {"name": "I"}, pa.struct([]), "the field 'x' of the record I has no column of 'x'"),
    ],
)
def test_a_column_of_another_type_is_an_error_before_the_first_row(avro: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AvroEncoder(RegisteredSchema(1, Schema(json.dumps(one(avro)))), {}, pa.schema([("x", kind)]))


@pytest.mark.parametrize("fast", [None, False])
@pytest.mark.parametrize(
    ("avro", "column", "found"),
    [
        ("string", pa.array(["a", None]), [b"\x02a", None]),
        (["null", "string"], pa.array(["a", None]), [b"\x02\x02a", b"\0"]),
        ("long", pa.array([-1, 64]), [b"\x01", b"\x80\x01"]),
        (one("long"), pa.array([{"x": 3}, None], pa.struct([("x", pa.int64())])), [b"\x06", None]),
        ("bytes", pa.array([b"\xff"]), [b"\x02\xff"]),
    ],
)
def test_a_key_may_be_of_any_type(avro: Any, column: pa.Array, found: list[bytes | None], fast: bool | None) -> None:
    encoder = AvroKeyEncoder(RegisteredSchema(9, Schema(json.dumps(avro))), {}, pa.field("k", column.type), fast=fast)
    head = b"\0\0\0\0\x09"
    assert encoder.encode(column).to_pylist() == [None if one is None else head + one for one in found]


def test_a_schema_may_refer_to_others() -> None:
    money = Schema(json.dumps({"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}))
    schema = {"type": "record", "name": "shop.Order", "fields": [
        {"name": "paid", "type": "Money"}, {"name": "due", "type": ["null", "shop.Money"]}]}  # fmt: skip
    registered = RegisteredSchema(7, Schema(json.dumps(schema), references=(Reference("shop.Money", "money", 1),)))
    kind = pa.struct([("cents", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"paid": pa.array([{"cents": 5}], kind), "due": pa.array([{"cents": 6}], kind)})
    encoder = AvroEncoder(registered, {"shop.Money": money}, batch.schema)
    assert encoder.encode(batch).to_pylist() == [b"\0\0\0\0\7" + b"\x0a" + b"\x02\x0c"]
    assert not encoder.fast
