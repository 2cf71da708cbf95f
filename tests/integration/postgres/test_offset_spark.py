"""Offsets and parts through Spark: streams of objects, with replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.spark import write_stream
from tests.integration.postgres.support import Target
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark

NUMBERED = 'partition_id integer, "offset" bigint, id bigint, name text, PRIMARY KEY (partition_id, "offset")'


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("columns", "options", "key"),
    [
        pytest.param("id bigint PRIMARY KEY, name text", {"offset_columns": "id"}, None, marks=pytest.mark.thorough),
        (NUMBERED, {"parts": 4}, "id"),
    ],
    ids=["source offsets", "parts"],
)
def test_a_stream_is_once_in_the_table_also_when_an_epoch_is_replayed(
    spark: SparkSession, dsn: str, tmp_path: Path, columns: str, options: dict[str, Any], key: str | None
) -> None:
    source, checkpoint = write_source(tmp_path / "source", files=1, rows=50), tmp_path / "checkpoint"
    target = Target(dsn, f"CREATE TABLE t ({columns})")
    for _ in range(2):
        frame = read_stream(spark, source).select("id", sf.concat(sf.lit("n"), "id").alias("name"))
        sink = target.sink(**options)
        run(write_stream(frame, sink, key=key, checkpoint=checkpoint))
        assert target.ids() == sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())
        forget_commit(checkpoint, 0)


@pytest.mark.thorough
def test_an_epoch_that_was_half_published_is_completed_in_other_tasks(
    spark: SparkSession, dsn: str, tmp_path: Path
) -> None:
    """The table refuses one part at first; Spark's partitions differ when the epoch comes again."""
    source, checkpoint = write_source(tmp_path / "source", files=3, rows=50), tmp_path / "checkpoint"
    target = Target(dsn, "CREATE TABLE t (id bigint, name text, CONSTRAINT odd CHECK (id <> 7))")
    sink = target.sink(parts=5, offset_keys="ledger")

    def stream() -> Any:
        frame = read_stream(spark, source).select("id", sf.lit("x").alias("name"))
        return write_stream(frame, sink, key="id", checkpoint=checkpoint)

    with pytest.raises(Exception, match="23514"):
        run(stream())
    target.run("ALTER TABLE t DROP CONSTRAINT odd")
    spark.conf.set("spark.sql.files.maxPartitionBytes", 500)
    try:
        run(stream())
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert target.ids() == sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())
