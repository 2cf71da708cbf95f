"""`PostgresSink` through Spark, by both APIs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.postgres import PostgresSink
from outfall.spark import write
from outfall.spark.version_check import pyspark_version
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import pgbouncer
from tests.integration.support.reading import read_stream, run, write_source

pytestmark = pytest.mark.spark


def sent(spark: SparkSession, source: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())


@pytest.mark.thorough
def test_a_stream_by_options_through_a_pooler(
    spark: SparkSession, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    target = Target(dsn)
    with pgbouncer(dsn) as pooled:
        secret = tmp_path / "dsn"
        secret.write_text(pooled)
        frame = read_stream(spark, source).select("id", sf.lit("x").alias("name"))
        writer = frame.writeStream.format("outfall").option("sink", "postgres").option("dsn", f"file:{secret}")
        run(writer.option("table", "t").option("checkpointLocation", str(checkpoint)))
    assert target.ids() == sent(spark, source)


@pytest.mark.thorough
def test_a_batch_creates_its_table_and_types_come_through(spark: SparkSession, dsn: str) -> None:
    frame = spark.range(100).select(
        "id",
        (sf.col("id") / 3).alias("x"),
        sf.col("id").cast("decimal(20,4)").alias("d"),
        sf.timestamp_micros(sf.col("id") * 1_000_001).alias("at"),
        sf.array("id", sf.lit(None).cast("bigint")).alias("list"),
        sf.struct("id", sf.lit("é").alias("s")).alias("nested"),
    )
    result = write(frame, PostgresSink(dsn, "t", create_table="if_missing", key_columns="id"))
    assert result.counts["rows"] == 100
    target = Target(dsn, "SELECT 1")
    assert target.run("SELECT count(*), sum(d)::text, sum(list[1]), min(nested->>'s'), max(at)::text FROM t") == [
        (100, "4950.0000", 4950, "é", "1970-01-01 00:01:39.000099+00")
    ]


def test_the_dsn_is_in_no_text(spark: SparkSession, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-and-more"
    sink = PostgresSink(
        f"postgresql://nobody:{secret}@127.0.0.1:1/x", "t", connect_timeout=1, retry_deadline="0.2 seconds"
    )
    with pytest.raises(Exception, match="Connection refused") as caught:
        write(spark.range(1).select("id"), sink)
    assert secret not in "".join([str(caught.value), repr(sink), sink.target(), caplog.text])
