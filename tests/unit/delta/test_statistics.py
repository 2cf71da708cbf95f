"""Bounds of a data file hold for all its rows, in the text in which Delta keeps them."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outfall.delta.statistics import Indexed, statistics_of
from outfall.formats.parquet import RowGroups

LAST = "\U0010ffff"
NEVER = pa.array([10**18, 10**18], pa.timestamp("us", "UTC"))


def statistics(table: pa.Table, indexed: Indexed = Indexed(), rows_in_group: int = 2) -> dict[str, Any]:  # noqa: B008
    groups = RowGroups(table.schema, "snappy")
    for batch in table.to_batches(max_chunksize=rows_in_group):
        groups.write(batch)
        groups.spill()
    found: dict[str, Any] = json.loads(statistics_of(groups.finish()[1], table.schema, indexed))
    return found


def moments(*texts: str, zone: str | None = "UTC") -> pa.Array:
    found = [datetime.fromisoformat(text).replace(tzinfo=UTC if zone else None) for text in texts]
    return pa.array(found, pa.timestamp("us", zone))


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        (pa.array([3, None, -1, 7]), -1, 7),
        (pa.array(["b", None, "ä", "a"]), "a", "ä"),
        (pa.array(["a" * 40, "b" * 40]), "a" * 32, "b" * 32 + LAST),
        (pa.array(["a", "b" * 32 + LAST]), "a", "b" * 32 + LAST),
        (pa.array(["a", "b" * 5000]), None, None),
        (pa.array([1.5, None, -2.0]), -2.0, 1.5),
        (pa.array([1.5, 2.5, -2.0, float("nan")]), None, None),
        (pa.array([float("-inf"), 1.0]), "-Infinity", 1.0),
        (pa.array([1.0, float("inf")]), 1.0, "Infinity"),
        (pa.array([float("nan"), float("nan")]), None, None),
        (pa.array([0.0, 1.0]), -0.0, 1.0),
        (pa.array([date(2024, 2, 29), date(1, 1, 1)]), "0001-01-01", "2024-02-29"),
        (moments("2024-01-01T00:00:00.000999"), "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00.001Z"),
        (moments("2024-01-01T00:00:00.001000"), "2024-01-01T00:00:00.001Z", "2024-01-01T00:00:00.001Z"),
        (moments("1969-12-31T23:59:59.999999"), "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z"),
        (moments("9999-12-31T23:59:59.999999"), "9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999999Z"),
        (moments("2024-01-01T00:00:00", zone=None), "2024-01-01T00:00:00.000", "2024-01-01T00:00:00.000"),
        (NEVER, None, None),
        (pa.array([Decimal("1.25"), Decimal("-3.5")], pa.decimal128(10, 2)), -3.5, 1.25),
        (pa.array([Decimal(10**30)], pa.decimal128(38, 0)), 10**30, 10**30),
        (pa.array([Decimal("1234567890123456.78")], pa.decimal128(38, 2)), 1234567890123450, 1234567890123460),
        (pa.array([Decimal("9999999999999999.99")], pa.decimal128(18, 2)), None, None),
        (pa.array([Decimal("0.00000001")], pa.decimal128(38, 8)), 0.0, 0.0001),
        (pa.array([True, False]), False, True),
        (pa.array([b"a", b"b"]), None, None),
        (pa.array([None, None], pa.int64()), None, None),
    ],
)
def test_bounds_hold_for_all_rows(values: pa.Array, low: Any, high: Any) -> None:
    found = statistics(pa.table({"a": values}))
    assert found["numRecords"] == len(values)
    assert (found["minValues"].get("a"), found["maxValues"].get("a")) == (low, high)
    # Of a row group with NaN, Arrow writes no statistics at all.
    has_nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
    assert found["nullCount"] == ({} if has_nan else {"a": values.null_count})


@given(st.lists(st.decimals(allow_nan=False, places=9, min_value=-(10**29) + 1, max_value=10**29 - 1), min_size=1))
def test_bounds_of_decimals_hold_also_for_readers_that_parse_doubles(values: list[Decimal]) -> None:
    table = pa.table({"a": pa.array(values, pa.decimal128(38, 9))})
    groups = RowGroups(table.schema, "snappy")
    groups.write(table.to_batches()[0])
    text = statistics_of(groups.finish()[1], table.schema, Indexed())
    for parsed in (Decimal, lambda number: Decimal(repr(float(number)))):
        found = json.loads(text, parse_float=parsed, parse_int=parsed)
        for low, high in zip(found["minValues"].values(), found["maxValues"].values(), strict=True):
            assert low <= min(values)
            assert max(values) <= high <= max(values) + max(Decimal("1e-4"), abs(max(values)) / 10**13)


def test_structs_have_statistics_and_what_is_in_lists_and_maps_has_none() -> None:
    kind = pa.struct([("x", pa.int64()), ("deep", pa.struct([("y.z", pa.string())]))])
    table = pa.table(
        {
            "l": pa.array([[1], []]),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"x": 1, "deep": {"y.z": "a"}}, None], kind),
            "after": [7, 8],
        }
    )
    found = statistics(table)
    assert found["minValues"] == {"s": {"x": 1, "deep": {"y.z": "a"}}, "after": 7}
    assert found["nullCount"] == {"s": {"x": 1, "deep": {"y.z": 1}}, "after": 0}


def test_a_column_with_the_name_of_a_field_has_no_statistics_and_neither_has_the_field() -> None:
    table = pa.table(
        {"s.x": [1, None], "s": pa.array([{"x": 5, "y": 6}, None], pa.struct({"x": "int64", "y": "int64"}))}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    found = json.loads(statistics_of(pq.read_metadata(sink), table.schema, Indexed()))
    assert found["minValues"] == {"s": {"y": 6}}
    assert found["nullCount"] == {"s": {"y": 1}}


@pytest.mark.parametrize(
    ("configuration", "indexed"),
    [
        ({}, [f"c{number}" for number in range(32)]),
        ({"delta.dataSkippingNumIndexedCols": "2"}, ["c0", "c1"]),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, [f"c{number}" for number in range(40)]),
        ({"delta.dataSkippingStatsColumns": "`c39`, c3"}, ["c3", "c39"]),
    ],
)
def test_the_tables_properties_choose_the_columns(configuration: dict[str, str], indexed: list[str]) -> None:
    table = pa.table({f"c{number}": [number] for number in range(40)})
    assert list(statistics(table, Indexed.of(configuration))["minValues"]) == indexed


class OfSpark:
    """The bounds of a column in a footer of Spark's writer: the zero that it found, and NaN above all numbers."""

    num_rows = num_row_groups = num_values = 1
    has_null_count = has_min_max = True
    null_count = 0
    physical_type = "DOUBLE"

    def __init__(self, *bounds: tuple[float, float]) -> None:
        self._bounds = bounds
        self.num_row_groups = len(bounds)

    def row_group(self, number: int) -> OfSpark:
        group = OfSpark(self._bounds[number])
        group.min, group.max = self._bounds[number]
        return group

    def column(self, _: int) -> OfSpark:
        return self

    @property
    def statistics(self) -> OfSpark:
        return self

    min = max = 0.0


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [
        ([(-0.0, -0.0)], "-0.0", "0.0"),
        ([(0.0, 0.0), (-0.0, -0.0)], "-0.0", "0.0"),
        ([(1.0, float("nan"))], "None", "None"),
        ([(1.0, 2.0), (float("nan"), float("nan"))], "None", "None"),
        ([(float("nan"), float("nan")), (1.0, 2.0)], "None", "None"),
    ],
)
def test_bounds_of_sparks_writer_hide_neither_a_zero_nor_nan(
    bounds: list[tuple[float, float]], low: str, high: str
) -> None:
    footer: Any = OfSpark(*bounds)
    found = json.loads(statistics_of(footer, pa.schema([("x", pa.float64())]), Indexed()))
    assert [repr(found[each].get("x")) for each in ("minValues", "maxValues")] == [low, high]
