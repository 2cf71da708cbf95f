"""Dead letters: what a refused record looks like as a row."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from outfall.dead_letter import (
    DEAD_LETTER_SCHEMA,
    EXCERPT_CHARACTERS,
    DeadLetter,
    dead_letter_batch,
)
from outfall.formats.row_text import row_text, row_texts

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_batch_holds_every_field_under_its_column() -> None:
    letter = DeadLetter('{"id":1}', "too long", "sink", 7, "p-1", code="22001", excerpt="value too long", time=NOON)
    batch = dead_letter_batch([letter, DeadLetter("{}", "unknown", "sink", None, time=NOON)])

    assert batch.schema == DEAD_LETTER_SCHEMA
    assert batch.to_pylist() == [
        {
            "row": '{"id":1}',
            "reason": "too long",
            "code": "22001",
            "excerpt": "value too long",
            "step": "sink",
            "epoch": 7,
            "part": "p-1",
            "time": NOON,
        },
        {
            "row": "{}",
            "reason": "unknown",
            "code": None,
            "excerpt": None,
            "step": "sink",
            "epoch": None,
            "part": None,
            "time": NOON,
        },
    ]


def test_no_letters_are_an_empty_batch() -> None:
    assert dead_letter_batch([]).num_rows == 0


def test_an_excerpt_is_cut_to_its_bound() -> None:
    assert DeadLetter("{}", "r", "s", 0, excerpt="x" * 5000).excerpt == "x" * EXCERPT_CHARACTERS


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        DeadLetter("{}", "r", "s", 0, time=datetime(2026, 11, 21))  # noqa: DTZ001


def test_a_row_keeps_its_null_fields_and_line_separators() -> None:
    text = row_text({"id": 1, "name": "a\u2028b\nc\x85", "gone": None})
    assert json.loads(text) == {"id": 1, "name": "a\u2028b\nc\x85", "gone": None}
    assert "\n" not in text


def test_rows_of_types_that_the_format_refuses_are_shown() -> None:
    batch = pa.record_batch(
        {
            "id": pa.array([1]),
            "at": pa.array([3_600_000_000_000], pa.time64("ns")),
            "took": pa.array([1], pa.duration("s")),
        }
    )
    assert row_texts(batch) == ['{"id": 1, "at": "01:00:00", "took": "0:00:01"}']


def test_rows_that_the_format_refuses_are_shown() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    batch = pa.RecordBatch.from_arrays([pa.array([7]), broken], names=["id", "text"])
    assert [json.loads(text) for text in row_texts(batch)] == [{"id": 7, "text": "b'\\xff'"}]


STRANGE = {
    "a date after 9999": (pa.array([4_000_000], pa.int32()).cast(pa.date32()), "12921-08-18"),
    "a date before year 1": (pa.array([-800_000], pa.int32()).cast(pa.date32()), "-0221-09-04"),
    "a date that Arrow has no text of": (
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        "<value out of range: 2147483647>",
    ),
    "a timestamp after 9999": (pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")), "17036-07-06"),
    "a timestamp of no zone": (pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "No/Where")), str(2**62)),
    "a time after a day": (pa.array([2**62], pa.int64()).view(pa.time64("us")), str(2**62)),
    "bytes as text": (pa.array([b"\xff"]).view(pa.string()), r"b'\\xff'"),
    "bytes in a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([b"\xff"]).view(pa.string())),
        r"b'\\xff'",
    ),
    "bytes in a list": (pa.array([[b"\xff"]]).view(pa.list_(pa.string())), r'["b' + r"'\\xff'" + '"]'),
    "no number in a list of times": (
        pa.StructArray.from_arrays([pa.array([float("nan")]), pa.array([0], pa.time32("s"))], ["x", "t"]),
        '{"x": "nan", "t": "00:00:00"}',
    ),
    "a year in a map": (
        pa.MapArray.from_arrays([0, 1], pa.array(["k"]), pa.array([4_000_000], pa.int32()).cast(pa.date32())),
        '"12921-08-18"',
    ),
}


@pytest.mark.parametrize("case", STRANGE)
def test_no_value_is_too_strange_for_a_dead_letter(case: str) -> None:
    column, shown = STRANGE[case]
    (text,) = row_texts(pa.RecordBatch.from_arrays([pa.array([7]), column], names=["id", "value"]))

    assert json.loads(text)["id"] == 7
    assert shown in text


def test_one_strange_value_leaves_the_others_as_the_format_writes_them() -> None:
    days = pa.array([0, 4_000_000, None], pa.int32()).cast(pa.date32())
    batch = pa.RecordBatch.from_arrays([days, pa.array([1.0, float("nan"), None])], names=["day", "number"])
    assert [json.loads(text) for text in row_texts(batch)] == [
        {"day": "1970-01-01", "number": 1.0},
        {"day": "12921-08-18", "number": "NaN"},
        {"day": None, "number": None},
    ]


def test_a_row_of_python_values_that_arrow_does_not_take_is_shown() -> None:
    assert json.loads(row_text({"id": 2**70, "text": "\udcff"})) == {"id": 2**70, "text": "\udcff"}
    assert row_text({"text": "\udcff"}).encode() == rb'{"text": "\udcff"}'


def test_texts_with_lone_surrogates_are_escaped() -> None:
    letter = DeadLetter('{"a":"\udcff"}', "bad \udcff", "sink", 0, code="\udcff", excerpt="\udcff" * EXCERPT_CHARACTERS)
    (row,) = dead_letter_batch([letter]).to_pylist()

    assert (json.loads(row["row"]), row["reason"], row["code"]) == ({"a": "\udcff"}, r"bad \udcff", r"\udcff")
    assert len(row["excerpt"]) == EXCERPT_CHARACTERS
