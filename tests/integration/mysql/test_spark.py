"""`MySQLSink` through Spark, by options."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.spark.version_check import pyspark_version
from tests.integration.mysql.support import Target
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


def test_a_stream_by_options_is_once_in_the_table_also_when_an_epoch_is_replayed(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    if pyspark_version() < (4, 1):
        pytest.skip("options need Spark 4.1")
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    (tmp_path / "dsn").write_text(target.dsn())
    options = {"sink": "mysql", "dsn": f"file:{tmp_path / 'dsn'}", "table": "t", "metadataSchema": target.database}
    sent = sorted(row["id"] for row in spark.read.json(str(source)).select("id").collect())
    for _ in range(2):
        frame = read_stream(spark, source).selectExpr("id", "'x' AS name")
        run(frame.writeStream.format("outfall").options(**options, checkpointLocation=str(checkpoint)))
        assert target.ids() == sent
        forget_commit(checkpoint, 0)
