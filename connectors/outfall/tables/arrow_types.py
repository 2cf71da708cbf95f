"""In which Arrow type a data file keeps the values of a column, where no value is changed by it.

Each kind of column of a table takes some types of rows. What decides that is the same for all table formats; which
kinds a format has, and what it calls them, is its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

_is = pa.types

Takes: TypeAlias = Callable[[pa.DataType], pa.DataType | None]
"""Given the type of a column of rows, returns that of the data file; `None` where a value might change."""


def one_of(stored: pa.DataType, *given: pa.DataType) -> Takes:
    """Take this type, and others as this one."""
    return lambda kind: stored if kind == stored or kind in given else None


def text(given: pa.DataType) -> pa.DataType | None:
    """Take strings; large ones stay large."""
    if _is.is_large_string(given):
        return given
    return pa.string() if _is.is_string(given) or _is.is_string_view(given) else None


def binary(given: pa.DataType) -> pa.DataType | None:
    """Take bytes of any length; large ones stay large."""
    if _is.is_large_binary(given):
        return given
    return pa.binary() if _is.is_binary(given) or _is.is_fixed_size_binary(given) or _is.is_binary_view(given) else None


def moment(zone: str | None) -> Takes:
    """Take timestamps of up to microseconds, with a zone or, for `None`, without one."""

    def takes(given: pa.DataType) -> pa.DataType | None:
        fits = _is.is_timestamp(given) and given.unit != "ns" and (given.tz is None) == (zone is None)
        return pa.timestamp("us", zone) if fits else None

    return takes


def decimal(kind: pa.DataType, given: pa.DataType) -> pa.DataType | None:
    """Take decimals that have no more digits before the point than `kind` has, and none more behind it."""
    fits = _is.is_decimal(given) and given.scale <= kind.scale
    return kind if fits and given.precision - given.scale <= kind.precision - kind.scale else None


def is_list(given: pa.DataType) -> bool:
    """Whether it is a list, of whatever length and size of offsets."""
    return bool(_is.is_list(given) or _is.is_large_list(given) or _is.is_fixed_size_list(given))
