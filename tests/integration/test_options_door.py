"""`format("outfall")`: Spark finds it in the installed package, and the same protocol runs behind it."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StructField, StructType

from outfall.errors import TargetNotEmptyError
from outfall.recovery import history
from outfall.spark import register
from outfall.spark.data_source import OutfallDataSource
from outfall.spark.requirement import pyspark_version
from tests.integration.support.reading import forget_commit, found_ids, read_stream, run, visible, write_source

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Arrow stream writers, of Spark 4.1'),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def writer(spark: SparkSession, root: Path, **options: str) -> DataStreamWriter:
    given = {"sink": "file", "path": str(root / "out"), "checkpointLocation": str(root / "checkpoint"), **options}
    return read_stream(spark, root / "source").writeStream.format("outfall").options(**given)


def test_each_row_is_found_once(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    run(writer(spark, tmp_path))
    write_source(source, files=1, start=2)
    run(writer(spark, tmp_path))
    assert found_ids(tmp_path / "out") == list(range(30))
    assert [(item.epoch, item.rows) for item in history(str(tmp_path / "checkpoint"))] == [(0, 10), (1, 10), (2, 10)]


def test_an_epoch_is_applied_once_when_spark_lost_its_commit_entry(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    for start in (2, 3):
        run(writer(spark, tmp_path))
        forget_commit(tmp_path / "checkpoint", start - 1)
        write_source(source, files=1, start=start)
    run(writer(spark, tmp_path))
    assert found_ids(tmp_path / "out") == list(range(40))
    assert sum(item.skipped for item in history(str(tmp_path / "checkpoint"))) == 20


@pytest.mark.parametrize("step", ["after BEGIN", "after PREPARED", "file: published", "before COMPLETED"])
def test_an_epoch_whose_process_died_is_applied_once(
    crashing_spark: CrashingSpark, tmp_path: Path, source: Path, step: str
) -> None:
    crashing_spark.crash_at(step)
    with pytest.raises((StreamingQueryException, AssertionError)):
        run(writer(crashing_spark.session, tmp_path))
    assert crashing_spark.crashed()
    run(writer(crashing_spark.session, tmp_path))
    assert found_ids(tmp_path / "out") == list(range(20))


class CrashingSpark:
    """A session whose Python processes look, at each step, for a file that tells them to die there."""

    def __init__(self, session: SparkSession, order: Path) -> None:
        self.session = session
        self._order = order

    def crash_at(self, step: str) -> None:
        self._order.write_text(f"kill {step}")

    def crashed(self) -> bool:
        return not self._order.exists()


@pytest.fixture
def crashing_spark(spark: SparkSession, crash_order: Path) -> CrashingSpark:
    crash_order.unlink(missing_ok=True)
    return CrashingSpark(spark, crash_order)


def test_a_failed_commit_is_finished_by_the_next_run(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    run(writer(spark, tmp_path))
    out = tmp_path / "out"
    write_source(source, files=1, start=2)
    staging = out / "_outfall" / "staging"
    staging.rename(staging.with_name("away"))
    staging.write_text("in the way")
    with pytest.raises(StreamingQueryException):
        run(writer(spark, tmp_path))
    staging.unlink()
    staging.with_name("away").rename(staging)
    run(writer(spark, tmp_path))
    assert found_ids(out) == list(range(30))


def test_a_batch_job_is_written(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.format("outfall").option("sink", "file").mode("append").save(str(tmp_path / "out"))
    assert found_ids(tmp_path / "out") == list(range(10))


def test_a_batch_job_with_an_epoch_is_written_once_however_often_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):
        job = spark.range(10).write.format("outfall").option("sink", "file").mode("append")
        job.option("epoch", "7").option("recovery", str(tmp_path / "log")).save(str(tmp_path / "out"))
    assert found_ids(tmp_path / "out") == list(range(10))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_exsting": "resume"}, "on_existing"),
        ({"format": "xml"}, "format"),
        ({"sink": "fiel"}, "there is no sink 'fiel'"),
        ({"sink": "spark"}, "there is no sink 'spark'"),
        ({"parts": "4"}, "write_stream"),
        ({"path": "ftp://host/x"}, "ftp"),
        ({"epoch": "1"}, "leave epoch out"),
        ({"adopt_checkpoint": "perhaps"}, "adopt_checkpoint"),
    ],
)
def test_bad_options_are_refused_before_the_first_row(
    spark: SparkSession, tmp_path: Path, source: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        run(writer(spark, tmp_path, **options))
    assert not visible(tmp_path / "out")


def test_a_missing_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "unseen"))
    query = read_stream(spark, source).writeStream.format("outfall").option("sink", "file")
    try:
        with pytest.raises(PySparkException, match="no checkpoint location"):
            run(query.option("path", str(tmp_path / "out")))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_relative_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    with pytest.raises(PySparkException, match="is relative"):
        run(writer(spark, tmp_path, checkpointLocation=os.path.relpath(tmp_path / "checkpoint")))
    assert not visible(tmp_path / "out")


def test_complete_mode_is_refused_with_the_way_out(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    options = {"sink": "file", "path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    counts = read_stream(spark, source).groupBy("k").count()
    with pytest.raises(PySparkException, match="write_stream"):
        run(counts.writeStream.format("outfall").options(**options).outputMode("complete"))


def test_reading_is_refused(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="only writes"):
        spark.read.format("outfall").load()


def test_the_log_is_where_recovery_says(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    run(writer(spark, tmp_path, recovery=str(tmp_path / "log"), stepId="mine"))
    assert [item.rows for item in history(str(tmp_path / "log"), "mine")] == [10, 10]
    assert "outfall" not in os.listdir(tmp_path / "checkpoint")


def test_a_session_can_register_the_format_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    spark.range(3).write.format("outfall").option("sink", "file").mode("append").save(str(tmp_path / "out"))
    assert found_ids(tmp_path / "out") == [0, 1, 2]


def test_a_batch_job_that_cannot_begin_leaves_no_temporary_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark pickles the writer to send it to the tasks, and aborts nothing when that fails."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs.jsonl").write_text("{}\n")
    source = OutfallDataSource({"sink": "file", "path": str(tmp_path / "out"), "on_existing": "error"})
    made = source.writer(StructType([StructField("id", LongType())]), overwrite=False)
    for _ in range(2):
        with pytest.raises(TargetNotEmptyError):
            pickle.dumps(made)
    assert list((tmp_path / "tmp").iterdir()) == []
    (tmp_path / "out" / "theirs.jsonl").unlink()
    pickle.dumps(made)
    made.abort([])
    assert list((tmp_path / "tmp").iterdir()) == []
