"""The sinks of databases through Spark, by both APIs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.support.reading import forget_commit, read_stream, run, write_source
from tests.integration.support.sql import THOROUGH, UPSERT, Make, Table

pytestmark = pytest.mark.spark


def sent(spark: SparkSession, source: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())


@pytest.mark.parametrize("api", [pytest.param("objects", marks=THOROUGH), "options"])
def test_a_stream_is_once_in_the_table_also_when_an_epoch_is_replayed(
    spark: SparkSession, target: Table, tmp_path: Path, api: str
) -> None:
    if api == "options" and pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    (tmp_path / "dsn").write_text(target.address())
    options = target.options() | {"sink": target.connector, "dsn": f"file:{tmp_path / 'dsn'}"}
    for _ in range(2):
        frame = read_stream(spark, source).select("id", sf.lit("x").alias("name"))
        if api == "objects":
            run(write_stream(frame, target.sink(), checkpoint=checkpoint))
        else:
            run(frame.writeStream.format("outfall").options(**options, checkpointLocation=str(checkpoint)))
        assert target.ids() == sent(spark, source)
        forget_commit(checkpoint, 0)


@THOROUGH
def test_changes_are_applied_by_options(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, lsn bigint NOT NULL)")
    source, checkpoint = write_source(tmp_path / "source", files=2, rows=10), tmp_path / "checkpoint"
    options = target.options() | {
        "sink": target.connector, "write_mode": "changes", "key_columns": "id", "operationColumn": "op",
        "sequence_column": "lsn", "tombstone_retention": "2 hours",
    }  # fmt: skip
    frame = read_stream(spark, source).selectExpr(
        "id % 5 AS id", "id AS lsn", "IF(id % 5 = 0, 'DELETE', 'UPDATE') AS op"
    )
    run(frame.writeStream.format("outfall").options(**options, checkpointLocation=str(checkpoint)))
    newest = {number % 5: number for number in sent(spark, source)}
    assert target.rows("id, lsn") == sorted(newest.items())[1:]


@THOROUGH
def test_counts_that_change_are_upserted_in_update_mode(spark: SparkSession, make: Make, tmp_path: Path) -> None:
    """What `foreachBatch` with JDBC is used for by hand: aggregates in update mode, one row per key."""
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, count bigint)")
    source, checkpoint = write_source(tmp_path / "source", files=2, rows=10), tmp_path / "checkpoint"
    for _ in range(2):
        counts = read_stream(spark, source).groupBy((sf.col("id") % 3).alias("id")).count()
        run(write_stream(counts, target.sink(**UPSERT), checkpoint=checkpoint).outputMode("update"))
        wanted = spark.read.json(str(source)).groupBy((sf.col("id") % 3).alias("id")).count().orderBy("id")
        assert target.rows() == [tuple(row) for row in wanted.collect()]
        write_source(source, files=3, rows=10, start=100)


@pytest.mark.thorough
def test_rows_that_do_not_fit_are_refused_before_the_first_one_moves(spark: SparkSession, target: Table) -> None:
    with pytest.raises(ConfigurationError, match="the table has no column 'nam', did you mean 'name'"):
        write(spark.range(3).select("id", sf.lit("x").alias("nam")), target.sink())
    assert target.ids() == []
