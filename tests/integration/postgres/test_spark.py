"""`PostgresSink` through Spark, by both APIs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError
from outfall.postgres import PostgresSink
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import pgbouncer
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


def sent(spark: SparkSession, source: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())


def test_a_stream_of_objects_is_once_in_the_table_also_when_an_epoch_is_replayed(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    target = Target(dsn)
    for _ in range(2):
        frame = read_stream(spark, source).select("id", sf.lit("x").alias("name"))
        run(write_stream(frame, target.sink(), checkpoint=checkpoint))
        assert target.ids() == sent(spark, source)
        forget_commit(checkpoint, 0)


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
def test_changes_are_applied_by_options(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, lsn bigint NOT NULL)")
    source, checkpoint = write_source(tmp_path / "source", files=2, rows=10), tmp_path / "checkpoint"
    options = {
        "sink": "postgres", "dsn": dsn, "table": "t", "write_mode": "changes", "key_columns": "id",
        "operationColumn": "op", "sequence_column": "lsn", "tombstone_retention": "2 hours",
    }  # fmt: skip
    frame = read_stream(spark, source).selectExpr(
        "id % 5 AS id", "id AS lsn", "IF(id % 5 = 0, 'DELETE', 'UPDATE') AS op"
    )
    run(frame.writeStream.format("outfall").options(**options, checkpointLocation=str(checkpoint)))
    newest = {number % 5: number for number in sent(spark, source)}
    assert target.run("SELECT id, lsn FROM t ORDER BY id") == sorted(newest.items())[1:]


@pytest.mark.thorough
def test_counts_that_change_are_upserted_in_update_mode(spark: SparkSession, dsn: str, tmp_path: Path) -> None:
    """What `foreachBatch` with JDBC is used for by hand: aggregates in update mode, one row per key."""
    target = Target(dsn, "CREATE TABLE t (bucket bigint PRIMARY KEY, count bigint)")
    source, checkpoint = write_source(tmp_path / "source", files=2, rows=10), tmp_path / "checkpoint"
    sink = target.sink(write_mode="upsert", key_columns="bucket")
    for _ in range(2):
        counts = read_stream(spark, source).groupBy((sf.col("id") % 3).alias("bucket")).count()
        run(write_stream(counts, sink, checkpoint=checkpoint).outputMode("update"))
        found = target.run("SELECT bucket, count FROM t ORDER BY bucket")
        wanted = spark.read.json(str(source)).groupBy((sf.col("id") % 3).alias("bucket")).count().orderBy("bucket")
        assert found == [tuple(row) for row in wanted.collect()]
        write_source(source, files=3, rows=10, start=100)


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


def test_rows_that_do_not_fit_are_refused_before_the_first_one_moves(spark: SparkSession, dsn: str) -> None:
    target = Target(dsn)
    with pytest.raises(ConfigurationError, match="the table has no column 'nam', did you mean 'name'"):
        write(spark.range(3).select("id", sf.lit("x").alias("nam")), target.sink())
    assert target.ids() == []


def test_the_dsn_is_in_no_text(spark: SparkSession, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-and-more"
    sink = PostgresSink(
        f"postgresql://nobody:{secret}@127.0.0.1:1/x", "t", connect_timeout=1, retry_deadline="0.2 seconds"
    )
    with pytest.raises(Exception, match="Connection refused") as caught:
        write(spark.range(1).select("id"), sink)
    assert secret not in "".join([str(caught.value), repr(sink), sink.target(), caplog.text])
