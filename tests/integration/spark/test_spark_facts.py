"""The facts about Spark that the protocol stands on, one test each: `docs` and code may rely on what a name here says.

Those about tasks, partitions and Arrow stand in `test_spark_facts_of_tasks`. What Spark refuses is tried by default;
the others take a query each, and change with Spark's version and not with our code.

A test that fails on a new Spark means that Outfall has to be thought over, not that the test has to be adjusted.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.integration.conftest import run_script
from tests.integration.support.probes import ANSWER, PROPERTIES, SPARK, Calls, answers, events, lingers, until

# They change with Spark, not with the code here.
pytestmark = [pytest.mark.spark, pytest.mark.thorough]

since_4_1 = pytest.mark.skipif(SPARK < (4, 1), reason="Spark has Arrow data sources and repartitionById since 4.1")
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the loopback addresses 127.0.0.2 and 127.0.0.3")

BATCH_ID, QUERY_ID = PROPERTIES


def write_source(directory: Path, files: int = 2) -> Path:
    """Write one file per micro-batch: ids 0 to 9, 10 to 19, ..."""
    directory.mkdir()
    for file in range(files):
        rows = [json.dumps({"id": number}) for number in range(file * 10, file * 10 + 10)]
        (directory / f"{file}.json").write_text("\n".join(rows))
    return directory


def read_stream(spark: SparkSession, source: Path) -> DataFrame:
    return spark.readStream.schema("id int").option("maxFilesPerTrigger", 1).json(str(source))


def run(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Run a stream over all that its source has, and return the query when it has ended."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(600), "the stream did not come to an end"
    return query


def to_facts(df: DataFrame, log: Path, **options: str) -> DataStreamWriter:
    return df.writeStream.format("facts").options(log=str(log), **options)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of two micro-batches of ten rows."""
    return read_stream(spark, write_source(tmp_path / "source"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


# --- Python data sources: who calls what, where, and with what in hand


@pytest.fixture(scope="module")
def recorded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StreamingQuery]]:
    """Two micro-batches into the data source `facts`, then a restart of the query with a third one."""
    work = tmp_path_factory.mktemp("recorded")
    source = write_source(work / "source")
    df = read_stream(spark, source).repartition(2)
    queries = []
    for _ in range(2):
        writer = to_facts(df, work / "log", camelCase="As Typed", path="some/path")
        queries.append(run(writer, Path(os.path.relpath(work / "chk"))))
        (source / "2.json").write_text('{"id": 20}')
    return work / "log", queries


@since_4_1
def test_stream_writer_is_made_anew_for_each_batch_and_again_where_it_commits(
    recorded: tuple[Path, list[StreamingQuery]],
) -> None:
    calls = events(str(recorded[0]), "new writer", "commit")
    assert [call["what"] for call in calls] == ["new writer", "new writer", "commit"] * 3
    for planned, remade, committed in zip(calls[0::3], calls[1::3], calls[2::3], strict=True):
        assert planned["process"] != remade["process"] == committed["process"]


@since_4_1
def test_stream_writer_is_pickled_twice_and_only_in_the_process_that_plans(
    recorded: tuple[Path, list[StreamingQuery]],
) -> None:
    calls = events(str(recorded[0]), "new writer", "pickle", "commit")
    assert [call["what"] for call in calls] == ["new writer", "pickle", "pickle", "new writer", "commit"] * 3
    made = [call["source_is_made"] for call in calls if call["what"] == "new writer"]
    assert made == [True, False] * 3, "the data source that commits was unpickled, the one that plans was not"
    assert all(calls[at]["process"] == calls[at + 1]["process"] == calls[at + 2]["process"] for at in (0, 5, 10))
    commits = events(str(recorded[0]), "commit")
    assert {message["pickle"] for commit in commits for message in commit["messages"]} == {1}
    assert {commit["pickle"] for commit in commits} == {0}, "the one that commits was never pickled"


@since_4_1
def test_write_sees_the_batch_id_and_the_query_id_and_only_the_run_id_changes_with_a_restart(
    recorded: tuple[Path, list[StreamingQuery]],
) -> None:
    log, (first, second) = recorded
    writes = events(str(log), "write")
    assert [write[BATCH_ID] for write in writes] == ["0", "0", "1", "1", "2", "2"]
    assert {write[QUERY_ID] for write in writes} == {str(first.id)} == {str(second.id)}
    assert first.runId != second.runId


@since_4_1
def test_option_names_arrive_in_lower_case_and_a_checkpoint_as_typed_is_one_of_them(
    recorded: tuple[Path, list[StreamingQuery]],
) -> None:
    log, _ = recorded
    expected = {
        "camelcase": "As Typed",
        "path": "some/path",
        "log": str(log),
        "checkpointlocation": os.path.relpath(log.with_name("chk")),
    }
    assert all(call["options"] == expected for call in events(str(log), "new writer"))


@since_4_1
def test_a_checkpoint_set_for_the_session_is_not_among_the_options(
    spark: SparkSession, stream: DataFrame, log: Path, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "chk"))
    try:
        assert to_facts(stream, log).trigger(availableNow=True).start().awaitTermination(600)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert "checkpointlocation" not in events(str(log), "new writer")[0]["options"]


@since_4_1
def test_a_failed_write_is_aborted_with_none_in_place_of_its_message(
    stream: DataFrame, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="write failed"):
        run(to_facts(stream.repartition(2), log, fail="write"), tmp_path / "chk")
    (abort,) = events(str(log), "abort", "commit")
    assert abort["what"] == "abort"
    assert abort["messages"][1] is None


@since_4_1
def test_a_commit_that_raises_is_aborted_with_every_message_and_replayed(
    stream: DataFrame, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="after it had done its work"):
        run(to_facts(stream.repartition(2), log, fail="commit"), tmp_path / "chk")
    commit, abort = events(str(log), "commit", "abort")
    assert (commit["what"], abort["what"]) == ("commit", "abort")
    assert abort["messages"] == commit["messages"]
    assert None not in abort["messages"]
    run(to_facts(stream.repartition(2), log), tmp_path / "chk")
    replayed = events(str(log), "commit")[1]
    assert (replayed["batch_id"], commit["batch_id"]) == (0, 0)


@since_4_1
def test_a_refusal_while_the_writer_is_pickled_reaches_the_user_with_all_its_lines(
    stream: DataFrame, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match="refused before the first row\nand here is why"):
        run(to_facts(stream, log, fail="pickle"), tmp_path / "chk")
    assert not events(str(log), "write", "commit", "abort")


@since_4_1
def test_update_mode_and_sorting_are_refused_for_data_sources(stream: DataFrame, log: Path, tmp_path: Path) -> None:
    counts = stream.groupBy("id").count()
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        run(to_facts(counts, log).outputMode("update"), tmp_path / "chk")
    with pytest.raises(AnalysisException, match="Sorting is not supported"):
        run(to_facts(stream.sortWithinPartitions("id"), log), tmp_path / "chk2")


@since_4_1
def test_batch_save_needs_a_mode(spark: SparkSession, log: Path) -> None:
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        spark.range(1).write.format("facts").option("log", str(log)).save()


@since_4_1
def test_in_a_batch_tasks_get_the_first_pickle_of_the_writer_and_commit_the_second(
    spark: SparkSession, log: Path
) -> None:
    df = spark.range(20).repartition(2)
    df.write.format("facts").option("log", str(log)).mode("append").save("some/path")
    assert [call["source_is_made"] for call in events(str(log), "new writer")] == [True]
    (commit,) = events(str(log), "commit")
    assert commit["pickle"] == 2
    assert commit["messages"] == [{"partition": at, "rows": 10, "pickle": 1} for at in range(2)]
    assert {event[BATCH_ID] for event in events(str(log), "write")} == {None}


@since_4_1
def test_a_batch_without_partitions_is_written_by_one_task(spark: SparkSession, log: Path) -> None:
    nothing = spark.createDataFrame(spark.sparkContext.emptyRDD(), "id int")
    nothing.write.format("facts").option("log", str(log)).mode("append").save()
    assert [message["rows"] for message in events(str(log), "commit")[0]["messages"]] == [0]


# --- foreachBatch: what the driver and the tasks know


def test_the_function_of_for_each_batch_knows_the_query_and_its_tasks_know_both_ids(
    stream: DataFrame, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str | None], list[dict[str, Any]]]] = []

    def look(df: DataFrame, batch_id: int) -> None:
        context = df.sparkSession.sparkContext
        seen.append((batch_id, [context.getLocalProperty(name) for name in PROPERTIES], answers(df)))

    query = run(stream.writeStream.foreachBatch(look), tmp_path / "chk")
    assert [batch_id for batch_id, _, _ in seen] == [0, 1]
    for batch_id, known, tasks in seen:
        assert known == [str(batch_id), query.id]
        assert {(task["batch_id"], task["query_id"]) for task in tasks} == {(str(batch_id), query.id)}


def test_update_mode_sorting_and_repartitioning_are_open_inside_for_each_batch(
    stream: DataFrame, tmp_path: Path
) -> None:
    partitions = []

    def sort(df: DataFrame, batch_id: int) -> None:
        partitions.append(len(answers(df.repartition(3, "id").sortWithinPartitions("id"))))

    run(stream.groupBy("id").count().writeStream.outputMode("update").foreachBatch(sort), tmp_path / "chk")
    assert partitions == [3, 3]


def test_a_task_is_not_told_how_many_partitions_there_are() -> None:
    assert not hasattr(TaskContext, "numPartitions")


def test_a_replayed_batch_may_come_in_other_partitions(stream: DataFrame, tmp_path: Path) -> None:
    seen: list[tuple[int, list[int]]] = []

    def fail(df: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, [task["rows"] for task in answers(df)]))
        raise RuntimeError("crashed after its work")

    for partitions in (2, 5):
        with pytest.raises(StreamingQueryException, match="crashed after its work"):
            run(stream.repartition(partitions).writeStream.foreachBatch(fail), tmp_path / "chk")
    assert [(batch_id, len(rows), sum(rows)) for batch_id, rows in seen] == [(0, 2, 10), (0, 5, 10)]


def test_tasks_go_on_writing_after_stop_has_returned_and_the_batch_is_run_again(
    stream: DataFrame, log: Path, tmp_path: Path
) -> None:
    def linger(df: DataFrame, batch_id: int) -> None:
        df.mapInArrow(lingers(str(log)), ANSWER).collect()

    writer = stream.writeStream.foreachBatch(linger).option("checkpointLocation", str(tmp_path / "chk"))
    query = writer.start()
    try:
        until(lambda: events(str(log), "lingering"))
    finally:
        query.stop()
    stopped = time.time()
    run(stream.writeStream.foreachBatch(Calls(str(log))), tmp_path / "chk")
    until(lambda: events(str(log), "lingering")[-1]["time"] > stopped)
    assert {event["batch_id"] for event in events(str(log), "lingering")} == {"0"}
    assert events(str(log), "call")[0]["batch_id"] == 0


def test_stop_waits_for_the_function_of_for_each_batch(stream: DataFrame, tmp_path: Path) -> None:
    running, finished = threading.Event(), threading.Event()

    def work(df: DataFrame, batch_id: int) -> None:
        running.set()
        time.sleep(1)  # the work
        finished.set()

    query = stream.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path / "chk")).start()
    try:
        assert running.wait(120)
    finally:
        query.stop()
    assert finished.is_set()


# --- stateful streams


def batches_of_a_count(spark: SparkSession, work: Path, skip: Callable[[DataFrame], object]) -> list[int]:
    """Count over three micro-batches, of which the second is given to `skip`; return the counts of the others."""
    counts = []

    def count(df: DataFrame, batch_id: int) -> None:
        if batch_id == 1:
            skip(df)
        else:
            counts.append(df.agg(F.sum("count")).collect()[0][0])

    df = read_stream(spark, write_source(work / "source", files=3)).groupBy(F.col("id") % 3).count()
    run(df.writeStream.outputMode("update").foreachBatch(count), work / "chk")
    return counts


@pytest.mark.parametrize(
    "skip",
    [lambda df: None, lambda df: df.limit(1).collect(), lambda df: answers(df.where("false"))],
    ids=["ignored", "limited", "known to be empty"],
)
def test_a_stateful_batch_that_is_not_run_in_full_breaks_the_query(
    spark: SparkSession, tmp_path: Path, skip: Callable[[DataFrame], object]
) -> None:
    with pytest.raises(StreamingQueryException):
        batches_of_a_count(spark, tmp_path, skip)


def test_a_stateful_batch_written_to_noop_may_be_skipped(spark: SparkSession, tmp_path: Path) -> None:
    def to_noop(df: DataFrame) -> None:
        df.write.format("noop").mode("overwrite").save()

    assert batches_of_a_count(spark, tmp_path, to_noop) == [10, 30]


def test_a_stateless_batch_may_be_ignored(stream: DataFrame, tmp_path: Path) -> None:
    seen: list[int] = []
    run(stream.writeStream.foreachBatch(lambda df, batch_id: seen.append(batch_id)), tmp_path / "chk")
    assert seen == [0, 1]


# --- Spark Connect, and a cluster: each runs once, in processes of its own


def logs_of(name: str, work: Path) -> Path:
    """Run a script of `support` over a source of two micro-batches, and return the directory of its logs."""
    source = write_source(work / "source")
    (work / "logs").mkdir()
    run_script(name, source, work / "logs", output=work / "output")
    return work / "logs"


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logs_of("connect_facts.py", tmp_path_factory.mktemp("connect"))


@since_4_1
@pytest.mark.long
def test_on_connect_one_process_of_the_server_runs_the_function_for_all_batches_of_a_query(connect: Path) -> None:
    first, second = events(str(connect / "calls"), "call")
    (client,) = events(str(connect / "client"), "client")
    assert first["process"] == second["process"] != client["process"]
    assert (second["own"], second["module"]) == ([0, 1], [0, 1])
    assert client["own"] == []


@since_4_1
@pytest.mark.long
def test_on_connect_tasks_of_for_each_batch_know_neither_id(connect: Path) -> None:
    calls = events(str(connect / "calls"), "call")
    assert [call["batch_id"] for call in calls] == [0, 1]
    assert {call["session"] for call in calls} == {"pyspark.sql.connect.session.SparkSession"}
    assert {(task["batch_id"], task["query_id"]) for call in calls for task in call["answers"]} == {(None, None)}


@since_4_1
@pytest.mark.long
def test_on_connect_a_data_source_is_found_and_treated_as_on_a_classic_session(connect: Path) -> None:
    calls = events(str(connect / "facts"), "new writer", "pickle", "commit")
    assert [call["what"] for call in calls] == ["new writer", "pickle", "pickle", "new writer", "commit"] * 2
    assert calls[0]["options"] == {
        "camelcase": "As Typed",
        "log": str(connect / "facts"),
        "checkpointlocation": str(connect / "chk"),
    }
    (query,) = events(str(connect / "client"), "query")
    writes = events(str(connect / "facts"), "write")
    assert [(write[BATCH_ID], write[QUERY_ID]) for write in writes] == [("0", query["id"]), ("1", query["id"])]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return logs_of("cluster_facts.py", tmp_path_factory.mktemp("cluster"))


@linux
@pytest.mark.long
def test_with_speculation_two_attempts_may_finish_and_one_is_delivered(cluster: Path) -> None:
    done = events(str(cluster / "speculation"), "written", "copy written")
    assert sorted((event["what"], event["partition"]) for event in done) == [
        ("copy written", 0),
        ("written", 0),
        ("written", 1),
    ]
    assert events(str(cluster / "speculation"), "delivered")[0]["partitions"] == [0, 1]


@linux
@since_4_1
@pytest.mark.long
def test_a_failed_attempt_is_retried_without_an_abort(cluster: Path) -> None:
    writes = events(str(cluster / "retry"), "write")
    # A slow machine may see a speculative copy beside the retry.
    tries = {(write["partition"], write["retry"] > 0) for write in writes}
    assert tries == {(0, False), (0, True), (1, False), (1, True)}
    (commit,) = events(str(cluster / "retry"), "commit", "abort")
    assert [message["partition"] for message in commit["messages"]] == [0, 1]
