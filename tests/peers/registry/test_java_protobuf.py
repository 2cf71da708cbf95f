"""Protobuf with Java's library: each type, both ways, with absent fields. The message is not the first of its schema.

Outfall writes no `Struct`, `Value` and `ListValue`, so these are only read. Spark's own functions for Protobuf, which
use the same library, are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.schema_registry import RegistryDeserializer, SchemaRegistryOptions
from outfall.schema_registry.subjects import SchemaSettings
from outfall.schema_registry.wire import HEAD_SIZE, head, index_bytes, message_indexes
from outfall.schema_registry.writing import SchemaWriter
from tests.integration.support.schema_registry import ModelRegistry, model_registry
from tests.peers.support.protobuf_text import JavaProtobuf

PLACE = """
syntax = "proto2"; package other;
message Place { required string code = 1; optional int32 level = 2 [default = 7]; optional bool open = 3; }
"""
SCHEMA = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto"; import "shared/place.proto";
message First { int32 x = 1; }
message All {
  bool bool = 1; int32 int32 = 2; sint32 sint32 = 3; sfixed32 sfixed32 = 4; uint32 uint32 = 5; fixed32 fixed32 = 6;
  int64 int64 = 7; sint64 sint64 = 8; sfixed64 sfixed64 = 9; uint64 uint64 = 10; fixed64 fixed64 = 11;
  float float = 12; double double = 13; string string = 14; bytes bytes = 15;
  enum Color { NONE = 0; RED = 5; LESS = -1; }
  message Inner { optional int32 x = 1; repeated string y = 2; }
  Color enum = 16; Inner message = 17; repeated sint64 numbers = 18; map<string, Inner> map = 19;
  map<int32, double> by_number = 20; google.protobuf.Timestamp timestamp = 21; google.protobuf.Duration duration = 22;
  google.protobuf.Int64Value wrapper = 23; google.protobuf.StringValue text = 24; other.Place place = 25;
  repeated Inner messages = 26; optional int32 optional = 27; repeated Color colors = 28;
  oneof choice { string first = 29; int32 second = 30; }
  google.protobuf.Struct struct = 2000; google.protobuf.Value value = 2001; google.protobuf.ListValue list = 2002;
}
"""
INNER = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
COLUMNS = pa.schema([
    ("bool", pa.bool_()), ("int32", pa.int32()), ("sint32", pa.int32()), ("sfixed32", pa.int32()),
    ("uint32", pa.int64()), ("fixed32", pa.int64()), ("int64", pa.int64()), ("sint64", pa.int64()),
    ("sfixed64", pa.int64()), ("uint64", pa.decimal128(20, 0)), ("fixed64", pa.decimal128(20, 0)),
    ("float", pa.float32()), ("double", pa.float64()), ("string", pa.string()), ("bytes", pa.binary()),
    ("enum", pa.string()), ("message", INNER), ("numbers", pa.list_(pa.int64())),
    ("map", pa.map_(pa.string(), INNER)), ("by_number", pa.map_(pa.int32(), pa.float64())),
    ("timestamp", pa.timestamp("us", "UTC")), ("duration", pa.duration("us")), ("wrapper", pa.int64()),
    ("text", pa.string()), ("place", pa.struct([("code", pa.string()), ("level", pa.int32()), ("open", pa.bool_())])),
    ("messages", pa.list_(INNER)), ("optional", pa.int32()), ("colors", pa.list_(pa.string())), ("first", pa.string()),
    ("second", pa.int32()),
])  # fmt: skip
EMPTY: dict[str, Any] = {
    "bool": False, "string": "", "bytes": b"", "enum": "NONE", "float": 0.0, "double": 0.0, "numbers": [], "map": [],
    "by_number": [], "messages": [], "colors": [],
    **dict.fromkeys(("int32", "sint32", "sfixed32", "uint32", "fixed32", "int64", "sint64", "sfixed64"), 0),
    **dict.fromkeys(("uint64", "fixed64"), Decimal(0)),
    **dict.fromkeys(("message", "timestamp", "duration", "wrapper", "text", "place", "optional", "first", "second")),
}  # fmt: skip
ROWS: list[tuple[dict[str, Any], str]] = [
    (EMPTY, ""),
    (
        {
            "bool": True, "int32": -(2**31), "sint32": -(2**31), "sfixed32": -(2**31), "uint32": 2**32 - 1,
            "fixed32": 2**32 - 1, "int64": -(2**63), "sint64": -(2**63), "sfixed64": -(2**63),
            "uint64": Decimal(2**64 - 1), "fixed64": Decimal(2**64 - 1), "float": -0.5, "double": 0.1,
            "string": "é😀\n", "bytes": b"\0\xff", "enum": "RED", "message": {"x": 0, "y": ["a", ""]},
            "numbers": [1, -1], "map": [("", {"x": None, "y": []}), ("k", {"x": -1, "y": []})],
            "by_number": [(-1, float("inf"))], "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
            "duration": timedelta(microseconds=-1_500_000), "wrapper": 0, "text": "",
            "place": {"code": "JFK", "level": 7, "open": None}, "messages": [{"x": 1, "y": []}, {"x": None, "y": []}],
            "optional": 0, "colors": ["LESS", "RED"], "first": "", "second": None,
        },
        "bool: true int32: -2147483648 sint32: -2147483648 sfixed32: -2147483648 uint32: 4294967295"
        " fixed32: 4294967295 int64: -9223372036854775808 sint64: -9223372036854775808"
        " sfixed64: -9223372036854775808 uint64: 18446744073709551615 fixed64: 18446744073709551615 float: -0.5"
        r' double: 0.1 string: "\303\251\360\237\230\200\n" bytes: "\000\377" enum: RED'
        ' message { x: 0 y: "a" y: "" } numbers: 1 numbers: -1 map { key: "" value { } }'
        ' map { key: "k" value { x: -1 } } by_number { key: -1 value: Infinity }'
        " timestamp { seconds: -1 nanos: 999999000 } duration { seconds: -1 nanos: -500000000 } wrapper { } text { }"
        ' place { code: "JFK" level: 7 } messages { x: 1 } messages { } optional: 0 colors: LESS colors: RED'
        ' first: ""',
    ),
    (
        EMPTY | {
            "int32": 2**31 - 1, "sint64": 2**63 - 1, "sfixed64": 2**63 - 1, "enum": "LESS",
            "timestamp": datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), "duration": timedelta(days=3), "wrapper": -1,
            "text": "a", "second": 0, "place": {"code": "", "level": 0, "open": False},
        },
        "int32: 2147483647 sint64: 9223372036854775807 sfixed64: 9223372036854775807 enum: LESS"
        " timestamp { seconds: 253402300799 nanos: 999999000 } duration { seconds: 259200 } wrapper { value: -1 }"
        ' text { value: "a" } place { code: "" level: 0 open: false } second: 0',
    ),
]  # fmt: skip
"""Rows, and the text that Java makes of their messages."""


@pytest.fixture
def registry() -> Iterator[ModelRegistry]:
    with model_registry() as found:
        found.register("place", PLACE, "PROTOBUF")
        found.register("t-value", SCHEMA, "PROTOBUF", [("shared/place.proto", "place", 1)])
        yield found


@pytest.fixture
def java(tmp_path: Path) -> JavaProtobuf:
    return JavaProtobuf(tmp_path, {"shared/place.proto": PLACE, "all.proto": SCHEMA}, "All")


def test_java_reads_what_outfall_writes(registry: ModelRegistry, java: JavaProtobuf) -> None:
    options = SchemaRegistryOptions.parse(registry.url)
    writer = SchemaWriter(SchemaSettings(options, "value", "protobuf", record="p.All"))
    writer.prepare("t", COLUMNS)
    batch = pa.RecordBatch.from_pylist([row for row, _ in ROWS], schema=COLUMNS)
    messages = [message[HEAD_SIZE:] for message in writer.encode("t", batch).to_pylist()]
    found = [message_indexes(message) for message in messages]
    assert [indexes for indexes, _ in found] == [(1,)] * len(ROWS)
    texts = java.read([message[at:] for message, (_, at) in zip(messages, found, strict=True)])
    assert texts == [text for _, text in ROWS]


def test_outfall_reads_what_java_writes(registry: ModelRegistry, java: JavaProtobuf) -> None:
    json = (
        'struct { fields { key: "a" value { list_value { values { number_value: 1.5 } values { null_value: NULL_VALUE }'
        ' } } } } value { string_value: "x" } list { values { bool_value: true } }'
    )
    number = max(registry.schemas)
    written = java.write([*(text for _, text in ROWS), json])
    messages = pa.array([head(number) + index_bytes([1]) + message for message in written])
    column, errors = RegistryDeserializer(registry.url, subject="t-value", message="p.All").open().column(messages)
    assert errors == {}
    read = pa.RecordBatch.from_struct_array(column)
    assert read.select(COLUMNS.names).to_pylist() == [row for row, _ in ROWS] + [EMPTY]
    others = [read.column(name).to_pylist() for name in ("struct", "value", "list")]
    assert others == [[None] * len(ROWS) + [text] for text in ('{"a": [1.5, null]}', '"x"', "[true]")]
