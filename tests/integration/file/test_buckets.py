"""Files in directories by column and time, as Spark reads them back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.file import FileSink
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.support.reading import run

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(200).select(
        "id",
        sf.concat(sf.lit("c"), sf.col("id") % 7).alias("carrier"),
        sf.timestamp_micros(sf.col("id") * 3_600_000_000).alias("at"),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("format", ["parquet", "jsonl", "csv"])
def test_a_batch_comes_back_with_its_bucket_columns(rows: DataFrame, tmp_path: Path, format: str) -> None:
    sink = FileSink(
        tmp_path / "out",
        format=format,
        partition_by="carrier",
        directory_pattern="'dt='yyyy-MM-dd",
        directory_time="at",
        roll_bytes="1 KiB",
    )
    result = write(rows, sink)
    assert result.counts["rows"] == 200
    reader = rows.sparkSession.read.schema("id long, at timestamp, carrier string, dt date")
    back = getattr(reader, "json" if format == "jsonl" else format)(str(tmp_path / "out"))
    assert back.where("dt <> to_date(at)").count() == 0
    assert sorted(back.select("id", "carrier", "at").collect()) == sorted(rows.collect())
    assert back.where("carrier = 'c3'").count() == rows.where("carrier = 'c3'").count()


@pytest.mark.thorough
def test_a_stream_through_options_writes_buckets(rows: DataFrame, tmp_path: Path) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    spark = rows.sparkSession
    rows.write.parquet(str(tmp_path / "source"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))
    writer = stream.writeStream.format("outfall").option("sink", "file").option("path", str(tmp_path / "out"))
    run(writer.option("partitionBy", "carrier").option("checkpointLocation", str(tmp_path / "checkpoint")))
    back = spark.read.schema("id long, at timestamp, carrier string").json(str(tmp_path / "out"))
    assert sorted(back.select("id", "carrier", "at").collect()) == sorted(rows.collect())


@pytest.mark.thorough
def test_a_stream_of_objects_writes_buckets(rows: DataFrame, tmp_path: Path) -> None:
    spark = rows.sparkSession
    rows.write.parquet(str(tmp_path / "source"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))
    sink = FileSink(tmp_path / "out", partition_by=["carrier"], max_open_files=2)
    run(write_stream(stream, sink, checkpoint=tmp_path / "checkpoint"))
    back = spark.read.schema("id long, at timestamp, carrier string").json(str(tmp_path / "out"))
    assert sorted(back.select("id", "carrier", "at").collect()) == sorted(rows.collect())
