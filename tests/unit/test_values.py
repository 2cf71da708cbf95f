"""Rows become values as a sink's author expects them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from outfall.values import to_values

MAP = pa.map_(pa.string(), pa.int32())


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        (MAP, [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (pa.list_(MAP), [[("a", 1)], None, []], [{"a": 1}, None, {}]),
        (pa.struct([("m", MAP), ("n", pa.int32())]), {"m": [("a", 1)], "n": 2}, {"m": {"a": 1}, "n": 2}),
        (pa.map_(pa.int32(), MAP), [(1, [("a", 2)])], {1: {"a": 2}}),
        (pa.struct([("n", pa.int32())]), {"n": 1}, {"n": 1}),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (pa.timestamp("us"), datetime(2026, 1, 2), datetime(2026, 1, 2)),  # noqa: DTZ001 - without a zone on purpose
    ],
)
def test_nested_values_are_plain_python(kind: pa.DataType, given: Any, expected: Any) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([given, None], kind), pa.array([1, 2])], names=["x", "id"])
    assert to_values(batch, "x") == [expected, None]
    assert to_values(batch, None) == [{"x": expected, "id": 1}, {"x": None, "id": 2}]


def test_no_rows_are_no_values() -> None:
    assert to_values(pa.RecordBatch.from_pydict({"x": pa.array([], pa.int32())}), None) == []
