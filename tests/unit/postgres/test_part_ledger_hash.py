"""The number that tells whether two attempts sent the same rows."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.part_ledger.row_hash import RowHash, row_hashes

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("number", pa.float64()),
        ("price", pa.decimal128(38, 18)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("lasted", pa.duration("us")),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.string())),
        ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int64()))])),
        ("map", pa.map_(pa.string(), pa.int64())),
        ("nothing", pa.null()),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": number, "small": -number, "text": "ä€𝄞" * number, "data": bytes([number]) * number, "number": number / 3,
        "price": Decimal(number) / 8, "day": dt.date(2013, 1, 1 + number), "lasted": dt.timedelta(seconds=number),
        "at": dt.datetime(2013, 1, 1, number, tzinfo=dt.UTC), "flag": number % 2 == 0,
        "list": ["x"] * number, "nested": {"a": number, "b": [number, None]}, "map": [(f"k{number}", number)],
    }
    for number in range(12)
] + [{}]  # fmt: skip


def batch(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema)


def number(*batches: pa.RecordBatch) -> tuple[int, int]:
    found = RowHash()
    for one in batches:
        found.add(one)
    return found.rows, found.value


def one(name: str, kind: pa.DataType, value: Any) -> int:
    return number(batch([{name: value}], pa.schema([(name, kind)])))[1]


def test_neither_order_nor_batches_nor_slices_matter() -> None:
    wanted = number(batch(ROWS))
    shuffled = random.Random(1).sample(ROWS, len(ROWS))
    assert number(batch(shuffled)) == wanted
    assert number(*(batch([row]) for row in shuffled)) == wanted
    assert number(batch(ROWS).slice(0, 5), batch(ROWS).slice(5, 3), batch(ROWS).slice(8)) == wanted
    assert number(batch([*ROWS, *ROWS]).slice(3, len(ROWS))) == wanted
    assert number(batch([])) == number() == (0, 0)


def test_a_value_counts_alike_alone_and_among_many() -> None:
    values = [bytes([size % 251]) * (size % 260) for size in range(2600)]  # of all lengths, for several turns
    many = pa.record_batch({"data": values})
    assert row_hashes(many).tolist() == [row_hashes(many.slice(row, 1))[0] for row in range(len(values))]


def test_the_number_is_the_same_on_every_host_and_in_every_release() -> None:
    """Change it, and a query that is upgraded in the middle of an epoch is refused."""
    assert number(batch(ROWS)) == (13, -6889966820284983069)


@pytest.mark.parametrize("name", SCHEMA.names[:-1])
def test_each_column_counts(name: str) -> None:
    others = [row | {name: None} if index == 3 else row for index, row in enumerate(ROWS)]
    assert number(batch(others)) != number(batch(ROWS))


def test_a_row_that_comes_twice_counts_twice() -> None:
    rows = batch(ROWS[:2])
    assert len({number()[1], number(rows)[1], number(rows, rows)[1], number(rows, rows, rows)[1]}) == 4


def test_the_way_arrow_holds_a_value_does_not_matter() -> None:
    text = pa.array(["a", None, "", "b" * 300, "a"])
    bytes_ = text.cast(pa.binary())
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.large_binary()):
        assert (
            row_hashes(pa.record_batch([text.cast(kind)], ["t"])) == row_hashes(pa.record_batch([text], ["t"]))
        ).all()
    encoded = pa.RunEndEncodedArray.from_arrays([2, 5], pa.array(["x", "y"]))
    plain = pa.array(["x", "x", "y", "y", "y"])
    assert (row_hashes(pa.record_batch([encoded], ["t"])) == row_hashes(pa.record_batch([plain], ["t"]))).all()
    assert (row_hashes(pa.record_batch([bytes_], ["t"])) == row_hashes(pa.record_batch([text], ["t"]))).all()
    lists = pa.array([[1, 2], None, []])
    large = lists.cast(pa.large_list(pa.int64()))
    assert (row_hashes(pa.record_batch([lists], ["l"])) == row_hashes(pa.record_batch([large], ["l"]))).all()
    narrow = pa.array([1, -1, None], pa.int16())
    assert (
        row_hashes(pa.record_batch([narrow], ["n"])) == row_hashes(pa.record_batch([narrow.cast(pa.int64())], ["n"]))
    ).all()


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()], ids=str)
def test_bytes_that_are_no_text_count_alike_in_each_of_their_types(kind: pa.DataType) -> None:
    assert one("b", kind, b"\xff\x00") == one("b", pa.binary(), b"\xff\x00")


def test_what_lies_under_a_null_does_not_matter() -> None:
    values = pa.array([1, 2, 3])
    mask = pa.array([True, False, True]).buffers()[1]
    masked = pa.Array.from_buffers(pa.int64(), 3, [mask, values.buffers()[1]])
    assert (
        row_hashes(pa.record_batch([masked], ["n"])) == row_hashes(pa.record_batch([pa.array([1, None, 3])], ["n"]))
    ).all()


def test_the_order_of_columns_does_not_matter_and_their_names_do() -> None:
    a, b = pa.array([1, 2]), pa.array([2, 1])
    there = number(pa.record_batch([a, b], ["a", "b"]))
    assert number(pa.record_batch([b, a], ["b", "a"])) == there
    assert number(pa.record_batch([b, a], ["a", "b"])) == there  # the same two rows
    assert number(pa.record_batch([a, a], ["a", "b"])) != there
    assert number(pa.record_batch([a.slice(0, 1), b.slice(0, 1)], ["a", "b"])) != number(
        pa.record_batch([b.slice(0, 1), a.slice(0, 1)], ["a", "b"])
    )


def test_nothing_emptiness_and_zero_differ() -> None:
    texts = {one("t", pa.string(), value) for value in (None, "", "\0", "\0\0", " ", "0")}
    numbers = {one("n", pa.int64(), value) for value in (None, 0, 1, -1)}
    lists = {one("l", pa.list_(pa.int64()), value) for value in (None, [], [None], [0], [0, 0], [0, None])}
    nested = pa.struct([("a", pa.int64())])
    structs = {one("s", nested, value) for value in (None, {"a": None}, {"a": 0})}
    maps = {one("m", pa.map_(pa.string(), pa.int64()), value) for value in (None, [], [("a", None)], [("a", 0)])}
    assert [len(found) for found in (texts, numbers, lists, structs, maps)] == [6, 4, 6, 3, 4]


def test_the_order_of_a_list_matters_and_that_of_a_map_does_not() -> None:
    assert one("l", pa.list_(pa.int64()), [1, 2]) != one("l", pa.list_(pa.int64()), [2, 1])
    kind = pa.map_(pa.string(), pa.int64())
    assert one("m", kind, [("a", 1), ("b", 2)]) == one("m", kind, [("b", 2), ("a", 1)])
    assert one("m", kind, [("a", 1), ("b", 2)]) != one("m", kind, [("a", 2), ("b", 1)])


def test_one_nan_is_any_nan_and_zeros_have_signs() -> None:
    other = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(b"\1\0\0\0\0\0\xf8\xff")])
    assert number(pa.record_batch([other], ["n"]))[1] == one("n", pa.float64(), float("nan"))
    assert one("n", pa.float64(), 0.0) != one("n", pa.float64(), -0.0)
    assert one("n", pa.float32(), 1.5) == one("n", pa.float64(), 1.5)


@given(st.lists(st.binary(max_size=600), unique=True, max_size=30))
def test_different_bytes_differ(values: list[bytes]) -> None:
    """Around every length at which words, tails or the way of hashing change."""
    found = row_hashes(pa.record_batch([pa.array(values, pa.binary())], ["b"]))
    assert len(set(found.tolist())) == len(values)


@given(st.binary(min_size=1, max_size=300), st.integers(0), st.integers(1, 255))
def test_one_byte_that_differs_is_seen(value: bytes, place: int, by: int) -> None:
    other = bytearray(value)
    other[place % len(value)] ^= by
    assert one("b", pa.binary(), value) != one("b", pa.binary(), bytes(other))
