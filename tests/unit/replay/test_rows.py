"""Letters' texts become rows again, as sinks write them; and columns are read as Spark spells them."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError
from outfall.formats.row_text import row_texts
from outfall.replay.ddl import parse_ddl
from outfall.replay.rows import RowMaker

UTC = ZoneInfo("UTC")
DDL = """
    flag boolean, tiny tinyint, small SMALLINT, whole int, long bigint NOT NULL COMMENT 'a, "comment"', single float,
    number double, price decimal(20, 4), name string, `a ``quoted`` name` varchar(10), data binary, day date,
    moment timestamp, wall timestamp_ntz, tags array<string>, point struct<x: int, y: array<double>>,
    counts map<string, bigint>
"""
ROW: dict[str, Any] = {
    "flag": True,
    "tiny": -128,
    "small": 7,
    "whole": 2**31 - 1,
    "long": -(2**63),
    "single": 0.5,
    "number": float("inf"),
    "price": Decimal("1234567890123456.7891"),
    "name": 'ü "quoted" \n\\',
    "a `quoted` name": "",
    "data": b"\x00\xff",
    "day": date(1815, 6, 18),
    "moment": datetime(2026, 11, 23, 1, 2, 3, 456789, UTC),
    "wall": datetime(2026, 11, 23, 1, 2, 3),  # noqa: DTZ001
    "tags": ["a", None],
    "point": {"x": 1, "y": [0.25]},
    "counts": [("a", 1), ("b", None)],
}


def test_what_a_sink_writes_of_a_row_becomes_that_row_again() -> None:
    schema = parse_ddl(DDL)
    assert schema.names == list(ROW)
    empty = dict.fromkeys(ROW)
    batch = pa.RecordBatch.from_pylist([ROW, empty | {"long": 1}], pa.schema([f.with_nullable(True) for f in schema]))
    maker = RowMaker(schema)
    assert maker.batch([maker.row(text) for text in row_texts(batch)]).equals(batch)


@pytest.mark.parametrize(
    ("ddl", "value", "why"),
    [
        ("a int", "1.5", "not an integer.*--schema"),
        ("a int", "1_0", "not an integer"),
        ("a int", "²", "not an integer"),
        ("a int", "2147483649", "too large"),
        ("a boolean", "maybe", "not true or false.*--schema"),
        ("a double", "many", "not a number.*--schema"),
        ("a double", "1e999", "too large"),
        ("a int", 2**31, "too large"),
        ("a int", 1.5, "another type"),
        ("a boolean", 1, "another type"),
        ("a double", True, "another type"),
        ("a decimal(5,2)", 1.234, "as decimal"),
        ("a decimal(3,0)", 10000, "as decimal"),
        ("a decimal(3,0)", "many", "as decimal"),
        ("a binary", "?", "base64"),
        ("a date", "yesterday", "as date:"),
        ("a timestamp", "2026-01-01T00:00:00", "no time zone"),
        ("a timestamp_ntz", "2026-01-01T00:00:00Z", "has a time zone"),
        ("a array<int>", {"x": 1}, "another type"),
        ("a struct<x int>", {"y": 1}, "no field 'y'"),
        ("a array<tinyint>", [300], "too large"),
        ("b int", 1, "no column 'a'"),
    ],
)
def test_a_value_that_its_column_does_not_take_is_named(ddl: str, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RowMaker(parse_ddl(ddl)).row(json.dumps({"a": value}))


def test_text_of_a_number_or_a_boolean_is_parsed_as_a_target_would() -> None:
    maker = RowMaker(parse_ddl("a bigint, b double, c boolean, d float, e boolean, f array<int>"))
    row = {"a": " -172", "b": "1.5e3", "c": "TRUE", "d": "NaN", "e": "f", "f": ["7", None, 8]}
    made = maker.row(json.dumps(row))
    assert str(made.pop("d")) == "nan"
    assert made == {"a": -172, "b": 1500.0, "c": True, "e": False, "f": [7, None, 8]}


@pytest.mark.parametrize(("text", "why"), [("not JSON", "not valid JSON"), ("[1]", "not a JSON object")])
def test_a_text_that_is_no_row_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RowMaker(None).row(text)


def test_numbers_keep_their_digits_where_a_column_reads_text() -> None:
    row = '{"a": 0.1000000000000000000001, "b": {"x": [1.10, "\\u00fc", null, true]}, "c": "\\\\x00ff"}'
    made = RowMaker(parse_ddl("a string, b string, c binary")).row(row)
    assert made["a"] == "0.1000000000000000000001"
    assert made["b"] == '{"x": [1.10, "ü", null, true]}'
    assert made["c"] == b"\x00\xff", "as PostgreSQL writes bytes"


def test_a_record_that_is_no_row_goes_into_one_column() -> None:
    maker = RowMaker(parse_ddl("data binary"), column="data")
    assert maker.row("aGk=") == {"data": b"hi"}


def test_without_a_schema_types_are_those_of_json() -> None:
    maker = RowMaker(None)
    batch = maker.batch([maker.row('{"a": 1, "b": 0.5, "c": {"d": [true]}}')])
    assert batch.schema == pa.schema(
        {"a": pa.int64(), "b": pa.float64(), "c": pa.struct([("d", pa.list_(pa.bool_()))])}
    )
    with pytest.raises(ConfigurationError, match="no common schema"):
        maker.batch([maker.row('{"a": 1}'), maker.row('{"a": "x"}')])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a", "ends too early"),
        ("a int b", "invalid at 'b'"),
        ("a integr", "unknown type 'integr'"),
        ("a array<int", "ends too early"),
        ("a decimal(", "ends too early"),
        ("a int, a string", "'a' twice"),
        ("", "ends too early"),
        ("a int;", "invalid at ';'"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused_where_it_goes_wrong(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_ddl(text)
