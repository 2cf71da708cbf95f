"""Whole files that Spark's own writer encodes, in HDFS."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.file import FileSink
from outfall.recovery import history
from outfall.spark import write
from tests.peers.support.hadoop import Directory, Hdfs

pytestmark = pytest.mark.spark

KINDS = ("a;b", "a#b", "a?b", "a b", "é%20", "a:b", "=", "a/b")
"""Names of directories that URLs give a meaning."""


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    kinds = sf.array(*map(sf.lit, KINDS))
    return spark.range(200).select("id", sf.get(kinds, sf.col("id").cast("int") % len(KINDS)).alias("kind"))


@pytest.fixture
def out(hdfs: Hdfs) -> Directory:
    return Directory(hdfs, f"by-spark-{uuid.uuid4().hex}")


def staged(out: Directory) -> list[str]:
    """What is in staging, directories too."""
    return [status.path for status in out.client.list_status(f"{out.path}/_outfall/staging", False)]


@pytest.mark.parametrize(
    ("format", "compression"),
    [
        ("parquet", "zstd"),
        ("orc", None),
        ("avro", "zstd"),
        *(pytest.param("avro", codec, marks=pytest.mark.thorough) for codec in (None, "none", "snappy")),
        *(pytest.param("orc", codec, marks=pytest.mark.thorough) for codec in ("none", "snappy")),
        *(pytest.param("parquet", codec, marks=pytest.mark.thorough) for codec in (None, "none", "gzip")),
    ],
)
def test_rows_in_directories_come_back_from_hdfs(
    spark: SparkSession, rows: DataFrame, out: Directory, format: Any, compression: Any
) -> None:
    options: dict[str, Any] = {"format": format, "compression": compression, "partition_by": ["kind"]}
    sink = FileSink(out.url, **options, writer="spark", writer_options={"maxRecordsPerFile": "9"})
    result = write(rows, sink)
    read = spark.read.schema(rows.schema).format(format).load(out.url)
    assert sorted(read.collect()) == sorted(rows.collect())
    assert (result.counts["rows"], staged(out)) == (200, [])


def test_what_a_stopped_driver_left_in_hdfs_is_removed(spark: SparkSession, out: Directory, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    write(spark.range(3), FileSink(out.url, format="parquet", writer="spark"), epoch=0, recovery=log)
    (record,) = [path for path in out.everything() if path.endswith(".json") and path.count("/") == 1]
    incarnation = Path(record).stem
    # As a late task of Spark makes it again.
    late = f"part-0000000000-00000-00000-{incarnation}-g1-a0.by_spark"
    inner = f"{out.path}/_outfall/staging/{late}/_temporary/0/_temporary/attempt_1"
    out.client.mkdirs(inner, create_parent=True)
    out.client.create(f"{inner}/part-00000.json").close()
    write(spark.range(3), FileSink(out.url, format="parquet"), epoch=1, recovery=log)
    assert staged(out) == []
    assert spark.read.parquet(out.url).count() == 6
    assert [epoch.counts.get("rows_by_spark") for epoch in history(log)] == [3, None]
