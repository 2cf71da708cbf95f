"""Partition values: each transform of each type, for arrays in any place in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from outfall.errors import ValueRefusedError
from outfall.iceberg.layout import IcebergLayout
from outfall.tables.area import DataArea
from outfall.tables.data_file import Layout
from outfall.tables.stored_columns import FIELD_ID

MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), None, datetime(2026, 2, 28, 13, tzinfo=UTC)]
KINDS: list[tuple[IcebergType, pa.DataType, list[Any], int | None]] = [
    (IntegerType(), pa.int32(), [-5, None, 2**31 - 1], 10),
    (LongType(), pa.int64(), [-5, None, 2**40], 10),
    *(
        (DecimalType(precision, 2), pa.decimal128(precision, 2), [Decimal("-1.25"), None, Decimal("999.99")], 50)
        for precision in (5, 18, 38)
    ),
    (StringType(), pa.string(), ["äöüß", None, "𝄞𝄞𝄞"], 2),
    (BinaryType(), pa.binary(), [b"\0\xff/", None, b"xyz"], 2),
    (FixedType(3), pa.binary(3), [b"\0\xff/", None, b"xyz"], None),
    (UUIDType(), pa.binary(16), [b"\0" * 16, None, bytes(range(16))], None),
    (DateType(), pa.date32(), [date(1969, 12, 31), None, date(2026, 2, 28)], None),
    (TimestampType(), pa.timestamp("us"), [each and each.replace(tzinfo=None) for each in MOMENTS], None),
    (TimestamptzType(), pa.timestamp("us", "UTC"), MOMENTS, None),
]
MOMENT = ["year", "month", "day", "hour"]
CASES = [
    pytest.param(kind, arrow, values, transform, id=f"{transform} {kind}")
    for kind, arrow, values, width in KINDS
    for transform in [
        "identity",
        "bucket[7]",
        *([f"truncate[{width}]"] if width else []),
        *(MOMENT if isinstance(kind, TimestampType | TimestamptzType) else MOMENT[:3] if kind == DateType() else []),
    ]
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def misplaced(by: int) -> Callable[[pa.Array], pa.Array]:
    """Return what copies an array to an address that is a multiple of 64 plus some bytes."""

    def copied(array: pa.Array) -> pa.Array:
        moved: list[pa.Buffer | None] = []
        for buffer in array.buffers():
            memory = None if buffer is None else pa.allocate_buffer(by + buffer.size)
            if memory is not None:
                memoryview(memory)[by:] = memoryview(buffer)
            moved.append(memory and memory.slice(by))
        return pa.Array.from_buffers(array.type, len(array), moved, offset=array.offset)

    return copied


PLACES: dict[str, Callable[[pa.Array], pa.Array]] = {
    "aligned": lambda array: array,
    "sliced": lambda array: array.slice(1, 4),
    "as Spark sends it": misplaced(8),
    "sliced by Spark": lambda array: misplaced(8)(array).slice(1, 4),
    "at any byte": misplaced(1),
    "empty": lambda array: misplaced(8)(array).slice(2, 0),
}


def layout_of(kind: IcebergType, transform: str) -> IcebergLayout:
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"))
    schema = Schema(NestedField(1, "v", kind, required=False))
    return IcebergLayout(
        Layout(table="", partitioning="", columns={}), DataArea("/", lambda: (None, "/")),
        "zstd", 1, schema.model_dump_json(), spec.model_dump_json(), {},
    )  # fmt: skip


def batch_of(array: pa.Array) -> pa.RecordBatch:
    field = pa.field("v", array.type, metadata={FIELD_ID: b"1"})
    return pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))


def stored(value: Any) -> Any:
    """A value in the form of the specification, for pyiceberg's transforms of single values."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    return value.toordinal() - EPOCH.toordinal() if isinstance(value, date) else value


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "arrow", "values", "transform"), CASES)
def test_each_value_has_the_partition_that_an_independent_transform_gives_it(
    kind: IcebergType, arrow: pa.DataType, values: list[Any], transform: str, place: str
) -> None:
    array = PLACES[place](pa.array([*values, *reversed(values)], arrow))
    (found,) = layout_of(kind, transform).partition(batch_of(array))
    expected = parse_transform(transform).transform(kind)
    assert found.to_pylist() == [expected(stored(value)) for value in array.to_pylist()]


def test_a_panic_of_the_rust_library_is_an_error_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    def raising(error: BaseException) -> Callable[..., Any]:
        def transform(*_: Any) -> Any:
            raise error

        return lambda *_: transform

    layout, batch = layout_of(LongType(), "bucket[7]"), batch_of(pa.array([1]))
    monkeypatch.setattr(BucketTransform, "pyarrow_transform", raising(panic("at 'secret value'")))
    with pytest.raises(
        ValueRefusedError, match=r"column 'v' has a value without a partition for bucket\[7\]"
    ) as caught:
        layout.partition(batch)
    assert "secret" not in str(caught.value)
    # An interrupted task is no refused value.
    monkeypatch.setattr(BucketTransform, "pyarrow_transform", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        layout.partition(batch)
