"""`format("outfall")`: Spark finds it in the installed package, and the same protocol runs behind it."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import LongType, StructField, StructType

from outfall.errors import ConfigurationError, RecordError, TargetNotEmptyError, reason
from outfall.recovery import history
from outfall.recovery.spark_checkpoint import SparkCheckpoint
from outfall.spark import register
from outfall.spark.version_check import pyspark_version
from tests.integration.support.reading import forget_commit, found_ids, read_stream, run, visible, write_source

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark_version() < (4, 1), reason='format("outfall") needs Arrow stream writers, of Spark 4.1'),
]


def writer(spark: SparkSession, root: Path, **options: str) -> DataStreamWriter:
    given = {"sink": "file", "path": str(root / "out"), "checkpointLocation": str(root / "checkpoint"), **options}
    return read_stream(spark, root / "source").writeStream.format("outfall").options(**given)


def test_each_row_is_found_once(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    run(writer(spark, tmp_path))
    write_source(source, files=1, start=2)
    # Spark hands a query's name to the sink, among the options.
    assert run(writer(spark, tmp_path).queryName("flights")).name == "flights"
    assert found_ids(tmp_path / "out") == list(range(30))
    assert [(item.epoch, item.rows) for item in history(str(tmp_path / "checkpoint"))] == [(0, 10), (1, 10), (2, 10)]


@pytest.mark.thorough
def test_an_epoch_is_applied_once_when_spark_lost_its_commit_entry(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    run(writer(spark, tmp_path))
    forget_commit(tmp_path / "checkpoint", 1)
    write_source(source, files=1, start=2)
    run(writer(spark, tmp_path))
    assert found_ids(tmp_path / "out") == list(range(30))
    assert sum(item.skipped for item in history(str(tmp_path / "checkpoint"))) == 10


STEPS = ["after BEGIN", "after PREPARED", "file: published", "before COMPLETED"]


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS)
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_batch_job_with_an_epoch_is_written_once_however_often_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(2):
        job = spark.range(10).write.format("outfall").option("sink", "file").mode("append")
        job.option("epoch", "7").option("recovery", str(tmp_path / "log")).save(str(tmp_path / "out"))
    assert found_ids(tmp_path / "out") == list(range(10))


@pytest.mark.thorough
def test_a_batch_job_appends_or_overwrites_as_spark_says(spark: SparkSession, tmp_path: Path) -> None:
    def save(mode: str, start: int, **options: str) -> None:
        rows = spark.range(start, start + 3).write.format("outfall").option("sink", "file")
        rows.options(**options).mode(mode).save(str(tmp_path / "out"))

    save("append", 0)
    save("append", 3)
    assert found_ids(tmp_path / "out") == list(range(6))
    save("overwrite", 6)
    assert found_ids(tmp_path / "out") == [6, 7, 8]
    # What is raised on the way to the tasks comes out as itself.
    with pytest.raises(PySparkException, match=r"errors\.TargetNotEmptyError: ") as caught:
        save("append", 9, on_existing="error")
    assert "PicklingError" not in str(caught.value)
    assert re.fullmatch(r"\[step 'sink'\] .* is not empty\. .* to replace it\.", reason(caught.value))
    for mode, options, text in [
        ("append", {"on_existing": "overwrite"}, r'use \.mode\("overwrite"\)'),
        ("overwrite", {"on_existing": "resume"}, "contradict each other"),
        ("overwrite", {"epoch": "1", "recovery": str(tmp_path / "log")}, "is not valid with epoch and recovery"),
    ]:
        with pytest.raises(PySparkException, match=text):
            save(mode, 9, **options)
    assert found_ids(tmp_path / "out") == [6, 7, 8]


@pytest.mark.thorough
def test_rows_are_written_by_sql(spark: SparkSession, tmp_path: Path) -> None:
    """Spark passes on the options of an INSERT, and none of CREATE TABLE."""
    spark.sql("CREATE TABLE by_sql (id BIGINT) USING outfall")
    options = f"WITH (sink = 'file', path = '{tmp_path / 'out'}')"
    try:
        with pytest.raises(AnalysisException, match="INSERT INTO t WITH"):
            spark.sql("INSERT INTO by_sql SELECT id FROM range(3)")
        spark.sql(f"INSERT INTO by_sql {options} SELECT id FROM range(3)")
        spark.sql(f"INSERT INTO by_sql {options} SELECT id FROM range(3, 6)")
        assert found_ids(tmp_path / "out") == list(range(6))
        spark.sql(f"INSERT OVERWRITE by_sql {options} SELECT id FROM range(2)")
        assert found_ids(tmp_path / "out") == [0, 1]
    finally:
        spark.sql("DROP TABLE by_sql")
    with pytest.raises(AnalysisException, match="name the columns"):
        spark.sql("CREATE TABLE without_columns USING outfall")


@pytest.mark.thorough
def test_what_spark_does_not_pass_on_is_said(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    """The documentation names Spark's message for `partitionBy`, and what gives none."""
    options = f"WITH (sink = 'file', path = '{tmp_path / 'sql'}')"
    spark.sql("CREATE TABLE by_key (id BIGINT, k BIGINT) USING outfall OPTIONS (sink 'file') PARTITIONED BY (k)")
    try:
        with pytest.raises(AnalysisException) as caught:
            spark.sql("INSERT INTO by_key SELECT id, id AS k FROM range(3)")
        assert "received no options. Spark does not pass the options of CREATE TABLE" in reason(caught.value)
        with pytest.raises(AnalysisException) as caught:
            spark.sql("INSERT INTO by_key WITH (path = '/x') SELECT id, id AS k FROM range(3)")
        assert "in SQL INSERT INTO t WITH (sink = " in reason(caught.value)
        with pytest.raises(AnalysisException) as caught:
            spark.sql("SELECT * FROM by_key").collect()
        assert "only writes" in reason(caught.value)
        spark.sql(f"INSERT INTO by_key {options} SELECT id, id AS k FROM range(3)")
    finally:
        spark.sql("DROP TABLE by_key")
    assert not list((tmp_path / "sql").glob("k=*")), "Spark passes PARTITIONED BY on: say so in docs/apis.md"
    rows = spark.range(3).selectExpr("id", "id AS k").write.format("outfall").option("sink", "file").mode("append")
    with pytest.raises(Exception, match="The provided partitioning or clustering columns do not match"):
        rows.option("path", str(tmp_path / "batch")).partitionBy("k").save()
    run(writer(spark, tmp_path).partitionBy("id"))
    assert found_ids(tmp_path / "out") == list(range(20))
    assert not list((tmp_path / "out").glob("id=*"))


BAD_OPTIONS = [
    ({"on_exsting": "resume"}, "on_existing"),
    ({"format": "xml"}, "format"),
    ({"sink": "fiel"}, "there is no sink 'fiel'"),
    ({"sink": "spark"}, "there is no sink 'spark'"),
    ({"parts": "4"}, "write_stream"),
    ({"path": "ftp://host/x"}, "ftp"),
    ({"epoch": "1"}, "omit epoch"),
    ({"adopt_checkpoint": "perhaps"}, "adopt_checkpoint"),
]


@pytest.mark.parametrize(
    ("options", "text"),
    [BAD_OPTIONS[0], *(pytest.param(*case, marks=pytest.mark.thorough) for case in BAD_OPTIONS[1:])],
)
def test_bad_options_are_refused_before_the_first_row(
    spark: SparkSession, tmp_path: Path, source: Path, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        run(writer(spark, tmp_path, **options))
    assert not visible(tmp_path / "out")


@pytest.mark.parametrize(("options", "text"), [*BAD_OPTIONS, ({"checkpointLocation": "chk"}, "is relative")])
def test_bad_options_are_refused_when_spark_asks_for_the_writer(
    tmp_path: Path, options: dict[str, str], text: str
) -> None:
    from outfall.spark.data_source import OutfallDataSource  # only Spark 4.1 has what it needs

    given = {"sink": "file", "path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    # As Spark hands them over.
    source = OutfallDataSource({name.lower(): value for name, value in (given | options).items()})
    with pytest.raises(ConfigurationError, match=text):
        source.streamWriter(StructType([StructField("id", LongType())]), overwrite=False)
    assert not (tmp_path / "out").exists()


def test_no_epoch_begins_before_sparks_checkpoint_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outfall.spark.data_source import OutfallDataSource  # only Spark 4.1 has what it needs

    def broken(checkpoint: SparkCheckpoint, batch: int | None, everything: bool) -> None:
        raise RecordError("the disk is broken")

    monkeypatch.setattr(SparkCheckpoint, "make_durable", broken)
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v1\n{}\n{}")
    source = OutfallDataSource(
        {"sink": "file", "path": str(tmp_path / "out"), "checkpointlocation": str(tmp_path / "checkpoint")}
    )
    with pytest.raises(RecordError, match="the disk is broken"):
        source.streamWriter(StructType([StructField("id", LongType())]), overwrite=False)
    assert history(str(tmp_path / "checkpoint")) == []


def test_a_missing_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "unseen"))
    query = read_stream(spark, source).writeStream.format("outfall").option("sink", "file")
    try:
        with pytest.raises(PySparkException, match="no checkpoint location"):
            run(query.option("path", str(tmp_path / "out")))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


@pytest.mark.thorough
def test_a_relative_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    with pytest.raises(PySparkException, match="is relative"):
        run(writer(spark, tmp_path, checkpointLocation=os.path.relpath(tmp_path / "checkpoint")))
    assert not visible(tmp_path / "out")


@pytest.mark.thorough
def test_complete_mode_is_refused_with_the_way_out(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    options = {"sink": "file", "path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    counts = read_stream(spark, source).groupBy("k").count()
    with pytest.raises(PySparkException, match="with a sink that upserts"):
        run(counts.writeStream.format("outfall").options(**options).outputMode("complete"))


@pytest.mark.thorough
def test_a_continuous_trigger_is_refused_before_anything_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = spark.readStream.format("rate").load(), tmp_path / "checkpoint"
    options = {"sink": "file", "path": str(tmp_path / "out"), "checkpointLocation": str(checkpoint)}
    query = source.writeStream.format("outfall").options(**options).trigger(continuous="1 second").start()
    with pytest.raises(StreamingQueryException, match=r"use trigger\(processingTime=…\)"):
        assert query.awaitTermination(60), "the query runs on"
    assert not (tmp_path / "out").exists()
    assert not list((checkpoint / "commits").glob("[0-9]*"))


def test_an_epoch_that_no_task_answered_for_is_no_empty_one(tmp_path: Path) -> None:
    """So it comes with a continuous trigger where the checkpoint could not be looked into."""
    from outfall.spark.data_source import OutfallDataSource  # only Spark 4.1 has what it needs

    options = {"sink": "file", "path": str(tmp_path / "out"), "recovery": str(tmp_path / "log")}
    source = OutfallDataSource(options)
    made = source.streamWriter(StructType([StructField("id", LongType())]), overwrite=False)
    with pytest.raises(ConfigurationError, match="continuous"):
        made.commit([None, None], 0)
    assert history(str(tmp_path / "log")) == []


def test_reading_is_refused(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="only writes"):
        spark.read.format("outfall").load()


@pytest.mark.thorough
def test_the_log_is_where_recovery_says(spark: SparkSession, tmp_path: Path, source: Path) -> None:
    (source / "00001.json").unlink()
    run(writer(spark, tmp_path, recovery=str(tmp_path / "log"), stepId="mine"))
    assert [item.rows for item in history(str(tmp_path / "log"), "mine")] == [10]
    assert "outfall" not in os.listdir(tmp_path / "checkpoint")


@pytest.mark.thorough
def test_a_session_can_register_the_format_by_hand(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    spark.range(3).write.format("outfall").option("sink", "file").mode("append").save(str(tmp_path / "out"))
    assert found_ids(tmp_path / "out") == [0, 1, 2]


def test_a_batch_job_that_cannot_begin_leaves_no_temporary_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark aborts nothing when making the writer fails."""
    from outfall.spark.data_source import OutfallDataSource  # only Spark 4.1 has what it needs

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs.jsonl").write_text("{}\n")
    source = OutfallDataSource({"sink": "file", "path": str(tmp_path / "out"), "on_existing": "error"})
    schema = StructType([StructField("id", LongType())])
    for _ in range(2):
        with pytest.raises(TargetNotEmptyError):
            source.writer(schema, overwrite=False)
    assert list((tmp_path / "tmp").iterdir()) == []
    (tmp_path / "out" / "theirs.jsonl").unlink()
    made = pickle.loads(pickle.dumps(source.writer(schema, overwrite=False)))
    made.abort([])
    assert list((tmp_path / "tmp").iterdir()) == []
