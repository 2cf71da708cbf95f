"""`EpochListener` on a real session: Spark's progress and Outfall's counts of one batch come together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from outfall.file import FileSink
from outfall.spark import EpochListener, EpochProgress, write_stream
from outfall.spark.version_check import pyspark_version
from tests.integration.support.reading import forget_commit, read_stream, run, write_source

pytestmark = pytest.mark.spark


def through_python(df: DataFrame, out: Path, checkpoint: Path) -> DataStreamWriter:
    return write_stream(df, FileSink(out), checkpoint=checkpoint)


def through_options(df: DataFrame, out: Path, checkpoint: Path) -> DataStreamWriter:
    given = {"sink": "file", "path": str(out), "checkpointLocation": str(checkpoint)}
    return df.writeStream.format("outfall").options(**given)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "write",
    [
        through_python,
        pytest.param(
            through_options,
            marks=[
                pytest.mark.thorough,
                pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Spark 4.1'),
            ],
        ),
    ],
)
def test_each_epoch_comes_with_sparks_report_of_its_batch(
    spark: SparkSession,
    source: Path,
    out: Path,
    checkpoint: Path,
    write: Callable[[DataFrame, Path, Path], DataStreamWriter],
) -> None:
    seen: list[EpochProgress] = []
    listener = EpochListener(str(checkpoint), on_epoch=seen.append)
    spark.streams.addListener(listener)
    try:
        query = run(write(read_stream(spark, source), out, checkpoint).queryName("flights"))
        forget_commit(checkpoint, 1)
        write_source(source, files=1, start=2)
        run(write(read_stream(spark, source), out, checkpoint).queryName("flights"))
        context: Any = spark.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    assert [(it.epoch.batch, it.progress.batchId, it.epoch.rows, it.epoch.skipped) for it in seen] == [
        (0, 0, 10, 0),
        (1, 1, 10, 0),
        (1, 1, 0, 10),
        (2, 2, 10, 0),
    ]
    assert {(it.query_id, it.query_name, it.progress.numInputRows) for it in seen} == {(str(query.id), "flights", 10)}
