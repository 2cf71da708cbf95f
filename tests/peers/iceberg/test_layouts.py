"""Tables that the JVM made with each kind of partitions and with odd values in them, written by us and read by it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, ValueRefusedError
from tests.integration.filters.test_filters import misled
from tests.integration.support import filtering
from tests.integration.support.awkward import Filter
from tests.peers.support.jvm_iceberg import JvmTable, rows

COLUMNS = (
    "id BIGINT NOT NULL, i INT, f DOUBLE, d DECIMAL(38, 9), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, s STRING,"
    " bin BINARY, st STRUCT<x: INT NOT NULL, `y.z`: STRING>, l ARRAY<STRUCT<k: INT>>, m MAP<STRING, STRUCT<z: DOUBLE>>,"
    " `1st col` STRING"
)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False), ("i", pa.int32()), ("f", pa.float64()),
        ("d", pa.decimal128(38, 9)), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")), ("s", pa.string()), ("bin", pa.binary()),
        ("st", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y.z", pa.string())])),
        ("l", pa.list_(pa.struct([("k", pa.int32())]))), ("m", pa.map_(pa.string(), pa.struct([("z", pa.float64())]))),
        ("1st col", pa.string()),
    ]
)  # fmt: skip


def row(number: int, i: int, f: float, d: str, day: date, s: str, bin: bytes) -> dict[str, Any]:
    at = datetime.combine(day, time(23, 59, 59, 999_999))
    return {
        "id": number, "i": i, "f": f, "d": Decimal(d), "day": day, "at": at.replace(tzinfo=UTC), "local": at, "s": s,
        "bin": bin, "st": {"x": number, "y.z": s}, "l": [{"k": i}, None], "m": [("a", {"z": f})], "1st col": s,
    }  # fmt: skip


ROWS = [
    row(1, -1, -0.0, "-0.000000001", date(1969, 12, 31), "", b""),
    row(2, 2**31 - 1, float("inf"), f"{'9' * 29}.{'9' * 9}", date(1970, 1, 1), "a/b%=c é\U0001f600", b"\xff" * 20),
    row(3, -(2**31), 0.0, f"-{'9' * 28}.{'9' * 9}", date(1582, 10, 4), "\U0001f600", b"\0"),
    row(4, 7, float("nan"), "1", date(9999, 12, 31), "__HIVE_DEFAULT_PARTITION__", b"\x80"),
    {**dict.fromkeys(SCHEMA.names), "id": 5},
]
LAYOUTS = [
    "days(at), truncate(2, s), `1st col`, st.`y.z`", "truncate(5, d), truncate(2, bin), hours(local)",
    "bucket(4, d), bucket(3, bin)", "months(day)", "at, local, day", "s, bin", "f", "bucket(4, i)", "d, i",
]  # fmt: skip


LONG_ONLY = [pytest.param(terms, marks=pytest.mark.long) for terms in LAYOUTS[2:]]


@pytest.mark.parametrize("terms", [*LAYOUTS[:2], *LONG_ONLY])
def test_the_jvm_finds_by_our_partitions_what_is_there(table: JvmTable, terms: str) -> None:
    table.create(COLUMNS, f"PARTITIONED BY ({terms})", {"commit.manifest.min-count-to-merge": "2"})
    for epoch in range(2):
        table.driver().write(epoch, pa.RecordBatch.from_pylist(ROWS, SCHEMA))
    before = table.read("count(*)", "{t}.partitions")
    table.sql("INSERT INTO {t} SELECT * FROM {t}")
    # The JVM's own files of the same rows are in the same partitions.
    assert table.read("count(*)", "{t}.partitions") == before
    table.driver().write(2, pa.RecordBatch.from_pylist(ROWS, SCHEMA))
    assert table.ids() == sorted([1, 2, 3, 4, 5] * 5)
    filters = [each for name, kind in FILTERED.items() if name in terms for each in equal(name, kind)]
    with_names = table.sql("SELECT *, st.x AS x FROM {t}")
    assert misled(lambda some: filtering.by_spark(with_names, some), filters) == {}


FILTERED = {name: SCHEMA.field(name).type for name in ("i", "f", "d", "day", "at", "local", "s", "bin", "1st col")}


def equal(name: str, kind: pa.DataType) -> list[Filter]:
    """Return filters for each value of a column; of zero Spark finds too little in any table."""
    values = [each[name] for each in ROWS[:4] if each[name] != 0]
    return [Filter((name,), kind, "is null"), *(Filter((name,), kind, "=", (value,)) for value in values)]


def test_a_required_field_of_a_missing_struct_is_refused_in_its_task_and_the_jvms_are_left_alone(
    table: JvmTable,
) -> None:
    """pyiceberg has no NULL for such a partition, neither for rows of ours nor when it merges manifests of the JVM."""
    columns = "id BIGINT, st STRUCT<x: INT NOT NULL>"
    table.create(columns, "PARTITIONED BY (bucket(2, st.x))", {"commit.manifest.min-count-to-merge": "2"})
    table.sql("INSERT INTO {t} SELECT 1, NULL")
    kind = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    for epoch, given in enumerate(({"x": 1}, {"x": 2})):
        table.driver().write(
            epoch, pa.RecordBatch.from_arrays([pa.array([epoch + 2]), pa.array([given], kind)], ["id", "st"])
        )
    missing = pa.RecordBatch.from_arrays([pa.array([9]), pa.array([None], kind)], ["id", "st"])
    with pytest.raises(ValueRefusedError, match=r"'st\.x' is NULL, because its struct is"):
        table.driver().write(2, missing)
    assert table.ids() == [1, 2, 3]
    assert table.ids("{t} WHERE st.x IS NULL") == [1]


def test_a_decimal_that_cannot_be_truncated_is_refused_in_its_task(table: JvmTable) -> None:
    table.create("id BIGINT, d DECIMAL(38, 9)", "PARTITIONED BY (truncate(5, d))")
    lowest = pa.array([Decimal(f"-{'9' * 29}.{'9' * 9}")], pa.decimal128(38, 9))
    with pytest.raises(ValueRefusedError, match="without a partition for truncate"):
        table.driver().write(0, pa.RecordBatch.from_arrays([pa.array([1]), lowest], names=["id", "d"]))
    assert table.ids() == []


@pytest.mark.parametrize("version", ["1", "3"])
def test_other_format_versions_are_refused(table: JvmTable, version: str) -> None:
    table.create(how=f"TBLPROPERTIES ('format-version' = '{version}')")
    with pytest.raises(ConfigurationError, match=f"format version {version}"):
        table.driver().write(0, rows(1))
