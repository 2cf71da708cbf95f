"""The facts about Spark's tasks, partitions and Arrow batches that routing stands on; see `test_spark_facts`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from outfall.spark.routing import hash_int, partition_salts
from tests.integration.support.probes import SPARK, answers

# They change with Spark, not with the code here.
pytestmark = [pytest.mark.spark, pytest.mark.thorough]

since_4_1 = pytest.mark.skipif(SPARK < (4, 1), reason="Spark has repartitionById since 4.1")


def test_map_in_arrow_wants_pandas_at_the_driver(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"(?i)pandas"):
        answers(spark.range(1))


def test_a_task_runs_for_an_empty_partition_too(spark: SparkSession) -> None:
    assert sorted(task["rows"] for task in answers(spark.range(1).repartition(3))) == [0, 0, 1]


def test_a_plan_that_is_known_to_be_empty_has_no_tasks(spark: SparkSession) -> None:
    assert answers(spark.range(9).repartition(3).where("false")) == []
    empty_at_run_time = spark.range(9).where("id * id < 0").repartition(2)
    assert answers(spark.range(9).join(empty_at_run_time, "id")) == []


@pytest.fixture(params=["true", "false"], ids=["adaptive", "static"])
def plans(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The session with and without adaptive execution."""
    spark.conf.set("spark.sql.adaptive.enabled", request.param)
    yield spark
    spark.conf.unset("spark.sql.adaptive.enabled")


@since_4_1
@pytest.mark.parametrize("count", [3, 1, 16])
def test_repartition_by_id_takes_the_value_modulo_the_count(plans: SparkSession, count: int) -> None:
    df = plans.range(-20, 20).withColumn("part", F.col("id").cast("int")).repartitionById(count, "part")
    wrong = df.where(F.expr(f"pmod(part, {count})") != F.spark_partition_id())
    assert wrong.count() == 0
    assert len(answers(df.where("id = 0"))) == count


@since_4_1
def test_repartition_by_id_takes_an_int_and_nothing_else(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="INT"):
        spark.range(3).repartitionById(3, "id").collect()


def test_the_hash_of_an_int_can_be_computed_outside_of_spark(spark: SparkSession) -> None:
    values = [2**31 - 1, -(2**31), *range(-200, 200)]
    df = spark.createDataFrame([(value,) for value in values], "value int")
    hashes = df.select("value", F.hash("value").alias("hash")).collect()
    assert {row["value"]: row["hash"] for row in hashes} == {value: hash_int(value) for value in values}


@pytest.mark.parametrize("count", [7, 1, 2, 3, 12, 16, 200])
def test_a_salt_sends_a_row_to_the_partition_that_is_wanted(plans: SparkSession, count: int) -> None:
    rows = [(wanted, salt) for wanted, salt in enumerate(partition_salts(count))]
    df = plans.createDataFrame(rows, "wanted int, salt int").coalesce(1).repartition(count, "salt")
    assert df.where(F.col("wanted") != F.spark_partition_id()).count() == 0
    assert df.rdd.getNumPartitions() == count


def test_several_equal_salts_keep_all_partitions(plans: SparkSession) -> None:
    df = plans.range(10).withColumn("salt", F.lit(partition_salts(4)[2])).repartition(4, "salt")
    assert [task["rows"] for task in answers(df)] == [0, 0, 10, 0]


# --- Arrow

ARROW_TYPES = {
    "timestamp'2024-07-01 12:00:00'": pa.timestamp("us", tz="America/New_York"),
    "timestamp_ntz'2024-07-01 12:00:00'": pa.timestamp("us"),
    "date'2024-07-01'": pa.date32(),
    "cast(1 as decimal(10, 2))": pa.decimal128(10, 2),
    "interval '1 02:03:04' day to second": pa.duration("us"),
    "cast('a' as binary)": pa.binary(),
    "'a'": pa.string(),
    "map('a', 1)": pa.map_(pa.string(), pa.int32()),
    "named_struct('x', 1)": pa.struct([("x", pa.int32())]),
    "array(1)": pa.list_(pa.int32()),
}


def test_arrow_types_are_those_that_sinks_are_written_for(spark: SparkSession) -> None:
    def types(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [str(field.type) for batch in batches for field in batch.schema]
        yield pa.RecordBatch.from_pydict({"type": names})

    columns = [F.expr(text).alias(f"c{at}") for at, text in enumerate(ARROW_TYPES)]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        found = spark.range(1).select(*columns).mapInArrow(types, "type string").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    plain = [row["type"].replace(" not null", "").replace("element", "item") for row in found]
    assert plain == [str(kind).replace(" not null", "").replace("element", "item") for kind in ARROW_TYPES.values()]


def test_a_record_batch_has_no_more_rows_than_the_session_allows(spark: SparkSession) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows for batch in batches]})

    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "10000"
    found = spark.range(0, 25_000, 1, 1).mapInArrow(sizes, "rows long").collect()
    assert [row["rows"] for row in found] == [10_000, 10_000, 5_000]
