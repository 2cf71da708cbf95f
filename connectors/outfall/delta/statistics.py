"""Statistics of a data file, from its Parquet footer, in Delta's form. Readers use them for data skipping.

PROTOCOL.md, "Per-file Statistics". A bound that is too narrow hides rows, so uncertain bounds are omitted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import isinf, isnan
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_LONGEST = 32
"""Maximum characters of a bound, as in Spark."""
_LAST = "\U0010ffff"
_EXACT_DIGITS = 15
"""Maximum digits of a fraction that every reader parses exactly from a JSON number, also as a double."""
_EXACT_PLACES = 4
"""Maximum decimal places of a fraction that is always written without an exponent."""
_COLUMNS = 32
"""Default number of columns with statistics (`delta.dataSkippingNumIndexedCols`)."""

_is = pa.types

Path = tuple[str, ...]


@dataclass(frozen=True)
class Indexed:
    """The columns with statistics. Picklable."""

    first: int = _COLUMNS
    """Number of leaf columns, from the first; -1 for all."""
    names: tuple[Path, ...] | None = None
    """These columns instead, including their nested columns."""

    @classmethod
    def of(cls, configuration: dict[str, str]) -> Indexed:
        """Read the table's properties. Invalid values are ignored, because statistics are optional."""
        named = configuration.get("delta.dataSkippingStatsColumns")
        first = configuration.get("delta.dataSkippingNumIndexedCols", "")
        names = None if named is None else tuple(_parse(name) for name in named.split(","))
        return cls(int(first) if first.lstrip("-").isdigit() else _COLUMNS, names)

    def takes(self, number: int, path: Path) -> bool:
        """Whether a leaf column is included, by its number from 0 and its path."""
        if self.names is not None:
            return any(path[: len(name)] == name for name in self.names)
        return self.first < 0 or number < self.first


def _parse(name: str) -> Path:
    return tuple(part.strip().strip("`") for part in name.split("."))


def statistics_of(written: pq.FileMetaData, schema: pa.Schema, indexed: Indexed) -> str:
    """Return Delta's statistics of a file for the `indexed` columns, as JSON.

    `written` is the footer of a file of `RowGroups`, or of Spark's writer: others have bounds that ignore NaN.
    """
    found: dict[str, Any] = {"numRecords": written.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    leaves = [leaf for field in schema for leaf in _leaves(field.type, (field.name,))]
    # Readers take the bounds of the field `b` of a column `a` for those of a column `a.b`.
    named = Counter(".".join(path) for path, _ in leaves)
    for column, (path, kind) in enumerate(leaves):
        if kind is None or not indexed.takes(column, path) or named[".".join(path)] > 1:
            continue
        chunks = [written.row_group(group).column(column).statistics for group in range(written.num_row_groups)]
        if all(chunk is not None and chunk.has_null_count for chunk in chunks):
            _put(found["nullCount"], path, sum(chunk.null_count for chunk in chunks))
        bounds = _bounds(chunks, kind)
        # Readers treat a missing bound as a bound beyond all values, or beyond none.
        if bounds is not None and None not in bounds:
            for name, bound in zip(("minValues", "maxValues"), bounds, strict=True):
                _put(found[name], path, bound)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _leaves(kind: pa.DataType, path: Path) -> Iterator[tuple[Path, pa.DataType | None]]:
    """Yield the Parquet columns of an Arrow column, in order. Columns inside lists and maps have no statistics."""
    if _is.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, (*path, field.name))
    elif _is.is_nested(kind):
        inside: Iterable[pa.DataType] = (kind.key_type, kind.item_type) if _is.is_map(kind) else (kind.value_type,)
        for each in inside:
            yield from ((leaf, None) for leaf, _ in _leaves(each, path))
    else:
        yield path, kind


def _put(found: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        found = found.setdefault(name, {})
    found[path[-1]] = value


def _bounds(chunks: Sequence[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return a lower and an upper bound over all row groups, each `None` if uncertain."""
    if _is.is_binary(kind) or _is.is_large_binary(kind):
        return None
    known = [chunk for chunk in chunks if chunk is not None and chunk.num_values]
    if not known or any(chunk is None for chunk in chunks) or not all(chunk.has_min_max for chunk in known):
        return None
    try:
        if _is.is_decimal(kind) and known[0].physical_type in ("INT32", "INT64"):
            # pyarrow 18 reads the physical values, not the logical ones.
            low = Decimal(min(chunk.min_raw for chunk in known)).scaleb(-kind.scale)
            high = Decimal(max(chunk.max_raw for chunk in known)).scaleb(-kind.scale)
        else:
            low, high = min(chunk.min for chunk in known), max((chunk.max for chunk in known), key=_in_order)
    except (OverflowError, ValueError):
        return None  # a time that Python does not support
    # Spark's writer orders NaN above all numbers, and JSON has none.
    if isinstance(high, float) and isnan(high):
        return None
    if _is.is_decimal(kind):
        return _rounded(low, kind, ROUND_FLOOR), _rounded(high, kind, ROUND_CEILING)
    return _lower(low), _upper(high)


def _in_order(value: Any) -> Any:
    """Return a key by which NaN is above all numbers."""
    return (isnan(value), value) if isinstance(value, float) else value


def _lower(value: Any) -> Any:
    if isinstance(value, float) and value == 0:
        # A reader may order zeros, and Spark's writer writes the one that it found.
        return -0.0
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, datetime):
        return _text(value)
    return _plain(value)


def _upper(value: Any) -> Any:
    if isinstance(value, float) and value == 0:
        return 0.0
    if isinstance(value, str):
        # Greater than every string with this prefix, unless the truncated rest begins with the last character that
        # exists.
        return value if value[_LONGEST : _LONGEST + 1] in ("", _LAST) else value[:_LONGEST] + _LAST
    if isinstance(value, datetime):
        try:
            return _text(value + timedelta(microseconds=-value.microsecond % 1000))
        except OverflowError:
            return _text(value, "microseconds")
    return _plain(value)


def _text(value: datetime, precision: str = "milliseconds") -> str:
    text = value.replace(tzinfo=None).isoformat(timespec=precision)
    return text if value.tzinfo is None else f"{text}Z"


def _rounded(value: Decimal, kind: pa.Decimal128Type, rounding: str) -> int | float | None:
    """Return a bound that is exact even as a double: a decimal rounded outward, `None` if that is outside the type."""
    if kind.scale == 0:
        return int(value)
    place = max(value.adjusted() - _EXACT_DIGITS + 1, -kind.scale)
    if value.adjusted() < -_EXACT_PLACES:
        place = -_EXACT_PLACES
    rounded = value.quantize(Decimal(1).scaleb(place), rounding, Context(prec=2 * kind.precision))
    if rounded.adjusted() >= kind.precision - kind.scale and rounded:
        return None
    return float(rounded) if place < 0 else int(rounded)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and isinf(value):
        return "Infinity" if value > 0 else "-Infinity"  # as Spark writes it; JSON has no such number
    return value.isoformat() if isinstance(value, date) else value
