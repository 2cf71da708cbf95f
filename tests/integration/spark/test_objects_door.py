"""`write_stream`, `for_each_batch` and `write` on a classic session."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.capabilities import SupportsPreWriteTopology
from outfall.errors import ConfigurationError, ForeignRecordsError, TargetNotEmptyError, UnexpectedEpochError, reason
from outfall.file import FileSink
from outfall.recovery import history
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.spark import for_each_batch, write, write_stream
from outfall.spark.routing import route
from outfall.spark.task_function import PART_COLUMN
from outfall.trace_points import listen
from tests.integration.support.reading import (
    forget_commit,
    found,
    found_ids,
    read_stream,
    run,
    visible,
    write_source,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


class InjectedError(Exception):
    """An error that a test puts in."""


class FailsAt:
    """Raises when a step is reached for the first time."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._armed = True

    def __call__(self, step: str) -> None:
        if self._armed and step == self._step:
            self._armed = False
            raise InjectedError(step)


@pytest.fixture
def fail_once() -> Iterator[Any]:
    stops = []

    def arm(step: str) -> None:
        stops.append(listen(FailsAt(step)))

    yield arm
    for stop in stops:
        stop()


def test_growing_files_hold_each_row_once_in_the_part_of_its_key(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out, parts=3), key="k", checkpoint=checkpoint))
    assert found_ids(out) == list(range(20))
    for part, path in enumerate(sorted(out.glob("part-*"))):
        keys = {json.loads(line)["k"] for line in path.read_text().splitlines()}
        assert {crc32(key.encode()) % 3 for key in keys} <= {part}


def test_whole_files_hold_each_row_once(spark: SparkSession, source: Path, out: Path, checkpoint: Path) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out), checkpoint=checkpoint))
    assert found_ids(out) == list(range(20))
    assert spark.read.schema("id int, k string").json(str(out)).count() == 20


def test_a_restarted_query_goes_on_where_it_stopped(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    for new_files in (0, 2):
        write_source(source, files=new_files, start=2)
        run(write_stream(read_stream(spark, source), FileSink(out, parts=3), key="k", checkpoint=checkpoint))
    assert found_ids(out) == list(range(40))
    assert [item.epoch for item in history(str(checkpoint))] == [0, 1, 2, 3]


@pytest.mark.parametrize("parts", [None, 3])
def test_an_epoch_is_applied_once_when_spark_lost_its_commit_entry(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path, parts: int | None
) -> None:
    key = "k" if parts else None
    sink = FileSink(out, parts=parts)
    run(write_stream(read_stream(spark, source), sink, key=key, checkpoint=checkpoint))
    forget_commit(checkpoint, 1)
    write_source(source, files=1, start=2)
    run(write_stream(read_stream(spark, source), sink, key=key, checkpoint=checkpoint))
    assert found_ids(out) == list(range(30))
    assert [item.skipped for item in history(str(checkpoint))] == [0, 0, 10, 0]


@pytest.mark.parametrize("step", ["after BEGIN", "after seal", "after PREPARED", "before COMPLETED", "after COMPLETED"])
@pytest.mark.parametrize("parts", [None, 3])
def test_an_epoch_that_failed_half_way_is_applied_once(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path, parts: int | None, step: str, fail_once: Any
) -> None:
    writer = write_stream(
        read_stream(spark, source), FileSink(out, parts=parts), key="k" if parts else None, checkpoint=checkpoint
    )
    fail_once(step)
    with pytest.raises(StreamingQueryException, match=step):
        run(writer)
    run(writer)
    assert found_ids(out) == list(range(20))


def test_other_shuffle_partitions_after_a_failure_change_nothing(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path, fail_once: Any
) -> None:
    sink = FileSink(out)
    fail_once("after collect")
    with pytest.raises(StreamingQueryException):
        run(write_stream(read_stream(spark, source).repartition(9), sink, checkpoint=checkpoint))
    run(write_stream(read_stream(spark, source).repartition(2), sink, checkpoint=checkpoint))
    assert found_ids(out) == list(range(20))
    assert list((out / "_outfall" / "staging").iterdir()) == []


class ReprSink(DynamicSink[Any]):
    """Appends each value's repr to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> ReprWriter:
        return ReprWriter(self._path)


class ReprWriter(StatelessSinkPartition[Any]):
    def __init__(self, path: Path) -> None:
        self._path = path

    def write_batch(self, values: list[Any]) -> None:
        with self._path.open("a") as file:
            file.write("".join(map(repr, values)))


class UpsertSink(DynamicSink[dict[str, Any]]):
    """Keeps the newest value of each key in a file of its own: idempotent, so fit for update mode."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def build(self, step_id: str, worker_index: int, worker_count: int) -> UpsertWriter:
        return UpsertWriter(self._directory)


class UpsertWriter(StatelessSinkPartition[dict[str, Any]]):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write_batch(self, values: list[dict[str, Any]]) -> None:
        for value in values:
            (self._directory / value["k"]).write_text(str(value["rows"]))


def test_aggregates_in_update_mode_upsert_and_a_skipped_stateful_epoch_does_not_break_the_query(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    out.mkdir()
    counts = read_stream(spark, source).groupBy("k").agg(sf.count("*").alias("rows"))
    for _ in range(2):
        run(write_stream(counts, UpsertSink(out), checkpoint=checkpoint).outputMode("update"))
        forget_commit(checkpoint, 1)
    write_source(source, files=1, start=2)
    run(write_stream(counts, UpsertSink(out), checkpoint=checkpoint).outputMode("update"))
    assert {path.name: path.read_text() for path in out.iterdir()} == {f"key-{i}": "6" for i in range(5)}


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_rows_that_come_again_are_refused_by_a_sink_that_only_adds(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path, mode: str
) -> None:
    counts = read_stream(spark, source).groupBy("k").agg(sf.count("*").alias("rows"))
    with pytest.raises(StreamingQueryException, match=f"output mode is {mode}, and FileSink takes append"):
        run(write_stream(counts, FileSink(out), checkpoint=checkpoint).outputMode(mode))
    assert not out.exists()


def test_in_complete_mode_a_function_may_hand_on_rows_of_its_own(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    write = for_each_batch(FileSink(out), recovery=str(checkpoint))
    counts = read_stream(spark, source).groupBy("k").agg(sf.count("*").alias("rows"))
    stream = counts.writeStream.foreachBatch(lambda df, epoch: write(df.where("k = 'key-1'"), epoch))
    run(stream.option("checkpointLocation", str(checkpoint)).outputMode("complete"))
    assert sorted(row["rows"] for row in found(out)) == [2, 4]


class NothingSink(ReprSink, SupportsPreWriteTopology):
    """Leaves all rows out, so that Spark proves the plan empty and runs no task."""

    def add_pre_write_topology(self, df: DataFrame) -> DataFrame:
        return df.where("false")


def test_a_stateful_epoch_without_any_task_does_not_break_the_query(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    counts = read_stream(spark, source).groupBy("k").agg(sf.count("*").alias("rows"))
    run(write_stream(counts, NothingSink(out), checkpoint=checkpoint).outputMode("update"))
    assert not out.exists()
    assert [item.rows for item in history(str(checkpoint))] == [0, 0]


def test_two_writes_of_one_step_in_one_epoch_are_an_error(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    def both(df: DataFrame, epoch: int) -> None:
        for_each_batch(FileSink(out / "a"), recovery=str(checkpoint))(df, epoch)
        for_each_batch(FileSink(out / "a"), recovery=str(checkpoint))(df, epoch)

    query = read_stream(spark, source).writeStream.foreachBatch(both)
    with pytest.raises(StreamingQueryException, match="a step_id of its own"):
        run(query.option("checkpointLocation", str(checkpoint)))


def test_two_steps_in_one_epoch_are_both_written(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    first = for_each_batch(FileSink(out / "a"), recovery=str(checkpoint), step_id="a")
    second = for_each_batch(FileSink(out / "b", parts=2), recovery=str(checkpoint), step_id="b", key="k")

    def both(df: DataFrame, epoch: int) -> None:
        first(df, epoch)
        second(df, epoch)

    query = read_stream(spark, source).writeStream.foreachBatch(both)
    run(query.option("checkpointLocation", str(checkpoint)))
    assert found_ids(out / "a") == found_ids(out / "b") == list(range(20))


def test_a_write_on_a_thread_that_does_not_know_the_query_is_refused(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    write_rows = for_each_batch(FileSink(out), recovery=str(checkpoint))

    def pooled(df: DataFrame, epoch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            list(pool.map(lambda rows: write_rows(rows, epoch), [df.where("id % 2 = 0"), df.where("id % 2 = 1")]))

    query = read_stream(spark, source).writeStream.foreachBatch(pooled)
    with pytest.raises(StreamingQueryException, match="inheritable_thread_target"):
        run(query.option("checkpointLocation", str(checkpoint)))
    assert not visible(out)


@pytest.mark.parametrize("steps", [("a", "b"), ("a", "a")])
def test_writes_on_threads_that_inherit_the_query_are_as_those_on_the_streams_own(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path, steps: tuple[str, str]
) -> None:
    writes = [for_each_batch(FileSink(out / step), recovery=str(checkpoint), step_id=step) for step in steps]

    def pooled(df: DataFrame, epoch: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            for done in [pool.submit(inheritable_thread_target(write), df, epoch) for write in writes]:
                done.result()

    query = read_stream(spark, source).writeStream.foreachBatch(pooled).option("checkpointLocation", str(checkpoint))
    if steps[0] == steps[1]:
        with pytest.raises(StreamingQueryException, match="a step_id of its own"):
            run(query)
    else:
        run(query)
        assert found_ids(out / "a") == found_ids(out / "b") == list(range(20))


def test_a_job_group_of_the_users_own_does_not_stand_for_the_run(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    write_rows = for_each_batch(FileSink(out), recovery=str(checkpoint))
    failing = FailsAt("written")

    def grouped(df: DataFrame, epoch: int) -> None:
        spark.sparkContext.setJobGroup("orders", "the nightly orders")
        write_rows(df, epoch)
        failing("written")

    query = read_stream(spark, source).writeStream.foreachBatch(grouped).option("checkpointLocation", str(checkpoint))
    with pytest.raises(StreamingQueryException, match="InjectedError"):
        run(query)
    run(query)
    assert found_ids(out) == list(range(20))


def test_a_new_checkpoint_with_the_old_recovery_data_is_refused_not_skipped(
    spark: SparkSession, source: Path, out: Path, tmp_path: Path
) -> None:
    def start(checkpoint: str) -> None:
        stream = read_stream(spark, source)
        run(write_stream(stream, FileSink(out), checkpoint=tmp_path / checkpoint, recovery=str(tmp_path / "recovery")))

    start("one")
    with pytest.raises(StreamingQueryException, match="belongs to Spark query"):
        start("two")
    assert found_ids(out) == list(range(20))


def test_a_deleted_checkpoint_with_a_kept_target_is_refused(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out), checkpoint=checkpoint))
    shutil.rmtree(checkpoint)
    with pytest.raises(StreamingQueryException, match="TargetNotEmptyError"):
        run(write_stream(read_stream(spark, source), FileSink(out), checkpoint=checkpoint))
    assert found_ids(out) == list(range(20))


def test_a_deleted_target_with_a_kept_checkpoint_is_refused(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out, parts=2), key="k", checkpoint=checkpoint))
    shutil.rmtree(out)
    write_source(source, files=1, start=2)
    with pytest.raises(StreamingQueryException, match="TargetLostError"):
        run(write_stream(read_stream(spark, source), FileSink(out, parts=2), key="k", checkpoint=checkpoint))
    assert not visible(out)


def test_a_checkpoint_restored_from_an_older_copy_is_refused(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path, tmp_path: Path
) -> None:
    def start() -> None:
        run(write_stream(read_stream(spark, source), FileSink(out, parts=2), key="k", checkpoint=checkpoint))

    start()
    shutil.copytree(checkpoint, tmp_path / "copy")
    write_source(source, files=2, start=2)
    start()
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    with pytest.raises(StreamingQueryException, match="TargetAheadError"):
        start()
    assert found_ids(out) == list(range(40))


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_each_part_is_written_by_exactly_one_task(spark: SparkSession, out: Path, parts: int) -> None:
    df = spark.range(500).withColumn("k", sf.col("id").cast("string"))
    routed = route(df, FileSink(out, parts=parts), parts, key=sf.col("k"), null_key="error", tasks=4, order_by=())
    rows = routed.select(PART_COLUMN, sf.spark_partition_id().alias("task"), "k").distinct().collect()
    assert {row[PART_COLUMN]: row["task"] for row in rows} == {
        part: part % min(4, parts) for part in {crc32(row["k"].encode()) % parts for row in rows}
    }


def test_a_stable_order_is_kept_within_each_part(spark: SparkSession, out: Path) -> None:
    df = spark.range(1000).selectExpr("cast(id as int) as id", "cast(id % 3 as string) as k").repartition(5)
    write(df, FileSink(out, parts=2), key="k", order_by=["id"], workers=2)
    for path in visible(out):
        ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
        assert ids == sorted(ids)
    assert found_ids(out) == list(range(1000))


def test_a_null_key_is_refused_unless_it_counts_as_empty(spark: SparkSession, out: Path) -> None:
    df = spark.createDataFrame([(1, "a"), (2, None)], "id int, k string")
    with pytest.raises(Exception, match="key is NULL") as caught:
        write(df, FileSink(out / "a", parts=2), key="k")
    assert reason(caught.value).startswith("[step 'sink', epoch 0] a row's key is NULL. What to do: ")
    assert write(df, FileSink(out / "b", parts=2), key="k", null_key="empty").counts["rows"] == 2
    assert found_ids(out / "b") == [1, 2]


def test_a_batch_job_is_written_once_however_often_it_runs(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    recovery = str(tmp_path / "recovery")
    results = [write(spark.range(10), FileSink(out), epoch=20261121, recovery=recovery) for _ in range(2)]
    later = write(spark.range(10, 20), FileSink(out), epoch=20261122, recovery=recovery)
    assert [result.skipped for result in (*results, later)] == [False, True, False]
    with pytest.raises(UnexpectedEpochError, match="larger epoch"):
        write(spark.range(10), FileSink(out), epoch=20261120, recovery=recovery)
    assert found_ids(out) == list(range(20))


@pytest.mark.parametrize("parts", [None, 2])
def test_save_modes_mean_what_they_mean_in_spark(spark: SparkSession, out: Path, parts: int | None) -> None:
    def save(start: int, mode: Any = None, on_existing: Any = "error") -> bool:
        rows, key = spark.range(start, start + 3), None if parts is None else "id"
        return write(rows, FileSink(out, parts=parts, on_existing=on_existing), key=key, mode=mode).skipped

    assert not save(0, "ignore")
    assert save(3, "ignore")
    for mode in (None, "error", "errorifexists"):
        with pytest.raises(TargetNotEmptyError) as caught:
            save(3, mode)
        assert 'mode="append" adds' in caught.value.__notes__[-1]
    assert found_ids(out) == [0, 1, 2]
    save(3, "append")
    save(6, on_existing="resume")
    assert found_ids(out) == list(range(9))
    with pytest.raises(ConfigurationError, match="contradict each other"):
        save(9, "append", on_existing="overwrite")
    save(9, "overwrite")
    assert found_ids(out) == [9, 10, 11]


def test_save_modes_that_a_job_cannot_keep_are_refused(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    resumed = {"epoch": 1, "recovery": str(tmp_path / "recovery")}
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (FileSink(out), {"mode": "replace"}, "mode is 'replace'"),
        (FileSink(out), {"mode": "overwrite", **resumed}, "does not go with epoch and recovery"),
        (FileSink(out), {"mode": "ignore", **resumed}, "does not go with epoch and recovery"),
        (ReprSink(out), {"mode": "overwrite"}, "ReprSink cannot be written with mode='overwrite'"),
        (ReprSink(out), {"mode": "ignore"}, "ReprSink cannot be written with mode='error'"),
    ]
    for sink, arguments, text in cases:
        with pytest.raises(ConfigurationError, match=text):
            write(spark.range(1), sink, **arguments)
    assert not out.exists()


def test_a_dynamic_sink_gets_a_dict_per_row_or_one_columns_value(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, {"a": 1}, (2, "x"))], "id int, m map<string,int>, s struct<n:int,t:string>")
    write(df, ReprSink(tmp_path / "rows"))
    write(df, ReprSink(tmp_path / "values"), value="s")
    assert (tmp_path / "rows").read_text() == "{'id': 1, 'm': {'a': 1}, 's': {'n': 2, 't': 'x'}}"
    assert (tmp_path / "values").read_text() == "{'n': 2, 't': 'x'}"


def test_columns_may_have_any_names(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    df = spark.createDataFrame([(2, "x"), (1, "y")], ["a.b", "c"]).select("`a.b`", "c", sf.col("c").alias("C"))
    rows = [{"a.b": 1, "c": "y", "C": "y"}, {"a.b": 2, "c": "x", "C": "x"}]
    write(df, FileSink(out / "parts", parts=2), key="a.b", order_by=["c"])
    write(df, FileSink(out / "whole"), order_by=["a.b"], workers=1)
    assert sorted(found(out / "parts"), key=lambda row: int(row["a.b"])) == found(out / "whole") == rows
    write(df, ReprSink(tmp_path / "value"), value="a.b", order_by=["a.b"], workers=1)
    assert (tmp_path / "value").read_text() == "12"
    results = [write(df, FileSink(out / "again"), epoch=1, recovery=str(tmp_path / "recovery")) for _ in range(2)]
    assert [result.skipped for result in results] == [False, True]
    with pytest.raises(ConfigurationError, match="2 columns have the name 'c'"):
        write(df.toDF("a", "c", "c"), ReprSink(tmp_path / "twice"))


@pytest.mark.parametrize(("value", "text"), [("s.n", "1"), ("`s`.`t`", "'x'"), ("`s`", "{'n': 1, 't': 'x'}")])
def test_a_value_may_be_a_field_or_quoted(spark: SparkSession, tmp_path: Path, value: str, text: str) -> None:
    df = spark.createDataFrame([((1, "x"),)], "s struct<n:int,t:string>")
    write(df, ReprSink(tmp_path / "values"), value=value)
    assert (tmp_path / "values").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"checkpoint": None}, "no checkpoint location"),
        ({"checkpoint": "chk"}, "is relative"),
        ({"key": "nope"}, "names the column 'nope'"),
        ({"value": "nope"}, "names the column 'nope'"),
        ({"key": "k", "parts": None}, "routes rows to parts"),
        ({"key": None}, "no key says"),
        ({"workers": 0}, "give a whole number from 1"),
        ({"null_key": "drop"}, "null_key is 'drop'"),
        ({"step_id": "../x"}, "step"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_query_starts(
    spark: SparkSession, source: Path, out: Path, tmp_path: Path, arguments: dict[str, Any], text: str
) -> None:
    given: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint", "key": "k", "parts": 3, **arguments}
    sink = FileSink(out, parts=given.pop("parts"))
    with pytest.raises(ConfigurationError, match=text):
        write_stream(read_stream(spark, source), sink, **given)
    assert not out.exists()


def test_another_target_under_the_same_checkpoint_is_refused(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out), checkpoint=checkpoint))
    write_source(source, files=1, start=2)
    with pytest.raises(StreamingQueryException, match=ForeignRecordsError.__name__) as caught:
        run(write_stream(read_stream(spark, source), FileSink(out.with_name("other")), checkpoint=checkpoint))
    assert re.fullmatch(r"\[step 'sink'\] the recovery data is of .* another step_id\.", reason(caught.value))
