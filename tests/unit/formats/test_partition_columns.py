"""Which columns the options mean, and which the files hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.formats.partition_paths import PartitionOptions, PartitionPaths

SCHEMA = pa.schema(
    [
        pa.field("Id", pa.int64()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("name", pa.string(), nullable=False, metadata={"k": "v"}),
    ],
    metadata={"m": "n"},
)


def stored(schema: pa.Schema = SCHEMA, **options: Any) -> pa.Schema:
    return PartitionPaths(PartitionOptions(**options)).stored_schema(schema)


def test_files_hold_all_but_the_partition_columns() -> None:
    found = stored(partition_by=["day", "ID"], directory_pattern="'h='HH", directory_time="AT")
    assert found.equals(pa.schema([SCHEMA.field(i) for i in (2, 3, 4)], metadata={"m": "n"}), check_metadata=True)
    assert stored(directory_pattern="yyyy").equals(SCHEMA, check_metadata=True)
    assert stored(partition_by="day", directory_pattern="'h='yyyy", directory_time="day").names == [
        "Id",
        "at",
        "local",
        "name",
    ]


def test_an_exact_name_comes_before_one_that_differs_in_case() -> None:
    schema = pa.schema([("a", pa.int8()), ("A", pa.int8()), ("b", pa.int8())])
    assert stored(schema, partition_by="A").names == ["a", "b"]
    schema = pa.schema([("aa", pa.int8()), ("aA", pa.int8()), ("b", pa.int8())])
    with pytest.raises(ConfigurationError, match="2 columns have that name: 'aa', 'aA'"):
        stored(schema, partition_by="AA")


def test_a_missing_column_is_named_with_those_near_it() -> None:
    with pytest.raises(ConfigurationError, match=r"partition_by requires the column 'dya'.*Similar columns are 'day'"):
        stored(partition_by="dya")
    with pytest.raises(ConfigurationError, match="directory_time requires the column 'zzz'"):
        stored(directory_pattern="yyyy", directory_time="zzz")


def test_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="2 columns have that name"):
        stored(pa.schema([("a", pa.int8()), ("a", pa.int8()), ("b", pa.int8())]), partition_by="a")
    with pytest.raises(ConfigurationError, match="names the column 'day' twice"):
        stored(partition_by=["day", "DAY"])


def test_something_must_be_left_for_the_files() -> None:
    with pytest.raises(ConfigurationError, match="all columns"):
        stored(pa.schema([("a", pa.int8())]), partition_by="a")


REFUSED = [
    pa.float32(), pa.float64(), pa.binary(), pa.large_binary(), pa.list_(pa.int8()), pa.struct([("x", pa.int8())]),
    pa.map_(pa.string(), pa.int8()), pa.duration("us"), pa.month_day_nano_interval(), pa.null(), pa.time64("us"),
    pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.date64(), pa.uint64(), pa.dictionary(pa.int32(), pa.string()),
]  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_types_that_no_directory_gives_back_are_refused_with_a_way_out(kind: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"column 'odd' of type .* What to do: "):
        stored(pa.schema([("a", pa.int8()), ("odd", kind)]), partition_by="odd")
    with pytest.raises(ConfigurationError, match=r"column 'odd' of type .* What to do: "):
        stored(pa.schema([("a", pa.int8()), ("odd", kind)]), directory_pattern="yyyy", directory_time="odd")


@pytest.mark.parametrize(("pattern", "column"), [("yyyy-MM-dd'T'HH", "day"), ("yyyyXXX", "local"), ("yyyy", "name")])
def test_a_pattern_must_fit_the_column_that_it_formats(pattern: str, column: str) -> None:
    with pytest.raises(ConfigurationError, match=f"column '{column}'"):
        stored(directory_pattern=pattern, directory_time=column)


def test_a_level_must_not_hide_a_column_from_readers() -> None:
    for columns in ([], ["day"]):
        with pytest.raises(ConfigurationError, match="a level 'DAY=', and the rows have a column of that name"):
            stored(directory_pattern="'DAY='yyyy", directory_time="at", partition_by=columns)
