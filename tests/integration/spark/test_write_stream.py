"""`write_stream` and `for_each_batch`: streams of the Python API on a classic session."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.capabilities import SupportsPreWriteTopology
from outfall.errors import ConfigurationError, ForeignRecordsError, reason
from outfall.file import FileSink
from outfall.recovery import history
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.spark import for_each_batch, write_stream
from outfall.trace_points import listen
from outfall.wrappers import FanOutSink
from tests.integration.support.reading import (
    forget_commit,
    found,
    found_ids,
    read_stream,
    run,
    visible,
    write_source,
)
from tests.integration.support.repr_sink import ReprSink

pytestmark = pytest.mark.spark


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


@pytest.mark.thorough
@pytest.mark.parametrize(("parts", "most_calls", "most_jobs"), [(None, 110, 1), (3, 125, 2)])
def test_a_steady_epoch_makes_few_calls_of_the_jvm_and_few_jobs(
    spark: SparkSession,
    source: Path,
    out: Path,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    parts: int | None,
    most_calls: int,
    most_jobs: int,
) -> None:
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    send, calls = ClientServerConnection.send_command, [0]
    seen: list[tuple[int, int]] = []

    def counted(self: Any, command: str) -> Any:
        calls[0] += not command.startswith("m\n")  # the release of an object, whenever Python collects garbage
        return send(self, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", counted)
    write = for_each_batch(FileSink(out, parts=parts), recovery=str(checkpoint), key="k" if parts else None)

    def function(df: DataFrame, batch: int) -> None:
        jobs, calls[0] = scheduler.nextJobId(), 0
        write(df, batch)
        made = calls[0]
        seen.append((made, scheduler.nextJobId() - jobs))

    write_source(source, files=1, start=2)
    run(read_stream(spark, source).writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint)))
    assert len(seen) == 3
    assert seen[-1][0] <= most_calls
    assert seen[-1][1] <= most_jobs


def test_whole_files_hold_each_row_once(spark: SparkSession, source: Path, out: Path, checkpoint: Path) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out), checkpoint=checkpoint))
    assert found_ids(out) == list(range(20))
    assert spark.read.schema("id int, k string").json(str(out)).count() == 20


@pytest.mark.thorough
def test_a_restarted_query_goes_on_where_it_stopped(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    for new_files in (0, 2):
        write_source(source, files=new_files, start=2)
        run(write_stream(read_stream(spark, source), FileSink(out, parts=3), key="k", checkpoint=checkpoint))
    assert found_ids(out) == list(range(40))
    assert [item.epoch for item in history(str(checkpoint))] == [0, 1, 2, 3]


@pytest.mark.parametrize("parts", [pytest.param(None, marks=pytest.mark.thorough), 3])
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


STEPS = ["after BEGIN", "after seal", "after PREPARED", "before COMPLETED", "after COMPLETED"]
BY_DEFAULT = {(None, "after PREPARED"), (3, "after seal")}


@pytest.mark.parametrize(
    ("parts", "step"),
    [
        pytest.param(*case, marks=() if case in BY_DEFAULT else pytest.mark.thorough)
        for case in itertools.product([None, 3], STEPS)
    ],
)
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    with pytest.raises(StreamingQueryException, match="its own step_id"):
        run(query.option("checkpointLocation", str(checkpoint)))


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_sparks_ui_says_of_each_job_what_it_writes(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    several = FanOutSink([FileSink(out / "a", parts=1), FileSink(out / "b")])
    sinks = {"several": several, "broken": BrokenSink(), "last": FileSink(out / "c")}
    writes = {step: for_each_batch(sink, recovery=str(checkpoint), step_id=step) for step, sink in sinks.items()}
    seen = []

    def each(df: DataFrame, epoch: int) -> None:
        for step, write_rows in writes.items():
            with suppress(Exception) if step == "broken" else nullcontext():
                write_rows(df, epoch)
            seen.append(spark.sparkContext.getLocalProperty("spark.job.description"))
        df.count()

    query = read_stream(spark, source).writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    jobs = described_jobs(spark, run(query).runId)
    assert {text for text in jobs if "runId" not in text} == {
        "outfall: step several, epoch 0 → file/growing, file/whole",
        f"outfall: step broken, epoch 0 → {BrokenSink.__module__}.BrokenSink",
        "outfall: step last, epoch 0 → file/whole",
        "outfall: step several, epoch 1 → file/growing, file/whole",
        "outfall: step last, epoch 1 → file/whole",
    }
    # Spark's own text is back after each write, also after the one that failed, and describes the job that follows.
    assert len(seen) == 6
    assert set(seen) == {text for text in jobs if "runId" in text}


def described_jobs(spark: SparkSession, group: str) -> list[str]:
    """The descriptions of the jobs of a group, as Spark's UI shows them."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()
    found = context._jsc.sc().statusStore().jobsList(None)
    jobs = [found.apply(index) for index in range(found.size())]
    return [job.description().get() for job in jobs if job.jobGroup().isDefined() and job.jobGroup().get() == group]


class BrokenSink(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        raise InjectedError("build")


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


@pytest.mark.thorough
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
        with pytest.raises(StreamingQueryException, match="its own step_id"):
            run(query)
    else:
        run(query)
        assert found_ids(out / "a") == found_ids(out / "b") == list(range(20))


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_a_deleted_target_with_a_kept_checkpoint_is_refused(
    spark: SparkSession, source: Path, out: Path, checkpoint: Path
) -> None:
    run(write_stream(read_stream(spark, source), FileSink(out, parts=2), key="k", checkpoint=checkpoint))
    shutil.rmtree(out)
    write_source(source, files=1, start=2)
    with pytest.raises(StreamingQueryException, match="TargetLostError"):
        run(write_stream(read_stream(spark, source), FileSink(out, parts=2), key="k", checkpoint=checkpoint))
    assert not visible(out)


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"checkpoint": None}, "no checkpoint location"),
        ({"checkpoint": "chk"}, "is relative"),
        ({"key": "nope"}, "requires the column 'nope'"),
        ({"value": "nope"}, "requires the column 'nope'"),
        ({"key": "k", "parts": None}, "routes rows to parts"),
        ({"key": None}, "no key routes"),
        ({"workers": 0}, "pass an integer from 1"),
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
