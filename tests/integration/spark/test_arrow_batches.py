"""The limits of Arrow batches hold for Outfall's own job only, and memory stays bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.listener import StreamingQueryListener

from outfall.spark import for_each_batch, write, write_stream
from outfall.spark.arriving_rows import JOINED, JOINED_ROWS
from outfall.spark.arrow_batches import BYTES_SETTING, MOST_ROWS, MOST_UNKNOWN_ROWS, ROWS_SETTING
from outfall.spark.version_check import pyspark_version
from tests.integration.conftest import run_script
from tests.integration.support.reading import read_stream, run
from tests.integration.support.seen_limits import SeenSink, seen
from tests.integration.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

COUNTED = pytest.mark.skipif(pyspark_version() < (4, 0), reason="Spark 3.5 does not count bytes")
OURS = [str(MOST_ROWS), str(2**31 - 1)]
AT_FIRST = [str(MOST_UNKNOWN_ROWS), str(2**31 - 1)]
OWN = [None, None]
PANDAS_UDF: Any = pandas_udf


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A user's function: the rows of each batch, and the limit of rows in its task."""
    context = TaskContext.get()
    assert context is not None
    limit = context.getLocalProperty(ROWS_SETTING) or ""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "limit": [limit]})


def found_by_user(spark: SparkSession) -> set[tuple[int, str]]:
    rows = spark.range(0, 20_000, 1, 1).mapInArrow(sizes, "rows long, limit string").collect()
    return {(row["rows"], row["limit"]) for row in rows}


def limits(out: Path) -> list[Any]:
    noted = [note["limits"] for note in seen(out)]
    assert all(found == noted[0] for found in noted)
    return list(noted[0])


@COUNTED
def test_a_sink_gets_joined_batches_and_nothing_else_has_the_limits(spark: SparkSession, tmp_path: Path) -> None:
    done = threading.Event()
    elsewhere: set[tuple[int, str]] = set()

    def others() -> None:
        while not done.is_set():
            elsewhere.update(found_by_user(spark))

    thread = threading.Thread(target=others)
    thread.start()
    try:
        until(lambda: bool(elsewhere), "the other thread's first job")
        df = spark.range(0, 50_300, 1, 1).selectExpr("id", "string(id) AS text")
        for epoch, expected in enumerate((AT_FIRST, OURS)):
            out = tmp_path / f"epoch {epoch}"
            result = write(df, SeenSink(out), epoch=epoch, recovery=str(tmp_path / "recovery"))
            assert result.counts["rows"] == 50_300
            assert limits(out) == expected
            assert [note["rows"] for note in seen(out)] == [JOINED_ROWS] * 5 + [300]
            assert [note["first"] for note in seen(out)] == [str(n * JOINED_ROWS) for n in range(6)]
        other = tmp_path / "other columns"
        write(df.withColumn("more", sf.lit("")), SeenSink(other), epoch=2, recovery=str(tmp_path / "recovery"))
        assert limits(other) == AT_FIRST
    finally:
        done.set()
        thread.join()
    assert elsewhere == found_by_user(spark) == {(10_000, "")}
    assert [spark.conf.get(name, None) for name in (ROWS_SETTING, BYTES_SETTING)] == OWN
    context = spark.sparkContext
    assert [context.getLocalProperty(name) for name in (ROWS_SETTING, BYTES_SETTING, JOINED)] == [None] * 3


def test_before_spark_4_nothing_is_set(spark: SparkSession, tmp_path: Path) -> None:
    write(spark.range(0, 20_000, 1, 1), SeenSink(tmp_path / "out"))
    assert limits(tmp_path / "out") == (OURS if pyspark_version() >= (4, 0) else OWN)


@pytest.mark.parametrize("name", [ROWS_SETTING, BYTES_SETTING])
def test_a_limit_of_the_session_has_precedence(spark: SparkSession, tmp_path: Path, name: str) -> None:
    spark.conf.set(name, "300")
    try:
        write(spark.range(0, 1000, 1, 1), SeenSink(tmp_path / "out"))
    finally:
        spark.conf.unset(name)
    assert limits(tmp_path / "out") == ["300" if name == it else None for it in (ROWS_SETTING, BYTES_SETTING)]
    if name == ROWS_SETTING:
        assert [note["rows"] for note in seen(tmp_path / "out")] == [300, 300, 300, 100]


def test_a_user_s_observation_and_python_functions_beside_it_behave_as_without(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows_of_batch = PANDAS_UDF(lambda ids: ids * 0 + len(ids), "long")
    observation = Observation()
    df = (
        spark.range(0, 20_000, 1, 1).select(rows_of_batch("id").alias("n")).observe(observation, sf.max("n").alias("n"))
    )
    write(df, SeenSink(tmp_path / "udf"))
    assert observation.get == {"n": 10_000}
    assert limits(tmp_path / "udf") == OWN
    plain = Observation()
    write(spark.range(20_000).observe(plain, sf.count("*").alias("n")), SeenSink(tmp_path / "plain"))
    assert plain.get == {"n": 20_000}
    cached = spark.range(0, 20_000, 1, 1).mapInArrow(sizes, "rows long, limit string").cache()
    write(cached, SeenSink(tmp_path / "cached"))
    assert {(row["rows"], row["limit"]) for row in cached.collect()} == {(10_000, "")}
    hidden = spark.createDataFrame(
        spark.range(0, 20_000, 1, 1).mapInArrow(sizes, "rows long, limit string").select("rows").rdd
    )
    write(hidden, SeenSink(tmp_path / "hidden"))
    assert limits(tmp_path / "hidden") == OWN


@COUNTED
@pytest.mark.parametrize("changed", [False, True])
def test_a_stream_has_the_limits_unless_it_has_other_python_functions(
    spark: SparkSession, source: Path, checkpoint: Path, tmp_path: Path, changed: bool
) -> None:
    reports: list[int] = []

    class Reports(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None: ...  # noqa: N802
        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            reports.append(event.progress.numInputRows)

        def onQueryTerminated(self, event: Any) -> None: ...  # noqa: N802
        def onQueryIdle(self, event: Any) -> None: ...  # noqa: N802

    listener = Reports()
    spark.streams.addListener(listener)
    within: list[set[tuple[int, str]]] = []
    writes = for_each_batch(SeenSink(tmp_path / "plain"), recovery=str(checkpoint))

    def each(df: DataFrame, batch: int) -> None:
        writes(df.groupBy("k").agg(sf.max("id").alias("id")) if changed else df, batch)
        within.append(found_by_user(df.sparkSession))

    df = read_stream(spark, source)
    try:
        run(df.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)))
        until(lambda: sum(reports) == 20, "the reports of both batches")
    finally:
        spark.streams.removeListener(listener)
    assert {tuple(note["limits"]) for note in seen(tmp_path / "plain")} == {tuple(AT_FIRST), tuple(OURS)}
    assert within == [{(10_000, "")}] * 2

    doubled = df.select(PANDAS_UDF(lambda ids: ids * 2, "long")("id").alias("id"))
    run(write_stream(doubled, SeenSink(tmp_path / "udf"), checkpoint=tmp_path / "udf-checkpoint"))
    assert limits(tmp_path / "udf") == OWN


class FailsOnce(SeenSink):
    """Fails in its first task."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        if not self.out.exists():
            self.out.mkdir()
            raise RuntimeError("the first attempt fails")
        return super().build(step_id, worker_index, worker_count)


@COUNTED
def test_an_epoch_that_is_begun_again_has_spark_s_own_limits(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 1000, 1, 1)
    sink, recovery = FailsOnce(tmp_path / "out"), str(tmp_path / "recovery")
    with pytest.raises(Exception, match="the first attempt fails"):
        write(df, sink, epoch=0, recovery=recovery)
    write(df, sink, epoch=0, recovery=recovery)
    assert limits(tmp_path / "out") == OWN
    write(df, SeenSink(tmp_path / "next"), epoch=1, recovery=str(tmp_path / "other"))
    assert limits(tmp_path / "next") == OURS


def measured(tmp_path: Path, limits: str, *epochs: str) -> tuple[bool, dict[str, Any]]:
    """Write epochs in a Spark of its own, and return whether all were written, and its report."""
    out = tmp_path / limits
    arguments = (out, tmp_path / "recovery" / limits, limits, *epochs)
    code = run_script("wide_rows.py", *arguments, output=tmp_path / "log", may_fail=True)
    report = out.with_suffix(".json")
    return code == 0, json.loads(report.read_text()) if report.exists() else {}


@COUNTED
def test_wide_rows_need_no_more_memory_than_with_spark_s_limits(tmp_path: Path) -> None:
    epochs = ("0:20000:1000", "1:600:100000")
    (_, ours), (_, own) = measured(tmp_path, "outfall", *epochs), measured(tmp_path, "own", *epochs)
    # 4 MiB of rows of 1,012 bytes.
    assert ours["limits"] == {"0": AT_FIRST, "1": ["4100", OURS[1]]}
    assert ours["worker"] <= own["worker"] + (64 << 10), (ours, own)  # KiB
    assert ours["jvm"] <= own["jvm"] + (128 << 10), (ours, own)


@pytest.mark.skipif(pyspark_version() < (4, 1), reason="Spark's own batches of 256 MB do not fit into a JVM of 512 MB")
@pytest.mark.parametrize("epoch", [0, 1])
def test_the_widest_rows_are_written_at_the_second_attempt(tmp_path: Path, epoch: int) -> None:
    widest = f"{epoch}:30:20000000"
    small = ["0:1000:10"] if epoch else []
    written, report = measured(tmp_path, "outfall", *small, widest)
    assert not written, "30 rows of 20 MB do not fit into a JVM of 512 MB"
    assert report.get("limits", {}) == ({"0": AT_FIRST} if epoch else {})
    # From the second attempt on, the step knows how wide its rows are.
    written, report = measured(tmp_path, "outfall", widest, f"{epoch + 1}:2:20000000")
    assert written, (tmp_path / "log").read_text(errors="replace")[-3000:]
    assert report["limits"] == {str(epoch): OWN, str(epoch + 1): OWN}
