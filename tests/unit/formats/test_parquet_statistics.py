"""Bounds in the footer hold for all rows as Spark orders them, with NaN above all numbers."""

from __future__ import annotations

from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.formats.parquet import RowGroups

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.struct([("f", pa.float32()), ("t", pa.string())])),
        ("l", pa.list_(pa.float64())),
        ("m", pa.map_(pa.float64(), pa.float64())),
        ("a.b", pa.float32()),
    ]
)
PLACES = {
    "x": "x", "s.f": "s", "l.list.element": "l", "m.key_value.key": "m", "m.key_value.value": "m", "a.b": "a.b",
}  # fmt: skip
"""By the path of a floating-point column in Parquet: its column of the rows."""


def row(number: int, path: str | None = None, value: float = nan) -> dict[str, Any]:
    """Return a row, with this value at one place."""
    at = {each: value if each == path else 1.0 for each in PLACES}
    return {
        "i": number,
        "x": at["x"],
        "s": {"f": at["s.f"], "t": "a"},
        "l": [at["l.list.element"], 2.0],
        "m": [(at["m.key_value.key"], at["m.key_value.value"])],
        "a.b": at["a.b"],
    }


def written(groups: list[list[dict[str, Any]]], schema: pa.Schema = SCHEMA) -> bytes:
    """Encode a file with these row groups."""
    encoding = RowGroups(schema, "snappy")
    pieces = []
    for rows in groups:
        pieces += [encoding.write(pa.RecordBatch.from_pylist(rows, schema)), encoding.spill()]
    return b"".join(piece.to_pybytes() for piece in (*pieces, encoding.finish()[0]))


def bounded(data: bytes) -> list[set[str]]:
    """Return the columns with bounds in each row group."""
    footer = pq.read_metadata(pa.BufferReader(data))
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    columns = [[group.column(number) for number in range(footer.num_columns)] for group in groups]
    return [{each.path_in_schema for each in group if each.is_stats_set} for group in columns]


ALL = {"i", "s.t", *PLACES}


@pytest.mark.parametrize("path", PLACES)
def test_a_column_has_no_bounds_in_a_row_group_with_nan(path: str) -> None:
    data = written([[row(0), row(1)], [row(2), row(3, path)], [row(4)], [row(5, path)]])
    assert bounded(data) == [ALL, ALL - {path}, ALL, ALL - {path}]
    assert [each["i"] for each in pq.read_table(pa.BufferReader(data)).to_pylist()] == list(range(6))


def test_columns_that_share_a_path_have_neither_bounds_nor_a_dictionary() -> None:
    schema = pa.schema([("i", pa.int64()), ("a.b", pa.float64()), ("a", pa.struct([("b", pa.float64())]))])
    data = written([[{"i": 0, "a.b": value, "a": {"b": 1.0}}] * 9 for value in (1.0, nan, 2.0)], schema)
    assert bounded(data) == [{"i"}] * 3
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    assert [group.column(number).has_dictionary_page for number in range(3)] == [True, False, False]


@pytest.mark.parametrize("value", [None, inf, -inf, -0.0])
def test_what_is_not_nan_keeps_the_bounds(value: Any) -> None:
    rows = [row(0), row(1, "x", value)]
    if value == -inf:
        rows[0]["x"] = inf  # whose sum is NaN
    assert bounded(written([rows])) == [ALL]


def test_a_file_without_rows_or_nan_is_like_one_of_arrow() -> None:
    assert pq.read_table(pa.BufferReader(written([]))).num_rows == 0
    data = written([[row(0)], [row(1)]])
    assert data.count(b"PAR1") == 2


def test_a_large_file_goes_on_after_nan() -> None:
    """The offsets of the second writer are those of the file, beyond the pieces in which they are counted."""
    schema = pa.schema([("x", pa.float64()), ("b", pa.binary())])
    blob = bytes(range(256)) * 6000
    data = written([[{"x": 1.0, "b": blob}, {"x": nan, "b": blob[::-1]}], [{"x": 2.0, "b": blob}]], schema)
    assert pq.read_table(pa.BufferReader(data))["b"].to_pylist() == [blob, blob[::-1], blob]


NUMBERS = st.none() | st.floats(width=32)


@given(st.lists(st.lists(NUMBERS, min_size=1, max_size=3), max_size=4), st.floats(allow_nan=False, width=32))
def test_readers_with_a_filter_find_what_they_find_without(groups: list[list[Any]], above: float) -> None:
    schema = pa.schema([("x", pa.float32())])
    data = written([[{"x": value} for value in group] for group in groups], schema)
    values = [value for group in groups for value in group]
    footer = pq.read_metadata(pa.BufferReader(data))
    assert footer.num_row_groups == len(groups)
    assert footer.num_rows == len(values)
    for number, group in enumerate(groups):
        found = footer.row_group(number).column(0).statistics
        numbers = [value for value in group if value is not None]
        if found is not None and found.has_min_max:
            # NaN is above all numbers for Spark and DuckDB: no bound may say otherwise.
            assert not any(map(isnan, numbers))
            assert found.min <= min(numbers)
            assert max(numbers) <= found.max


def test_duckdb_finds_nan_above_all_numbers(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.float64())])
    (tmp_path / "a.parquet").write_bytes(written([[{"x": 1.0}, {"x": nan}], [{"x": 2.0}], [{"x": 7.0}]], schema))
    file = tmp_path / "a.parquet"
    assert duckdb.sql(f"SELECT count(*) FROM '{file}' WHERE x > 5").fetchall() == [(2,)]
    assert duckdb.sql(f"SELECT count(*) FROM '{file}' WHERE x = 'NaN'::double").fetchall() == [(1,)]
