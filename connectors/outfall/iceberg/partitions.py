"""Partition values and partition specs, and what pyiceberg does to them."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    StringType,
    UnknownType,
    UUIDType,
)

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.iceberg.options import PartitionTerm

_ALIGNMENT = 16
"""Bytes to which Rust aligns its widest number. Arrow only demands 8, which is what batches from Spark have."""

_PANICS = "pyo3_runtime"
"""The module of a Rust panic in Python, which is not an `Exception`."""

_NAMED = DecimalType | FixedType | UUIDType

Values = tuple[str | None, ...]


def transformed(schema: Schema, partition: PartitionField, values: pa.Array) -> pa.Array:
    """Return the partition values of a column, in the form of manifests.

    Raises `ValueRefusedError` if a value has none.
    """
    source = schema.find_field(partition.source_id)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if source.required and values.null_count:
        raise ValueRefusedError(
            f"column {schema.find_column_name(partition.source_id)!r} is NULL, because its struct is",
            why="the table is partitioned by it and requires it in the struct: pyiceberg writes no such partition",
            do="remove such rows, or set the struct",
        )
    try:
        return _physical(partition.transform.pyarrow_transform(source.field_type)(_aligned(values)))
    except BaseException as error:  # any error that Arrow, or the Rust library of pyiceberg, raises for a value
        if not isinstance(error, Exception) and type(error).__module__ != _PANICS:
            raise
        name = schema.find_column_name(partition.source_id)
        raise ValueRefusedError(
            f"column {name!r} has a value without a partition for {partition.transform}",
            why=type(error).__name__,  # without its text, which may quote the value
            do="remove such rows, or correct the value",
        ) from None


def text_of(value: Any) -> str | None:
    """Return a partition value, in the form of manifests, as a string; `value_of` parses it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return base64.b64encode(value.bytes).decode() if hasattr(value, "bytes") else str(value)


def value_of(text: str, kind: IcebergType) -> Any:
    """Return the value of a string, in the form of manifests: dates and times are integers."""
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, BooleanType):
        return text == "true"
    if isinstance(kind, FloatType | DoubleType):
        return float.fromhex(text)
    if isinstance(kind, DecimalType):
        return Decimal(text)
    if isinstance(kind, BinaryType | FixedType | UUIDType):
        return base64.b64decode(text)
    return int(text)


def _aligned(values: pa.Array) -> pa.Array:
    """Return values whose buffers Rust accepts, copied only if they are not."""
    aligned = all(buffer is None or buffer.address % _ALIGNMENT == 0 for buffer in values.buffers())
    return values if aligned else pa.concat_arrays([values])


def _physical(values: pa.Array) -> pa.Array:
    """Return values in the form of manifests. Raises `ArrowInvalid` for one that they cannot represent.

    The lowest decimals have more digits than their type once they are truncated.
    """
    if pa.types.is_decimal(values.type):
        values.validate(full=True)
    if pa.types.is_date(values.type):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if pa.types.is_temporal(values.type) else values


def is_written_right(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether pyiceberg reads partition values correctly, and writes valid manifests with them.

    It reads doubles as floats, creates two Avro types with one name, and drops values of dropped columns. It cannot
    write NULL for a required field of a struct, although the struct may be NULL.
    """
    found = spec.partition_type(schema).fields
    kinds = [each.field_type for each in found]
    inexact = any(isinstance(kind, FloatType | DoubleType | UnknownType) for kind in kinds)
    outer = {column.field_id for column in schema.fields}
    inside = any(
        each.required and source.source_id not in outer for each, source in zip(found, spec.fields, strict=True)
    )
    return not inexact and not inside and _named_twice(kinds) is None


def _named_twice(kinds: Iterable[IcebergType]) -> str | None:
    named = [str(kind) for kind in kinds if isinstance(kind, _NAMED)]
    return next((kind for kind in named if named.count(kind) > 1), None)


def check_partitions(schema: Schema, spec: PartitionSpec) -> None:
    """Reject a partitioning for which pyiceberg writes invalid manifests: Avro permits each of these types once.

    Raises `ConfigurationError` if two partition fields have the same named Avro type.
    """
    twice = _named_twice(each.field_type for each in spec.partition_type(schema).fields)
    if twice is not None:
        raise ConfigurationError(
            f"the table has two partition fields of type {twice}",
            why="pyiceberg writes manifests for it that Avro readers reject",
            do="partition by one of them, or write with Spark",
        )


def partitioning_text(spec: PartitionSpec) -> str:
    """Return a spec as text, equal only for equal partitioning."""
    fields = ", ".join(f"{each.name} = {each.transform} of column {each.source_id}" for each in spec.fields)
    return f"{fields or 'none'} (spec {spec.spec_id})"


def new_spec(schema: Schema, terms: Iterable[PartitionTerm]) -> PartitionSpec:
    """Return a new table's partition spec. `ConfigurationError` has each term of a missing or unsupported column."""
    problems, fields = [], []
    for number, term in enumerate(terms, start=1000):
        transform = parse_transform(term.transform)
        try:
            source = schema.find_field(term.column, case_sensitive=False)
        except ValueError:
            problems.append(f"there is no column {term.column!r}")
            continue
        if transform.can_transform(source.field_type):
            fields.append(PartitionField(source.field_id, number, transform, f"{term.column}{term.suffix}"))
        else:
            problems.append(f"{term.column!r} is {source.field_type}, which has no {term.transform}")
    names = [each.name for each in fields]
    problems += [
        f"two terms have the name {name!r}" for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if problems:
        raise ConfigurationError(
            "partition_by does not fit the rows:  " + "; ".join(problems), do="correct partition_by, or the columns"
        )
    return PartitionSpec(*fields)
