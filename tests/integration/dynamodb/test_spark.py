"""`DynamoDBSink` through Spark, by both APIs: rows of one key arrive in several tasks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.dynamodb import DynamoDBSink
from outfall.spark import write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.dynamodb.server import Dynamo
from tests.integration.support.reading import read_stream, run, write_source

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_streams_of_both_apis(dynamo: Dynamo, name: str, spark: SparkSession, tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", 2, rows=15)
    for number, path in enumerate(sorted(source.iterdir())):
        os.utime(path, (number + 1, number + 1))  # Spark takes the oldest file first
    rows = read_stream(spark, source).repartition(2)
    newest = {f"key-{i % 5}": i for i in range(30)}
    dynamo.faults.throttled = dynamo.faults.lost = 0.1
    dynamo.new_table(name, k="S")
    sink = DynamoDBSink(name, endpoint_url=dynamo.endpoint, order_column="id", retry_backoff=0.01)
    run(write_stream(rows, sink, checkpoint=tmp_path / "checkpoint"))
    assert {row["k"]: row["id"] for row in dynamo.rows(name)} == newest

    if pyspark_version() < (4, 1):
        return
    dynamo.new_table(f"{name}-2", k="S")
    writer = rows.writeStream.format("outfall").option("sink", "dynamodb").option("table", f"{name}-2")
    writer = writer.option("endpointUrl", dynamo.endpoint).option("orderColumn", "id").option("retryBackoff", "10 ms")
    run(writer.option("checkpointLocation", str(tmp_path / "other")))
    assert {row["k"]: row["id"] for row in dynamo.rows(f"{name}-2")} == newest
