"""The Arrow types in which a data file stores a column without changing a value.

Each kind of table column accepts some types of rows. The rules are the same for all table formats. The kinds and their
names depend on the format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

_is = pa.types

Takes: TypeAlias = Callable[[pa.DataType], pa.DataType | None]
"""Maps the type of a column of rows to the type in the data file; `None` if a value might change."""


def one_of(stored: pa.DataType, *given: pa.DataType) -> Takes:
    """Accept this type, and the given types as this one."""
    return lambda kind: stored if kind == stored or kind in given else None


def text(given: pa.DataType) -> pa.DataType | None:
    """Accept strings; large strings stay large."""
    if _is.is_large_string(given):
        return given
    return pa.string() if _is.is_string(given) or _is.is_string_view(given) else None


def binary(given: pa.DataType) -> pa.DataType | None:
    """Accept binary values of any length; large ones stay large."""
    if _is.is_large_binary(given):
        return given
    return pa.binary() if _is.is_binary(given) or _is.is_fixed_size_binary(given) or _is.is_binary_view(given) else None


def moment(zone: str | None) -> Takes:
    """Accept timestamps up to microseconds, with a time zone or, for `None`, without one."""

    def takes(given: pa.DataType) -> pa.DataType | None:
        fits = _is.is_timestamp(given) and given.unit != "ns" and (given.tz is None) == (zone is None)
        return pa.timestamp("us", zone) if fits else None

    return takes


def decimal(kind: pa.DataType, given: pa.DataType) -> pa.DataType | None:
    """Accept decimals with no more digits than `kind`, before and after the point."""
    fits = _is.is_decimal(given) and given.scale <= kind.scale
    return kind if fits and given.precision - given.scale <= kind.precision - kind.scale else None


def is_list(given: pa.DataType) -> bool:
    """Whether it is a list, of any fixed size and any size of offsets."""
    return bool(_is.is_list(given) or _is.is_large_list(given) or _is.is_fixed_size_list(given))
