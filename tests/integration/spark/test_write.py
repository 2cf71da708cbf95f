"""`write`: batch jobs of the Python API, and how their rows come to tasks, parts and values."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.capabilities import SupportsTarget, TargetContext
from outfall.errors import ConfigurationError, TargetNotEmptyError, UnexpectedEpochError, ValueRefusedError, reason
from outfall.file import FileSink
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.spark import write
from outfall.spark.routing import map_in_arrow, route
from outfall.spark.task_function import PART_COLUMN
from tests.integration.support.reading import found, found_ids, rows_of, visible
from tests.integration.support.repr_sink import ReprSink
from tests.one_each import thorough

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_each_part_is_written_by_exactly_one_task(spark: SparkSession, out: Path, parts: int) -> None:
    df = spark.range(500).withColumn("k", sf.col("id").cast("string"))
    routed = route(df, FileSink(out, parts=parts), parts, key="k", null_key="error", tasks=4, order_by=())
    rows = routed.select(PART_COLUMN, sf.spark_partition_id().alias("task"), "k").distinct().collect()
    assert {row[PART_COLUMN]: row["task"] for row in rows} == {
        part: part % min(4, parts) for part in {crc32(row["k"].encode()) % parts for row in rows}
    }


@pytest.mark.thorough
def test_a_stable_order_is_kept_within_each_part(spark: SparkSession, out: Path) -> None:
    df = spark.range(1000).selectExpr("cast(id as int) as id", "cast(id % 3 as string) as k").repartition(5)
    write(df, FileSink(out, parts=2), key="k", order_by=["id"], workers=2)
    for path in visible(out):
        ids = [json.loads(line)["id"] for line in path.read_text().splitlines()]
        assert ids == sorted(ids)
    assert found_ids(out) == list(range(1000))


@pytest.mark.thorough
def test_a_null_key_is_refused_unless_it_counts_as_empty(spark: SparkSession, out: Path) -> None:
    df = spark.createDataFrame([(1, "a"), (2, None)], "id int, k string")
    # Also an error of a task has its class, its step and its epoch, and not the traceback of the task.
    with pytest.raises(ValueRefusedError, match="key is NULL") as caught:
        write(df, FileSink(out / "a", parts=2), key="k")
    assert str(caught.value).startswith("[step 'sink', epoch 0] a row's key is NULL. What to do: ")
    assert reason(caught.value) == str(caught.value)
    assert write(df, FileSink(out / "b", parts=2), key="k", null_key="empty").counts["rows"] == 2
    assert found_ids(out / "b") == [1, 2]


class RoutedSink(ReprSink):
    """Routes keys by their length, and the empty one to the part with index 4."""

    def part_fn(self, item_key: str) -> int:
        return 4 - len(item_key)


@pytest.mark.parametrize(("own", "empty"), [(False, 0), (True, 4)])
def test_a_null_key_is_refused_by_the_task_that_would_write_it(
    spark: SparkSession, out: Path, own: bool, empty: int
) -> None:
    # Other parts of the epoch may be published by then, and their rows must not change with null_key="empty".
    sink = RoutedSink(out) if own else FileSink(out, parts=5)
    df = spark.createDataFrame([(1, "a"), (2, None), (3, "")], "id int, k string")
    found = {}
    for null_key in ("error", "empty"):
        routed = route(df, sink, 5, key="k", null_key=null_key, tasks=3, order_by=())
        rows = routed.select("id", PART_COLUMN, sf.spark_partition_id().alias("task")).orderBy("id").collect()
        found[null_key] = [(row[PART_COLUMN], row["task"]) for row in rows]
    assert found["empty"][1] == (empty, empty % 3)
    assert found["error"][1] == (-1 - empty, empty % 3)
    assert found["error"][::2] == found["empty"][::2]


def test_a_batch_job_is_written_once_however_often_it_runs(spark: SparkSession, out: Path, tmp_path: Path) -> None:
    recovery = str(tmp_path / "recovery")
    results = [write(spark.range(10), FileSink(out), epoch=20261121, recovery=recovery) for _ in range(2)]
    later = write(spark.range(10, 20), FileSink(out), epoch=20261122, recovery=recovery)
    assert [result.skipped for result in (*results, later)] == [False, True, False]
    with pytest.raises(UnexpectedEpochError, match="larger epoch"):
        write(spark.range(10), FileSink(out), epoch=20261120, recovery=recovery)
    assert found_ids(out) == list(range(20))


@pytest.mark.parametrize("parts", [thorough(None), 2])
def test_save_modes_mean_what_they_mean_in_spark(spark: SparkSession, out: Path, parts: int | None) -> None:
    def save(start: int, mode: Any = None, on_existing: Any = "error") -> bool:
        rows, key = spark.range(start, start + 3), None if parts is None else "id"
        return write(rows, FileSink(out, parts=parts, on_existing=on_existing), key=key, mode=mode).skipped

    assert not save(0, "ignore")
    assert save(3, "ignore")
    for mode in (None, "error", "errorIfExists"):
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
        (FileSink(out), {"mode": "overwrite", **resumed}, "is not valid with epoch and recovery"),
        (FileSink(out), {"mode": "ignore", **resumed}, "is not valid with epoch and recovery"),
        (ReprSink(out), {"mode": "overwrite"}, "ReprSink cannot be written with mode='overwrite'"),
        (ReprSink(out), {"mode": "ignore"}, "ReprSink cannot be written with mode='error'"),
    ]
    for sink, arguments, text in cases:
        with pytest.raises(ConfigurationError, match=text):
            write(spark.range(1), sink, **arguments)
    assert not out.exists()


class FullSink(DynamicSink[Any], SupportsTarget[Any]):
    """Rejects data in its target, and has no save modes."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        raise NotImplementedError

    def target(self) -> str:
        return "full"

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        raise TargetNotEmptyError("the target holds rows")


def test_only_modes_that_the_sink_has_are_named_for_data_that_is_there(spark: SparkSession) -> None:
    with pytest.raises(TargetNotEmptyError) as caught:
        write(spark.range(1), FullSink())
    (note,) = caught.value.__notes__
    assert "mode=" not in note
    assert "epoch= and recovery=" in note


def test_a_dynamic_sink_gets_a_dict_per_row_or_one_columns_value(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, {"a": 1}, (2, "x"))], "id int, m map<string,int>, s struct<n:int,t:string>")
    write(df, ReprSink(tmp_path / "rows"))
    write(df, ReprSink(tmp_path / "values"), value="s")
    assert (tmp_path / "rows").read_text() == "{'id': 1, 'm': {'a': 1}, 's': {'n': 2, 't': 'x'}}"
    assert (tmp_path / "values").read_text() == "{'n': 2, 't': 'x'}"


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    """Names that differ only in case are two columns in this session, as its readers then have them."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")


@pytest.mark.usefixtures("case_sensitive")
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


def test_a_field_of_a_column_with_the_name_of_the_table_is_the_key(spark: SparkSession, out: Path) -> None:
    """Spark reads `a`.`id` as the column id of a table or an alias `a`, which views and joins give to rows."""
    rows = [((f"k{number % 8}",), f"{number}") for number in range(64)]
    df = spark.createDataFrame(rows, "a struct<id:string>, id string").alias("a")
    write(df, FileSink(out, parts=4), key="a.id", order_by=["a.id"])
    keys = [{row["a"]["id"] for row in rows_of(path.name, path.read_bytes())} for path in visible(out)]
    assert sorted(key for each in keys for key in each) == [f"k{number}" for number in range(8)]


@pytest.mark.parametrize(("value", "text"), [("s.n", "1"), ("`s`.`t`", "'x'"), ("`s`", "{'n': 1, 't': 'x'}")])
def test_a_value_may_be_a_field_or_quoted(spark: SparkSession, tmp_path: Path, value: str, text: str) -> None:
    df = spark.createDataFrame([((1, "x"),)], "s struct<n:int,t:string>")
    write(df, ReprSink(tmp_path / "values"), value=value)
    assert (tmp_path / "values").read_text() == text


@pytest.mark.parametrize("version", [None, "3.0.0"], ids=["absent", "too new"])
def test_our_own_call_neither_wants_pandas_nor_warns_of_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, version: str | None
) -> None:
    # A stand-in, because the installed pandas may be an older one.
    stand_in: Any = version and ModuleType("pandas")
    if stand_in:
        stand_in.__version__ = version
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    mapped = map_in_arrow(spark.range(3), lambda batches: batches, "id long")
    assert sorted(row["id"] for row in mapped.collect()) == [0, 1, 2]
    assert [warning for warning in recwarn if "pandas" in str(warning.message)] == []
