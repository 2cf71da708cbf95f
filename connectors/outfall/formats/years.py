"""The years that Arrow and Spark write alike."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ValueRefusedError
from outfall.formats.strings import first_row

_EPOCH = date(1970, 1, 1)
_FIRST_DAY = (date.min - _EPOCH).days
_AFTER_LAST_DAY = (date.max - _EPOCH).days + 1
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def check_years(array: pa.Array, path: str) -> None:
    """Refuse dates and timestamps of years outside 1 to 9999, which Arrow and Spark write in different ways.

    Raises:
        ValueRefusedError: naming column and row.
    """
    counts, per_day = _counts(array)
    first, end = _FIRST_DAY * per_day, _AFTER_LAST_DAY * per_day
    bounds = pc.min_max(counts)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= first and high < end):
        return
    row = first_row(pc.or_(pc.less(counts, first), pc.greater_equal(counts, end)))
    raise ValueRefusedError(
        f"column {path!r} holds a year outside 1 to 9999, in row {row} of the batch",
        why="such a date is not written in four digits and would not come back",
        do="correct the value, or cast the column to a string",
    )


def _counts(array: pa.Array) -> tuple[Any, int]:
    if pa.types.is_date(array.type):
        return array.view(pa.int32()), 1
    return array.view(pa.int64()), _PER_DAY[array.type.unit]
