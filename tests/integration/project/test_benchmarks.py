"""Every benchmark runs, at a size that takes seconds. Nothing is asserted of times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import (
    bench_changes,
    bench_epochs,
    bench_file,
    bench_http,
    bench_kafka,
    bench_many_tables,
    bench_mysql,
    bench_parts,
    bench_postgres,
    bench_recovery,
    bench_routing,
    bench_s3,
    bench_sql_epochs,
    bench_tables,
    bench_wrappers,
)
from benchmarks.common import Given
from benchmarks.render import markdown, tables
from benchmarks.results import Result
from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.spark.version_check import OLDEST_FOR_OPTIONS, pyspark_version
from outfall.testing.benchmark.apis import FormatApi
from outfall.testing.benchmark.comparison import EMPTY, SINK, Size, compare, table
from outfall.testing.benchmark.rows import Scratch
from tests.documents import SOURCES

pytestmark = pytest.mark.spark

TINY = Given(rows=300, pairs=1)
BOTH_DOORS = pyspark_version() >= OLDEST_FOR_OPTIONS
needs_format_api = pytest.mark.skipif(not BOTH_DOORS, reason='format("outfall") needs Arrow writers, of Spark 4.1')


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(str(tmp_path))


def make_sink(directory: Path) -> FileSink:
    return FileSink(directory)


def make_parts(directory: Path) -> FileSink:
    return FileSink(directory, parts=2)


def check(result: Result, tmp_path: Path) -> None:
    """A result is complete, comes back from its file, and can be shown."""
    assert Result.model_validate_json(result.model_dump_json()) == result
    page = markdown([result])
    assert all(line.figure.median > 0 and f"| {line.label} |" in page for line in result.lines)
    assert tables(result)


@pytest.mark.long
def test_requests(scratch: Scratch, tmp_path: Path) -> None:
    result = bench_http.measure(Given(rows=100, pairs=1), scratch)
    check(result, tmp_path)
    assert set(bench_http.WANTED) == {name for line in result.lines for name in line.ratios}


@pytest.mark.long
def test_files(spark: SparkSession, scratch: Scratch, tmp_path: Path) -> None:
    result = bench_file.measure(spark, TINY, scratch)
    check(result, tmp_path)
    ours = [line for line in result.lines if line.ratios]
    assert len(ours) == (2 if BOTH_DOORS else 1) * len(bench_file.FORMATS) * 2
    assert all(set(line.ratios) == {"empty sink", "Spark"} for line in ours)


@pytest.mark.long
def test_epochs(spark: SparkSession, scratch: Scratch, tmp_path: Path) -> None:
    check(bench_epochs.measure(spark, TINY, scratch), tmp_path)


@pytest.mark.long
def test_epochs_into_databases(spark: SparkSession, scratch: Scratch, tmp_path: Path) -> None:
    result = bench_sql_epochs.measure(spark, TINY, scratch)
    check(result, tmp_path)
    # Whole triggers and the write alone by three percentiles, and the CPU, of each sink and its peer without a driver.
    assert len(result.lines) == 2 * 2 * 2 * 7
    sinks = [line for line in result.lines if line.ratios]
    assert {name for line in sinks for name in line.ratios} == {bench_postgres.BARE, bench_mysql.BARE}


@pytest.mark.thorough
def test_parts(scratch: Scratch, tmp_path: Path) -> None:
    result = bench_parts.measure(Given(rows=20, pairs=2), scratch)
    check(result, tmp_path)
    assert [line.label for line in result.lines] == ["10 parts", "20 parts"]


def test_recovery(scratch: Scratch, tmp_path: Path) -> None:
    result = bench_recovery.measure(Given(rows=20, pairs=2), scratch)
    check(result, tmp_path)
    assert [line.label for line in result.lines] == ["checkpoint store", "SQLite"]
    assert "Wanted: ." not in markdown([result])
    sizes = bench_recovery.growth(3, scratch)
    assert {name: list(marks) for name, marks in sizes.items()} == {"checkpoint store": [3], "SQLite": [3]}
    assert all(size > 0 for marks in sizes.values() for size in marks.values())


@pytest.mark.long
def test_kafka(spark: SparkSession, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kafka, "EPOCHS", 3)
    result = bench_kafka.measure(spark, TINY, scratch)
    check(result, tmp_path)
    assert set(bench_kafka.WANTED) == {name for line in result.lines for name in line.ratios}


@pytest.mark.long
def test_routing(spark: SparkSession, scratch: Scratch, tmp_path: Path) -> None:
    check(bench_routing.measure(spark, TINY, scratch), tmp_path)


@pytest.mark.long
def test_postgres_without_the_peers_whose_driver_is_missing(
    spark: SparkSession, scratch: Scratch, tmp_path: Path
) -> None:
    result = bench_postgres.measure(spark, TINY, scratch)
    check(result, tmp_path)
    appended, _, _, upserted = [line for line in result.lines if line.label == bench_postgres.SINK]
    (by_offsets,) = [line for line in result.lines if line.label == bench_postgres.OFFSETS]
    assert set(by_offsets.ratios) == {bench_postgres.BARE}
    assert set(appended.ratios) == {bench_postgres.BARE, bench_postgres.NO_LEDGER}
    assert set(upserted.ratios) == {bench_postgres.NO_LEDGER}


@pytest.mark.long
def test_changes_end_alike_in_each_way(spark: SparkSession, scratch: Scratch, tmp_path: Path) -> None:
    result = bench_changes.measure(spark, TINY, scratch)
    check(result, tmp_path)
    assert {label for line in result.lines for label in line.ratios} == {bench_changes.PIPELINE}


@pytest.mark.long
def test_many_tables(spark: SparkSession, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_many_tables, "EPOCH_ROWS", 100)
    monkeypatch.setattr(bench_many_tables, "MOST", 20)
    monkeypatch.setattr(bench_many_tables, "JOBS", {bench_many_tables.ONE: None, "one by column": 1, "20 tables": 20})
    result = bench_many_tables.measure(spark, TINY, scratch)
    check(result, tmp_path)
    assert set(bench_many_tables.WANTED) == {name for line in result.lines for name in line.ratios}


@pytest.mark.long
def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_s3, "OBJECTS", 16)
    check(bench_s3.uploads(Given(rows=20, pairs=1)), tmp_path)
    check(bench_s3.completions(TINY), tmp_path)


@pytest.mark.long
def test_tables(spark: SparkSession, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_tables, "EPOCHS", 3)
    monkeypatch.setattr(bench_tables, "COMMITS", 4)
    monkeypatch.setattr(bench_tables, "PART", 2)
    result = bench_tables.measure(spark, TINY, scratch)
    check(result, tmp_path)
    assert set(bench_tables.WANTED) == {name for line in result.lines for name in line.ratios}


@pytest.mark.long
def test_wrappers(spark: SparkSession, scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench_wrappers.measure(spark, TINY, scratch)
    check(result, tmp_path)
    assert [set(line.ratios) for line in result.lines] == [set(), set(result.wanted)]
    monkeypatch.setattr(bench_wrappers, "BATCH", 20)
    monkeypatch.setattr(bench_wrappers, "EPOCH", 5)
    lines, sizes = bench_wrappers.batches(pairs=1)
    assert all(line.figure.median > 0 for line in lines)
    assert sizes == [20, 20]


@needs_format_api
@pytest.mark.long
def test_the_kit_measures_a_sink_object_through_the_format_api(spark: SparkSession, scratch: Scratch) -> None:
    found = compare(spark, make_sink, FormatApi(), Size(rows=100, pairs=1, epochs=2, epoch_rows=10), scratch)
    (run,) = found.runs[SINK]
    assert run.bytes is not None
    assert run.bytes > 100 * len('{"id":1,"x":1.0,"name":"name-1"}')
    assert found.runs[EMPTY][0].bytes is None
    assert {name: len(seconds) for name, seconds in found.epoch_seconds.items()} == {EMPTY: 1, SINK: 1}
    assert table(found, "title").row_count == 6
    # Workers of their own, so more than an interpreter with pyarrow and less than everything that the tests have used.
    if sys.platform == "linux":
        assert all(memory is not None and memory > 30 << 20 for memory in found.memory.values())


@needs_format_api
@pytest.mark.thorough
def test_the_kit_refuses_a_sink_that_needs_routing_through_the_format_api(
    spark: SparkSession, scratch: Scratch
) -> None:
    with pytest.raises(ConfigurationError, match="write_stream"):
        compare(spark, make_parts, FormatApi(), Size(rows=10, pairs=1, epochs=0, epoch_rows=1), scratch)


@pytest.mark.long
def test_one_command_prints_a_table(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from outfall.file import FileSink\n\n\ndef make_sink(directory):\n    return FileSink(directory, parts=2)\n"
    )
    command = [sys.executable, "-m", "outfall.testing.benchmark", "mine:make_sink", "--key", "name"]
    sizes = ["--rows", "200", "--pairs", "1", "--epochs", "2", "--master", "local[2]", "--directory", str(tmp_path)]
    path = os.pathsep.join(map(str, SOURCES[:-1]))
    done = subprocess.run(
        [*command, *sizes],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120", "PYSPARK_PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    for line in ("rows/s", "rows per CPU second", "bytes/s written", "seconds per epoch", "peak memory of a worker"):
        assert f"│ {line}" in done.stdout
    assert [path.name for path in tmp_path.glob("outfall-benchmark-*")] == []
