"""A directory keeps the layout with which its files are read, whoever writes the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from outfall.storage.columns import ColumnsChangedError, columns_of, united

LONG, INT, TEXT, DATE = pa.int64(), pa.int32(), pa.string(), pa.date32()
Fields = Sequence[tuple[str, pa.DataType]]
BOTH: Fields = [("a", LONG), ("b", TEXT)]


def unite(was: Fields, now: Fields, **options: Any) -> list[str]:
    """Return the names after a change, in a format with names and types."""
    given: Any = {"addressing": "by name", "as_text": False, "case_sensitive": False} | options
    return [name for name, _ in united(columns_of(pa.schema(was)), columns_of(pa.schema(now)), **given)]


def struct(*fields: tuple[str, pa.DataType]) -> pa.DataType:
    return pa.struct(list(fields))


@pytest.mark.parametrize(
    ("was", "now", "after"),
    [
        (BOTH, [*BOTH, ("c", INT)], ["a", "b", "c"]),
        (BOTH, [("b", TEXT), ("c", INT), ("a", LONG)], ["a", "b", "c"]),
        (BOTH, [("b", TEXT)], ["a", "b"]),
        ([("s", struct(("x", LONG)))], [("s", struct(("x", LONG), ("y", TEXT)))], ["s"]),
        ([("l", pa.list_(struct(("x", LONG))))], [("l", pa.large_list(struct(("y", LONG))))], ["l"]),
    ],
)
def test_readers_by_name_unite_columns_that_some_files_lack(was: Fields, now: Fields, after: list[str]) -> None:
    assert unite(was, now) == after


@pytest.mark.parametrize(
    ("was", "now", "what"),
    [
        (LONG, TEXT, "'a' has changed from bigint to string"),
        (INT, LONG, "'a' has changed from int to bigint"),
        (pa.decimal128(10, 2), pa.decimal128(10, 4), r"'a' has changed from decimal\(10,2\) to decimal\(10,4\)"),
        (DATE, pa.timestamp("us", "UTC"), "'a' has changed from date to timestamp"),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), "'a' has changed from timestamp_ntz to timestamp"),
        (struct(("x", INT)), struct(("x", LONG)), "'a.x' has changed from int to bigint"),
        (pa.list_(INT), pa.list_(TEXT), "'a.element' has changed from int to string"),
        (pa.map_(TEXT, INT), pa.map_(TEXT, LONG), "'a.value' has changed from int to bigint"),
        (TEXT, struct(("x", INT)), "'a' has changed from string to struct<x:int>"),
    ],
)
def test_types_that_no_reader_unites_are_refused(was: pa.DataType, now: pa.DataType, what: str) -> None:
    with pytest.raises(ColumnsChangedError, match=what):
        unite([("a", was)], [("a", now)])


def test_a_column_in_another_case_is_refused_where_readers_do_not_distinguish_it() -> None:
    with pytest.raises(ColumnsChangedError, match="'a' is called 'A' now"):
        unite(BOTH, [("A", LONG)])
    assert unite(BOTH, [("A", LONG)], case_sensitive=True) == ["a", "b", "A"]


def test_numbers_of_a_narrower_type_are_accepted_in_text() -> None:
    assert united(columns_of(pa.schema([("a", LONG)])), columns_of(pa.schema([("a", INT)])), "by name", as_text=True,
                  case_sensitive=False) == (("a", "bigint"),)  # fmt: skip
    for was, now in ((INT, LONG), (INT, TEXT)):  # with the former schema, Spark reads wider numbers as NULL
        with pytest.raises(ColumnsChangedError):
            unite([("a", was)], [("a", now)], as_text=True)


@pytest.mark.parametrize(
    ("now", "what"),
    [
        ([("b", TEXT), ("a", LONG)], r"column 1 has changed from 'a' \(bigint\) to 'b' \(string\)"),
        ([("a", LONG), ("c", INT), ("b", TEXT)], r"column 2 has changed from 'b' \(string\) to 'c' \(int\)"),
        ([("a", LONG)], r"column 2, 'b' \(string\), is missing"),
        ([*BOTH, ("c", INT)], r"column 3, 'c' \(int\), is new"),
        ([("a", TEXT), ("b", TEXT)], "column 'a' has changed from bigint to string"),
    ],
)
def test_columns_by_position_stay_as_they_are(now: Fields, what: str) -> None:
    with pytest.raises(ColumnsChangedError, match=what):
        unite(BOTH, now, addressing="by position", as_text=True)
