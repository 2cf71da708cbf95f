"""JSON lines: every line read back by `json` gives the row."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats import FormatOptions, check_schema, encoder
from outfall.values import rows_to_batch


def encode(batch: pa.RecordBatch, **options: Any) -> bytes:
    made = encoder(FormatOptions(format="jsonl", **options), batch.schema)
    return bytes(made.encode(batch)) + bytes(made.finish())


def column(values: list[Any], kind: Any) -> list[Any]:
    """What the column's values look like in JSON, NULL for a field that is left out."""
    lines = encode(pa.record_batch({"c": pa.array(values, kind)})).decode().splitlines()
    return [json.loads(line).get("c") for line in lines]


def text(value: Any, kind: Any) -> str:
    return encode(pa.record_batch({"c": pa.array([value], kind)})).decode()


def without_nulls(value: Any) -> Any:
    """A row as it reads back: NULL fields of rows and structs are left out, other NULLs stay."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string()), ("z", pa.struct([("w", pa.bool_())]))])
TYPES: dict[str, tuple[Any, Any]] = {
    "integer": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    "large": (pa.large_string(), st.text('\\"\0\x1f\x7f\n\r\t\b\f/aé\u2028😀')),
    "truth": (pa.bool_(), st.booleans()),
    "double": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "list": (pa.list_(pa.string()), st.lists(st.none() | st.text('a"', max_size=3), max_size=3)),
    "struct": (
        STRUCT,
        st.fixed_dictionaries(
            {
                "x": st.none() | st.integers(0, 9),
                "y": st.none() | st.text("ab", max_size=2),
                "z": st.none() | st.fixed_dictionaries({"w": st.none() | st.booleans()}),
            }
        ),
    ),
    "structs": (
        pa.large_list(pa.struct([("x", pa.int64())])),
        st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 9)}), max_size=3),
    ),
    'a name\n"': (pa.int8(), st.integers(-128, 127)),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()}), max_size=8)


@settings(deadline=None)
@given(ROWS, st.integers(0, 3), st.permutations(list(TYPES)))
def test_every_line_reads_back_as_its_row(rows: list[dict[str, Any]], skipped: int, order: list[str]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA).select(order).slice(skipped)
    lines = encode(batch).split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line) for line in lines] == [without_nulls(row) for row in rows[skipped:]]
    for line, row in zip(lines, rows[skipped:], strict=True):
        assert list(json.loads(line)) == [name for name in order if row[name] is not None]


TIMES = {"instant": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "ms": pa.timestamp("ms")}
MOMENTS = st.none() | st.datetimes()


@pytest.mark.thorough
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(ROWS.map(lambda rows: rows[:1]), *[MOMENTS] * len(TIMES)), min_size=1, max_size=4),
    st.permutations([*TYPES, *TIMES]),
)
def test_repeated_values_are_written_as_single_ones(rows: list[Any], order: list[str]) -> None:
    found = [dict(zip(TIMES, moments, strict=True)) | (some[0] if some else {}) for some, *moments in rows]
    schema = pa.schema([*SCHEMA, *TIMES.items()])
    batch = pa.RecordBatch.from_pylist(found, schema).select(order)
    repeats = 600 // len(rows) + 1
    assert encode(pa.concat_batches([batch] * repeats)) == encode(batch) * repeats


@pytest.mark.thorough
@settings(deadline=None)
@given(st.lists(st.none() | st.dictionaries(st.text('k"\n', max_size=3), st.none() | st.integers(0, 9))))
def test_maps_are_objects_whose_null_values_stay(maps: list[dict[str, int | None] | None]) -> None:
    values = [None if item is None else list(item.items()) for item in maps]
    assert column(values, pa.map_(pa.string(), pa.int64())) == maps


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(), max_size=20))
def test_numbers_that_json_lacks_are_the_strings_that_spark_reads(values: list[float | None]) -> None:
    for value, found in zip(values, column(values, pa.float64()), strict=True):
        if value is not None and not math.isfinite(value):
            assert found == ("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")
        else:
            assert found == value
            assert value is None or (type(found) is float and math.copysign(1, found) == math.copysign(1, value))


def test_floats_keep_their_shortest_digits_and_their_point() -> None:
    assert text(1.0, pa.float64()) == '{"c":1.0}\n'
    assert text(-0.0, pa.float64()) == '{"c":-0.0}\n'
    assert text(0.1, pa.float32()) == '{"c":0.1}\n'
    assert json.loads(text(1e22, pa.float64())) == {"c": 1e22}


def test_characters_are_escaped_as_jackson_does() -> None:
    assert text('"\\/\b\t\n\f\r\0\x1f\x7fé😀\u2028', pa.string()) == (
        '{"c":"\\"\\\\/\\b\\t\\n\\f\\r\\u0000\\u001f\x7fé😀\u2028"}\n'
    )


@settings(deadline=None)
@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)), max_size=8))
def test_instants_read_back_to_the_microsecond(values: list[datetime | None]) -> None:
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Kolkata"), pa.timestamp("us", "+05:30")):
        found = [item and datetime.fromisoformat(item) for item in column(values, kind)]
        assert found == values
        assert all(item is None or item.utcoffset() == timedelta(0) for item in found)


@settings(deadline=None)
@given(st.lists(st.none() | st.datetimes(), max_size=8))
def test_timestamps_without_zone_carry_none(values: list[datetime | None]) -> None:
    found = [item and datetime.fromisoformat(item) for item in column(values, pa.timestamp("us"))]
    assert found == values


def test_timestamps_have_milliseconds_as_sparks_do_and_more_only_where_needed() -> None:
    expected = ["2013-01-01T05:00:00.000", "2013-01-01T05:00:00.120", "2013-01-01T05:00:00.000001"]
    values = [datetime.fromisoformat(item) for item in expected]
    assert column(values, pa.timestamp("us")) == expected
    # One kind only: each has a way of its own.
    assert column(values[:2], pa.timestamp("us")) == expected[:2]
    assert column(values[2:3], pa.timestamp("us")) == expected[2:3]
    zoned = [value.replace(tzinfo=timezone(timedelta(hours=1))) for value in values[:1]]
    assert column(zoned, pa.timestamp("ms", "Europe/Berlin")) == ["2013-01-01T04:00:00.000Z"]
    assert column(zoned, pa.timestamp("s", "UTC")) == ["2013-01-01T04:00:00.000Z"]


def test_dates_are_iso_dates() -> None:
    values = [date(2020, 2, 29), None, date.min, date.max, date(1582, 10, 10)]
    assert column(values, pa.date32()) == [value and value.isoformat() for value in values]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("s", "UTC")])
@pytest.mark.parametrize("sign", [1, -1])
def test_years_that_four_digits_do_not_hold_are_refused_by_row(kind: Any, sign: int) -> None:
    per_day = {"date32[day]": 1, "timestamp[us]": 86_400_000_000}.get(str(kind), 86_400)
    storage = pa.int32() if pa.types.is_date(kind) else pa.int64()
    values = pa.array([0, None, sign * 3_000_000 * per_day], storage).cast(kind)
    with pytest.raises(ValueRefusedError, match=r"'c'.*row 2"):
        encode(pa.record_batch({"c": values}))


@settings(deadline=None)
@given(st.lists(st.none() | st.decimals(-(10**19), 10**19, places=18), max_size=8))
def test_decimals_keep_every_digit(values: list[Decimal | None]) -> None:
    lines = encode(pa.record_batch({"c": pa.array(values, pa.decimal128(38, 18))})).splitlines()
    assert [json.loads(line, parse_float=Decimal, parse_int=Decimal).get("c") for line in lines] == values


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint64(), pa.null(), pa.bool_()])
def test_other_plain_types_are_carried(kind: Any) -> None:
    assert column([None], kind) == [None]


def test_rows_without_columns_are_empty_objects() -> None:
    assert encode(rows_to_batch([{}, {}])) == b"{}\n{}\n"
    assert text({}, pa.struct([])) == '{"c":{}}\n'


def test_a_row_of_nulls_is_an_empty_object() -> None:
    assert encode(pa.record_batch({"a": pa.array([None, 1]), "b": pa.array([None, 2])})) == b'{}\n{"a":1,"b":2}\n'


def test_slices_of_nested_columns_give_their_own_rows() -> None:
    batch = pa.record_batch(
        {
            "l": pa.array([[1, 2], None, [], [3]]),
            "m": pa.array([[("a", 1)], [("b", 2)], None, []], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"x": [1]}, {"x": None}, None, {"x": [2, 3]}]),
        }
    )
    whole = encode(batch).splitlines()
    for start in range(5):
        for length in range(5):
            assert encode(batch.slice(start, length)).splitlines() == whole[start : start + length]


@pytest.mark.parametrize(
    ("kind", "wrapped"),
    [
        (pa.list_(pa.timestamp("us")), lambda value: [value]),
        (pa.large_list(pa.list_(pa.timestamp("us"))), lambda value: [[value], []]),
        (pa.map_(pa.string(), pa.timestamp("us")), lambda value: [("k", value)]),
        (pa.struct([("l", pa.list_(pa.timestamp("us")))]), lambda value: {"l": [value]}),
    ],
    ids=["list", "list of lists", "map", "struct"],
)
def test_a_slice_of_lists_is_encoded_without_the_elements_of_other_rows(kind: Any, wrapped: Any) -> None:
    far = 200_000 * 365 * 86_400 * 1_000_000  # a year that is refused, if it is looked at
    batch = pa.record_batch({"c": pa.array([wrapped(value) for value in (far, 0, 1_000, far)], kind)})
    own = pa.record_batch({"c": pa.array([wrapped(value) for value in (0, 1_000)], kind)})
    assert encode(batch.slice(1, 2)) == encode(own)
    assert encode(batch.slice(4, 0)) == b""


def test_a_null_list_over_other_values_is_null() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    assert encode(pa.record_batch({"c": hidden})) == b'{}\n{"c":[3]}\n'


def test_strings_that_are_not_utf8_are_refused_by_row() -> None:
    data = pa.py_buffer(b"ab\xff\xfecd")
    broken = pa.Array.from_buffers(pa.string(), 3, [None, pa.array([0, 2, 4, 6], pa.int32()).buffers()[1], data])
    with pytest.raises(ValueRefusedError, match=r"'c'.*row 1 of"):
        encode(pa.record_batch({"c": broken}))


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (pa.duration("us"), "c"),
        (pa.month_day_nano_interval(), "c"),
        (pa.time64("us"), "c"),
        (pa.timestamp("ns"), "c"),
        (pa.float16(), "c"),
        (pa.dictionary(pa.int8(), pa.string()), "c"),
        (pa.map_(pa.int32(), pa.string()), "c"),
        (pa.list_(pa.struct([("x", pa.duration("us"))])), "c.element.x"),
        (pa.map_(pa.string(), pa.duration("us")), "c.value"),
        (pa.struct([("x", pa.int8()), ("x", pa.int8())]), "c"),
    ],
)
def test_types_that_json_does_not_carry_are_refused_by_name(kind: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{named}'") as caught:
        check_schema(FormatOptions(format="jsonl"), pa.schema([("good", pa.int8()), ("c", kind)]))
    assert "What to do" in str(caught.value)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="have the name 'a'"):
        check_schema(FormatOptions(format="jsonl"), pa.schema([("a", pa.int8()), ("a", pa.int8())]))


def test_values_become_batches_whose_wider_rows_come_second() -> None:
    assert encode(rows_to_batch([{"a": 1}, {"a": 2, "b": "x"}])) == b'{"a":1}\n{"a":2,"b":"x"}\n'
    assert encode(rows_to_batch(["x"])) == b'{"value":"x"}\n'
    with pytest.raises(ValueRefusedError, match="'a'"):
        rows_to_batch([{"a": 1}, {"a": "x"}])
    with pytest.raises(ValueRefusedError, match="'a'"):
        rows_to_batch([{"a": 2**70}])


def test_a_column_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(ValueRefusedError, match="the column name 1 is not a string"):
        rows_to_batch([{1: 2}])
