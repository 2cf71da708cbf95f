"""Wrappers through each API, over files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from outfall.file import FileSink
from outfall.recovery import history
from outfall.spark import drain, write_stream
from outfall.spark.version_check import pyspark_version
from outfall.wrappers import BatchingSink, ExactlyOnceSink, FanOutSink
from tests.integration.support.reading import found_ids, read_stream, run, write_source

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_objects_go_through_all_wrappers_at_once(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path / "source")
    sink = FanOutSink(
        growing=BatchingSink(FileSink(tmp_path / "growing", parts=2), batch_size=7, across_epochs=True),
        whole=BatchingSink(FileSink(tmp_path / "whole"), batch_size=3),
        once=ExactlyOnceSink(FileSink(tmp_path / "once"), offset="id", source_partition="name", parts=2),
    )
    rows = read_stream(spark, tmp_path / "source").selectExpr("*", "string(id % 3) AS name")
    run(write_stream(rows, sink, key="name", checkpoint=str(tmp_path / "checkpoint")))
    drain(sink, checkpoint=str(tmp_path / "checkpoint"))
    for name in ("growing", "whole", "once"):
        assert found_ids(tmp_path / name) == list(range(20))
    assert sum(item.counts.get("whole.rows", 0) for item in history(str(tmp_path / "checkpoint"))) == 20
    write_source(tmp_path / "source", files=1, start=2)
    with pytest.raises(StreamingQueryException, match="by key='name', and now by key='k'"):
        run(write_stream(rows, sink, key="k", checkpoint=str(tmp_path / "checkpoint")))


@pytest.mark.thorough
@pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Arrow stream writers, of Spark 4.1')
def test_options_name_several_sinks_and_batches(spark: SparkSession, tmp_path: Path) -> None:
    write_source(tmp_path / "source")
    options = {
        "sink": "fanout",
        "checkpointLocation": str(tmp_path / "checkpoint"),
        "archive.sink": "file",
        "archive.path": str(tmp_path / "archive"),
        "archive.batchSize": "3",
        "live.sink": "file",
        "live.path": str(tmp_path / "live"),
    }
    run(read_stream(spark, tmp_path / "source").writeStream.format("outfall").options(**options))
    assert found_ids(tmp_path / "archive") == found_ids(tmp_path / "live") == list(range(20))
