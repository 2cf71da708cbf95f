"""`KinesisSink` through Spark, by both APIs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.kinesis import KinesisSink
from outfall.spark import write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.kinesis.server import Aws
from tests.integration.support.reading import read_stream, run, write_source

pytestmark = pytest.mark.spark


@pytest.mark.thorough
@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_stream_of_objects_and_one_by_options(
    aws: Aws, name: str, spark: SparkSession, tmp_path: Path, epochs: int
) -> None:
    source = write_source(tmp_path / "source", epochs)
    sent = sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())
    aws.faults.entries = 0.3
    sink = KinesisSink(
        aws.new_stream(name),
        partition_key=lambda row: f"key {row['id']}",
        endpoint_url=aws.endpoint,
        retry_backoff=0.01,
    )
    run(write_stream(read_stream(spark, source).select("id"), sink, checkpoint=tmp_path / "checkpoint"))
    records = aws.records(name)
    assert sorted(json.loads(record["Data"])["id"] for record in records) == sent
    assert all(record["PartitionKey"] == f"key {json.loads(record['Data'])['id']}" for record in records)

    if pyspark_version() < (4, 1):
        return
    aws.new_delivery_stream(name)
    writer = read_stream(spark, source).select("id").writeStream.format("outfall").option("sink", "kinesis")
    writer = writer.option("deliveryStream", name).option("endpointUrl", aws.endpoint).option("retryBackoff", "10 ms")
    run(writer.option("checkpointLocation", str(tmp_path / "other")))
    assert sorted(json.loads(line)["id"] for line in aws.lines(name)) == sent
