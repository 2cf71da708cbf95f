"""The options of buckets: what is wrong with them is said before there is a row."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.formats.partition_paths import PartitionOptions, PartitionPaths
from outfall.options import make_options, options_table, parse_options


def made(**options: Any) -> PartitionOptions:
    return make_options(PartitionOptions, options)


@pytest.mark.parametrize("options", [{}, {"partition_by": []}])
def test_without_options_all_rows_go_to_the_root_with_all_columns(options: dict[str, Any]) -> None:
    batch = pa.record_batch({"a": [1, 2]})
    paths = PartitionPaths(made(**options))
    assert list(paths.split(batch, datetime.now(UTC))) == [("", batch)]
    assert paths.stored_schema(batch.schema) == batch.schema


@pytest.mark.parametrize("given", ["a, b", ["a", "b"], ("a", "b")])
def test_columns_are_a_list_or_text_with_commas(given: Any) -> None:
    assert made(partition_by=given).partition_by == ("a", "b")


def test_spark_gives_them_as_text() -> None:
    options = parse_options(
        PartitionOptions, {"partitionBy": "day", "directoryPattern": "'h='HH", "directoryTime": "t"}
    )
    assert options == made(partition_by=["day"], directory_pattern="'h='HH", directory_time="t")
    assert pickle.loads(pickle.dumps(PartitionPaths(options))) == PartitionPaths(options)


@pytest.mark.parametrize("given", ["", "a,", ["a", ""], 3, [3], {"a"}, None, "a,a"])
def test_other_columns_are_refused(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"partition_by of .*: "):
        made(partition_by=given)


@pytest.mark.parametrize("name", [".x", "..=", "nul\0", "x" * 229, "=" * 77])
def test_columns_whose_directories_readers_skip_or_no_disk_takes_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"partition_by of .*: the level"):
        made(partition_by=[name])


@pytest.mark.parametrize("name", ["_x", "x" * 228, "a/b", "=.", "x._COPYING_", "_temporary"])
def test_columns_just_beside_these_are_taken(name: str) -> None:
    assert made(partition_by=[name]).partition_by == (name,)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "no part of a date"),
        ("'dt='", "no part of a date"),
        ("QQ", "'QQ' is not supported"),
        ("/yyyy", "cannot be a directory name"),
        ("yyyy/", "cannot be a directory name"),
        ("yyyy//MM", "cannot be a directory name"),
        ("yyyy/../MM", "cannot be a directory name"),
        ("'../..'/yyyy", "cannot be a directory name"),
        ("yyyy/./MM", "cannot be a directory name"),
        ("'.x'yyyy", "begins with '.'"),
        ("'_x'yyyy", "begins with '_'"),
        ("'_x'/yyyy", "begins with '_'"),
        ("'.x='yyyy", "begins with '.'"),
        ("yyyy'._COPYING_'", "ends with '._COPYING_'"),
        ("'x='yyyy'._COPYING_'", "ends with '._COPYING_'"),
        ("'='yyyy", "no name before its ="),
        ("yyyy/'x='", "no value after its ="),
        ("yyyy'='MM", "must not contain parts of a time"),
        ("'a='yyyy/'A='MM", "two levels have the name 'a'"),
        (f"'{'x' * 252}'yyyy", "longer than 255 bytes"),
        (f"'{'x' * 229}='yyyy", "longer than 255 bytes"),
        (f"'{'é' * 126}'yyyy", "longer than 255 bytes"),
        ("yyyy'\0'", "control characters"),
    ],
)
def test_patterns_that_make_no_directories_for_readers_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"directory_pattern of .*: .*{why}"):
        made(directory_pattern=pattern)


@pytest.mark.parametrize(
    "pattern", ["'_x='yyyy", f"'{'x' * 228}='yyyy", f"'{'x' * 251}'yyyy", "'flights'/'dt='yyyy", "'dt='yyyy/MM"]
)
def test_patterns_just_beside_these_are_taken(pattern: str) -> None:
    assert made(directory_pattern=pattern).directory_pattern == pattern


@pytest.mark.parametrize(
    ("pattern", "columns"), [("yyyy/'m='MM", []), ("'y='yyyy/'x'/'m='MM", []), ("'x'/'m='MM", ["c"])]
)
def test_named_levels_below_unnamed_ones_are_refused_as_readers_do(pattern: str, columns: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="the level 'm=' below a level without a name"):
        made(directory_pattern=pattern, partition_by=columns)


def test_a_column_of_times_needs_a_pattern() -> None:
    with pytest.raises(ConfigurationError, match="directory_pattern is not set"):
        made(directory_time="t")


def test_the_documentation_says_that_columns_are_a_list() -> None:
    assert "| `partition_by` | list of strings | empty |" in options_table(PartitionOptions)
