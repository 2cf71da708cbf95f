"""What a file sink wrote, `spark.read` gives back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.errors import ConfigurationError
from outfall.file import FileSink, sink_from_options
from outfall.formats.base import member
from outfall.spark import write
from outfall.spark.version_check import pyspark_version

pytestmark = pytest.mark.spark

READS_ZSTD = pyspark_version() >= (4, 1)
"""Earlier versions need Hadoop's native library for that, which PySpark does not have."""
WITH_ZSTD = pytest.mark.skipif(not READS_ZSTD, reason="Spark 3.5 and 4.0 read zstd only with Hadoop's native library")

COLUMNS = {
    "boolean": ["true", "false"],
    "tinyint": ["127", "-128"],
    "smallint": ["32767"],
    "int": ["-2147483648"],
    "bigint": ["9223372036854775807", "-9223372036854775808"],
    "float": ["1.5", "'NaN'", "'Infinity'", "0.1"],
    "double": ["1e300", "'NaN'", "'-Infinity'", "-0.0", "0.1"],
    "decimal(38,18)": ["12345678901234567890.123456789012345678", "-0.000000000000000001"],
    "decimal(5,0)": ["99999"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'2026-11-21'"],
    "timestamp": ["'2026-11-21 12:34:56.789012'", "'1969-12-31 23:59:59.999999'"],
    "timestamp_ntz": ["'2026-11-21 12:34:56.789012'"],
}
BREAKS = {"string": ["''", "'a\\\"b\\\\\\\\c'", "'line\\nbreak\\r\\t'", "'nul\\0'", "'Grüße 🚚'", "'null'"]}
ODD = [
    "''",
    "' a '",
    "'\\\"q'",
    "'a,b'",
    "'a\\\\\\\\'",
    "'\\\\\\\\\\\",'",
    "'nul\\0'",
    "'#c'",
    "'null'",
    "'Grüße 🚚'",
    "'|'",
    "'\\t'",
]
BINARY = {"binary": ["cast('' as binary)", "X'00'", "X'00FF'", "X'00FF41'", "X'00FF4142'"]}
INTERVALS = {
    "interval day to second": ["'1 02:03:04.5'", "'-9 00:00:00.000001'"],
    "interval hour to minute": ["'-1:02'"],
}

NESTED = [
    "array(1, null, 3) as array_of_int",
    "cast(array() as array<int>) as empty_array",
    "array(named_struct('a', 1, 'b', 'x'), null) as array_of_struct",
    "named_struct('n', named_struct('deep', array(array('x'))), 'd', date'2026-11-21') as nested",
    "map('k \"1\"', 1, '', 2) as map_of_int",
    "map('t', timestamp'2026-11-21 12:34:56') as map_of_timestamp",
    "array(X'00FF', null) as array_of_binary",
]
MORE_NESTED = [
    "map(1, array(interval '1' day)) as map_of_int_keys",
    "named_struct('v', interval '3' second) as nested_interval",
]


@pytest.fixture(params=["America/New_York", pytest.param("UTC", marks=pytest.mark.thorough)])
def zone(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", str(before))


def rows(spark: SparkSession, columns: dict[str, list[str]], nested: list[str]) -> DataFrame:
    """Each type's edge values and NULL, and nested ones."""
    most = max(len(values) for values in columns.values())
    chosen = []
    for kind, values in columns.items():
        given = ", ".join([*values, *["null"] * (most + 1 - len(values))])
        chosen.append(f"cast(array({given})[i] as {kind}) as `{kind}`")
    return spark.range(most + 1).withColumnRenamed("id", "i").selectExpr("i", *chosen, *nested)


def comparable(df: DataFrame) -> DataFrame:
    """Maps cannot be compared; their sorted entries can."""
    maps = {name for name, kind in df.dtypes if kind.startswith("map")}
    return df.select(*[sf.sort_array(sf.map_entries(c)).alias(c) if c in maps else sf.col(c) for c in df.columns])


def assert_same(sent: DataFrame, found: DataFrame) -> None:
    sent, found = comparable(sent), comparable(found)
    assert sent.exceptAll(found).union(found.exceptAll(sent)).collect() == []


@pytest.mark.thorough
def test_json_lines_of_every_type_that_is_not_refused_are_read_back(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    sent = rows(spark, COLUMNS | BREAKS | BINARY, NESTED)
    packed = "zstd" if READS_ZSTD else "gzip"
    for index, options in enumerate([{}, {"ignore_null_fields": False, "compression": packed}]):
        out = tmp_path / str(index)
        write(sent, FileSink(out, **options))  # type: ignore[arg-type]
        assert_same(sent, spark.read.schema(sent.schema).json(str(out)))


KEPT = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
PATTERNS = {
    "timestampFormat": "dd|MM|yyyy HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyyMMdd'T'HHmmss.SSSSSS",
    "dateFormat": "dd.MM.yyyy",
}
CSV = {
    "spaces": {"nullValue": "\\N"} | KEPT,
    "tabs": {"header": "true", "sep": "\t", "escape": '"', "nullValue": "-", "compression": "gzip"} | KEPT,
    "patterns": {"header": "true", "sep": "|", "quoteAll": "true", "nullValue": "NULL"} | KEPT | PATTERNS,
}


@pytest.mark.parametrize(
    "given", ["patterns", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("spaces", "tabs"))]
)
def test_csv_of_every_type_that_is_not_refused_is_read_back(
    spark: SparkSession, tmp_path: Path, zone: str, given: str
) -> None:
    sent = rows(spark, COLUMNS | {"string": ODD}, [])
    write(sent, sink_from_options({"path": str(tmp_path / "out"), "format": "csv"} | CSV[given]))
    assert_same(sent, spark.read.schema(sent.schema).options(**CSV[given]).csv(str(tmp_path / "out")))


def test_csv_has_the_bytes_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    plain = {"int": ["1"], "boolean": ["true"], "date": ["'2026-11-21'"], "double": ["0.5"]}
    sent = (
        rows(spark, {"string": ODD} | plain, []).select("string", "int", "boolean", "date", "double", "i").coalesce(1)
    )
    given = [{}, {"quoteAll": "true", "header": "true"}, {"escape": '"', "nullValue": "-", "sep": "|"} | KEPT]
    for index, options in enumerate(given):
        ours, theirs = tmp_path / f"o{index}", tmp_path / f"t{index}"
        write(sent, sink_from_options({"path": str(ours), "format": "csv"} | options))
        sent.write.options(**options).csv(str(theirs))
        assert [file.read_bytes() for file in ours.glob("part-*")] == [
            file.read_bytes() for file in theirs.glob("part-*")
        ]


@pytest.mark.thorough
def test_a_pattern_without_zone_is_local_time_through_both_apis(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    sent = spark.sql("select timestamp'2026-07-01 12:34:56' as t, map('k', timestamp'2026-11-21 00:00:00') as m")
    pattern = {"timestampFormat": "dd.MM.yyyy HH:mm:ss"}
    write(sent, FileSink(tmp_path / "objects", timestamp_format=pattern["timestampFormat"]))
    apis = ["objects"]
    if pyspark_version() >= (4, 1):
        made = sent.write.format("outfall").option("sink", "file").options(**pattern).mode("append")
        made.option("path", str(tmp_path / "options")).save()
        apis.append("options")
    for api in apis:
        assert_same(sent, spark.read.schema(sent.schema).options(**pattern).json(str(tmp_path / api)))


def test_parquet_of_every_type_is_read_back(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    sent = rows(spark, COLUMNS | BREAKS | BINARY | INTERVALS, NESTED + MORE_NESTED)
    write(sent, FileSink(tmp_path / "out", format="parquet", compression="zstd" if zone == "UTC" else None))
    # Spark 3.5 wants to be told that dates before 1582 are not of another calendar.
    reader = spark.read.option("datetimeRebaseMode", "CORRECTED").option("int96RebaseMode", "CORRECTED")
    assert_same(sent, reader.schema(sent.schema).parquet(str(tmp_path / "out")))
    # A reader that asks for the types gets Spark's, as far as Parquet has them.
    inferred = dict(spark.read.parquet(str(tmp_path / "out")).dtypes)
    assert {name: inferred[name] for name in (*COLUMNS, "binary")} == {name: name for name in (*COLUMNS, "binary")}


FILTERED = {
    "float": ["1.5", "'NaN'", "-0.0", "'Infinity'"],
    "double": ["1.5", "'NaN'", "-0.0", "'-Infinity'", "1e300"],
    "decimal(38,18)": ["12345678901234567890.123456789012345678", "-0.000000000000000001"],
    "decimal(9,2)": ["1.25", "-1234567.89"],
    "date": ["'1969-12-31'", "'0001-01-01'", "'2026-11-21'"],
    "timestamp": ["'1969-12-31 23:59:59.999999'", "'2026-11-21 12:34:56.789012'"],
    "string": ["''", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'", "'Grüße 🚚'"],
    "binary": ["X'00'", "X'FF00'", "X''"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_filter_finds_in_parquet_what_it_finds_without_statistics(
    spark: SparkSession, tmp_path: Path, every: bool
) -> None:
    sent = spark.range(300).select(
        "id",
        sf.expr("if(id % 2 = 0, 1.5D, double('NaN'))").alias("half"),
        sf.expr("named_struct('f', if(id % 3 = 0, 1.5F, float('NaN')))").alias("third"),
        *(
            sf.expr(f"element_at(array({', '.join(f'cast({v} as {kind})' for v in values)}, null),"
                    f" cast(id % {len(values) + 1} + 1 as int)) as `{kind}`")
            for kind, values in FILTERED.items()
        ),
    )  # fmt: skip
    # Large and small values lie in different files, so that there is something to skip.
    write(sent.repartitionByRange(3, "double", "id"), FileSink(tmp_path / "out", format="parquet"))
    found = spark.read.parquet(str(tmp_path / "out"))
    filters = [
        f"`{kind}` {operator} cast({value} as {kind})"
        for kind, values in FILTERED.items()
        for value in values
        for operator in (">", "<=", "=")
        if every
    ] + ["half > 5", "half = double('NaN')", "third.f > 5"]
    counted = [sf.sum(sf.expr(f"cast({each} as long)")) for each in filters]
    (wanted,) = sent.select(*counted).collect()
    different = {
        each: (count, value or 0)
        for each, value in zip(filters, wanted, strict=True)
        if (count := found.where(each).count()) != (value or 0)
    }
    assert different == {}


@pytest.mark.thorough
@pytest.mark.parametrize("compression", ["gzip", pytest.param("zstd", marks=[WITH_ZSTD, pytest.mark.thorough])])
def test_members_in_a_row_are_one_file_for_spark(spark: SparkSession, tmp_path: Path, compression: Any) -> None:
    end = {"gzip": "gz", "zstd": "zst"}[compression]
    pieces = [pa.py_buffer(b"".join(b"%d,x\n" % i for i in range(k, k + 50_000))) for k in range(0, 200_000, 50_000)]
    (tmp_path / f"f.csv.{end}").write_bytes(b"".join(b"".join(member(compression, [piece])) for piece in pieces))
    found = spark.read.schema("a int, b string").csv(str(tmp_path))
    assert found.agg(sf.count("b"), sf.countDistinct("a")).collect()[0][:] == (200_000, 200_000)


@pytest.mark.parametrize("compression", ["gzip", pytest.param("none", marks=pytest.mark.thorough)])
def test_each_row_of_growing_files_that_roll_is_read_back_once(
    spark: SparkSession, tmp_path: Path, compression: Any
) -> None:
    df = spark.range(600).selectExpr("id", "cast(id % 50 as string) as k")
    out = str(tmp_path / "out")
    for epoch, roll_bytes in enumerate((None, 1, 1)):
        sink = FileSink(out, parts=3, format="csv", header=True, compression=compression, roll_bytes=roll_bytes)
        write(df.where(sf.col("id") % 3 == epoch), sink, key="k", recovery=str(tmp_path / "recovery"), epoch=epoch)
    assert [len(list(Path(out).glob(f"part-0000{part}*"))) for part in range(3)] == [3, 3, 3]
    found = spark.read.schema(df.schema).csv(out, header=True)
    assert sorted(found.collect()) == sorted(df.collect())


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_what_a_format_does_not_carry_is_refused_by_name(spark: SparkSession, tmp_path: Path, format: Any) -> None:
    refused = {
        "csv": [
            "array(1)",
            "map('a', 1)",
            "named_struct('a', 1)",
            "X'00'",
            "interval '1' day",
            "null",
            "interval '1' month",
        ],
        "jsonl": ["map(1, 1)", "interval '1' day", "interval '1' month", "make_interval(1)", "parse_json('1')"],
        "parquet": ["null", "interval '1' month", "make_interval(1)", "array(null)"],
    }
    for expression in refused[format]:
        if expression.startswith(("parse_json", "make_interval")) and pyspark_version() < (4, 0):
            continue  # there is no variant, and PySpark itself does not know the interval's type
        with pytest.raises(ConfigurationError, match="odd"):
            write(spark.sql(f"select 1 as fine, {expression} as odd"), FileSink(tmp_path / "out", format=format))


def test_lines_of_text_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    sent = spark.createDataFrame([("a",), ("",), ("Grüße 🚚",), ("tab\there",)], "line string")
    write(sent, FileSink(tmp_path / "out", format="text", compression="gzip"))
    found = spark.read.text(str(tmp_path / "out"))
    assert sorted(row[0] for row in found.collect()) == sorted(row[0] for row in sent.collect())
