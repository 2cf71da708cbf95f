"""`RedisSink` through Spark, by both APIs: rows of one key arrive in several tasks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.recovery import history
from outfall.redis import RedisSink
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.support.reading import forget_commit, read_stream, run, write_source
from tests.integration.support.redis_server import RedisServer, rows_of

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_streams_of_both_apis_and_a_job(server: RedisServer, spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = write_source(tmp_path / "source", 2, rows=20), tmp_path / "checkpoint"
    for number, path in enumerate(sorted(source.iterdir())):
        os.utime(path, (number + 1, number + 1))  # Spark takes the oldest file first
    rows = read_stream(spark, source).repartition(2)
    sink = RedisSink(server.url, "r:{k}", order_column="id")
    newest = {f"r:key-{i % 5}": {"id": str(i), "k": f"key-{i % 5}"} for i in range(40)}
    for _ in range(2):
        run(write_stream(rows, sink, checkpoint=checkpoint))
        assert rows_of(server.client()) == newest
        forget_commit(checkpoint, 1)
    counts = [epoch.counts for epoch in history(str(checkpoint)) if "replaced_rows" in epoch.counts]
    assert counts[0]["max_version"] < counts[-1]["max_version"]

    write(spark.createDataFrame([(7, "key-1")], "id int, k string"), sink, mode="append")
    assert rows_of(server.client())["r:key-1"]["id"] == "7"
    assert not rows_of(server.client(), "outfall:record:step:*").keys() - _of_the_stream(server)

    if pyspark_version() < (4, 1):
        return
    writer = rows.writeStream.format("outfall").option("sink", "redis").option("url", server.url)
    writer = writer.option("key", "r:{k}").option("orderColumn", "id").option("layout", "json")
    run(writer.option("checkpointLocation", str(tmp_path / "other")))
    assert rows_of(server.client())["r:key-1"] == '{"id":36,"k":"key-1"}'


def _of_the_stream(server: RedisServer) -> set[str]:
    """The records of steps that go on: a job that has ended leaves none."""
    return {
        key for key, text in rows_of(server.client(), "outfall:record:step:*").items() if '"generation":1,' not in text
    }
