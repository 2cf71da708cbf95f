"""Values and times as names of directories; the texts are those that Spark 4.3 made."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.partition_paths import PartitionOptions, PartitionPaths

NOW = datetime(2026, 11, 21, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))


def paths(values: list[Any], kind: pa.DataType, **options: Any) -> list[str]:
    """The path of each value, in its order."""
    batch = pa.record_batch({"c": pa.array(values, kind), "row": range(len(values))})
    buckets = PartitionPaths(PartitionOptions(**(options or {"partition_by": "c"})))
    found = {row: path for path, rows in buckets.split(batch, NOW) for row in rows.column("row").to_pylist()}
    return [found[row] for row in range(len(values))]


def refused(values: list[Any], kind: pa.DataType, match: str, **options: Any) -> None:
    with pytest.raises(ValueRefusedError, match=match) as caught:
        paths(values, kind, **options)
    assert "What to do: " in str(caught.value)


STRINGS = {
    "AA": "AA", "": "__HIVE_DEFAULT_PARTITION__", "a/b": "a%2Fb", "a=b": "a%3Db", "%41": "%2541", "..": "..", ".": ".",
    " x ": " x ", "é 🚚": "é 🚚", "007": "007", "true": "true", "{}": "%7B}", "_x": "_x", "\x7f\x01\n": "%7F%01%0A",
    "__hive_default_partition__": "__hive_default_partition__", "a._COPYING_.b": "a._COPYING_.b",
}  # fmt: skip


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_strings_are_escaped_as_spark_does(kind: pa.DataType) -> None:
    assert paths([*STRINGS, None], kind) == [f"c={text}" for text in [*STRINGS.values(), "__HIVE_DEFAULT_PARTITION__"]]
    for value, text in STRINGS.items():
        assert paths([value, value], kind) == [f"c={text}"] * 2


MICROS = pa.timestamp("us")
OTHERS = [
    (pa.bool_(), {True: "true", False: "false"}),
    (pa.int8(), {-128: "-128"}),
    (pa.int64(), {-(2**63): "-9223372036854775808", 0: "0"}),
    (pa.decimal128(5, 0), {Decimal(99999): "99999"}),
    (
        pa.decimal128(38, 18),
        {Decimal("-1E-18"): "-0.000000000000000001", Decimal(0): "0.000000000000000000"}
        | {Decimal("12345678901234567890.123456789012345678"): "12345678901234567890.123456789012345678"},
    ),
    (pa.date32(), {date(1, 1, 1): "0001-01-01", date(9999, 12, 31): "9999-12-31"}),
    (
        MICROS,
        {
            datetime.fromisoformat("2013-01-01T05"): "2013-01-01 05%3A00%3A00",
            datetime.fromisoformat("0001-01-01"): "0001-01-01 00%3A00%3A00",
            datetime.fromisoformat("2026-11-21T12:34:56.789012"): "2026-11-21 12%3A34%3A56.789012",
            datetime.fromisoformat("2026-11-21T12:34:50.100"): "2026-11-21 12%3A34%3A50.1",
        },
    ),
    (pa.timestamp("s"), {datetime.fromisoformat("2013-01-01T05"): "2013-01-01 05%3A00%3A00"}),
    (pa.timestamp("us", "UTC"), {datetime(2013, 1, 1, 5, tzinfo=UTC): "2013-01-01 05%3A00%3A00"}),
    (pa.timestamp("us", "America/New_York"), {datetime(2013, 1, 1, 5, tzinfo=UTC): "2013-01-01 00%3A00%3A00"}),
]


@pytest.mark.parametrize(("kind", "texts"), OTHERS, ids=[str(kind) for kind, _ in OTHERS])
def test_other_values_are_the_text_of_sparks_cast(kind: pa.DataType, texts: dict[Any, str]) -> None:
    expected = [f"c={text}" for text in [*texts.values(), "__HIVE_DEFAULT_PARTITION__"]]
    assert paths([*texts, None], kind) == expected
    assert paths([None, None], kind) == expected[-1:] * 2


def test_a_columns_name_is_escaped_too_and_has_the_case_of_the_option_as_in_spark() -> None:
    batch = pa.record_batch({"a=b/%": ["x"], "v": [1]})
    (found,) = PartitionPaths(PartitionOptions(partition_by=("A=b/%",))).split(batch, NOW)
    assert found[0] == "A%3Db%2F%25=x"


def test_a_string_that_would_not_come_back_is_refused_by_column_and_row() -> None:
    text = pa.string()
    refused(["a", "a", "x\0y"], text, "by the value of column 'c' in row 2 .*NUL")
    refused(["a", "__HIVE_DEFAULT_PARTITION__"], text, "in row 1 .*be read as NULL")
    refused(["x._COPYING_"], text, "in row 0 .*readers skip")
    refused(["a", "x" * 254], text, "in row 1 .*255 bytes")
    refused(["a", "é" * 127], text, "in row 1 .*255 bytes")
    refused(["a", ":" * 85], text, "in row 1 .*255 bytes")
    assert paths(["x" * 253, ":" * 84 + "x"], text) == ["c=" + "x" * 253, "c=" + "%3A" * 84 + "x"]
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    with pytest.raises(ValueRefusedError, match="not UTF-8, in row 1"):
        list(
            PartitionPaths(PartitionOptions(partition_by=("c",))).split(
                pa.record_batch({"c": broken, "v": [1, 2]}), NOW
            )
        )


def test_an_hour_that_clocks_show_twice_is_refused_where_it_would_be_read_as_the_first() -> None:
    kind = pa.timestamp("us", "America/New_York")
    first, second = (datetime(2026, 11, 1, hour, 30, tzinfo=UTC) for hour in (5, 6))
    assert paths([first], kind) == ["c=2026-11-01 01%3A30%3A00"]
    refused([first, first, second], kind, "in row 2 .*clocks were set back")


def test_years_that_are_not_four_digits_are_refused_by_the_zones_clocks() -> None:
    late, early = 253_402_300_799_000_000, -62_135_596_800_000_000  # the ends of 9999 and 0001 in UTC
    for zone, micros in (("Asia/Kolkata", late), ("America/New_York", early), ("UTC", late + 1_000_000)):
        for options in ({"partition_by": "c"}, {"directory_pattern": "'d='yyyy", "directory_time": "c"}):
            refused([0, micros], pa.timestamp("us", zone), "row 1", **options)
    refused([0, 4_000_000], pa.date32(), "row 1")


def test_a_zone_that_is_unknown_here_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'Mars/Base'"):
        paths([0], pa.timestamp("us", "Mars/Base"))


def timed(values: list[Any], pattern: str, kind: pa.DataType = MICROS) -> list[str]:
    return paths(values, kind, directory_pattern=pattern, directory_time="c")


def test_a_pattern_has_levels_with_and_without_names() -> None:
    at = datetime.fromisoformat("2026-11-21T12:34:56")
    assert timed([at], "'dt='yyyy-MM-dd/'hour='HH") == ["dt=2026-11-21/hour=12"]
    assert timed([at], "yyyy/MM/dd") == ["2026/11/21"]
    assert timed([at], "'flights/dt='yyyy-MM-dd") == ["flights/dt=2026-11-21"]
    assert timed([at], "'dt='yyyy/MM") == ["dt=2026/11"]
    assert timed([at], "'at='HH:mm'=%41'/HH:mm") == ["at=12%3A34%3D%2541/12%3A34"]
    assert timed([at], "'o''clock='HH") == ["o%27clock=12"]
    assert timed([date(2026, 11, 21)], "'dt='yyyyMM", pa.date32()) == ["dt=202611"]
    assert timed([at], "'fixed=1'/'dt='yyyy") == ["fixed=1/dt=2026"]


def test_times_with_a_zone_are_those_of_its_clocks() -> None:
    values = [datetime(2026, 7, 1, 3, 30, tzinfo=UTC), datetime(1850, 1, 1, 4, 56, 1, tzinfo=UTC)]
    kind = pa.timestamp("us", "America/New_York")
    assert timed(values, "'dt='yyyy-MM-dd/'m='HH:mm", kind) == ["dt=2026-06-30/m=23%3A30", "dt=1849-12-31/m=23%3A59"]
    assert timed(values[:1], "'at='HHXXX", kind) == ["at=23-04%3A00"]
    refused([values[0], values[0], values[1]], kind, "in row 2", directory_pattern="'at='HHXXX", directory_time="c")


def test_without_a_column_it_is_the_time_of_writing_in_utc() -> None:
    assert paths([1, 2], pa.int8(), directory_pattern="'dt='yyyy-MM-dd/'hour='HHXXX") == ["dt=2026-11-20/hour=23Z"] * 2
    assert paths([1, 2], pa.int8(), partition_by="c", directory_pattern="HH") == ["c=1/23", "c=2/23"]


def test_a_null_time_has_a_directory_where_each_level_has_a_name() -> None:
    at = datetime.fromisoformat("2026-11-21")
    null = "__HIVE_DEFAULT_PARTITION__"
    assert timed([at, None], "'x'/'dt='yyyy/'h='HH") == ["x/dt=2026/h=00", f"x/dt={null}/h={null}"]
    assert timed([None], "'dt='yyyy") == [f"dt={null}"]
    for pattern in ("yyyy", "'dt='yyyy/HH", "yyyyXXX"):
        kind = pa.timestamp("us", "UTC") if "X" in pattern else MICROS
        refused([at, at, None], kind, "'c' is NULL in row 2", directory_pattern=pattern, directory_time="c")


def test_a_clock_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a zone"):
        list(
            PartitionPaths(PartitionOptions(directory_pattern="HH")).split(
                pa.record_batch({"a": [1]}), NOW.replace(tzinfo=None)
            )
        )
