"""Partitions have the directories of Spark's `partitionBy`, and Spark's reader takes the columns back from them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from outfall.formats.partition_paths import PartitionOptions, PartitionPaths

pytestmark = pytest.mark.spark

ZONE = "America/New_York"
NOW = datetime(2026, 11, 21, tzinfo=UTC)
NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture(autouse=True)
def settings(spark: SparkSession) -> Iterator[None]:
    wanted = {"spark.sql.session.timeZone": ZONE, "spark.sql.ansi.enabled": "true"}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def arrow(df: DataFrame) -> pa.RecordBatch:
    """The rows as a sink gets them, timestamps in the session's zone."""

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            yield pa.record_batch({"stream": [sink.getvalue().to_pybytes()]})

    sent = df.coalesce(1).mapInArrow(send, "stream binary").collect()
    batches = [batch for row in sent for batch in pa.ipc.open_stream(bytes(row["stream"]))]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def write(df: DataFrame, root: Path, partition_by: list[str]) -> None:
    """One Parquet file for each of our buckets."""
    for number, (path, rows) in enumerate(
        PartitionPaths(PartitionOptions(partition_by=tuple(partition_by))).split(arrow(df), NOW)
    ):
        (root / path).mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([rows]), root / path / f"{number}.parquet")


def directories(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


def assert_as_spark(spark: SparkSession, df: DataFrame, tmp_path: Path, partition_by: list[str]) -> None:
    df = df.coalesce(1).cache()
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write(df, ours, partition_by)
    # What Spark 4 does by itself; 3.5 asks how dates before 1582 are meant.
    for kind, direction in product(("datetime", "int96"), ("Read", "Write")):
        spark.conf.set(f"spark.sql.parquet.{kind}RebaseModeIn{direction}", "CORRECTED")
    df.write.partitionBy(*partition_by).parquet(str(theirs))
    assert directories(ours) == directories(theirs)
    found = spark.read.schema(df.schema).parquet(str(ours)).select(*df.columns)
    assert found.exceptAll(df).union(df.exceptAll(found)).collect() == []
    df.unpersist()


CHARACTERS = [chr(code) for code in [*range(1, 128), 0x80, 0xA0, 0x2028, 0xFEFF, 0xFFFD]]
ODD = ["..", "...", "a/../b", "%41", "%", "a%2", " x ", "é", "e\u0301", "🚚", "007", "1e3", "true", "null"]
ODD += ["_x", "_temporary", "x" * 253, "é" * 126, "2026-11-21", "x._COPYING", "._COPYING_x"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(["".join(CHARACTERS[at : at + 20]) for at in range(0, len(CHARACTERS), 20)] + ODD, id="together"),
        # A directory for each, which takes Spark twenty seconds.
        pytest.param(
            [text for one in CHARACTERS for text in (one, f"a{one}", f"{one}b")], id="each", marks=pytest.mark.thorough
        ),
    ],
)
def test_every_character_that_spark_escapes_is_escaped(spark: SparkSession, tmp_path: Path, values: list[str]) -> None:
    rows: list[tuple[str | None, int]] = [(value, number) for number, value in enumerate(values)]
    assert_as_spark(spark, spark.createDataFrame([*rows, (None, -1)], "c string, n int"), tmp_path, ["c"])


COLUMNS = {
    "boolean": ["true", "false"],
    "tinyint": ["-128", "127"],
    "smallint": ["-32768"],
    "int": ["-2147483648", "0"],
    "bigint": ["9223372036854775807", "-9223372036854775808"],
    "decimal(38,18)": ["12345678901234567890.123456789012345678", "-0.000000000000000001", "0", "0.00000012"],
    "decimal(5,0)": ["99999", "-1"],
    "decimal(5,5)": ["0.00001"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'1582-10-10'"],
    "timestamp": [
        "'2026-11-21 12:34:56.789012'",
        "'2013-01-01 05:00:00'",
        "'2013-01-01 05:00:00.100'",
        "'2026-11-01 01:30:00 -04:00'",
        "'1969-12-31 23:59:59.999999'",
        "'1850-01-01 00:00:00.5'",
        "'0001-01-02 00:00:00'",
        "'9999-12-30 00:00:00'",
    ],
    "timestamp_ntz": ["'2026-11-21 12:34:56.789012'", "'2013-01-01 05:00:00'", "'0001-01-01 00:00:00'"],
}


@pytest.mark.thorough
def test_values_of_every_type_are_the_text_of_sparks_cast(spark: SparkSession, tmp_path: Path) -> None:
    most = max(map(len, COLUMNS.values()))
    columns = []
    for number, (kind, values) in enumerate(COLUMNS.items()):
        given = ", ".join([*values, *["null"] * (most + 1 - len(values))])
        columns.append(f"cast(array({given})[i] as {kind}) as c{number}")
    kept = [f"c{number} as kept{number}" for number in range(len(COLUMNS))]
    df = spark.range(most + 1).selectExpr("id as i").selectExpr("i", *columns).selectExpr("*", *kept)
    assert_as_spark(spark, df, tmp_path, [f"c{number}" for number in range(len(COLUMNS))])


@pytest.mark.thorough
def test_several_columns_are_levels_in_their_order_with_escaped_names(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("AA", 1, 0.5), ("AA", 2, 0.6), ("", 1, 0.7), ("b/b", 1, 0.8), ("AA", 1, 0.9)]
    df = spark.createDataFrame(rows, "`a/b=%` string, _n int, v double")
    write(df, tmp_path / "ours", ["_n", "a/b=%"])
    df.coalesce(1).write.partitionBy("_n", "a/b=%").parquet(str(tmp_path / "theirs"))
    assert directories(tmp_path / "ours") == directories(tmp_path / "theirs")
    found = spark.read.schema(df.schema).parquet(str(tmp_path / "ours")).select("`a/b=%`", "_n", "v").collect()
    assert sorted((row[2], row[0], row[1]) for row in found) == sorted((v, a or None, n) for a, n, v in rows)


def test_a_name_in_another_case_makes_the_directory_that_spark_makes(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([(1, 2)], "Day int, v int")
    write(df, tmp_path / "ours", ["dAY"])
    df.write.partitionBy("dAY").parquet(str(tmp_path / "theirs"))
    assert directories(tmp_path / "ours") == directories(tmp_path / "theirs")


def test_levels_of_a_pattern_are_columns_for_readers_and_null_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql("select explode(array(timestamp'2026-07-01 00:30:00', null)) as t, 'AA' as carrier")
    options = PartitionOptions(
        partition_by=("carrier",), directory_pattern="'dt='yyyy-MM-dd/'at='HH:mm", directory_time="t"
    )
    for path, rows in PartitionPaths(options).split(arrow(df), NOW):
        (tmp_path / path).mkdir(parents=True)
        pq.write_table(pa.Table.from_batches([rows]), tmp_path / path / "f.parquet")
    read = spark.read.schema("t timestamp, carrier string, dt date, at string").parquet(str(tmp_path))
    found = read.selectExpr("date_format(t, 'HH:mm')", "carrier", "string(dt)", "at").collect()
    assert {tuple(row) for row in found} == {("00:30", "AA", "2026-07-01", "00:30"), (None, "AA", None, None)}


@pytest.mark.parametrize("name", ["_x", ".x", "c=x._COPYING_", ".c=x", f"c={NULL}"])
def test_readers_do_not_give_back_what_is_refused(spark: SparkSession, tmp_path: Path, name: str) -> None:
    for number, directory in enumerate([name, "c=y"]):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "f.csv").write_text(f"{number}\n")
    read = spark.read.schema("v int, c string").csv(str(tmp_path))
    assert [row["v"] for row in read.where("c is not null").collect()] == [1]
