"""`IcebergSink` through Spark: both APIs, wrappers, the command line; read by hand and by DuckDB."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from outfall.cli.commands.app import outfall
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.spark import write, write_stream
from outfall.spark.version_check import pyspark_version
from outfall.wrappers import BatchingSink, FanOutSink
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_epochs import NAME, Lake
from tests.integration.support.iceberg_reader import metadata_location
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


def test_a_stream_creates_the_table_and_each_epoch_is_a_snapshot(spark: SparkSession, lake: Lake, duck: Duck) -> None:
    """The last epoch is brought again: what was recorded is not written again."""
    source, checkpoint = write_source(lake.directory / "source", 2), lake.directory / "checkpoint"
    rows = read_stream(spark, source)
    sink = lake.sink(create_table="if_missing", partition_by="bucket(2, id), k", max_snapshot_age="1 day")
    for _ in range(2):
        run(write_stream(rows, sink, checkpoint=checkpoint))
        forget_commit(checkpoint, 1)
    expected = sorted(spark.read.json(str(source)).select("id", "k").collect())
    assert len(lake.files.history()) == 2
    assert sorted((row["id"], row["k"]) for row in lake.files.rows()) == [(row.id, row.k) for row in expected]
    location = metadata_location(lake.directory / "catalog.db", NAME)
    assert sorted(duck.iceberg(location, "id, k")) == [(row.id, row.k) for row in expected]


@pytest.mark.thorough
def test_a_stream_by_options_and_what_doctor_says_of_them(spark: SparkSession, lake: Lake) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    checkpoint = lake.directory / "checkpoint"
    writer = read_stream(spark, write_source(lake.directory / "source", 1)).writeStream.format("outfall")
    options = {
        "sink": "iceberg", "table": NAME, "catalogOptions": json.dumps(lake.properties), "createTable": "if_missing",
        "partitionBy": "bucket(2, id)", "checkpointLocation": str(checkpoint),
    }  # fmt: skip
    run(writer.options(**options))
    assert len(lake.rows("id")) == 10

    def told(*arguments: str) -> str:
        return CliRunner().invoke(outfall, arguments, catch_exceptions=False).output

    given = [f"{name}={value}" for name, value in options.items() if name in ("table", "catalogOptions")]
    assert "db.flights exists" in told(
        "doctor", "--sink", "iceberg", *(part for each in given for part in ("-o", each))
    )


@pytest.mark.thorough
def test_sparks_types_arrive(spark: SparkSession, lake: Lake) -> None:
    rows = spark.sql(
        "SELECT 1Y AS tiny, 2S AS small, 3 AS id, 4L AS big, 0.5F AS f, CAST(1.25 AS DECIMAL(9,2)) AS d, true AS yes,"
        " DATE'2026-03-29' AS day, TIMESTAMP'2026-03-29 01:59:59.999999 UTC' AS at, CAST('a' AS BINARY) AS b,"
        " TIMESTAMP_NTZ'2026-03-29 02:30:00' AS ntz, named_struct('x', 1, 'y', array('p', NULL)) AS s,"
        " map('k', named_struct('z', 1.5D)) AS m"
    )
    write(rows, lake.sink(create_table="if_missing", partition_by="days(at), hours(ntz), truncate(2, b)"))
    assert lake.rows() == [
        {
            "tiny": 1, "small": 2, "id": 3, "big": 4, "f": 0.5, "d": Decimal("1.25"), "yes": True,
            "day": datetime(2026, 3, 29).date(), "at": datetime(2026, 3, 29, 1, 59, 59, 999_999, tzinfo=UTC),  # noqa: DTZ001
            "b": b"a", "ntz": datetime(2026, 3, 29, 2, 30), "s": {"x": 1, "y": ["p", None]}, "m": {"k": {"z": 1.5}},  # noqa: DTZ001
        }
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="id is bigint, and int in the table"):
        write(spark.range(1), lake.sink(on_existing="resume"))
    with pytest.raises(ConfigurationError, match="v: Iceberg has no type for interval day to second"):
        write(
            spark.sql("SELECT INTERVAL '1' DAY AS v"),
            lake.sink(create_table="if_missing", schema_evolution="add_columns"),
        )


@pytest.mark.thorough
def test_save_modes_and_wrappers(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    def job(sink: Any, first: int, **how: Any) -> None:
        write(spark.range(first, first + 10, 1, 2), sink, **how)

    sink = lake.sink(create_table="if_missing")
    job(sink, 0)
    job(sink, 10, mode="append")
    assert lake.rows("id") == sorted(range(20), key=repr)
    job(sink, 5, mode="overwrite")
    assert lake.rows("id") == sorted(range(5, 15), key=repr)
    with pytest.raises(Exception, match="is not empty"):
        job(sink, 0, mode="error")
    job(FanOutSink(lake=sink, files=FileSink(str(tmp_path / "out"))), 100, mode="append")
    assert len(lake.rows("id")) == 20
    job(BatchingSink(sink, batch_size=4), 200, mode="append")
    assert len(lake.rows("id")) == 30
