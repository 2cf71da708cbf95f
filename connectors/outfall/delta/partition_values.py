"""Partition values as strings: Delta stores them in its log and omits them from the files.

The format is that of PROTOCOL.md, "Partition Value Serialization". Timestamps are written in UTC, because readers
interpret values without a time zone in their session's time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.values import spark_type

_is = pa.types


def check_partitioning(columns: pa.Schema, partitioned_by: Sequence[str]) -> None:
    """Raise `ConfigurationError` for a partition column whose values cannot be read back unchanged."""
    for name in partitioned_by:
        if name not in columns.names:
            raise ConfigurationError(f"partition_by has {name!r}, which is not a column of the table")
        kind = columns.field(name).type
        if _is.is_nested(kind) or _is.is_binary(kind):
            raise ConfigurationError(
                f"a Delta table cannot be partitioned by column {name!r} of type {spark_type(kind)}",
                why="partition values are strings in its log, and readers disagree on that of binary values"
                if _is.is_binary(kind)
                else "partition values are strings in its log",
                do="partition by another column",
            )
    if len(partitioned_by) == len(columns.names):
        raise ConfigurationError("the table is partitioned by all its columns", do="keep one column for the files")


def check_values(column: pa.Array, name: str) -> None:
    """Raise `ValueRefusedError` with column and row for values that Delta has no string for."""
    if _is.is_string(column.type) or _is.is_large_string(column.type):
        _refuse(pc.equal(column, pa.scalar("", column.type)), name, "is an empty string", "Delta reads it as NULL")
    elif _is.is_temporal(column.type):
        year = pc.year(column)
        bad = pc.or_(pc.less(year, 1), pc.greater(year, 9999))
        _refuse(bad, name, "has a year outside 1 to 9999", "readers do not agree on its string")


def _refuse(bad: pa.Array, name: str, what: str, why: str) -> None:
    row = pc.index(bad, pa.scalar(True)).as_py()
    if row >= 0:
        raise ValueRefusedError(
            f"partition column {name!r} {what} in row {row} of the batch",
            why=why,
            do="write NULL or another value, or remove such rows",
        )


def text_of(value: Any) -> str | None:
    """Return the string of a value as Arrow gives it to Python: equal values of one type have one string."""
    if value is None or isinstance(value, str):
        return value
    as_text = next((text for kind, text in _TEXTS if isinstance(value, kind)), str)
    return as_text(value)


def _moment(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(sep=" ")
    return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: str(value).lower()),
    (float, lambda value: {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))),
    (Decimal, lambda value: format(value, "f")),
    (datetime, _moment),
    (date, date.isoformat),
)
