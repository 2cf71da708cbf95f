"""Bounds in manifests hold for the whole file, or are left out."""

from __future__ import annotations

import logging
from math import nan
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, PrimitiveType, StringType

from outfall.formats.parquet import RowGroups
from outfall.iceberg.columns import file_schema
from outfall.iceberg.layout import IcebergLayout
from outfall.tables.area import DataArea
from outfall.tables.data_file import DataFile, Layout

KINDS: dict[pa.DataType, PrimitiveType] = {
    pa.int64(): LongType(), pa.float64(): DoubleType(), pa.string(): StringType()
}  # fmt: skip
BEFORE_SURROGATES, LAST = "\ud7ff", "\U0010ffff"


def bounds(*groups: pa.Array) -> tuple[Any, Any]:
    """Return the bounds of a column, and beside it of one that always has some."""
    kind = KINDS[groups[0].type]
    schema = Schema(NestedField(1, "a", kind, required=False), NestedField(2, "b", LongType(), required=False))
    layout = IcebergLayout(
        layout=Layout(table="t", partitioning="", columns={}),
        area=DataArea("/", lambda: (None, "/")),
        codec="snappy",
        target_size=1,
        schema_text=schema.model_dump_json(),
        spec_text=UNPARTITIONED_PARTITION_SPEC.model_dump_json(),
        metrics={},
    )
    stored = file_schema(schema, pa.schema([("a", groups[0].type), ("b", pa.int64())]), set())
    encoding = RowGroups(stored, "snappy")
    for group in groups:
        encoding.write(pa.RecordBatch.from_arrays([group, pa.array([7] * len(group))], schema=stored))
        encoding.spill()
    footer = encoding.finish()[1]
    file = DataFile(name="f", size=1, rows=1, partition=(), statistics=layout.statistics(footer, stored))
    entry = layout.manifest_file(file, "f")
    lower, upper = entry.lower_bounds or {}, entry.upper_bounds or {}
    assert lower[2] == upper[2]
    low, high = (from_bytes(kind, each[1]) if 1 in each else None for each in (lower, upper))
    return low, high


@pytest.mark.parametrize(
    ("groups", "low", "high"),
    [
        ([pa.array([3, None]), pa.array([-1])], -1, 3),
        ([pa.array([3]), pa.nulls(2, pa.int64())], 3, 3),
        ([pa.array([1.5, 2.5]), pa.array([-2.0])], -2.0, 2.5),
        ([pa.array([1.5, 2.5]), pa.array([-2.0, nan])], None, None),
        ([pa.array(["a"]), pa.array(["c" * 5000])], None, None),
        ([pa.array(["c" * 5000]), pa.array(["a"])], None, None),
        ([pa.array(["a", "z" * 20])], "a", "z" * 15 + "{"),
        ([pa.array(["s" * 15 + BEFORE_SURROGATES + "a"])], "s" * 15 + BEFORE_SURROGATES, None),
        ([pa.array([LAST * 20])], LAST * 16, None),
    ],
)
def test_bounds_hold_for_all_row_groups(
    groups: list[pa.Array], low: Any, high: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert bounds(*groups) == (low, high)
    assert caplog.records == []  # a task of many row groups would fill the log
