"""`KafkaSink` through Spark: both APIs, and one epoch that is brought again."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.kafka import KafkaSink
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.support.kafka_reader import read
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


def test_a_stream_of_records_as_sparks_own_sink_takes_them(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """The epoch is brought again: what was recorded is not written again."""
    topic = f"spark-{secrets.token_hex(6)}"
    checkpoint = tmp_path / "checkpoint"
    rows = read_stream(spark, write_source(tmp_path / "source", 1)).select(
        sf.col("k").alias("key"),
        sf.to_json(sf.struct("id")).alias("value"),
        sf.array(sf.struct(sf.lit("n").alias("key"), sf.col("k").cast("binary").alias("value"))).alias("headers"),
    )
    sink = KafkaSink(kafka, topic, create_topic="if_missing", partitions=2, replication_factor=1)
    for _ in range(2):
        run(write_stream(rows, sink, checkpoint=checkpoint))
        forget_commit(checkpoint, 0)
    found = read(kafka, topic)
    assert sorted(json.loads(each.value or b"")["id"] for each in found) == list(range(10))
    assert all(each.headers == (("n", each.key),) for each in found)


@pytest.mark.thorough
def test_a_stream_by_options(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    topic = f"spark-{secrets.token_hex(6)}"
    writer = (
        read_stream(spark, write_source(tmp_path / "source", 1)).writeStream.format("outfall").option("sink", "kafka")
    )
    writer = writer.option("brokers", kafka).option("topic", topic).option("valueFormat", "json")
    writer = writer.option("keyColumn", "k").option("clientOptions", '{"compression.type": "gzip", "linger.ms": 1}')
    writer = writer.option("createTopic", "if_missing").option("replicationFactor", "1")
    run(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    found = [json.loads(each.value or b"") | {"key": (each.key or b"").decode()} for each in read(kafka, topic)]
    assert sorted(each["id"] for each in found) == list(range(10))
    assert all(each["key"] == each["k"] for each in found)


@pytest.mark.thorough
def test_a_batch_job_and_the_counts_of_many_tasks(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    topic = f"spark-{secrets.token_hex(6)}"
    sink = KafkaSink(kafka, topic, create_topic="if_missing", partitions=4, replication_factor=1)
    rows = spark.range(0, 50_000, 1, 4).selectExpr("CAST(id AS STRING) AS key", "to_json(struct(*)) AS value")
    result = write(rows, sink)
    assert (result.counts["rows"], result.counts["sent"]) == (50_000, 50_000)
    assert result.counts["max_queue"] > 0
    assert Counter(int(each.key or b"") for each in read(kafka, topic)) == Counter(range(50_000))
