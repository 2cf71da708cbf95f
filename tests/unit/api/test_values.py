"""Rows become values as a sink's author expects them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ValueRefusedError
from outfall.values import spark_type, to_batch, to_values

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


def test_a_type_has_the_name_that_spark_gives_it() -> None:
    types: Any = pytest.importorskip("pyspark.sql.types")
    from outfall.spark.columns import arrow_schema

    plain = (
        "Null", "Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "String", "Binary", "Date",
        "Timestamp", "TimestampNTZ", "DayTimeInterval",
    )  # fmt: skip
    kinds = [getattr(types, f"{name}Type")() for name in plain] + [types.DecimalType(9, 2)]
    row = types.StructType([types.StructField(f"c{number}", kind) for number, kind in enumerate(kinds)])
    kinds += [row, types.ArrayType(row), types.MapType(types.StringType(), row)]
    schema = types.StructType([types.StructField(f"c{number}", kind) for number, kind in enumerate(kinds)])
    assert [spark_type(kind) for kind in arrow_schema(schema).types] == [kind.simpleString() for kind in kinds]
    assert (spark_type(pa.timestamp("ns")), spark_type(pa.uint8())) == ("timestamp[ns]", "uint8")


def test_no_rows_are_no_values() -> None:
    assert to_values(pa.RecordBatch.from_pydict({"x": pa.array([], pa.int32())}), None) == []


def test_rows_of_values_keep_the_columns_that_only_later_ones_have() -> None:
    assert to_batch([{"a": 1}, {"a": 2, "b": 3}], None).to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
    assert to_batch([1, None], "x").to_pylist() == [{"x": 1}, {"x": None}]


@pytest.mark.parametrize("column", ["x", None])
def test_values_without_a_common_type_are_refused_by_the_name_of_their_column(column: str | None) -> None:
    values: list[Any] = [1, "a"]
    with pytest.raises(ValueRefusedError, match="values of column 'x' have no common type"):
        to_batch([{"x": value} for value in values] if column is None else values, column)
