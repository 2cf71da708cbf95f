"""CSV: the bytes that Spark's writer makes, read back by Python's `csv`."""

from __future__ import annotations

import csv
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema, encoder, shape

KEPT = {"ignore_leading_white_space": False, "ignore_trailing_white_space": False}


def encode(batch: pa.RecordBatch, *, start: bool = True, **options: Any) -> bytes:
    made = encoder(FormatOptions(format="csv", **options), batch.schema, start=start)
    return bytes(made.encode(batch)) + bytes(made.finish())


def lines(values: list[Any], kind: Any = None, **options: Any) -> list[str]:
    """What the values look like before a second column, which keeps lines from being blank."""
    batch = pa.record_batch({"c": pa.array(values, kind or pa.string()), "z": pa.array([7] * len(values), pa.int8())})
    end = {"sep": ",", "quote": '"'} | options
    last = f"{end['quote']}7{end['quote']}" if options.get("quote_all") else "7"
    found = encode(batch, **options).decode().split("\n")
    assert found.pop() == ""
    assert all(line.endswith(f"{end['sep']}{last}") for line in found)
    return [line.removesuffix(f"{end['sep']}{last}") for line in found]


# What Spark 4.3's writer made of these values in a first column.
SPARK = [
    ("plain", "plain"), ("", '""'), (None, ""), (" lead", "lead"), ("trail ", "trail"), ("\tx\t", "x"), ("  ", '""'),
    ("a,b", '"a,b"'), ('a"b', '"a\\"b"'), ('"q"', '"\\"q\\""'), ("a\\b", "a\\b"), ("a\\", "a\\"),
    ('a\\"b', '"a\\\\\\"b"'), ("a\\,b", '"a\\\\,b"'), ("\\", "\\"), ('"', '"\\""'), ("\0nul", "nul"), ("x\0y", "x\0y"),
    ("#c", '"#c"'), ("é ,x", '"é ,x"'), (' " ', '"\\""'), ("a\xa0", "a\xa0"), ("\x1fz", "z"), ("null", "null"),
]  # fmt: skip


def test_text_is_written_as_sparks_writer_does() -> None:
    assert lines([value for value, _ in SPARK]) == [text for _, text in SPARK]


def test_with_a_tab_between_values_a_trailing_tab_is_quoted_before_it_is_dropped_as_spark_does() -> None:
    assert lines(["\tx\t", "a,b", "y"], sep="\t") == ['"x"', "a,b", "y"]


def test_other_options_give_what_spark_gives() -> None:
    values = ['a"b', 'a\\"b', "a,b", None, ""]
    assert lines(values, escape='"') == ['"a""b"', '"a\\""b"', '"a,b"', "", '""']
    assert lines(values, quote_all=True) == ['"a\\"b"', '"a\\\\\\"b"', '"a,b"', '""', '""']
    assert lines(values, null_value="NULL") == ['"a\\"b"', '"a\\\\\\"b"', '"a,b"', "NULL", '""']
    assert lines(values, quote_all=True, null_value="NULL")[3] == '"NULL"'
    assert lines(["'", ""], quote="'") == ["'\\''", "''"]
    assert lines(["", "x"], empty_value="-") == ["-", "x"]
    assert lines([" x "], ignore_leading_white_space=False) == [" x"]
    assert lines([" x "], ignore_trailing_white_space=False) == ["x "]


def test_only_the_first_column_quotes_what_looks_like_a_comment() -> None:
    assert encode(pa.record_batch({"a": ["#"], "b": ["#"]})) == b'"#",#\n'


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r~"), max_size=6)
ODD = st.text("a\\\"',#| \t\0é", max_size=6)
ROWS = st.lists(st.tuples(st.none() | TEXT | ODD, st.none() | st.integers(-9, 9), st.none() | ODD), max_size=8)
READERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"escape": "'", "sep": "|", "quote": "'"}, {"delimiter": "|", "quotechar": "'"}),
    ({"quote_all": True}, {"escapechar": "\\", "doublequote": False}),
]
MORE_READERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"escape": '"'}, {}),
    ({"escape": '"', "sep": "\t", "header": True}, {"delimiter": "\t"}),
    ({"quote_all": True, "escape": '"'}, {}),
]


@pytest.mark.parametrize(
    ("options", "reading"), [*READERS, *(pytest.param(*row, marks=pytest.mark.thorough) for row in MORE_READERS)]
)
@settings(deadline=None)
@drawn(rows=ROWS, skipped=st.integers(0, 3))
def test_every_row_reads_back(options: dict[str, Any], reading: dict[str, Any], rows: list[Any], skipped: int) -> None:
    null = "~"
    schema = pa.schema([("s", pa.string()), ("i", pa.int64()), ("t", pa.large_string())])
    batch = pa.RecordBatch.from_pylist([dict(zip("sit", row, strict=True)) for row in rows], schema).slice(skipped)
    found = encode(batch, null_value=null, **KEPT, **options).decode().split("\n")
    assert found.pop() == ""
    if options.get("header"):
        assert found.pop(0) == "s\ti\tt"
    back = list(csv.reader(found, strict=True, **reading))
    assert back == [[null if item is None else str(item) for item in row] for row in rows[skipped:]]


SCALARS = {
    "integer": (pa.int32(), st.integers(-9, 9)),
    "truth": (pa.bool_(), st.booleans()),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes()),
    "day": (pa.date32(), st.dates()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"null_value": "-"}, {"quote_all": True}, {"timestamp_format": "yyyy"}])
@settings(deadline=None, max_examples=30)
@drawn(
    rows=st.lists(
        st.fixed_dictionaries({name: st.none() | values for name, (_, values) in SCALARS.items()}),
        min_size=1,
        max_size=4,
    ),
    order=st.permutations([*SCALARS]),
)
def test_repeated_values_are_written_as_single_ones(
    options: dict[str, Any], rows: list[dict[str, Any]], order: list[str]
) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in SCALARS.items()])
    batch = pa.RecordBatch.from_pylist(rows, schema).select(order)
    repeats = 600 // len(rows) + 1
    assert encode(pa.concat_batches([batch] * repeats), **options) == encode(batch, **options) * repeats


@settings(deadline=None)
@drawn(st.lists(st.floats() | st.none(), max_size=20))
def test_floats_read_back(values: list[float | None]) -> None:
    words = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
    for value, text in zip(values, lines(values, pa.float64()), strict=True):
        if value is None:
            assert text == ""
        else:
            assert repr(words[text] if text in words else float(text)) == repr(value)


def test_other_types_are_the_text_that_spark_reads() -> None:
    assert lines([True, None, False], pa.bool_()) == ["true", "", "false"]
    assert lines([date(1, 1, 1), None], pa.date32()) == ["0001-01-01", ""]
    assert lines([Decimal("-12.50"), None], pa.decimal128(9, 2)) == ["-12.50", ""]
    moment = datetime(2026, 11, 21, 12, 0, 0, 5, UTC)
    assert lines([moment, None], pa.timestamp("us", "Asia/Kolkata")) == ["2026-11-21T12:00:00.000005Z", ""]
    assert lines([moment], pa.timestamp("us", "UTC")) == ["2026-11-21T12:00:00.000005Z"]
    assert lines([moment.replace(tzinfo=None)], pa.timestamp("us")) == ["2026-11-21T12:00:00.000005"]


def test_numbers_and_dates_are_quoted_where_they_hold_the_separator() -> None:
    assert lines([-1.5, None], pa.float64(), sep="-") == ['"-1.5"', ""]
    assert lines([date(2026, 11, 21)], pa.date32(), sep="|", date_format="dd|MM|yyyy") == ['"21|11|2026"']
    assert lines([1, None], pa.int64(), quote_all=True) == ['"1"', '""']


@pytest.mark.parametrize(("value", "named"), [("a\nb", "newline"), ("\r", "carriage return"), ("b\n", "newline")])
def test_a_value_that_would_split_its_record_is_refused(value: str, named: str) -> None:
    with pytest.raises(ValueRefusedError, match=rf"'c' contains a {named}, in row 1 of") as caught:
        lines(["x", value])
    assert "jsonl" in str(caught.value)
    with pytest.raises(ValueRefusedError, match="'header' contains a newline"):
        encode(pa.record_batch({"a\nb": [1]}), header=True)


@pytest.mark.parametrize(("kind", "values", "null"), [(pa.string(), ["x", "-"], "-"), (pa.int64(), [1, 0], "0")])
def test_a_value_that_looks_like_null_is_refused(kind: Any, values: list[Any], null: str) -> None:
    with pytest.raises(ValueRefusedError, match=r"equal to null_value .*row 1 of"):
        lines(values, kind, null_value=null)


def test_a_row_that_would_be_a_blank_line_is_refused() -> None:
    given: list[tuple[pa.RecordBatch, dict[str, Any]]] = [
        (pa.record_batch({"a": pa.array(["x", None])}), {}),
        (pa.record_batch({"a": pa.array(["x", "  "])}), KEPT),
        (pa.record_batch({"a": pa.array([1, None]), "b": pa.array([1, None])}), {"sep": "\t"}),
    ]
    for batch, options in given:
        with pytest.raises(ValueRefusedError, match=r"blank, in row 1 of"):
            encode(batch, **options)
    assert encode(pa.record_batch({"a": pa.array(["x", None])}), null_value="-") == b"x\n-\n"
    assert encode(pa.record_batch({"a": pa.array(["x", ""])})) == b'x\n""\n'


def test_strings_that_are_not_utf8_are_refused() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    with pytest.raises(ValueRefusedError, match="UTF-8"):
        encode(pa.record_batch({"c": broken}))


def test_a_header_is_written_once_and_only_where_the_file_begins() -> None:
    batch = pa.record_batch({"a": ["x"], 'b,"': [1], "#c": [2]})
    made = encoder(FormatOptions(format="csv", header=True), batch.schema)
    assert bytes(made.encode(batch)) == b'a,"b,\\"",#c\nx,1,2\n'
    assert bytes(made.encode(batch)) == b"x,1,2\n"
    assert encode(batch, start=False, header=True) == b"x,1,2\n"


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int8()), pa.struct([("x", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.binary(), pa.null(),
     pa.duration("us"), pa.month_day_nano_interval(), pa.time64("us"), pa.timestamp("ns"), pa.large_binary()],
)  # fmt: skip
def test_types_that_csv_does_not_carry_are_refused_by_name(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="CSV does not support column 'c'") as caught:
        check_schema(FormatOptions(format="csv"), pa.schema([("good", pa.int8()), ("c", kind)]))
    assert "What to do" in str(caught.value)


def test_columns_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="have the name 'a'"):
        check_schema(FormatOptions(format="csv"), pa.schema([("a", pa.int8()), ("a", pa.int8())]))
    for count in (0, 20_481):
        with pytest.raises(ConfigurationError, match=f"{count} columns"):
            check_schema(FormatOptions(format="csv"), pa.schema([(f"c{i}", pa.int8()) for i in range(count)]))


def test_the_shape_of_a_file_is_the_same_in_every_release() -> None:
    schema = pa.schema({"user": pa.string(), "admin": pa.bool_()})
    assert shape(FormatOptions(format="csv"), schema) == "960ad8f865c2fcdb"
    assert shape(FormatOptions(format="csv", header=True, sep=";"), schema) == "296da10d6c888ea7"
    assert shape(FormatOptions(format="csv", compression="gzip", quote_all=True), schema) == "960ad8f865c2fcdb"
    assert (
        shape(FormatOptions(format="csv"), pa.schema({"user": pa.string(), "admin": pa.int8()})) == "960ad8f865c2fcdb"
    )
    assert shape(FormatOptions(), schema) is None


@pytest.mark.parametrize("sep", sorted("0123456789+-.:TZEeaIyNrufltins"))
def test_what_numbers_dates_and_truth_values_are_made_of_is_quoted_where_it_separates(sep: str) -> None:
    columns = {
        "d": pa.array([Decimal("1E-18"), Decimal("-2")], pa.decimal128(38, 18)),
        "f": pa.array([math.inf, 1e-7]),
        "g": pa.array([-math.inf, math.nan]),
        "b": pa.array([True, False]),
        "t": pa.array([0, 1], pa.timestamp("us", "UTC")),
    }
    batch = pa.record_batch(columns)
    plain = list(csv.reader(encode(batch, sep="|").decode().splitlines(), delimiter="|"))
    assert list(csv.reader(encode(batch, sep=sep).decode().splitlines(), delimiter=sep)) == plain


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "NULL"])
def test_a_name_that_cannot_stand_in_the_header_is_refused_before_the_first_row(name: str) -> None:
    schema = pa.schema({"id": pa.int64(), name: pa.int64()})
    with pytest.raises(ConfigurationError, match=r"cannot be in the header.*rename the column"):
        check_schema(FormatOptions(format="csv", header=True, null_value="NULL"), schema)
    check_schema(FormatOptions(format="csv", null_value="NULL"), schema)
