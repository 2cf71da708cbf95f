"""JSON for the server: the text of nested values, and the texts that MySQL's type JSON would change.

MySQL keeps a parsed document: its numbers are 64-bit integers or doubles, and of two members of an object with one name
the last one stays (MySQL Reference Manual, "The JSON Data Type"). MariaDB's type JSON is text, which keeps all of it.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa

from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.options import FormatOptions

_ENCODER = JsonlEncoder(FormatOptions(ignore_null_fields=False), pa.schema([]))
"""A struct keeps its NULL fields, so that a missing key differs from NULL."""
_INTEGERS = (-(2**63), 2**64 - 1)
_LONGEST = 20
"""Characters of these integers, at most."""
_DIGITS = 15
"""Decimal digits that a double keeps."""


def json_text(array: pa.Array, name: str) -> pa.Array:
    """Return nested values as JSON; NULL stays NULL. `name` is that of the column, for errors."""
    return _ENCODER.values(array, name).cast(pa.large_string())


def changed_by_mysql(array: pa.Array, name: str) -> pa.Array | None:
    """Return a mask of the values, texts or nested ones, that a column of type JSON in MySQL would change.

    `None` if it changes none, because their types have no such numbers. A text that is not JSON counts as unchanged:
    the server rejects it.
    """
    if pa.types.is_nested(array.type):
        if not _has_decimals(array.type):
            return None
        array = json_text(array, name)
    return pa.array([text is not None and _is_changed(text) for text in array.to_pylist()], pa.bool_())


def _has_decimals(kind: pa.DataType) -> bool:
    """Return whether a nested type has decimals of more digits than a double."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision > _DIGITS)
    return any(_has_decimals(kind.field(index).type) for index in range(kind.num_fields))


def _is_changed(text: str) -> bool:
    try:
        json.loads(text, parse_int=_keep_integer, parse_float=_keep_number, object_pairs_hook=_keep_members)
    except _ChangedError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


class _ChangedError(Exception):
    """A part of a document would be changed."""


def _keep_integer(digits: str) -> None:
    low, high = _INTEGERS
    if len(digits) <= _LONGEST and low <= int(digits) <= high:
        return
    if Decimal(digits) != Decimal(float(digits)):
        raise _ChangedError


def _keep_number(digits: str) -> None:
    # Readers get the shortest text that identifies the double.
    if Decimal(digits) != Decimal(repr(float(digits))):
        raise _ChangedError


def _keep_members(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) < len(members):
        raise _ChangedError
