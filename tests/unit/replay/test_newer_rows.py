"""A replayed row was rejected earlier, so it must not replace what was written since unless the user permits it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from outfall.capability_checks import resolve
from outfall.dead_letter import DeadLetter
from outfall.delta import DeltaSink
from outfall.dynamodb import DynamoDBSink
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.kinesis import KinesisSink
from outfall.mysql import MySQLSink
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.redis import RedisSink
from outfall.replay.dead_letters import FoundDeadLetter
from outfall.replay.replaying import DeadLetterReplay, ReplayResult
from outfall.replay.rows import RowMaker
from outfall.testing import MemoryRecoveryConfig
from outfall.wrappers import BatchingSink, DeadLetteringSink, FanOutSink

UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id"}
ORDERED = UPSERT | {"order_column": "version"}
CHANGES = {"write_mode": "changes", "key_columns": "id", "operation_column": "op", "sequence_column": "seq"}
DATABASES: list[Any] = [
    lambda **options: PostgresSink("postgresql://app@db/warehouse", "rows", **options),
    lambda **options: MySQLSink("mysql://app@db/warehouse", "rows", **options),
]
TABLES: list[Any] = [
    lambda **options: DeltaSink("/data/rows", **options),
    lambda **options: IcebergSink("analytics.rows", **options),
]
STORES: list[Any] = [
    lambda **options: RedisSink("rediss://cache.example.com", "row:{id}", **options),
    lambda **options: DynamoDBSink("rows", **options),
    lambda **options: OpenSearchSink("https://search.example.com:9200", index="rows", key_columns=["id"], **options),
]
FILES = FileSink("/data/rows")

KEEPING = [
    *(make() for make in (*DATABASES, *TABLES)),
    *(make(**ORDERED) for make in (*DATABASES, *TABLES)),
    *(make(**CHANGES) for make in DATABASES),
    *(make(sequence_column="seq", delete_marker="gone") for make in STORES),
    OpenSearchSink("https://search.example.com:9200", index="rows", data_stream=True),
    HttpSink("https://api.example.com/rows"),
    KinesisSink("rows"),
    KafkaSink("broker:9092", "rows", value_format="json"),
    KafkaSink("broker:9092", "rows", value_format="json", parts=4),
    FILES,
    FanOutSink([FILES, TABLES[0](**ORDERED)]),
    DeadLetteringSink(
        STORES[0](sequence_column="seq"), KafkaSink("broker:9092", "dead", value_format="json", key_column="step")
    ),
    BatchingSink(DATABASES[0](**ORDERED)),
]
REPLACING = [
    *(make(**UPSERT) for make in (*DATABASES, *TABLES)),
    *(make(**ORDERED, delete_marker="gone") for make in (*DATABASES, *TABLES)),
    *(make(write_mode="delete", key_columns="id") for make in (*DATABASES, *TABLES)),
    *(make(write_mode="overwrite_partitions") for make in TABLES),
    *(make(order_column="version") for make in STORES),
    HttpSink("https://api.example.com/rows/{id}", method="PUT", body="record"),
    KafkaSink("broker:9092", "rows", value_format="json", key_column="id"),
    KafkaSink("broker:9092", "rows", value_format="json", key_column="id", parts=4),
    KafkaSink("broker:9092", "rows", parts=4),
    FanOutSink([FILES, TABLES[0](**UPSERT)]),
    DeadLetteringSink(STORES[0](), FILES),
    BatchingSink(DATABASES[0](**UPSERT)),
]


def test_sinks_that_keep_newer_rows_take_a_replay() -> None:
    assert [sink for sink in KEEPING if resolve(sink).may_replace_newer_rows()] == []


def test_sinks_that_may_replace_newer_rows_are_refused() -> None:
    assert [sink for sink in REPLACING if not resolve(sink).may_replace_newer_rows()] == []
    with pytest.raises(ConfigurationError, match=r"rows of a RedisSink .* may replace or delete newer ones.*--replace"):
        DeadLetterReplay(STORES[0](), MemoryRecoveryConfig(), "replay", RowMaker(None))


def test_an_older_row_replaces_a_newer_one_only_if_it_is_permitted(tmp_path: Path) -> None:
    path = str(tmp_path / "rows")

    write_deltalake(path, pa.table({"id": [1], "version": [2]}))

    def sink(**options: Any) -> DeltaSink:
        return DeltaSink(path, **UPSERT, **options)

    ordered = MemoryRecoveryConfig()
    assert _replayed(sink(order_column="version"), ordered, {"id": 1, "version": 1}).replayed == 1
    assert _rows(path) == [{"id": 1, "version": 2}]
    assert _replayed(sink(order_column="version"), ordered, {"id": 1, "version": 3}).replayed == 1
    assert _rows(path) == [{"id": 1, "version": 3}]
    another = MemoryRecoveryConfig()
    with pytest.raises(ConfigurationError, match="--replace-newer"):
        _replayed(sink(), another, {"id": 1, "version": 1}, step="another")
    assert _replayed(sink(), another, {"id": 1, "version": 1}, step="another", replace_newer=True).replayed == 1
    assert _rows(path) == [{"id": 1, "version": 1}]


def _replayed(
    sink: Any, recovery: MemoryRecoveryConfig, row: dict[str, Any], *, step: str = "replay", replace_newer: bool = False
) -> ReplayResult:
    schema = pa.schema([(name, pa.int64()) for name in row])
    letter = DeadLetter(json.dumps(row), "bad", "sink", 0, time=datetime(2026, 11, 28, tzinfo=UTC))
    job = DeadLetterReplay(sink, recovery, step, RowMaker(schema), replace_newer=replace_newer)
    return job.run([FoundDeadLetter(letter, "a test")])


def _rows(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return found
