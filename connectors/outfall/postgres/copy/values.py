"""Converts values to the type of a column, or rejects them before they are sent."""

from __future__ import annotations

import binascii
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ValueRefusedError
from outfall.formats.jsonl import JsonlEncoder
from outfall.formats.options import FormatOptions
from outfall.formats.strings import TEXT, RefusedRowError, data_of, first_failing, first_row
from outfall.postgres.catalogue.columns import Kind
from outfall.postgres.catalogue.types import is_json, is_list
from outfall.postgres.copy.rounding import coarse, precision_and_scale, rounded_floats, rounded_text

UUID = pa.binary(16)
_BYTES = pa.large_binary()
_HEADER = 4
"""The server's offset of the length in a type modifier."""

_LONGEST_NAME = 63
"""Bytes. The server silently truncates longer values of type name."""

_FIXED = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "interval": pa.duration("us"),
    "bytea": _BYTES,
    "uuid": UUID,
}
"""The Arrow type of a column's values, by the type's name in the catalog."""

EPOCH = 2_440_588
"""1970-01-01 as a Julian day; the server counts from 4714-11-24 BC, day 0."""

_FIRST_DAY, _LAST_DAY = -EPOCH, 2_145_042_905
_FIRST_MICROSECOND = _FIRST_DAY * 86_400_000_000

_UUID_TEXT = r"^(?:[0-9A-Fa-f]{4}-?){7}[0-9A-Fa-f]{4}$|^\{(?:[0-9A-Fa-f]{4}-?){7}[0-9A-Fa-f]{4}\}$"
_NUL_IN_JSON = r"(^|[^\\])(\\\\)*\\u0000"
_JSON = JsonlEncoder(FormatOptions(ignore_null_fields=False), pa.schema([]))
"""A struct keeps its NULL fields, so that a missing key differs from NULL."""

_BYTES_IN_JSON = (
    "a string that is not UTF-8",
    "JSON is UTF-8, so the bytes could not be read back",
    "decode the field with its encoding, or cast it to binary, which is written as Base64",
)
_YEAR_IN_JSON = (
    "a date or timestamp outside the years 1 to 9999",
    "JSON text has four digits for the year, so it could not be read back",
    "correct the value, or cast the field to a string",
)


@dataclass(frozen=True)
class ValueContext:
    """The position of values in their batch, for errors. For elements of lists, `rows` has the row of each element."""

    column: str
    rows: pa.Array | None = None

    def refuse_any(self, mask: pa.Array, what: str, why: str, do: str) -> None:
        """Raise `RefusedRowError` for the first value where the mask is true, if any."""
        first = first_row(mask)
        if first >= 0:
            raise self.refused(first, what, why, do)

    def refused(self, index: int, what: str, why: str, do: str) -> RefusedRowError:
        """Return the error of a value."""
        row = index if self.rows is None else self.rows[index].as_py()
        return RefusedRowError(f"column {self.column!r} contains {what}", row, why=why, do=do)


def fitted(array: pa.Array, target: Kind, place: ValueContext) -> pa.Array:
    """Convert values, of a type that `why_not` accepts for the column, to the Arrow type of the column.

    The type of the result depends only on the types; it is `TEXT` if the server stores or parses text. Raises
    `ValueRefusedError` if the column cannot hold a value unchanged.
    """
    kind = array.type
    if is_list(kind) and not is_json(target):
        return _lists(array, target, place)
    if pa.types.is_nested(kind):
        return _jsonb(_json(array, place), target, place)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _from_text(array, target, place)
    if target.name == "numeric":
        return _numeric(array, target, place)
    wanted = _FIXED.get(target.name, TEXT)
    if kind != wanted:
        array = _cast(array, wanted, place)
    if pa.types.is_date(wanted):
        _refuse_outside(array.view(pa.int32()), _FIRST_DAY, _LAST_DAY, "a date", place)
    elif pa.types.is_timestamp(wanted):
        # Arrow's last timestamp is before the server's.
        _refuse_outside(array.view(pa.int64()), _FIRST_MICROSECOND, 2**63 - 1, "a timestamp", place)
    if pa.types.is_temporal(wanted) and not pa.types.is_date(wanted):
        _refuse_rounded(coarse(array, target), "a time", place)
    return array


def _refuse_rounded(mask: pa.Array | None, what: str, place: ValueContext) -> None:
    if mask is not None:
        place.refuse_any(
            mask,
            f"{what} that the column cannot hold unchanged",
            "PostgreSQL would silently round it or drop a part of it",
            "round or cast it in the query, or change the column's type",
        )


def _cast(array: pa.Array, wanted: pa.DataType, place: ValueContext) -> pa.Array:
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        row = first_failing(array, lambda some: some.cast(wanted))
        what, do = f"a value outside the range of {wanted}", "correct the value, or widen the column"
        if pa.types.is_integer(wanted) and not _is_whole(array[row].as_py()):
            what, do = "a number that is not whole", "round it, or write it into a column of type numeric"
        raise place.refused(row, what, "the column is of type " + str(wanted), do) from error


def _is_whole(value: Any) -> bool:
    return not isinstance(value, float | Decimal) or (math.isfinite(value) and value % 1 == 0)


def _json(array: pa.Array, place: ValueContext) -> pa.Array:
    def change(some: pa.Array) -> pa.Array:
        return _JSON.values(some, place.column)

    try:
        return change(array)
    except ValueRefusedError as error:
        row = first_failing(array, change, ValueRefusedError)
        what, why, do = _YEAR_IN_JSON if _is_utf8(array.take(pa.array([row]))) else _BYTES_IN_JSON
        raise place.refused(row, what, why, do) from error


def _is_utf8(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _tried(
    array: pa.Array, change: Callable[[pa.Array], Any], what: str, why: str, do: str, place: ValueContext
) -> Any:
    """Convert values with a function that reports that one of them is invalid, but not which one."""
    try:
        return change(array)
    except pa.ArrowInvalid as error:
        raise place.refused(first_failing(array, change), what, why, do) from error


def _refuse_outside(counts: pa.Array, first: int, last: int, what: str, place: ValueContext) -> None:
    bounds = pc.min_max(counts)
    if bounds["min"].is_valid and (bounds["min"].as_py() < first or bounds["max"].as_py() > last):
        place.refuse_any(
            pc.or_(pc.less(counts, first), pc.greater(counts, last)),
            f"{what} outside PostgreSQL's range",
            "the range begins in 4714 BC and ends in 5874897 for dates, and in 294276 for timestamps",
            "correct the value, or filter the row out",
        )


def _numeric(array: pa.Array, target: Kind, place: ValueContext) -> pa.Array:
    if pa.types.is_floating(array.type):
        # As text with the fewest digits that identify the number, like the server's own cast to numeric.
        _refuse_rounded(rounded_floats(array, target), "a number", place)
        return array
    if pa.types.is_null(array.type):
        return array.cast(pa.decimal128(1, 0))
    if pa.types.is_integer(array.type):
        array = array.cast(pa.decimal128(19, 0))
    if target.typmod >= 0:
        precision, scale = precision_and_scale(target.typmod)
        given = array.type
        if scale < given.scale or precision - scale < given.precision - given.scale:
            _tried(
                array,
                lambda some: some.cast(pa.decimal256(min(precision, 76), min(scale, 76))),
                f"a number that does not fit numeric({precision},{scale})",
                "it is too large or would be rounded",
                "round it, or widen the column",
                place,
            )
    return array


def _from_text(array: pa.Array, target: Kind, place: ValueContext) -> pa.Array:
    text = _checked_text(array.cast(TEXT), place)
    if target.name == "uuid":
        return _uuids(text, place)
    if target.name == "name" or (target.name in ("varchar", "bpchar") and target.typmod >= 0):
        _refuse_long(text, target, place)
    _refuse_rounded(rounded_text(text, target), "a string", place)
    return _jsonb(text, target, place)


def _checked_text(text: pa.Array, place: ValueContext) -> pa.Array:
    _tried(
        text,
        lambda some: some.validate(full=True),
        "a string that is not UTF-8",
        "PostgreSQL rejects it",
        "decode the column with its encoding, or write it as binary into bytea",
        place,
    )
    data = data_of(text)
    if data.size and pc.min(pa.Array.from_buffers(pa.uint8(), data.size, [None, data])).as_py() == 0:
        place.refuse_any(
            pc.match_substring(text, "\0"),
            "a NUL character",
            "PostgreSQL's text types cannot store it",
            "replace it, or write the column as binary into bytea",
        )
    return text


def _refuse_long(text: pa.Array, target: Kind, place: ValueContext) -> None:
    if target.name == "name":
        most, unit, sizes = _LONGEST_NAME, "bytes", pc.binary_length(text)
    else:
        # Trailing blanks are insignificant in char(n), but the server would silently drop them in varchar(n).
        counted = pc.utf8_rtrim(text, " ") if target.name == "bpchar" else text
        most, unit, sizes = target.typmod - _HEADER, "characters", pc.utf8_length(counted)
    place.refuse_any(
        pc.greater(sizes, most),
        f"a string of more than {most} {unit}",
        "the column is not longer",
        "shorten it, or widen the column",
    )


def _uuids(text: pa.Array, place: ValueContext) -> pa.Array:
    place.refuse_any(
        pc.invert(pc.match_substring_regex(text, _UUID_TEXT)),
        "a string that is not a UUID",
        "the column is of type uuid",
        "correct the value, or write it into a column of text",
    )
    digits = pc.replace_substring_regex(text, r"[-{}]", "").fill_null("0" * 32)
    values = pa.py_buffer(binascii.unhexlify(data_of(digits)))
    found = pa.Array.from_buffers(UUID, len(text), [None, values])
    return found if text.null_count == 0 else pc.if_else(text.is_valid(), found, pa.scalar(None, UUID))


def _jsonb(text: pa.Array, target: Kind, place: ValueContext) -> pa.Array:
    if target.name == "jsonb" and b"\\u0000" in data_of(text).to_pybytes():
        place.refuse_any(
            pc.match_substring_regex(text, _NUL_IN_JSON),
            "a NUL character",
            "PostgreSQL's jsonb cannot store it",
            "replace it, or write into a column of type json",
        )
    return text


def _lists(array: pa.Array, target: Kind, place: ValueContext) -> pa.Array:
    element = target.element or target
    parents = pc.list_parent_indices(array)
    values = fitted(array.flatten(), element, ValueContext(f"{place.column}.element", parents))
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    mask = array.is_null() if array.null_count else None
    return pa.LargeListArray.from_arrays(offsets, values, mask=mask)
