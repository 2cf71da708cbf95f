"""Avro schemas as types, and the schema of columns."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.schema_registry.avro_schema import NO_DEFAULT, AvroField, AvroType, avro_of, avro_of_value, parse_avro
from outfall.schema_registry.schemas import Schema


def parsed(schema: Any, **referenced: Any) -> AvroType:
    others = {name: Schema(json.dumps(text)) for name, text in referenced.items()}
    return parse_avro(Schema(json.dumps(schema)), others).type


DECIMAL = {"type": "bytes", "logicalType": "decimal"}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("long", AvroType("long")),
        ({"type": "long"}, AvroType("long")),
        (["null", "long"], AvroType("long", nullable=True, null_first=True)),
        (["long", "null"], AvroType("long", nullable=True)),
        (["long"], AvroType("union", branches=(AvroType("long"),))),
        (["null"], AvroType("union", nullable=True, branches=(AvroType("null"),))),
        (["int", "string"], AvroType("union", branches=(AvroType("int"), AvroType("string")))),
        ({"type": "int", "logicalType": "date"}, AvroType("date")),
        ({"type": "long", "logicalType": "date"}, AvroType("long")),
        ({"type": "long", "logicalType": "timestamp-nanos"}, AvroType("timestamp-nanos")),
        ({"type": "long", "logicalType": "unknown"}, AvroType("long")),
        (DECIMAL | {"precision": 9, "scale": 2}, AvroType("decimal", precision=9, scale=2)),
        (DECIMAL, AvroType("bytes")),
        ({"type": "array", "items": ["null", "int"]}, AvroType("array", items=AvroType("int", True, True))),
        ({"type": "map", "values": "bytes"}, AvroType("map", items=AvroType("bytes"))),
        ({"type": "fixed", "name": "a.F", "size": 3, "aliases": ["G"]},
         AvroType("fixed", name="a.F", size=3, aliases=("a.G",))),
        ({"type": "enum", "name": "E", "symbols": ["x", "y"], "default": "y"},
         AvroType("enum", name="E", symbols=("x", "y"), default="y")),
    ],
)  # fmt: skip
def test_types_with_their_logical_types(schema: Any, found: AvroType) -> None:
    assert parsed(schema) == found


def test_named_types_are_found_by_their_namespace_and_in_other_schemas() -> None:
    money = {"type": "fixed", "name": "shop.Money", "size": 8}
    pair = {"type": "record", "name": "Pair", "namespace": "shop", "fields": [
        {"name": "one", "type": "Money", "default": "\u0000"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a"]}, "aliases": ["sort"]},
        {"name": "other", "type": "Kind"}]}  # fmt: skip
    kind = AvroType("enum", name="shop.Kind", symbols=("a",))
    assert parsed(pair, **{"shop.Money": money}).fields == (
        AvroField("one", AvroType("fixed", name="shop.Money", size=8), "\u0000"),
        AvroField("kind", kind, aliases=("sort",)),
        AvroField("other", kind),
    )
    assert parsed(pair, **{"shop.Money": money}).fields[1].default is NO_DEFAULT


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]},
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": "Unknown"}]},
        {"type": "record", "name": "R"},
        {"type": "nothing"},
        17,
    ],
)
def test_a_schema_that_is_wrong_or_contains_itself_is_an_error(schema: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be parsed"):
        parsed(schema)


COLUMNS = pa.schema(
    [
        pa.field("flag", pa.bool_(), False),
        ("tiny", pa.int8()),
        ("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC"), False),
        pa.field("local", pa.timestamp("us"), False),
        pa.field("price", pa.decimal128(9, 2), False),
        pa.field("raw", pa.binary(), False),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), False)), False),
        pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int64())), False),
        pa.field("inner", pa.struct([pa.field("x", pa.float32(), False)]), False),
    ]
)


def test_the_schema_of_columns_is_one_that_fastavro_parses() -> None:
    schema = avro_of(COLUMNS, "shop.orders.Flight")
    fastavro.parse_schema(json.loads(schema.text))
    assert parse_avro(schema, {}).type == AvroType("record", name="shop.orders.Flight", fields=(
        AvroField("flag", AvroType("boolean")),
        AvroField("tiny", AvroType("int", True, True), None),
        AvroField("day", AvroType("date", True, True), None),
        AvroField("at", AvroType("timestamp-micros")),
        AvroField("local", AvroType("local-timestamp-micros")),
        AvroField("price", AvroType("decimal", precision=9, scale=2)),
        AvroField("raw", AvroType("bytes")),
        AvroField("tags", AvroType("array", items=AvroType("string"))),
        AvroField("counts", AvroType("map", items=AvroType("long", True, True))),
        AvroField("inner", AvroType("record", name="shop.orders.Flight_inner",
                                    fields=(AvroField("x", AvroType("float")),))),
    ))  # fmt: skip
    # Not repeated, as Avro for Java writes it: a registry's text is compared with the one that was registered.
    assert schema.text.count('"namespace"') == 1
    assert avro_of_value(pa.field("id", pa.int64()), "Key").text == '"long"'


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.field("a-b", pa.int64()), "'a-b' cannot be a field"),
        (pa.field("inner", pa.struct([("1", pa.int64())])), "'inner.1' cannot be a field"),
        (pa.field("span", pa.duration("us")), "Avro does not support column 'span'"),
        (pa.field("m", pa.map_(pa.int64(), pa.int64())), "cast its keys to strings"),
        (pa.field("list", pa.list_(pa.null())), "'list.element'"),
    ],
)
def test_what_has_no_mapping_is_refused(column: pa.Field, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        avro_of(pa.schema([column]), "R")
