"""T3: every type that Iceberg has and Spark or Arrow brings arrives unchanged, and what would be changed is refused."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from outfall.errors import ConfigurationError, ValueRefusedError
from tests.integration.support.batch_driver import batch
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_epochs import Lake
from tests.integration.support.iceberg_reader import metadata_location

AT, DAY = datetime(2026, 3, 29, 1, 59, 59, 999_999), date(1969, 12, 31)  # noqa: DTZ001 - one without a zone
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
POINT = StructType(
    NestedField(101, "x", IntegerType(), required=False), NestedField(102, "y", StringType(), required=False)
)

TYPES: list[tuple[IcebergType, pa.DataType, list[Any], list[Any] | None]] = [
    (BooleanType(), pa.bool_(), [True, None], None),
    (IntegerType(), pa.int8(), [-128, 127, None], None),
    (IntegerType(), pa.uint16(), [65_535], None),
    (IntegerType(), pa.int32(), [-(2**31), 2**31 - 1], None),
    (LongType(), pa.int32(), [-(2**31), None], None),
    (LongType(), pa.uint32(), [2**32 - 1], None),
    (LongType(), pa.int64(), [-(2**63), 2**63 - 1], None),
    (FloatType(), pa.float32(), [0.5, float("-inf"), None], None),
    (DoubleType(), pa.float32(), [0.1], [0.10000000149011612]),
    (DoubleType(), pa.float64(), [0.1, float("inf"), -0.0], None),
    (DecimalType(9, 2), pa.decimal128(5, 2), [Decimal("-1.25"), None], None),
    (DecimalType(18, 4), pa.decimal128(10, 2), [Decimal("12345678.90")], [Decimal("12345678.9000")]),
    (DecimalType(38, 10), pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789")], None),
    (DateType(), pa.date32(), [DAY, None], None),
    (TimeType(), pa.time64("us"), [time(23, 59, 59, 999_999)], None),
    (TimestampType(), pa.timestamp("us"), [AT, None], None),
    (TimestampType(), pa.timestamp("ms"), [AT.replace(microsecond=0)], None),
    (TimestamptzType(), pa.timestamp("us", "UTC"), [AT.replace(tzinfo=UTC)], None),
    (TimestamptzType(), pa.timestamp("us", "Europe/Berlin"), [AT.replace(tzinfo=UTC)], None),
    (StringType(), pa.string(), ["", "ä€𝄞 \"quoted\", \\n", "x" * 5000, None], None),
    (StringType(), pa.large_string(), ["ä"], None),
    (StringType(), pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a", None], None),
    (BinaryType(), pa.binary(), [b"", b"\0\xff" * 40, None], None),
    (BinaryType(), pa.binary(3), [b"\0\xff\1"], None),
    (FixedType(3), pa.binary(), [b"\0\xff\1", None], None),
    (UUIDType(), pa.binary(16), [ID.bytes, None], None),
    (UUIDType(), pa.uuid(), [ID.bytes], None),
    (POINT, pa.struct({"y": pa.string(), "X": pa.int16()}), [{"y": "a", "X": 1}, {"y": None, "X": None}, None],
     [{"x": 1, "y": "a"}, {"x": None, "y": None}, None]),
    (POINT, pa.struct({"x": pa.int32()}), [{"x": 1}], [{"x": 1, "y": None}]),
    (ListType(101, LongType(), element_required=False), pa.list_(pa.int32()), [[1, None], [], None], None),
    (ListType(100, POINT, element_required=False), pa.large_list(pa.struct({"y": pa.string(), "x": pa.int32()})),
     [[{"y": "a", "x": 1}, None]], [[{"x": 1, "y": "a"}, None]]),
    (MapType(103, StringType(), 104, POINT, value_required=False), pa.map_(pa.string(), pa.struct({"x": pa.int8()})),
     [[("ä", {"x": 1}), ("b", None)], [], None], [{"ä": {"x": 1, "y": None}, "b": None}, {}, None]),
    (DoubleType(), pa.null(), [None, None], None),
    (POINT, pa.null(), [None], None),
]  # fmt: skip


def test_every_type_arrives_as_it_was_given(lake: Lake, duck: Duck) -> None:
    numbered = [(f"c{index}", *case) for index, case in enumerate(TYPES)]
    lake.create(
        Schema(*(NestedField(900 + at, name, kind, required=False) for at, (name, kind, *_) in enumerate(numbered)))
    )
    length = max(len(values) for *_, values, _ in numbered)
    columns, expected = {}, {}
    for name, _, given, values, wanted in numbered:
        padded = values + [None] * (length - len(values))
        columns[name] = pa.array(padded, given.storage_type if isinstance(given, pa.UuidType) else given)
        if isinstance(given, pa.UuidType):
            columns[name] = pa.ExtensionArray.from_storage(given, columns[name])
        expected[name] = (wanted or values) + [None] * (length - len(values))
    lake.driver().write(0, batch(**columns))
    found = lake.files.rows()
    for name, *_ in numbered:
        got = [row[name].bytes if isinstance(row[name], uuid.UUID) else row[name] for row in found]
        assert got == expected[name], name
    # Another reader, which asks the manifests too.
    location = metadata_location(lake.directory / "catalog.db", "db.flights")
    (counted,) = duck.iceberg(location, ", ".join(f"count(c{index})" for index in range(len(TYPES))))
    assert list(counted) == [sum(value is not None for value in expected[name]) for name, *_ in numbered]
    assert duck.iceberg(location, "c6, c12, c13, c15, c19") == [
        tuple(expected[name][row] for name in ("c6", "c12", "c13", "c15", "c19")) for row in range(length)
    ]


def test_a_value_that_the_table_cannot_hold_is_an_error_of_its_row(lake: Lake) -> None:
    lake.create(
        Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "code", FixedType(2), required=False))
    )
    with pytest.raises(ValueRefusedError, match="column 'id' is NULL in row 1 of the batch"):
        lake.driver().write(0, batch(id=pa.array([1, None])))
    with pytest.raises(ValueRefusedError, match="column 'code' of type binary has a value"):
        lake.driver().write(0, batch(id=pa.array([1]), code=pa.array([b"abc"])))
    with pytest.raises(ConfigurationError, match="id is missing, and the table requires it"):
        lake.driver().sink.check_schema(pa.schema({"code": pa.binary()}))
    assert lake.files.history() == []
    assert lake.data_files() == set()


def test_columns_are_found_by_name_whatever_their_case_and_order(lake: Lake) -> None:
    lake.create(pa.schema({"id": pa.int64(), "Name": pa.string(), "gone": pa.string()}))
    lake.driver().write(0, batch(NAME=pa.array(["a"]), id=pa.array([1])))
    assert lake.rows() == [{"id": 1, "Name": "a", "gone": None}]
