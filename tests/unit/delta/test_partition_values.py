"""The text of partition values is that of Delta's protocol, and reads as the value."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from outfall.delta.partition_values import check_partitioning, check_values, text_of
from outfall.errors import ConfigurationError, ValueRefusedError

MOMENT = datetime.fromisoformat("2024-02-29T23:59:58.000001")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.string(), "a/b=%20 'ü", "a/b=%20 'ü"),
        (pa.string(), None, None),
        (pa.int8(), -5, "-5"),
        (pa.bool_(), True, "true"),
        (pa.float64(), 1.5, "1.5"),
        (pa.float64(), float("-inf"), "-Infinity"),
        (pa.float32(), float("nan"), "NaN"),
        (pa.decimal128(38, 8), Decimal("0.00000001"), "0.00000001"),
        (pa.date32(), date(99, 1, 2), "0099-01-02"),
        (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=UTC), "2024-02-29T23:59:58.000001Z"),
        (pa.timestamp("us"), MOMENT, "2024-02-29 23:59:58.000001"),
        (pa.timestamp("us"), MOMENT.replace(microsecond=0), "2024-02-29 23:59:58"),
    ],
)
def test_a_value_has_the_protocols_text(kind: Any, value: Any, text: str | None) -> None:
    column = pa.array([value], kind)
    check_values(column, "p")
    assert text_of(column[0].as_py()) == text


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.array(["a", None, ""]), "is an empty string in row 2"),
        (pa.array([None, 400_000_000_000_000_000], pa.timestamp("us", "UTC")), "has a year outside .* in row 1"),
        (pa.array([-800_000], pa.date32()), "has a year outside .* in row 0"),
    ],
)
def test_a_value_without_a_text_of_its_own_is_refused(column: pa.Array, what: str) -> None:
    with pytest.raises(ValueRefusedError, match=f"column 'p'.* {what}"):
        check_values(column, "p")


@pytest.mark.parametrize(
    ("partitioned_by", "problem"),
    [
        (["b"], "'b' of type binary"),
        (["l"], "'l' of type array<bigint>"),
        (["none"], "has 'none', which is not a column"),
        (["a", "b", "l"], "'b' of type binary"),
    ],
)
def test_columns_that_cannot_partition_a_table_are_refused(partitioned_by: list[str], problem: str) -> None:
    columns = pa.schema([("a", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.int64()))])
    with pytest.raises(ConfigurationError, match=problem):
        check_partitioning(columns, partitioned_by)
    with pytest.raises(ConfigurationError, match="by all its columns"):
        check_partitioning(columns.remove(2).remove(1), ["a"])
