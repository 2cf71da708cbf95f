"""Which rows fit into a Delta table, which tables are made for rows, and what is added to one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from outfall.delta.columns import file_schema, lacking, merged, new_schema
from outfall.errors import ConfigurationError

US, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")
LIST = pa.list_(pa.field("element", pa.int64()))


def columns(**kinds: Any) -> pa.Schema:
    return pa.schema(list(kinds.items()))


@pytest.mark.parametrize(
    ("table", "rows", "stored"),
    [
        (pa.int64(), pa.int64(), pa.int64()),
        (pa.int64(), pa.uint32(), pa.int64()),
        (pa.int16(), pa.int8(), pa.int16()),
        (pa.float64(), pa.int32(), pa.float64()),
        (pa.float32(), pa.int16(), pa.float32()),
        (pa.string(), pa.string_view(), pa.string()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.binary(), pa.binary(4), pa.binary()),
        (UTC, pa.timestamp("ms", "Europe/Berlin"), UTC),
        (US, pa.timestamp("s"), US),
        (pa.decimal128(10, 4), pa.decimal128(8, 2), pa.decimal128(10, 4)),
        (pa.date32(), pa.null(), pa.date32()),
        (LIST, pa.large_list(pa.int32()), pa.large_list(pa.field("element", pa.int64()))),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64())),
        (pa.struct([("x", pa.int64()), ("y", UTC)]), pa.struct([("x", pa.int8())]), pa.struct([("x", pa.int64())])),
    ],
)
def test_a_type_is_taken_where_no_value_is_changed(table: Any, rows: Any, stored: Any) -> None:
    assert file_schema(columns(a=table), columns(a=rows), ()) == columns(a=stored)


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (pa.int32(), pa.int64()),
        (pa.int64(), pa.uint64()),
        (pa.int64(), pa.float64()),
        (pa.float32(), pa.int32()),
        (pa.float32(), pa.float64()),
        (pa.float64(), pa.int64()),
        (pa.string(), pa.int64()),
        (UTC, US),
        (US, UTC),
        (UTC, pa.timestamp("ns", "UTC")),
        (pa.date32(), US),
        (pa.decimal128(10, 4), pa.decimal128(10, 5)),
        (pa.decimal128(10, 4), pa.decimal128(10, 2)),
        (pa.int64(), LIST),
        (LIST, pa.list_(pa.string())),
        (pa.struct([("x", pa.int64())]), pa.struct([("X", pa.int64())])),
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), pa.struct([("x", pa.int64())])),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), LIST),
    ],
)
def test_a_type_is_refused_by_name_where_values_would_change(table: Any, rows: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"the rows do not fit the table: a\b"):
        file_schema(columns(a=table), columns(a=rows), ())


def test_columns_are_found_by_name_and_stand_in_the_tables_order() -> None:
    table = columns(A=pa.int64(), b=pa.string(), c=pa.string())
    assert file_schema(table, columns(B=pa.string(), a=pa.int64()), ()).names == ["A", "b"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (columns(id=pa.int64(), day=pa.string(), new=pa.string()), "new is not in the table"),
        (columns(id=pa.int64(), Id=pa.int64(), day=pa.string()), "Id differs only in case from id"),
        (columns(day=pa.string()), "id is missing, and the table requires it"),
        (columns(id=pa.int64()), "day is missing, and the table is partitioned by it"),
    ],
)
def test_a_column_that_does_not_fit_is_named(rows: pa.Schema, problem: str) -> None:
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string())])
    with pytest.raises(ConfigurationError, match=problem):
        file_schema(table, rows, ["day"])


def test_a_field_with_the_name_of_a_partition_column_may_be_missing() -> None:
    table = columns(s=pa.struct([("x", pa.int64()), ("day", pa.string())]), day=pa.string())
    rows = columns(s=pa.struct([("x", pa.int64())]), day=pa.string())
    assert file_schema(table, rows, ["day"]) == rows


def test_rows_with_partition_columns_only_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="only partition columns"):
        file_schema(columns(a=pa.int64(), day=pa.string()), columns(day=pa.string()), ["day"])


def test_a_table_is_made_of_optional_columns_without_loss() -> None:
    rows = pa.schema(
        [
            pa.field("n", pa.uint16(), nullable=False),
            ("t", pa.timestamp("ms", "Asia/Tokyo")),
            ("s", pa.struct([("m", pa.map_(pa.string(), pa.float16()))])),
            ("l", pa.large_list(pa.large_string())),
        ]
    )
    assert new_schema(rows) == pa.schema(
        [
            ("n", pa.int32()),
            ("t", UTC),
            ("s", pa.struct([("m", pa.map_(pa.string(), pa.float32()))])),
            ("l", pa.list_(pa.field("element", pa.string()))),
        ]
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (columns(a=pa.null()), "a: it has no type"),
        (columns(a=pa.struct([("b", pa.duration("s"))])), "a.b: Delta has no type for duration"),
        (columns(a=pa.uint64()), "a: Delta has no type for uint64"),
        (columns(a=pa.timestamp("ns")), "a: Delta has no type"),
        (columns(a=pa.int64(), A=pa.int64()), "A differs only in case from a"),
        (columns(), "they have no column"),
    ],
)
def test_no_table_is_made_of_what_delta_cannot_keep(rows: pa.Schema, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        new_schema(rows)


def test_what_a_table_lacks_is_added_at_the_end_and_in_structs() -> None:
    table = columns(id=pa.int64(), s=pa.struct([("x", pa.int64())]))
    rows = columns(new=pa.int8(), ID=pa.int64(), s=pa.struct([("y", pa.string()), ("x", pa.int64())]))
    added = lacking(table, rows)
    assert added == [pa.field("new", pa.int8()), pa.field("s", pa.struct([("y", pa.string())]))]
    grown = pa.schema(merged(table, added))
    assert grown == columns(id=pa.int64(), s=pa.struct([("x", pa.int64()), ("y", pa.string())]), new=pa.int8())
    assert lacking(grown, rows) == []


@pytest.mark.parametrize("name", ["s", "new"])
def test_a_name_that_differs_only_in_case_is_not_added(name: str) -> None:
    rows = pa.schema([("s", pa.struct([("x", pa.int64()), ("X", pa.int64())])), ("new", pa.int8()), ("NEW", pa.int8())])
    table = columns(s=pa.struct([("x", pa.int64())]))
    with pytest.raises(ConfigurationError, match="differs only in case"):
        lacking(table, pa.schema([field for field in rows if field.name.lower() == name]))
