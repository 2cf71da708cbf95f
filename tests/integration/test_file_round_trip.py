"""What a file sink wrote, `spark.read` gives back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from outfall.file import FileSink
from outfall.spark import write

pytestmark = pytest.mark.spark

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
    "string": ["''", "'a\\\"b\\\\\\\\c'", "'line\\nbreak\\r\\t'", "'nul\\0'", "'Grüße 🚚'", "'null'"],
    "date": ["'0001-01-01'", "'9999-12-31'", "'2026-11-21'"],
    "timestamp": ["'2026-11-21 12:34:56.789012'", "'1969-12-31 23:59:59.999999'"],
    "timestamp_ntz": ["'2026-11-21 12:34:56.789012'"],
}

NESTED = [
    "array(1, null, 3) as array_of_int",
    "cast(array() as array<int>) as empty_array",
    "array(named_struct('a', 1, 'b', 'x'), null) as array_of_struct",
    "named_struct('n', named_struct('deep', array(array('x'))), 'd', date'2026-11-21') as nested",
    "map('k \"1\"', 1, '', 2) as map_of_int",
    "map('t', timestamp'2026-11-21 12:34:56') as map_of_timestamp",
]


def rows(spark: SparkSession) -> DataFrame:
    """Each type's edge values and NULL, and nested ones."""
    most = max(len(values) for values in COLUMNS.values())
    columns = []
    for kind, values in COLUMNS.items():
        given = ", ".join([*values, *["null"] * (most + 1 - len(values))])
        columns.append(f"cast(array({given})[i] as {kind}) as `{kind}`")
    return spark.range(most + 1).withColumnRenamed("id", "i").selectExpr("i", *columns, *NESTED)


def comparable(df: DataFrame) -> DataFrame:
    """Maps cannot be compared; their sorted entries can."""
    maps = {name for name, kind in df.dtypes if kind.startswith("map")}
    return df.select(*[sf.sort_array(sf.map_entries(c)).alias(c) if c in maps else sf.col(c) for c in df.columns])


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_json_lines_of_every_type_that_is_not_refused_are_read_back(
    spark: SparkSession, tmp_path: Path, zone: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", str(zone))
    try:
        sent = rows(spark)
        write(sent, FileSink(tmp_path / "out"))
        found = spark.read.schema(sent.schema).json(str(tmp_path / "out"))
        assert comparable(sent).exceptAll(comparable(found)).collect() == []
        assert comparable(found).exceptAll(comparable(sent)).collect() == []
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))


def test_lines_of_text_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    sent = spark.createDataFrame([("a",), ("",), ("Grüße 🚚",), ("tab\there",)], "line string")
    write(sent, FileSink(tmp_path / "out", format="text"))
    found = spark.read.text(str(tmp_path / "out"))
    assert sorted(row[0] for row in found.collect()) == sorted(row[0] for row in sent.collect())
