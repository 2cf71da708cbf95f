"""JSON lines: bytes, fields that are NULL, and patterns."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outfall.errors import ConfigurationError
from outfall.formats import FormatOptions, check_schema
from tests.unit.formats.test_jsonl import ROWS, SCHEMA, TYPES, column, encode


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=8), max_size=8), st.integers(0, 3))
def test_bytes_are_base64(values: list[bytes | None], skipped: int) -> None:
    expected = [value if value is None else b64encode(value).decode() for value in values]
    for kind in (pa.binary(), pa.large_binary()):
        lines = encode(pa.record_batch({"c": pa.array(values, kind)}).slice(skipped)).splitlines()
        assert [json.loads(line).get("c") for line in lines] == expected[skipped:]
    assert column([values], pa.list_(pa.binary())) == [expected]


@pytest.mark.thorough
@settings(deadline=None)
@given(ROWS)
def test_with_null_fields_every_field_of_every_object_is_there(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    lines = encode(batch, ignore_null_fields=False).splitlines()
    assert [json.loads(line) for line in lines] == batch.to_pylist()
    assert all(list(json.loads(line)) == list(TYPES) for line in lines)


def test_dates_and_timestamps_follow_their_patterns_wherever_they_stand() -> None:
    moment = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "t": pa.array([moment, None], pa.timestamp("us", "America/New_York")),
            "n": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
            "l": pa.array([[date(2026, 7, 1), None], None], pa.list_(pa.date32())),
        }
    )
    patterns = {"date_format": "dd/MM/yyyy", "timestamp_format": "HH:mmXXX", "timestamp_ntz_format": "yyyyMMdd'T'HH"}
    line = b'{"t":"08:00-04:00","n":"20260701T12","l":["01/07/2026",null]}'
    assert encode(batch, **patterns) == line + b"\n{}\n"


def test_a_variant_is_refused_rather_than_written_as_the_bytes_that_spark_sends() -> None:
    fields = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    with pytest.raises(ConfigurationError, match=r"'c' .*variant"):
        check_schema(FormatOptions(format="jsonl"), pa.schema([("c", pa.struct(fields))]))
