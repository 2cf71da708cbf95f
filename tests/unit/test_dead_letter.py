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
    row_text,
    row_texts,
)

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
