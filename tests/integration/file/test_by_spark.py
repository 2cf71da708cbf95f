"""Whole files that Spark's own writer encodes, as Spark reads them back."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError
from outfall.file import FileSink
from outfall.recovery import history
from outfall.spark import write, write_stream
from tests.disks import memory_disk
from tests.integration.conftest import run_script
from tests.integration.support.probes import events
from tests.integration.support.reading import forget_commit, found_ids, read_stream, run, write_source
from tests.one_each import thorough

pytestmark = pytest.mark.spark

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs the loopback addresses 127.0.0.2 and 127.0.0.3")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(200).select(
        "id",
        sf.concat(sf.lit("c:"), sf.col("id") % 7).alias("carrier"),
        sf.timestamp_micros(sf.col("id") * 3_600_000_000).alias("at"),
    )


def files(directory: Path) -> list[Path]:
    below = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return [path for path in below if not any(level[0] in "._" for level in path.parts)]


@pytest.mark.parametrize("format", ["parquet", thorough("orc")])
def test_a_batch_comes_back_as_what_the_writer_of_spark_writes(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, format: Any
) -> None:
    out, peer = tmp_path / "out", tmp_path / "peer"
    sink = FileSink(out, format=format, writer="spark", partition_by="carrier", writer_options={"maxRecordsPerFile": 9})
    result = write(rows, sink)
    rows.write.format(format).option("maxRecordsPerFile", 9).partitionBy("carrier").save(str(peer))
    assert result.counts["rows"] == 200
    assert result.counts["bytes"] == sum((out / path).stat().st_size for path in files(out))
    assert sorted(path.parent for path in files(out)) == sorted(path.parent for path in files(peer))
    read, expected = (spark.read.schema(rows.schema).format(format).load(str(path)) for path in (out, peer))
    assert sorted(read.collect()) == sorted(expected.collect())


@pytest.mark.thorough
def test_lines_with_options_of_spark_only_are_written_as_text(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    options = {"sep": ";", "charToEscapeQuoteEscaping": "|", "nullValue": "-"}
    odd = rows.selectExpr("id", "if(id % 3 = 0, NULL, concat(carrier, ';\\\\\"')) AS odd", "at")
    lines = odd.select(sf.to_csv(sf.struct("*"), options).alias("value"))
    write(lines, FileSink(tmp_path / "out", format="text"))
    odd.write.options(**options).csv(str(tmp_path / "peer"))
    found, expected = (sorted(spark.read.text(str(tmp_path / each)).collect()) for each in ("out", "peer"))
    assert found == expected


def test_a_stream_writes_each_row_once_also_if_spark_brings_an_epoch_again(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = write_source(tmp_path / "source", files=3), tmp_path / "out", tmp_path / "chk"

    def go() -> None:
        sink = FileSink(out, format="parquet", writer="spark")
        run(write_stream(read_stream(spark, source), sink, checkpoint=checkpoint))

    go()
    forget_commit(checkpoint, 2)
    write_source(source, files=1, start=3)
    go()
    assert found_ids(out) == list(range(40))
    assert [epoch.rows for epoch in history(str(checkpoint)) if not epoch.skipped] == [10, 10, 10, 10]


@pytest.mark.thorough
def test_the_writer_may_change_between_runs(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = write_source(tmp_path / "source", files=1), tmp_path / "out", tmp_path / "chk"
    for epoch, writer in enumerate(("spark", "outfall", "spark")):
        write_source(source, files=1, start=epoch)
        sink = FileSink(out, format="parquet", writer=writer)  # type: ignore[arg-type]
        run(write_stream(read_stream(spark, source), sink, checkpoint=checkpoint))
    assert found_ids(out) == list(range(30))


@pytest.mark.thorough
def test_a_stateful_stream_whose_epoch_has_no_rows_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    source, out = write_source(tmp_path / "source", files=1), tmp_path / "out"
    for start in (0, 0, 1):
        write_source(source, files=1, start=start)
        df = read_stream(spark, source).dropDuplicates(["id"])
        run(write_stream(df, FileSink(out, format="parquet", writer="spark"), checkpoint=tmp_path / "chk"))
        (source / f"again-{start}.json").write_text((source / "00000.json").read_text())
    assert found_ids(out) == list(range(20))


def test_a_column_that_spark_cannot_write_is_refused_before_a_row_moves(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"(?i)unsupported|interval"):
        write(spark.sql("SELECT make_interval(1) AS i"), FileSink(tmp_path / "out", format="parquet", writer="spark"))
    assert files(tmp_path / "out") == []


def test_avro_without_its_package_is_refused_before_a_row_moves(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    package = rf"spark\.jars\.packages=org\.apache\.spark:spark-avro_2\.1[23]:{re.escape(spark.version)}"
    with pytest.raises(ConfigurationError, match=package):
        write(rows, FileSink(tmp_path / "out", format="avro", writer="spark"))
    assert files(tmp_path / "out") == []


@pytest.mark.thorough
@pytest.mark.faults
def test_a_full_disk_fails_the_epoch_and_more_room_lets_it_run(spark: SparkSession, tmp_path: Path) -> None:
    rows, log = spark.range(1_000_000), str(tmp_path / "log")
    with memory_disk(tmp_path / "memory", "size=1m") as memory:
        out = memory.path / "out"
        with pytest.raises(Exception, match="No space left on device"):
            write(rows, FileSink(out, format="parquet", writer="spark"), epoch=0, recovery=log)
        assert [path for path in out.rglob("*") if path.name.startswith("part-")] == []
        memory.remount("size=32m")
        write(rows, FileSink(out, format="parquet", writer="spark"), epoch=0, recovery=log)
        assert found_ids(out) == list(range(1_000_000))
        assert list((out / "_outfall" / "staging").iterdir()) == []


def test_a_foreign_commit_protocol_is_refused(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    name = "spark.sql.sources.commitProtocolClass"
    before = spark.conf.get(name)
    spark.conf.set(name, "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol")
    try:
        with pytest.raises(ConfigurationError, match=f"{name}.*HadoopMapReduceCommitProtocol.*omit writer"):
            write(rows, FileSink(tmp_path / "out", format="parquet", writer="spark"))
    finally:
        spark.conf.set(name, str(before))
    assert files(tmp_path / "out") == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two writes on a cluster of two hosts left, with `spark.speculation=true`."""
    work = tmp_path_factory.mktemp("cluster")
    run_script("own_writer_cluster.py", work, output=work / "output")
    return work


@linux
@pytest.mark.long
def test_a_task_and_its_speculative_copy_write_each_row_once(cluster: Path) -> None:
    done = events(str(cluster / "speculation"), "written", "copy written")
    assert ("copy written", 0) in [(event["what"], event["partition"]) for event in done]
    assert found_ids(cluster / "speculated") == list(range(20))
    assert list((cluster / "speculated" / "_outfall" / "staging").iterdir()) == []


@linux
@pytest.mark.long
def test_an_executor_that_is_lost_after_its_task_was_committed_loses_and_doubles_nothing(cluster: Path) -> None:
    assert events(str(cluster / "loss"), "killed")
    assert found_ids(cluster / "lost") == list(range(20))


def test_the_committer_of_a_platform_is_not_used(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    name = "mapreduce.outputcommitter.factory.class"
    spark.conf.set(name, "org.apache.hadoop.mapreduce.lib.output.NamedCommitterFactory")
    try:
        with pytest.raises(Exception, match=r"named\.classname"):
            rows.write.json(str(tmp_path / "peer"))
        write(rows, FileSink(tmp_path / "out", format="parquet", writer="spark"))
    finally:
        spark.conf.unset(name)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 200
