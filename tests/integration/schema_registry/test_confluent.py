"""What Confluent's own serializer writes is read, for each type of Avro."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.schema_registry import RegistryDeserializer
from tests.integration.support.schema_registry import model_registry

pytestmark = pytest.mark.thorough

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
TYPES: dict[str, tuple[Any, Any, Any]] = {
    "boolean": ("boolean", True, True),
    "int": ("int", -(2**31), -(2**31)),
    "long": ("long", 2**63 - 1, 2**63 - 1),
    "float": ("float", 0.5, 0.5),
    "double": ("double", 0.1, 0.1),
    "string": ("string", "é😀", "é😀"),
    "bytes": ("bytes", b"\0\xff", b"\0\xff"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"\0\xff", b"\0\xff"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    "array": ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
    "map": ({"type": "map", "values": "long"}, {"a": 1}, [("a", 1)]),
    "record": ({"type": "record", "name": "N", "fields": [{"name": "y", "type": "int"}]}, {"y": 1}, {"y": 1}),
    "date": ({"type": "int", "logicalType": "date"}, date(1969, 1, 1), date(1969, 1, 1)),
    "time-millis": ({"type": "int", "logicalType": "time-millis"}, MOMENT.time(), 11045678),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, MOMENT.time(), 11045678000),
    "timestamp-millis": ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, MOMENT),
    "timestamp-micros": ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, MOMENT),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        MOMENT.replace(tzinfo=None),
        MOMENT.replace(tzinfo=None),
    ),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        Decimal("-1234.50"),
        Decimal("-1234.50"),
    ),
    "uuid": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=1), str(uuid.UUID(int=1))),
}
"""By name: the type, a value as Confluent's serializer takes it, and the value of the column."""


def test_each_type_is_read() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    context = SerializationContext("t", MessageField.VALUE)
    with model_registry() as registry:
        for name, (kind, value, expected) in TYPES.items():
            registry.forget()
            client = SchemaRegistryClient({"url": registry.url})
            fields = [{"name": "x", "type": kind}, {"name": "none", "type": ["null", kind]}]
            if isinstance(kind, dict) and "name" in kind:
                fields[1]["type"] = ["null", kind["name"]]
            schema = json.dumps({"type": "record", "name": "R", "fields": fields})
            message = AvroSerializer(client, schema)({"x": value, "none": None}, context)
            # Another registry for the process, which keeps what it has seen of one.
            options = {"url": registry.url, "headers": {"x-case": name}}
            column, errors = RegistryDeserializer(options, subject="t-value").open().column(pa.array([message]))
            assert (column.to_pylist(), errors) == ([{"x": expected, "none": None}], {}), name


def test_json_of_confluents_serializer_is_read() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    kinds: dict[str, tuple[Any, Any]] = {
        "a": ({"type": "boolean"}, True),
        "b": ({"type": "integer"}, 2**63 - 1),
        "c": ({"type": "number"}, 0.1),
        "d": ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "é😀"),
        "e": ({"type": ["null", "string"], "enum": ["A", None]}, None),
        "f": ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        "g": ({"type": "object", "additionalProperties": {"type": "number"}}, {"x": 1.5}),
        "h": ({"$ref": "#/definitions/point"}, {"x": 1}),
    }
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#", "title": "R", "type": "object",
        "properties": {name: kind for name, (kind, _) in kinds.items()},
        "definitions": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }  # fmt: skip
    value = {name: given for name, (_, given) in kinds.items()}
    with model_registry() as registry:
        serializer = JSONSerializer(json.dumps(schema), SchemaRegistryClient({"url": registry.url}))
        message = serializer(value, SerializationContext("t", MessageField.VALUE))
        column, errors = RegistryDeserializer(registry.url, subject="t-value").open().column(pa.array([message]))
    assert (column.to_pylist(), errors) == ([value | {"g": [("x", 1.5)]}], {})


def test_protobuf_of_confluents_serializer_is_read() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    from outfall.schema_registry.protobuf_schema import compiled, message_class
    from outfall.schema_registry.schemas import Schema, WholeSchema

    text = """
    syntax = "proto3"; package p; import "google/protobuf/timestamp.proto";
    message First { int32 x = 1; }
    message Second {
      message Inner { optional string s = 1; }
      uint64 a = 1; repeated Inner b = 2; google.protobuf.Timestamp c = 3; oneof d { int32 e = 4; bool f = 5; }
      map<string, double> g = 6; optional int32 h = 7; bytes i = 8;
    }
    """
    whole = WholeSchema(Schema(text, "PROTOBUF"))
    value: dict[str, Any] = {"a": 2**64 - 1, "b": [{}, {"s": ""}], "c": MOMENT, "f": False, "g": {"k": 0.5}, "i": b"\0"}
    expected = {
        "a": Decimal(2**64 - 1), "b": [{"s": None}, {"s": ""}], "c": MOMENT, "e": None, "f": False, "g": [("k", 0.5)],
        "h": None, "i": b"\0",
    }  # fmt: skip
    context = SerializationContext("t", MessageField.VALUE)
    with model_registry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        registry.register("t-value", text, "PROTOBUF")
        found = {}
        for name in ("First", "Second"):  # it has no schema for a message inside of another one
            made = message_class(compiled(whole).message(f"p.{name}"))
            given = {"First": {"x": 1}, "Second": value}[name]
            settings = {"use.deprecated.format": False, "auto.register.schemas": False, "use.latest.version": True}
            message = ProtobufSerializer(made, client, settings)(made(**given), context)
            reader = RegistryDeserializer(registry.url, subject="t-value", message=f"p.{name}").open()
            found[name] = reader.column(pa.array([message]))
        assert found["First"][0].to_pylist() == [{"x": 1}]
        assert (found["Second"][0].to_pylist(), found["Second"][1]) == ([expected], {})
        # The first message is the default; of another one it says which.
        column, errors = RegistryDeserializer(registry.url, subject="t-value").open().column(pa.array([message]))
    assert column.null_count == 1
    assert errors == {0: "its message is p.Second, and the reader's is p.First"}
