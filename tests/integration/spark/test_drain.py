"""Rows that a sink holds back across epochs, through Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outfall.recovery import history
from outfall.spark import drain, write, write_stream
from tests.integration.support.holding import HoldingFiles, delivered

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_a_stream_holds_a_drain_delivers_the_stream_goes_on_and_a_job_ends_with_nothing_held(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", str(tmp_path / "chk")
    source.mkdir()
    out.mkdir()
    recovery = f"sqlite://{tmp_path}/recovery"
    sink = HoldingFiles(out, enough=100)

    def bring(batch: int) -> None:
        rows = [{"id": batch * 10 + number} for number in range(10)]
        (source / f"{batch}.json").write_text("\n".join(map(json.dumps, rows)))
        df = spark.readStream.schema("id int").json(str(source))
        query = write_stream(df, sink, key="id", checkpoint=checkpoint, recovery=recovery)
        query.trigger(availableNow=True).start().awaitTermination()

    bring(0)
    assert (delivered(out), history(recovery)[-1].buffered_rows) == ([], 10)
    result = drain(sink, recovery=recovery)
    assert result is not None
    assert (delivered(out), result.counts["rows_held"]) == (list(range(10)), 0)
    assert drain(sink, recovery=recovery) is None
    bring(1)
    assert [(epoch.batch, epoch.buffered_rows) for epoch in history(recovery)] == [(0, 10), (None, 0), (1, 10)]

    job = str(tmp_path / "job")
    write(spark.range(100, 105).selectExpr("cast(id as int) as id"), sink, key="id", epoch=7, recovery=job)
    assert delivered(out) == [*range(10), *range(100, 105)]
    assert history(job)[-1].buffered_rows == 0
