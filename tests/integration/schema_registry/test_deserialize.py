"""Messages of Kafka become columns in Spark: each by its writer's schema, for one reader's schema."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from outfall.errors import ConfigurationError, SerializationError, TransientError, reason
from outfall.schema_registry import RegistryDeserializer, client
from outfall.schema_registry.wire import head
from outfall.spark import deserialize
from outfall.spark.deserialize import DeserializeFunction
from tests.integration.support.schema_registry import ModelRegistry, ModelSchema, model_registry

OLD: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "id", "type": "int"}, {"name": "gate", "type": "string"}],
}
NEW: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
    ],
}
RECORDS = "key binary, value binary, topic string, partition int, offset bigint"


@pytest.fixture
def registry() -> Iterator[ModelRegistry]:
    with model_registry() as found:
        yield found


def message(schema_id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return head(schema_id) + out.getvalue()


def topic(spark: SparkSession, *values: bytes | None) -> DataFrame:
    """Rows as Spark's Kafka source has them."""
    return spark.createDataFrame([(b"k", value, "flights", 3, 40 + at) for at, value in enumerate(values)], RECORDS)


def written(registry: ModelRegistry) -> tuple[int, int]:
    return registry.register("flights-value", json.dumps(OLD)), registry.register("flights-value", json.dumps(NEW))


@pytest.mark.thorough
def test_each_message_is_read_by_its_own_schema(spark: SparkSession, registry: ModelRegistry) -> None:
    old, new = written(registry)
    rows = topic(
        spark,
        message(old, OLD, {"id": 1, "gate": "A1"}),
        message(new, NEW, {"id": 2**40, "carrier": "UA", "at": 1_000_001}),
        None,
        b"plain",
        message(old, OLD, {"id": 2, "gate": "A2"})[:-1],
        message(77, OLD, {"id": 3, "gate": ""}),
    )
    read = deserialize(rows, RegistryDeserializer(registry.url, subject="flights-value"), on_error="null")
    assert read.schema["value"].dataType.simpleString() == "struct<id:bigint,carrier:string,at:timestamp>"
    found = read.selectExpr(
        "offset", "value.id", "value.carrier", "unix_micros(value.at)", "value IS NULL", "value_error", "key"
    ).collect()
    assert [tuple(row)[:5] for row in found] == [
        (40, 1, None, 0, False),
        (41, 2**40, "UA", 1_000_001, False),
        *((offset, None, None, None, True) for offset in (42, 43, 44, 45)),
    ]
    assert [row["value_error"] is None for row in found] == [True, True, True, False, False, False]
    assert "wire format: its first byte is not zero" in found[3]["value_error"]
    assert "does not have the schema with the id 77" in found[5]["value_error"]
    assert {bytes(row["key"]) for row in found} == {b"k"}


@pytest.mark.thorough
def test_a_message_that_cannot_be_read_fails_the_query_with_its_place(
    spark: SparkSession, registry: ModelRegistry
) -> None:
    old, _ = written(registry)
    rows = topic(spark, message(old, OLD, {"id": 1, "gate": ""}), b"plain")
    with pytest.raises(Exception, match="cannot be read") as failed:
        deserialize(rows, RegistryDeserializer(registry.url, subject="flights-value")).collect()
    assert reason(failed.value).startswith(
        "a message in the column 'value' cannot be read: topic flights, partition 3, offset 41. It is not in the"
    )


@pytest.mark.thorough
def test_a_stream_keeps_its_readers_schema_while_the_subject_gets_another(
    spark: SparkSession, registry: ModelRegistry, tmp_path: Path
) -> None:
    old, _ = written(registry)
    source = tmp_path / "source"
    topic(spark, message(old, OLD, {"id": 1, "gate": "A1"})).write.parquet(str(source))
    stream = spark.readStream.schema(RECORDS).parquet(str(source))
    read = deserialize(stream, RegistryDeserializer(registry.url, subject="flights-value")).select("value.*")
    later: dict[str, Any] = NEW | {"fields": [*NEW["fields"], {"name": "seat", "type": "int", "default": 1}]}
    latest = registry.register("flights-value", json.dumps(later))
    value = {"id": 2, "carrier": "UA", "at": 0, "seat": 7}
    topic(spark, message(latest, later, value)).write.mode("append").parquet(str(source))
    query = read.select("id", "carrier").writeStream.format("memory").queryName("carriers").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert sorted(map(tuple, spark.table("carriers").collect())) == [(1, None), (2, "UA")]
    assert read.columns == ["id", "carrier", "at"]


@pytest.mark.thorough
def test_an_outage_fails_no_message_that_can_be_read(spark: SparkSession, registry: ModelRegistry) -> None:
    old, _ = written(registry)
    settings = {"url": registry.url, "retry_deadline": "1 second"}
    deserializer = RegistryDeserializer(settings, subject="flights-value")
    rows = topic(spark, message(old, OLD, {"id": 1, "gate": "A1"}))
    read = deserialize(rows, deserializer, on_error="null")
    registry.stop()
    # Not NULL with a reason: the message is readable, but not now.
    with pytest.raises(Exception, match="does not respond"):
        read.collect()
    with pytest.raises(TransientError):
        deserialize(rows, deserializer)
    registry.start()
    registry.fail(500, times=2)
    assert read.select("value.id").first() == (1,)


PROTO = """
syntax = "proto3"; package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
message Flight {
  uint64 id = 1; optional string gate = 2; google.protobuf.Timestamp at = 3; google.protobuf.Duration took = 4;
  map<int32, double> m = 5; repeated Leg legs = 6; enum State { ON = 0; OFF = 1; } State state = 7;
  message Leg { string start = 1; }
}
"""


@pytest.mark.thorough
def test_protobuf_and_json_have_spark_types(spark: SparkSession, registry: ModelRegistry) -> None:
    used = registry.register("flights-value", PROTO, "PROTOBUF")
    values = [head(used) + b"\0", head(used) + b"\0\x08\1\x12\0\x1a\2\x08\1\x22\2\x08\2*\2\x08\2\x32\3\n\1a8\1"]
    read = deserialize(
        topic(spark, *values, b"x"), RegistryDeserializer(registry.url, subject="flights-value"), on_error="null"
    )
    assert read.schema["value"].dataType.simpleString() == (
        "struct<id:decimal(20,0),gate:string,at:timestamp,took:interval day to second,m:map<int,double>,"
        "legs:array<struct<start:string>>,state:string>"
    )
    columns = ["cast(value.id AS int)", "value.gate", "unix_micros(value.at)", "cast(value.took AS string)",
               "value.m[2]", "get(value.legs, 0).start", "value.state", "value_error IS NULL"]  # fmt: skip
    assert [tuple(row) for row in read.selectExpr(*columns).collect()] == [
        (0, None, None, None, None, None, "ON", True),
        (1, "", 1_000_000, "INTERVAL '0 00:00:02' DAY TO SECOND", 0.0, "a", "OFF", True),
        (*[None] * 7, False),
    ]
    used = registry.register("object", '{"properties": {"x": {"type": "array", "items": {"type": "integer"}}}}', "JSON")
    rows = topic(spark, head(used) + b'{"x": [1]}')
    read = deserialize(rows, RegistryDeserializer(registry.url, subject="object"))
    assert read.selectExpr("value.x").first() == ([1],)


def test_settings_are_checked_before_the_first_row(spark: SparkSession, registry: ModelRegistry) -> None:
    written(registry)
    rows, deserializer = topic(spark, None), RegistryDeserializer(registry.url, subject="flights-value")
    refused: list[tuple[DataFrame, RegistryDeserializer, dict[str, Any], str]] = [
        (rows, deserializer, {"column": "valeu"}, "valeu"),
        (rows, deserializer, {"column": "topic"}, "has the type string"),
        (rows, deserializer, {"on_error": "skip"}, "on_error is 'skip'"),
        (rows.withColumnRenamed("key", "value_error"), deserializer, {"on_error": "null"}, "'value_error' already"),
    ]
    for frame, given, options, text in refused:
        with pytest.raises(ConfigurationError, match=text):
            deserialize(frame, given, **options)
    with pytest.raises(ConfigurationError, match=r"the deserializer is a str.*RegistryDeserializer"):
        deserialize(rows, registry.url)  # type: ignore[arg-type]


def test_a_column_is_read_by_parts(registry: ModelRegistry) -> None:
    """Without Spark: the rows of several writers keep their order, also in a slice of a larger column."""
    old, new = written(registry)
    reader = RegistryDeserializer(registry.url, schema=json.dumps(NEW)).open()
    values = [
        message(new, NEW, {"id": at, "carrier": None, "at": 0})
        if at % 3
        else message(old, OLD, {"id": at, "gate": "x" * at})
        for at in range(30)
    ]
    for kind in (pa.binary(), pa.large_binary()):
        column, errors = reader.column(pa.array([b"no", *values], kind)[1:])
        assert errors == {}
        assert [each["id"] for each in column.to_pylist()] == list(range(30))
        assert reader.column(pa.array([], kind)) == (pa.array([], reader.type), {})


def test_a_schema_of_another_kind_is_no_readers_schema(registry: ModelRegistry) -> None:
    registry.register("object", '{"type": "object"}', "JSON")
    with pytest.raises(ConfigurationError, match="schema is an object without properties"):
        RegistryDeserializer(registry.url, subject="object").open()
    with pytest.raises(ConfigurationError, match="schema_format is 'json'"):
        RegistryDeserializer(registry.url, schema="{}", schema_format="json")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="either subject= or schema="):
        RegistryDeserializer(registry.url)
    with pytest.raises(ConfigurationError, match="version is 0"):
        RegistryDeserializer(registry.url, subject="object", version=0)
    with pytest.raises(ConfigurationError, match=r"schema is a dict.*json.dumps"):
        RegistryDeserializer(registry.url, schema=NEW)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"the given schema cannot be the reader's schema.*cannot be parsed"):
        RegistryDeserializer(registry.url, schema="{").open()


def test_an_unknown_host_is_an_error_at_once() -> None:
    options = {"url": "http://registry.invalid", "retry_deadline": "10 minutes"}
    with pytest.raises(ConfigurationError, match=r"cannot be reached\. The name of the host is unknown\. [^_]*$"):
        RegistryDeserializer(options, subject="s").open()


def test_the_reason_that_a_registry_or_a_writer_gives_is_escaped(registry: ModelRegistry) -> None:
    written(registry)
    registry.schemas[9] = ModelSchema(json.dumps({**NEW, "name": "\ud800\x1b[31m"}))
    reader = RegistryDeserializer(registry.url, subject="flights-value").open()
    batch = pa.record_batch({"value": pa.array([head(9) + b"x"])})
    (found,) = DeserializeFunction(reader, "value", ("value",), "null")(iter([batch]))
    assert r"was written as \ud800\x1b[31m, and" in found.column(1)[0].as_py()
    with pytest.raises(SerializationError) as caught:
        list(DeserializeFunction(reader, "value", ("value",), "fail")(iter([batch])))
    assert r"was written as \ud800\x1b[31m, and" in str(caught.value)


def test_ids_of_others_are_asked_for_in_one_batch_only(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_LATE_PAUSES", (0.001, 0.001))
    written(registry)
    reader = RegistryDeserializer(registry.url, subject="flights-value").open()
    values = pa.array([head(1000 + at % 20) + b"x" for at in range(100)])
    for _ in range(2):
        column, errors = reader.column(values)
        assert (column.null_count, len(errors)) == (100, 100)
    assert len([path for _, path in registry.requests if path.startswith("/schemas/ids/10")]) == 3 * 20


def test_json_is_read_by_the_readers_schema_and_no_other_kind(registry: ModelRegistry) -> None:
    old, _ = written(registry)
    closed = {"type": "object", "properties": {"id": {"type": "integer"}, "at": {"$ref": "place.json#/$defs/place"}}}
    place = {"$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}}}
    registry.register("place", json.dumps(place), "JSON")
    used = registry.register("object", json.dumps(closed), "JSON", [("place.json", "place", 1)])
    reader = RegistryDeserializer(registry.url, subject="object").open()
    avro = message(old, OLD, {"id": 1, "gate": ""})
    values = [head(used) + b'{"id": 1, "at": {"x": 2}, "more": []}', head(used) + b"{", avro]
    column, errors = reader.column(pa.array(values))
    assert column.to_pylist() == [{"id": 1, "at": {"x": 2.0}}, None, None]
    assert errors[1].startswith("it is not JSON: ")
    assert errors[2] == f"the schema with the id {old}: it is Avro, and the reader's schema is JSON Schema"
    narrow = '{"properties": {"id": {"type": "integer"}}}'
    other = RegistryDeserializer(registry.url, schema=narrow, schema_format="json_schema").open()
    assert other.column(pa.array(values[:1]))[0].to_pylist() == [{"id": 1}]


def test_references_are_followed(registry: ModelRegistry) -> None:
    airport = {"type": "record", "name": "Airport", "fields": [{"name": "code", "type": "string"}]}
    route = {"type": "record", "name": "Route", "fields": [{"name": "start", "type": "Airport"}]}
    registry.register("airport", json.dumps(airport))
    used = registry.register("route-value", json.dumps(route), references=[("Airport", "airport", 1)])
    whole = json.loads(json.dumps(route).replace('"Airport"', json.dumps(airport)))
    reader = RegistryDeserializer(registry.url, subject="route-value").open()
    column, errors = reader.column(pa.array([message(used, whole, {"start": {"code": "JFK"}})]))
    assert (column.to_pylist(), errors) == ([{"start": {"code": "JFK"}}], {})
