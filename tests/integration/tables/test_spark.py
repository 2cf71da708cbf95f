"""`DeltaSink`, and what `IcebergSink` does alike, through Spark, by both APIs, alone and inside wrappers.

What is Iceberg's alone, its types among it, is tried in tests/integration/iceberg.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError, reason
from outfall.file import FileSink
from outfall.recovery import history
from outfall.spark import drain, write, write_stream
from outfall.spark.version_check import pyspark_version
from outfall.wrappers import BatchingSink, FanOutSink
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import Properties
from tests.integration.support.reading import forget_commit, found_ids, read_stream, run, write_source
from tests.integration.support.tables import DeltaLake, IcebergLake, LakeTable

pytestmark = pytest.mark.spark
needs_format_api = pytest.mark.skipif(
    pyspark_version() < (4, 1), reason='format("outfall") needs Arrow writers, of Spark 4.1'
)


delta_alone = pytest.mark.parametrize("lake", ["delta"], indirect=True)


@pytest.fixture(params=["iceberg", "delta"])
def lake(request: pytest.FixtureRequest, duck: Duck, tmp_path: Path, embedded_catalog: Properties) -> LakeTable:
    """An empty table of each format in turn."""
    return IcebergLake(duck, embedded_catalog) if request.param == "iceberg" else DeltaLake(duck, tmp_path)


def whole_epochs(lake: LakeTable, rows: int) -> Iterator[list[int]]:
    """Yield what each state holds, of epochs with so many rows each, and be sure that they are whole."""
    for ids in lake.all_states():
        assert len(ids) == len(set(ids))
        assert set(Counter(number // rows for number in ids).values()) <= {rows}
        yield ids


@delta_alone
def test_a_stream_of_objects_is_in_the_table_epoch_by_epoch_also_when_one_is_replayed(
    spark: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    for _ in range(2):
        run(write_stream(read_stream(spark, source), lake.sink(partition_by="k"), checkpoint=checkpoint))
        assert lake.ids() == list(range(20))
        assert {len(ids) for ids in whole_epochs(lake, 10)} >= {10, 20}
        forget_commit(checkpoint, 1)


@delta_alone
@needs_format_api
@pytest.mark.thorough
def test_a_stream_by_options(spark: SparkSession, lake: LakeTable, tmp_path: Path) -> None:
    """Every micro-batch is planned and committed in processes of their own; the last of several comes again."""
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    for _ in range(2):
        writer = read_stream(spark, source).writeStream.format("outfall").options(**lake.options())
        run(writer.option("checkpointLocation", str(checkpoint)))
        assert lake.ids() == list(range(20))
        assert {len(ids) for ids in whole_epochs(lake, 10)} >= {10, 20}
        forget_commit(checkpoint, 1)


@pytest.mark.thorough
@delta_alone
def test_an_upsert_keeps_the_last_state_of_each_key_in_the_update_mode(
    spark: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    for _ in range(2):
        counts = read_stream(spark, source).groupBy("k").agg(sf.count("*").alias("n"), sf.sum("id").alias("ids"))
        sink = lake.sink(write_mode="upsert", key_columns="k")
        run(write_stream(counts, sink, checkpoint=checkpoint).outputMode("update"))
        assert sorted(lake.read("k, n, ids")) == [(f"key-{key}", 4, 4 * key + 30) for key in range(5)]
        forget_commit(checkpoint, 1)


@delta_alone
@needs_format_api
@pytest.mark.thorough
def test_an_upsert_by_options_keeps_the_last_row_of_each_key(
    spark: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    keyed = {"writeMode": "upsert", "keyColumns": "k", "orderColumn": "id", "deleteMarker": "gone"}
    for epoch in (0, 1, 1):  # the last one comes again
        source = write_source(tmp_path / "source", files=1, start=epoch)
        rows = read_stream(spark, source).withColumn("gone", sf.expr("id = 18"))
        writer = rows.writeStream.format("outfall").options(**lake.options(), **keyed)
        run(writer.option("checkpointLocation", str(checkpoint)))
        forget_commit(checkpoint, 1)
    assert sorted(lake.read("k, id")) == [(f"key-{key}", 15 + key) for key in range(5) if key != 3]


@delta_alone
@pytest.mark.thorough
def test_a_batch_job_deletes_by_key_and_its_counts_are_recorded(
    spark: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    write(spark.range(10), lake.sink(), mode="append")
    checkpoint = tmp_path / "log"
    gone = lake.sink(write_mode="delete", key_columns="id", create_table="never", on_existing="resume")
    write(spark.range(0, 20, 2), gone, epoch=0, recovery=str(checkpoint))
    assert lake.ids() == [1, 3, 5, 7, 9]
    (epoch,) = history(str(checkpoint))
    assert (epoch.counts["rows"], epoch.counts["rows_deleted"]) == (10, 5)


@needs_format_api
@pytest.mark.thorough
def test_a_batch_job_appends_or_overwrites_as_spark_says(spark: SparkSession, lake: LakeTable) -> None:
    def save(mode: str, start: int, **options: str) -> None:
        rows = spark.range(start, start + 3).write.format("outfall")
        rows.options(**lake.options(), **options).mode(mode).save()

    save("append", 0)
    save("append", 3)
    assert lake.ids() == list(range(6))
    save("overwrite", 6)
    assert lake.ids() == [6, 7, 8]
    assert [] not in list(lake.all_states())[-2:], "readers saw the table empty between the old rows and the new"
    with pytest.raises(PySparkException, match=r"errors\.TargetNotEmptyError: ") as caught:
        save("append", 9, on_existing="error")
    assert "is not empty" in reason(caught.value)
    for mode in ("error", "ignore"):
        with pytest.raises(PySparkException):
            save(mode, 9)
    assert lake.ids() == [6, 7, 8]


@needs_format_api
@pytest.mark.thorough
def test_overwriting_with_no_rows_empties_the_table(spark: SparkSession, lake: LakeTable) -> None:
    write(spark.range(5), lake.sink())
    rows = spark.range(5).where("id > 10").write.format("outfall").options(**lake.options())
    rows.mode("overwrite").save()
    assert lake.ids() == []


@delta_alone
@pytest.mark.thorough
def test_types_come_through_and_new_columns_are_added(spark: SparkSession, lake: LakeTable, tmp_path: Path) -> None:
    frame = spark.range(100).select(
        "id",
        (sf.col("id") / 3).alias("x"),
        sf.col("id").cast("decimal(20,4)").alias("d"),
        sf.timestamp_micros(sf.col("id") * 1_000_001).alias("at"),
        sf.array("id", sf.lit(None).cast("bigint")).alias("list"),
        sf.struct("id", sf.lit("é").alias("s")).alias("nested"),
    )
    assert write(frame, lake.sink()).counts["rows"] == 100
    (found,) = lake.read('count(*), sum(d)::text, sum(list[1]), min(nested.s), max(epoch_us("at"))')
    assert found == (100, "4950.0000", 4950, "é", 99 * 1_000_001)
    sink = lake.sink(schema_evolution="add_columns", on_existing="resume")
    write(spark.range(100, 101).select("id", sf.lit("new").alias("added")), sink)
    assert sorted(lake.read("id, added"))[-2:] == [(99, None), (100, "new")]


@pytest.mark.thorough
def test_a_fan_out_to_a_table_and_a_file_has_each_row_once_in_both(
    spark: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source"), tmp_path / "checkpoint"
    for _ in range(2):
        sink = FanOutSink(table=lake.sink(), files=FileSink(tmp_path / "files"))
        run(write_stream(read_stream(spark, source), sink, checkpoint=checkpoint))
        assert lake.ids() == found_ids(tmp_path / "files") == list(range(20))
        forget_commit(checkpoint, 1)


@pytest.mark.thorough
def test_many_small_epochs_are_few_commits_with_batches_across_them(
    spark: SparkSession, lake: LakeTable, tmp_path: Path
) -> None:
    source, checkpoint = write_source(tmp_path / "source", files=9), tmp_path / "checkpoint"
    sink = BatchingSink(lake.sink(), batch_size=40, across_epochs=True)
    run(write_stream(read_stream(spark, source), sink, workers=1, checkpoint=checkpoint))
    assert len(history(str(checkpoint))) == 9
    assert len(set(map(len, lake.all_states())) - {0}) == 2
    drain(sink, checkpoint=checkpoint)
    assert lake.ids() == list(range(90))


@delta_alone
@pytest.mark.thorough
def test_rows_that_do_not_fit_are_refused_before_the_first_one_moves(spark: SparkSession, lake: LakeTable) -> None:
    write(spark.range(3), lake.sink())
    with pytest.raises(ConfigurationError, match="nam is not in the table"):
        write(spark.range(3).select("id", sf.lit("x").alias("nam")), lake.sink(on_existing="resume"))
    assert lake.ids() == [0, 1, 2]
