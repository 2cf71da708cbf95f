"""A query is stopped, and started again at once while tasks of the old run still write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from outfall.file import FileSink
from outfall.spark import write_stream
from tests.integration.support.reading import found_ids, read_stream, run, write_source
from tests.integration.support.slow import slowly
from tests.integration.support.waiting import until

pytestmark = pytest.mark.spark


def slow_stream(spark: SparkSession, source: Path) -> DataFrame:
    """Rows that take their time on the way, so that a stop finds tasks at work."""
    stream = read_stream(spark, source)
    return stream.repartition(2).mapInArrow(slowly, stream.schema)


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [None, 3])
def test_a_query_that_is_stopped_and_started_at_once_writes_each_row_once(
    spark: SparkSession, tmp_path: Path, crash_order: Path, parts: int | None
) -> None:
    source = write_source(tmp_path / "source", files=2, rows=100)
    told = crash_order.with_name(f"{crash_order.name}.told")
    writer = write_stream(
        slow_stream(spark, source),
        FileSink(tmp_path / "out", parts=parts),
        key="k" if parts else None,
        checkpoint=tmp_path / "checkpoint",
    )
    for _ in range(2):
        told.unlink(missing_ok=True)
        crash_order.write_text("tell task: after write")
        query = writer.trigger(availableNow=True).start()
        until(told.exists, "a task's first write")
        query.stop()
    run(writer)
    assert found_ids(tmp_path / "out") == list(range(200))
