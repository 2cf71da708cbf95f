"""`KafkaSink` with a schema registry: what Confluent's deserializers read, and what is refused before."""

from __future__ import annotations

import io
import json
import pickle
import secrets
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import json_format
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError, TargetError, ValueRefusedError
from outfall.file import FileSink
from outfall.kafka import KafkaSink
from outfall.schema_registry.protobuf_schema import compiled, message_class
from outfall.schema_registry.schemas import Schema, WholeSchema
from outfall.spark import write_stream
from outfall.spark.version_check import pyspark_version
from outfall.testing import LocalDriver
from tests.integration.support.kafka_reader import Read, read
from tests.integration.support.reading import read_stream, run, write_source
from tests.integration.support.schema_registry import ModelRegistry, model_registry

FLIGHT: dict[str, Any] = {
    "type": "record", "name": "Flight", "namespace": "com.example", "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["AA", "UA"]}},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "gate", "type": "string", "default": "none"},
    ],
}  # fmt: skip
COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("carrier", pa.string()), ("delay", pa.int64())])


@pytest.fixture
def registry() -> Any:
    with model_registry() as running:
        yield running


def name() -> str:
    return f"r-{secrets.token_hex(6)}"


def sink(address: str, topic: str | None, registry: ModelRegistry, **options: Any) -> KafkaSink:
    given: dict[str, Any] = {"value_format": "avro", "schema_registry": {"url": registry.url, "retry_deadline": 0.01}}
    made: dict[str, Any] = {"create_topic": "if_missing", "partitions": 2, "replication_factor": 1} if topic else {}
    return KafkaSink(address, topic, delivery_timeout=20, **(given | made | options))


def written(tmp_path: Path, made: KafkaSink, *tasks: list[dict[str, Any]], epoch: int = 0) -> dict[str, int]:
    routed = [[(str(row["id"]), row) for row in task] for task in tasks] if made.options.parts else tasks
    return dict(LocalDriver(made, str(tmp_path / "recovery")).run_epoch(epoch, list(routed)).counts)


def deserialized(registry: ModelRegistry, topic: str, records: list[Read], part: str = "value") -> list[Any]:
    """Read values or keys as Confluent's consumers do."""
    read_one = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(topic, MessageField.VALUE if part == "value" else MessageField.KEY)
    return [read_one(getattr(record, part), context) for record in records]


def rows(*carriers: str, delay: int | None = 5) -> list[dict[str, Any]]:
    return [{"id": number, "carrier": carrier, "delay": delay} for number, carrier in enumerate(carriers)]


@pytest.mark.parametrize("parts", [None, pytest.param(2, marks=pytest.mark.thorough)])
def test_values_and_keys_are_what_confluents_deserializer_reads(
    kafka: str, registry: ModelRegistry, tmp_path: Path, parts: int | None
) -> None:
    topic = name()
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    key_id = registry.register(f"{topic}-key", '"long"')
    made = sink(kafka, topic, registry, key_column="id", key_format="avro", parts=parts)
    made.check_schema(COLUMNS)
    asked = len(registry.requests)
    written(tmp_path, made, rows("AA", "UA"))
    found = read(kafka, topic)
    given = sorted(deserialized(registry, topic, found), key=lambda value: value["id"])
    assert given == [row | {"gate": "none"} for row in rows("AA", "UA")]
    assert sorted(deserialized(registry, topic, found, "key")) == [0, 1]
    assert {(record.key or b"")[:5] for record in found} == {b"\0" + key_id.to_bytes(4)}
    # What the driver has looked up is not asked again by tasks: here they are in its process, and were sent the sink.
    paths = [path for _, path in registry.requests[asked:]]
    assert [path for path in paths if path.startswith("/subjects")] == []


@pytest.mark.thorough
def test_json_with_a_registered_schema(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic = name()
    options = {"value_format": "json_schema", "key_format": "json_schema", "key_column": "id"}
    made = sink(kafka, topic, registry, register_schemas=True, **options)
    made.check_schema(COLUMNS)
    written(tmp_path, made, [rows("AA")[0], rows("AA", "UA", delay=None)[1]])
    found = read(kafka, topic)
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext(topic, MessageField.VALUE)
    values = [JSONDeserializer(None, schema_registry_client=client)(record.value, context) for record in found]
    assert sorted(values, key=lambda value: value["id"]) == [
        {"id": 0, "carrier": "AA", "delay": 5}, {"id": 1, "carrier": "UA"}
    ]  # fmt: skip
    assert sorted(json.loads((record.key or b"")[5:]) for record in found) == [0, 1]
    with pytest.raises(ConfigurationError, match="is JSON, and value_format is avro"):
        sink(kafka, topic, registry).check_schema(COLUMNS)


PROTO = """
syntax = "proto3"; package com.example;
import "place.proto";
message Other { int32 x = 1; }
message Flight {
  int64 id = 1; enum Carrier { NONE = 0; AA = 1; UA = 2; } Carrier carrier = 2; optional int32 delay = 3;
  geo.Place place = 4;
}
"""


def of_protobuf(registry: ModelRegistry, text: str, name: str, records: list[Read], part: str = "value") -> list[Any]:
    """Read messages as Confluent's deserializer does, with the class of a message."""
    place = (("place.proto", Schema(PLACE, "PROTOBUF")),) if "place.proto" in text else ()
    made = message_class(compiled(WholeSchema(Schema(text, "PROTOBUF"), place)).message(name))
    read_one = ProtobufDeserializer(made, {"use.deprecated.format": False}, SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext("t", MessageField.VALUE if part == "value" else MessageField.KEY)
    found = [read_one(getattr(record, part), context) for record in records]
    return [json_format.MessageToDict(each, preserving_proto_field_name=True) for each in found]


PLACE = 'syntax = "proto3"; package geo; message Place { string code = 1; }'


@pytest.mark.thorough
def test_protobuf_with_a_message_of_several_and_references(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic = name()
    registry.register("place", PLACE, "PROTOBUF")
    registry.register(f"{topic}-value", PROTO, "PROTOBUF", [("place.proto", "place", 1)])
    options = {"value_format": "protobuf", "value_record": "com.example.Flight"}
    dead = FileSink(str(tmp_path / "dead"), format="jsonl")
    made = sink(kafka, topic, registry, dead_letter=dead, **options)
    place = pa.struct([("code", pa.string())])
    made.check_schema(COLUMNS.append(pa.field("place", place)))
    given = [
        row | {"place": place}
        for row, place in zip(rows("AA", "XX", "UA"), [{"code": "JFK"}] * 2 + [None], strict=True)
    ]
    assert written(tmp_path, made, given)["dead_letters"] == 1
    found = of_protobuf(registry, PROTO, "com.example.Flight", read(kafka, topic))
    assert sorted(found, key=str) == [
        {"carrier": "AA", "delay": 5, "place": {"code": "JFK"}}, {"id": "2", "carrier": "UA", "delay": 5}
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"has no message com\.example\.No.*It has com\.example\.Flight"):
        sink(kafka, topic, registry, **options | {"value_record": "com.example.No"}).check_schema(COLUMNS)


@pytest.mark.thorough
def test_a_derived_protobuf_schema_grows_with_the_columns(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic = name()
    options = {"value_format": "protobuf", "key_format": "protobuf", "key_column": "id", "register_schemas": True}
    for epoch, more in enumerate([{}, {"seat": "1A"}]):
        made = sink(kafka, topic, registry, **options)
        # The new column comes first, and its field gets the next number all the same.
        columns = pa.schema([*((column, pa.string()) for column in more), *COLUMNS])
        made.check_schema(columns)
        made.check_schema(columns)
        written(tmp_path, made, [more | row for row in rows("AA")], epoch=epoch)
    assert list(registry.versions[f"{topic}-value"]) == [1, 2]
    text = registry.schemas[registry.versions[f"{topic}-value"][2]].text
    found = read(kafka, topic)
    values = of_protobuf(registry, text, f"{topic}_value".replace("-", "_"), found)
    assert sorted(values, key=len) == [
        {"carrier": "AA", "delay": "5"}, {"carrier": "AA", "delay": "5", "seat": "1A"}
    ]  # fmt: skip
    keys = registry.schemas[registry.versions[f"{topic}-key"][1]].text
    assert of_protobuf(registry, keys, f"{topic}_key".replace("-", "_"), found, "key") == [{}, {}]


def test_a_row_that_does_not_fit_is_a_dead_letter(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic, dead = name(), tmp_path / "dead"
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    made = sink(kafka, topic, registry, dead_letter=FileSink(str(dead), format="jsonl"))
    counts = written(tmp_path, made, [*rows("AA", "XX"), *rows("UA", delay=2**40), *rows("UA")])
    assert (counts["sent"], counts["dead_letters"]) == (2, 2)
    letters = [json.loads(line) for file in dead.rglob("*.jsonl") for line in file.read_text().splitlines()]
    reasons = sorted(letter["reason"] for letter in letters)
    assert ["no symbol of the enum com.example.Carrier" in reasons[0], "too large" in reasons[1]] == [True, True]
    assert len(read(kafka, topic)) == 2


@pytest.mark.thorough
def test_a_row_that_does_not_fit_fails_the_epoch_without_dead_letters(
    kafka: str, registry: ModelRegistry, tmp_path: Path
) -> None:
    topic = name()
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    with pytest.raises(ValueRefusedError, match="'carrier' is NULL, in row 1 of the batch"):
        written(tmp_path, sink(kafka, topic, registry, parts=1), [*rows("AA"), {"id": 2, "carrier": None, "delay": 1}])
    assert read(kafka, topic) == []


@pytest.mark.thorough
def test_rows_with_topics_of_their_own_have_the_schema_of_their_topic(
    kafka: str, registry: ModelRegistry, tmp_path: Path
) -> None:
    first, second, third = name(), name(), name()
    wide = FLIGHT | {"fields": [*FLIGHT["fields"][1:3], FLIGHT["fields"][0]]}
    ids = [registry.register(f"{topic}-value", json.dumps(text)) for topic, text in ((first, FLIGHT), (second, wide))]
    made = sink(kafka, None, registry, topic_column="to", dead_letter=FileSink(str(tmp_path / "dead"), format="jsonl"))
    topics = [first, second, first, third]
    given = [row | {"to": topic} for row, topic in zip(rows("AA", "UA", "AA", "UA"), topics, strict=True)]
    for topic in (first, second):
        sink(kafka, topic, registry).delegate.make_topic()
    counts = written(tmp_path, made, given)
    # Of two topics the version and the schema of its id, and of the third that there is none.
    assert (counts["dead_letters"], counts["registry_misses"], counts["registry_requests"]) == (1, 3, 5)
    for topic, schema_id, schema, wanted in ((first, ids[0], FLIGHT, [0, 2]), (second, ids[1], wide, [1])):
        values = [record.value or b"" for record in read(kafka, topic)]
        assert {value[:5] for value in values} == {b"\0" + schema_id.to_bytes(4)}
        parsed = fastavro.parse_schema(schema)
        decoded: list[Any] = [fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None) for value in values]
        assert sorted(each["id"] for each in decoded) == wanted


def test_a_rejected_row_has_its_number_in_the_batch_and_topics_are_asked_for_once_per_process(
    kafka: str, registry: ModelRegistry
) -> None:
    first, second = name(), name()
    for topic in (first, second):
        registry.register(f"{topic}-value", json.dumps(FLIGHT))
    made = sink(kafka, None, registry, topic_column="to")
    given = [row | {"to": topic} for row, topic in zip(rows("AA", "UA", "XX"), [first, second, second], strict=True)]
    batch = pa.RecordBatch.from_pylist(given, schema=COLUMNS.append(pa.field("to", pa.string())))
    for _ in range(2):
        with pytest.raises(ValueRefusedError, match=r"is no symbol of the enum .*, in row 2 of the"):
            pickle.loads(pickle.dumps(made)).delegate.maker().make(batch)  # as in a task
    assert len([path for _, path in registry.requests if path.endswith("/versions/latest")]) == 2


def test_a_registry_that_never_responded_is_waited_for_by_the_first_epoch(
    kafka: str, registry: ModelRegistry, tmp_path: Path
) -> None:
    topic = name()
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    made = sink(kafka, topic, registry)
    registry.stop()
    made.check_schema(COLUMNS)
    registry.start()
    assert written(tmp_path, made, rows("AA"))["sent"] == 1
    # What could not be compared before is compared by the epoch.
    other = sink(kafka, topic, registry)
    registry.stop()
    other.check_schema(COLUMNS.append(pa.field("seat", pa.string())))
    registry.start()
    with pytest.raises(ConfigurationError, match="column 'seat' is not in the schema"):
        written(tmp_path, other, rows("AA"), epoch=1)
    unknown = {"url": "http://registry.invalid", "retry_deadline": "10 minutes"}
    lost = sink(kafka, topic, registry, schema_registry=unknown)
    lost.check_schema(COLUMNS)
    with pytest.raises(TargetError, match="The name of the host is unknown"):
        written(tmp_path / "other", lost, rows("AA"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "subject"), [("record", "com.example.Flight"), ("topic_record", "{}-com.example.Flight")]
)
def test_a_schema_is_derived_and_registered_once_and_grows_with_the_columns(
    kafka: str, registry: ModelRegistry, tmp_path: Path, strategy: str, subject: str
) -> None:
    topic = name()
    options = {"register_schemas": True, "subject_strategy": strategy, "value_record": "com.example.Flight"}
    columns = COLUMNS
    for epoch, more in enumerate([{}, {"seat": "1A"}]):
        made = sink(kafka, topic, registry, **options)
        columns = pa.schema([*COLUMNS, *((column, pa.string()) for column in more)])
        made.check_schema(columns)
        made.check_schema(columns)
        written(tmp_path, made, [row | more for row in rows("AA")], epoch=epoch)
    assert list(registry.versions[subject.format(topic)]) == [1, 2]
    found = sorted(deserialized(registry, topic, read(kafka, topic)), key=len)
    assert found == [rows("AA")[0], rows("AA")[0] | {"seat": "1A"}]
    # A type that readers of the latest version could not read is refused in the registry's words.
    changed = pa.schema([("id", pa.string()), *list(COLUMNS)[1:]])
    with pytest.raises(ConfigurationError, match="Schema being registered is incompatible"):
        sink(kafka, topic, registry, **options).check_schema(changed)


@pytest.mark.thorough
def test_which_schema_is_taken(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic, newer = name(), FLIGHT | {"fields": [*FLIGHT["fields"], {"name": "seat", "type": "int", "default": 1}]}
    ids = [registry.register(f"{topic}-value", json.dumps(schema)) for schema in (FLIGHT, newer)]
    for epoch, choice in enumerate([1, "latest", f"id:{ids[0]}", "2"]):
        written(tmp_path, sink(kafka, topic, registry, value_schema=choice), rows("AA"), epoch=epoch)
    found = [int.from_bytes((record.value or b"")[1:5]) for record in read(kafka, topic)]
    assert sorted(found) == [ids[0], ids[0], ids[1], ids[1]]


@pytest.mark.parametrize(
    ("columns", "options", "kind", "message"),
    [
        (COLUMNS.append(pa.field("seat", pa.string())), {}, ConfigurationError,
         "does not fit the schema of the subject .*-value, version 1 .id 1.*the column 'seat' is not in the schema"),
        (COLUMNS.remove(0), {}, ConfigurationError, "the field 'id' of the record com.example.Flight has no column"),
        (COLUMNS.set(0, pa.field("id", pa.string())), {}, ConfigurationError,
         "column 'id' of type string does not fit the Avro type long"),
        (COLUMNS, {"value_schema": 7}, TargetError,
         "no schema for the value of the topic .*Version 7 not found.*register_schemas"),
        (COLUMNS, {"value_schema": "id:2"}, ConfigurationError, "is PROTOBUF, and .* is avro.*value_format=.protobuf"),
        (COLUMNS, {"value_schema": "id:77"}, TargetError, "Schema 77 not found"),
        (COLUMNS, {"key_column": "id", "key_format": "avro"}, TargetError, "no schema for the key of the topic"),
        (COLUMNS, {"key_column": "no", "key_format": "avro"}, ConfigurationError, "key_column"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_before_the_first_row(
    kafka: str,
    registry: ModelRegistry,
    columns: pa.Schema,
    options: dict[str, Any],
    kind: type[Exception],
    message: str,
) -> None:
    topic = name()
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    registry.register("other", 'syntax = "proto3";', "PROTOBUF")
    with pytest.raises(kind, match=f"(?i){message}"):
        sink(kafka, topic, registry, **options).check_schema(columns)


def test_the_registry_is_a_part_of_the_connection(kafka: str, registry: ModelRegistry) -> None:
    topic = name()
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    found = sink(kafka, topic, registry).delegate.check_connection()
    assert f"the schema registry {registry.url} responds, with 1 subjects" in found


@pytest.mark.thorough
def test_tasks_need_no_registry(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic = name()
    registry.register(f"{topic}-value", json.dumps(FLIGHT))
    made = sink(kafka, topic, registry)
    made.check_schema(COLUMNS)
    registry.stop()
    assert written(tmp_path, made, rows("AA"))["sent"] == 1


@pytest.mark.thorough
def test_a_new_version_is_taken_at_the_next_start(kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    topic, newer = name(), FLIGHT | {"fields": [*FLIGHT["fields"], {"name": "seat", "type": "int", "default": 1}]}
    first = registry.register(f"{topic}-value", json.dumps(FLIGHT))
    made = sink(kafka, topic, registry)
    made.check_schema(COLUMNS)
    second = registry.register(f"{topic}-value", json.dumps(newer))
    started = sink(kafka, topic, registry)
    started.check_schema(COLUMNS)
    for epoch, each in enumerate([made, made, started]):
        written(tmp_path, each, rows("AA"), epoch=epoch)
    found = [int.from_bytes((record.value or b"")[1:5]) for record in read(kafka, topic)]
    assert sorted(found) == [first, first, second]


@pytest.mark.spark
@pytest.mark.thorough
def test_streams_of_both_apis(spark: SparkSession, kafka: str, registry: ModelRegistry, tmp_path: Path) -> None:
    """Values are registered from Spark's columns; the tasks of `write_stream` never ask for the schema."""
    first, second = name(), name()
    source = read_stream(spark, write_source(tmp_path / "source", 2)).withColumn("at", sf.lit(None).cast("timestamp"))
    made = sink(kafka, first, registry, register_schemas=True, key_column="k", key_format="avro")
    run(write_stream(source, made, checkpoint=tmp_path / "first"))
    asked = [path for method, path in registry.requests if path.startswith("/subjects")]
    assert asked == [f"/subjects/{first}-value", f"/subjects/{first}-value/versions",
                     f"/subjects/{first}-key", f"/subjects/{first}-key/versions"]  # fmt: skip
    topics = [first]
    if pyspark_version() >= (4, 1):
        topics.append(second)
        writer = source.writeStream.format("outfall").option("sink", "kafka").option("brokers", kafka)
        writer = writer.option("topic", second).option("valueFormat", "avro").option("registerSchemas", "true")
        writer = writer.option("createTopic", "if_missing").option("replicationFactor", "1")
        writer = writer.option("schemaRegistry", json.dumps({"url": registry.url})).option("keyColumn", "k")
        run(writer.option("keyFormat", "avro").option("checkpointLocation", str(tmp_path / "second")))
    for topic in topics:
        found = read(kafka, topic)
        values = deserialized(registry, topic, found)
        assert sorted(value["id"] for value in values) == list(range(20))
        assert {value["at"] for value in values} == {None}
        assert deserialized(registry, topic, found, "key") == [value["k"] for value in values]
