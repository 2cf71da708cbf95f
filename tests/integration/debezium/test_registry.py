"""Events of Debezium in Avro, keys and values of a registry, become rows for `write_mode="changes"`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession

from outfall.delivery_order import PER_GENERATION, PER_OFFSET
from outfall.schema_registry import RegistryDeserializer
from outfall.schema_registry.wire import head
from outfall.spark import deserialize
from outfall.spark.debezium import changes
from tests.integration.support.schema_registry import ModelRegistry, model_registry

KEY: dict[str, Any] = {
    "type": "record", "name": "Key", "namespace": "shop.public.orders", "connect.name": "shop.public.orders.Key",
    "fields": [{"name": "id", "type": "long"}],
}  # fmt: skip
_ROW: dict[str, Any] = {
    "type": "record", "name": "Value", "connect.name": "shop.public.orders.Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {
            "name": "price", "default": None,
            "type": [
                "null",
                {
                    "type": "bytes", "scale": 2, "precision": 10, "logicalType": "decimal",
                    "connect.version": 1, "connect.name": "org.apache.kafka.connect.data.Decimal",
                    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
                },
            ],
        },
        {
            "name": "day", "default": None,
            "type": ["null", {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}],
        },
        {
            "name": "made", "default": None,
            "type": ["null", {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}],
        },
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
    ],
}  # fmt: skip
VALUE: dict[str, Any] = {
    "type": "record", "name": "Envelope", "namespace": "shop.public.orders",
    "connect.name": "shop.public.orders.Envelope", "connect.version": 2,
    "fields": [
        {"name": "before", "type": ["null", _ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
                "connect.name": "io.debezium.connector.postgresql.Source",
                "fields": [
                    {"name": "db", "type": "string"},
                    {"name": "schema", "type": "string"},
                    {"name": "table", "type": "string"},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                    {
                        "name": "snapshot", "default": "false",
                        "type": [
                            {"type": "string", "connect.name": "io.debezium.data.Enum", "connect.default": "false"},
                            "null",
                        ],
                    },
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}  # fmt: skip
"""As Confluent's converter registers the schema of a table: https://debezium.io/documentation/reference/configuration/avro.html"""
SOURCE = {"db": "shop", "schema": "public", "table": "orders", "lsn": 7, "snapshot": "false"}
PLACEHOLDER = "__debezium_unavailable_value"
FIRST = {
    "id": 1, "city": "Oslo", "price": Decimal("-12.50"), "day": 19782, "made": 1709201472123456, "note": "short",
    "raw": b"\x00\xff",
}  # fmt: skip
KEPT = FIRST | {"city": "Bergen", "price": None, "note": PLACEHOLDER, "raw": PLACEHOLDER.encode()}
NONE = dict.fromkeys(("city", "price", "day", "made", "note", "raw"))
COLUMNS = "id BIGINT, city STRING, price DECIMAL(10,2), day DATE, made TIMESTAMP_NTZ, note STRING, raw BINARY"


@pytest.fixture
def registry() -> Iterator[ModelRegistry]:
    with model_registry() as found:
        yield found


def messages(schema: Any, schema_id: int, values: list[Any]) -> list[bytes | None]:
    """Return values as a converter writes them; NULL is a tombstone."""
    parsed = fastavro.parse_schema(schema)

    def one(value: Any) -> bytes | None:
        if value is None:
            return None
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        return head(schema_id) + out.getvalue()

    return [one(value) for value in values]


def topic(spark: SparkSession, registry: ModelRegistry, events: list[Any]) -> DataFrame:
    """Register both schemas, and return the records of a key."""
    name = "shop.public.orders"
    keys = messages(KEY, registry.register(f"{name}-key", json.dumps(KEY)), [{"id": 1}] * len(events))
    values = messages(VALUE, registry.register(f"{name}-value", json.dumps(VALUE)), events)
    rows = [(key, value, name, 2, offset) for offset, (key, value) in enumerate(zip(keys, values, strict=True))]
    return spark.createDataFrame(rows, "key binary, value binary, topic string, partition int, offset bigint")


def event(op: str, *, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1}


@pytest.mark.thorough
@pytest.mark.parametrize("keys", [False, True], ids=["bytes as the key", "a struct as the key"])
def test_events_of_a_registry_become_changes(spark: SparkSession, registry: ModelRegistry, keys: bool) -> None:
    events = [
        event("r", after=FIRST), event("u", after=KEPT), event("d", before={"id": 1} | NONE), None,
        event("c", after={"id": 1} | NONE),
    ]  # fmt: skip
    records = topic(spark, registry, events)
    for column in ["value", *(["key"] if keys else [])]:
        reader = RegistryDeserializer(registry.url, subject=f"shop.public.orders-{column}")
        records = deserialize(records, reader, column=column)
    found = changes(records, COLUMNS, order=1, times="micros").collect()
    assert [(int(row["seq"]) - PER_GENERATION) // PER_OFFSET for row in found] == [0, 1, 2, 4]
    assert {(int(row["seq"])) % PER_OFFSET for row in found} == {2}
    made = datetime.fromisoformat("2024-02-29 10:11:12.123456")
    assert [tuple(row)[:-1] for row in found] == [
        (1, "Oslo", Decimal("-12.50"), date(2024, 2, 29), made, "short", b"\x00\xff", "r"),
        # What the source's log does not have is as Debezium sends it: the sink keeps the stored value.
        (1, "Bergen", None, date(2024, 2, 29), made, PLACEHOLDER, PLACEHOLDER.encode(), "u"),
        (1, None, None, None, None, None, None, "d"),
        (1, None, None, None, None, None, None, "c"),
    ]


@pytest.mark.thorough
def test_a_number_of_avro_in_place_of_a_time_needs_its_unit(spark: SparkSession, registry: ModelRegistry) -> None:
    reader = RegistryDeserializer(registry.url, subject="shop.public.orders-value")
    records = topic(spark, registry, [event("c", after=FIRST)])
    (found,) = changes(deserialize(records, reader), COLUMNS, order=1, on_error="null").collect()
    assert found["op"] is None
    assert "the value of made is not a timestamp_ntz" in found["op_error"]
