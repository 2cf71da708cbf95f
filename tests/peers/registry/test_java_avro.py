"""Avro with Java's library, by Spark's own `from_avro` and `to_avro`: each type, both ways, with and without NULL.

The types are those of `docs/schema-registry.md`. Spark's functions know no ids, so the tests take them off and put them
on. Left out: other unions, null, and a record that contains itself, which Outfall refuses. Times of a day are written
by Outfall alone, as columns of Spark's type `time`: `to_avro` of Spark 4.1.1 refuses it and takes the number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro, to_avro
from pyspark.sql.pandas.types import from_arrow_schema

from outfall.schema_registry import RegistryDeserializer, SchemaRegistryOptions
from outfall.schema_registry.subjects import SchemaSettings
from outfall.schema_registry.wire import HEAD_SIZE, head
from outfall.schema_registry.writing import SchemaWriter
from outfall.spark import deserialize
from tests.integration.support.schema_registry import ModelRegistry, model_registry

NAME = "{name}"
"""Where a type has a name, which a schema has once."""


@dataclass(frozen=True)
class Column:
    """A type of Avro, the type of its column, and values."""

    avro: Any
    arrow: pa.DataType
    values: tuple[Any, Any]
    numbers: tuple[pa.DataType, tuple[int, int]] | None = None
    """What Spark's functions and `deserialize` have instead, if it is the number."""


def logical(kind: Any, name: str, **more: int) -> dict[str, Any]:
    return {**(kind if isinstance(kind, dict) else {"type": kind}), "logicalType": name, **more}


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": NAME, "fields": [{"name": name, "type": kind} for name, kind in fields]}


def local(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)


FIXED = {"type": "fixed", "name": NAME, "size": 2}
ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
AFTER = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
MICROS = AFTER.replace(microsecond=999_999)
INNER = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
BATCHES = {
    "boolean": Column("boolean", pa.bool_(), (True, False)),
    "int": Column("int", pa.int32(), (-(2**31), 2**31 - 1)),
    "long": Column("long", pa.int64(), (-(2**63), 2**63 - 1)),
    "float": Column("float", pa.float32(), (-0.5, float("inf"))),
    "double": Column("double", pa.float64(), (0.1, -1e308)),
    "string": Column("string", pa.string(), ("é😀\0", "")),
    "enum": Column({"type": "enum", "name": NAME, "symbols": ["A", "B"]}, pa.string(), ("B", "A")),
    "date": Column(logical("int", "date"), pa.date32(), (date(1, 1, 1), date(9999, 12, 31))),
    "timestamp_millis": Column(
        logical("long", "timestamp-millis"), ZONED, (BEFORE, AFTER)
    ),
    "timestamp_micros": Column(
        logical("long", "timestamp-micros"), ZONED, (BEFORE, MICROS)
    ),
    "array": Column({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), ([1, None, -1], [])),
    "map": Column(
        {"type": "map", "values": ["null", "long"]}, pa.map_(pa.string(), pa.int64()), ([("é", 1)], [("", None)])
    ),
    "record": Column(
        record(("a", ["null", "int"]), ("b", {"type": "array", "items": "string"})),
        INNER,
        ({"a": None, "b": ["x", ""]}, {"a": 0, "b": []}),
    ),
    "records": Column(
        {"type": "array", "items": record(("a", "int"), ("b", ["null", {"type": "array", "items": "string"}]))},
        pa.list_(INNER),
        ([{"a": 1, "b": None}], [{"a": 2, "b": [""]}, {"a": 3, "b": []}]),
    ),
}  # fmt: skip
"""What is encoded and decoded in batches."""
ALL = BATCHES | {
    "local_millis": Column(logical("long", "local-timestamp-millis"), LOCAL, (local(BEFORE), local(AFTER))),
    "local_micros": Column(logical("long", "local-timestamp-micros"), LOCAL, (local(BEFORE), local(MICROS))),
    "bytes": Column("bytes", pa.binary(), (b"\0\xff", b"")),
    "fixed": Column(FIXED, pa.binary(), (b"\0\xff", b"\x80a")),
    "uuid": Column(logical("string", "uuid"), pa.string(), (f"{'0' * 8}-0000-4000-8000-{'f' * 12}",) * 2),
    "decimal": Column(
        logical("bytes", "decimal", precision=38, scale=10),
        pa.decimal128(38, 10),
        (Decimal("-9999999999999999999999999999.9999999999"), Decimal("1.5000000000")),
    ),
    "decimal_fixed": Column(
        logical(FIXED, "decimal", precision=4, scale=2), pa.decimal128(4, 2), (Decimal("-99.99"), Decimal("0.01"))
    ),
    "time_micros": Column(
        logical("long", "time-micros"), pa.time64("us"), (time(0), time(23, 59, 59, 999_999)),
        numbers=(pa.int64(), (0, 86_399_999_999)),
    ),
    "time_millis": Column(
        logical("int", "time-millis"), pa.time64("us"), (time(0), time(23, 59, 59, 999_000)),
        numbers=(pa.int32(), (0, 86_399_999)),
    ),
    "timestamp_nanos": Column(logical("long", "timestamp-nanos"), pa.int64(), (-1, 2**62)),
    "local_nanos": Column(logical("long", "local-timestamp-nanos"), pa.int64(), (-1, 2**62)),
}  # fmt: skip
NULLABLE = "_or_null"


# Compiling code for so many columns takes most of the time.
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in _INTERPRETED}
    for name, value in _INTERPRETED.items():
        spark.conf.set(name, value)
    yield spark
    for name, earlier in before.items():
        spark.conf.set(name, str(earlier))


@pytest.fixture(scope="module")
def registry() -> Iterator[ModelRegistry]:
    with model_registry() as found:
        yield found


@pytest.fixture(params=[BATCHES, ALL], ids=["batches", "all"])
def columns(request: pytest.FixtureRequest) -> dict[str, Column]:
    found: dict[str, Column] = request.param
    return found


def schema_of(columns: dict[str, Column]) -> str:
    """Return a schema with the number of the row, and two fields per type, one of which may be NULL."""
    fields: list[dict[str, Any]] = [{"name": "row", "type": "int"}]
    for name, column in columns.items():
        for field in (name, name + NULLABLE):
            kind = json.loads(json.dumps(column.avro).replace(NAME, f"of_{field}"))
            fields.append({"name": field, "type": ["null", kind] if field.endswith(NULLABLE) else kind})
    return json.dumps({"type": "record", "name": "Row", "namespace": "com.example", "fields": fields})


def table_of(columns: dict[str, Column], *, numbers: bool) -> pa.Table:
    """Return three rows, with numbers instead of values that only Outfall writes."""
    made = {"row": pa.array([0, 1, 2], pa.int32())}
    for name, column in columns.items():
        kind, (first, second) = column.numbers if numbers and column.numbers else (column.arrow, column.values)
        made[name] = pa.array([first, second, first], kind)
        made[name + NULLABLE] = pa.array([second, None, first], kind)
    return pa.table(made)


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a frame, with `timestamp_ntz` for timestamps without a zone."""
    return spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def registered(registry: ModelRegistry, columns: dict[str, Column]) -> tuple[str, str, int]:
    """Register a schema; return the topic, the schema and its id."""
    topic, schema = f"t{len(columns)}", schema_of(columns)
    return topic, schema, registry.register(f"{topic}-value", schema)


def check(read: DataFrame, frame: DataFrame, expected: pa.Table) -> None:
    """Compare the rows, and the columns with those of a frame, but for what may be NULL."""
    assert read.schema.simpleString() == frame.schema.simpleString()
    # As nullable columns, since Spark's own way to Arrow fails on a NULL struct whose fields are not.
    rows = read.to(frame.schema).toArrow().to_pylist()
    assert sorted(rows, key=lambda row: int(row["row"])) == expected.to_pylist()


def written(registry: ModelRegistry, topic: str, table: pa.Table, *, register: bool = False) -> list[tuple[bytes]]:
    """Return the messages that `KafkaSink` makes of a table, without their ids."""
    options = SchemaRegistryOptions.parse(registry.url)
    writer = SchemaWriter(SchemaSettings(options, "value", "avro", register=register))
    writer.prepare(topic, table.schema)
    messages = [message for batch in table.to_batches() for message in writer.encode(topic, batch).to_pylist()]
    return [(message[HEAD_SIZE:],) for message in messages]


def check_java(spark: SparkSession, values: list[tuple[bytes]], schema: str, columns: dict[str, Column]) -> None:
    """Read messages in the JVM."""
    frame = spark.createDataFrame(values, "value binary")
    read = frame.select(from_avro("value", schema).alias("value")).select("value.*")
    expected = table_of(columns, numbers=True)
    check(read, frame_of(spark, expected), expected)


def test_java_reads_what_outfall_writes(
    interpreted: SparkSession, registry: ModelRegistry, columns: dict[str, Column]
) -> None:
    topic, schema, _ = registered(registry, columns)
    table = frame_of(interpreted, table_of(columns, numbers=False)).toArrow()
    check_java(interpreted, written(registry, topic, table), schema, columns)


def test_java_reads_by_a_schema_that_outfall_derives(interpreted: SparkSession, registry: ModelRegistry) -> None:
    # A column of times becomes microseconds.
    columns = {name: column for name, column in ALL.items() if name != "time_millis"}
    table = frame_of(interpreted, table_of(columns, numbers=False)).toArrow()
    values = written(registry, "derived", table, register=True)
    (number,) = registry.versions["derived-value"].values()
    check_java(interpreted, values, registry.schemas[number].text, columns)


def test_outfall_reads_what_java_writes(
    interpreted: SparkSession, registry: ModelRegistry, columns: dict[str, Column]
) -> None:
    topic, schema, number = registered(registry, columns)
    table = table_of(columns, numbers=True)
    frame = frame_of(interpreted, table)
    messages = frame.select(sf.concat(sf.lit(head(number)), to_avro(sf.struct("*"), schema)).alias("value"))
    read = deserialize(messages, RegistryDeserializer(registry.url, subject=f"{topic}-value")).select("value.*")
    check(read, frame, table)
