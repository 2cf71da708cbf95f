"""Values of partition columns as text: Delta keeps them in its log and leaves them out of the files.

The text is that of PROTOCOL.md, "Partition Value Serialization"; timestamps are written in UTC, since without a zone
readers take them for their own session's.
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
    """Refuse columns by which a table cannot be partitioned so that each value is read as it was written.

    Raises:
        ConfigurationError: naming the column.
    """
    for name in partitioned_by:
        if name not in columns.names:
            raise ConfigurationError(f"partition_by names {name!r}, which is no column of the table")
        kind = columns.field(name).type
        if _is.is_nested(kind) or _is.is_binary(kind):
            raise ConfigurationError(
                f"a Delta table cannot be partitioned by column {name!r} of type {spark_type(kind)}",
                why="partition values are text in its log, and readers disagree about that of bytes"
                if _is.is_binary(kind)
                else "partition values are text in its log",
                do="partition by another column",
            )
    if len(partitioned_by) == len(columns.names):
        raise ConfigurationError("the table is partitioned by all its columns", do="leave one for the files")


def check_values(column: pa.Array, name: str) -> None:
    """Refuse values that Delta has no text for.

    Raises:
        ValueRefusedError: naming column and row.
    """
    if _is.is_string(column.type) or _is.is_large_string(column.type):
        _refuse(pc.equal(column, pa.scalar("", column.type)), name, "is an empty text", "Delta reads it as NULL")
    elif _is.is_temporal(column.type):
        year = pc.year(column)
        bad = pc.or_(pc.less(year, 1), pc.greater(year, 9999))
        _refuse(bad, name, "has a year that is not between 1 and 9999", "readers do not agree on its text")


def _refuse(bad: pa.Array, name: str, what: str, why: str) -> None:
    row = pc.index(bad, pa.scalar(True)).as_py()
    if row >= 0:
        raise ValueRefusedError(
            f"column {name!r}, which the table is partitioned by, {what} in row {row} of the batch",
            why=why,
            do="write NULL or another value, or leave such rows out",
        )


def text_of(value: Any) -> str | None:
    """Return the text of a value as Arrow gives it to Python: equal values of one type have one text."""
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
