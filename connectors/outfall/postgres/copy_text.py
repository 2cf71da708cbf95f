"""Values in the text format of COPY, for columns that have no binary form of ours."""

from __future__ import annotations

import binascii

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.strings import TEXT, concat, data_of, literal
from outfall.postgres.copy_values import EPOCH, UUID

_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_IN_ARRAY = {"\\": "\\\\", '"': '\\"'}
_HOUR = 3_600_000_000
_DAY = 24 * _HOUR
_FIRST_YEAR = -719_162
_AFTER_LAST_YEAR = 2_932_897
"""The days of the years 1 to 9999, which Arrow writes as the server reads them."""


def lines(columns: list[pa.Array]) -> pa.Array:
    """Make one line per row from columns as `fitted` returns them."""
    texts = [_escaped(_text(column), _ESCAPES) for column in columns]
    # A value that looks like the sign of NULL has its backslash doubled by now.
    joined = pc.binary_join_element_wise(*texts, literal("\t"), null_handling="replace", null_replacement="\\N")
    return concat(joined, literal("\n"))


def _text(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_large_list(kind):
        return _arrays(array)
    if kind == UUID or pa.types.is_large_binary(kind):
        return _hexadecimal(array)
    if pa.types.is_date(kind):
        return _dates(array)
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    if pa.types.is_duration(kind):
        return _durations(array)
    return array if kind == TEXT else array.cast(TEXT)


def _escaped(text: pa.Array, escapes: dict[str, str]) -> pa.Array:
    whole = data_of(text).to_pybytes()
    for character, escape in escapes.items():
        if character.encode() in whole:
            text = pc.replace_substring(text, character, escape)
    return text


def _arrays(array: pa.Array) -> pa.Array:
    values = array.values
    elements = _text(values)
    if not (pa.types.is_boolean(values.type) or pa.types.is_integer(values.type) or pa.types.is_decimal(values.type)):
        elements = concat(literal('"'), _escaped(elements, _IN_ARRAY), literal('"'))
    whole = pa.LargeListArray.from_arrays(array.offsets, elements.fill_null("NULL"))
    return _null_like(array, concat(literal("{"), pc.binary_join(whole, literal(",")), literal("}")))


def _hexadecimal(array: pa.Array) -> pa.Array:
    """The digits of all values come from one call; each has two per byte."""
    given = array
    array = array.cast(pa.large_binary()).fill_null(b"")  # the bytes behind a NULL would shift all others
    digits = pa.py_buffer(binascii.hexlify(data_of(array.view(TEXT))))
    sizes = pc.binary_length(array)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(pc.multiply(sizes, 2))])
    text = pa.Array.from_buffers(TEXT, len(array), [None, offsets.buffers()[1], digits])
    return _null_like(given, text if given.type == UUID else concat(literal("\\x"), text))


def _dates(array: pa.Array) -> pa.Array:
    days = array.view(pa.int32())
    usual = pc.and_(pc.greater_equal(days, _FIRST_YEAR), pc.less(days, _AFTER_LAST_YEAR))
    if pc.all(usual).as_py() is not False:
        return array.cast(TEXT)
    iso = pc.if_else(usual, days, pa.scalar(0, pa.int32())).cast(pa.date32()).cast(TEXT)
    return pc.if_else(usual, iso, _julian(days.cast(pa.int64())))


def _timestamps(array: pa.Array) -> pa.Array:
    end = "" if array.type.tz is None else "+00"
    counts = array.view(pa.int64())
    usual = pc.and_(pc.greater_equal(counts, _FIRST_YEAR * _DAY), pc.less(counts, _AFTER_LAST_YEAR * _DAY))
    text = pc.if_else(usual, counts, 0).cast(pa.timestamp("us")).cast(TEXT)
    if pc.all(usual).as_py() is False:
        days = _floor_days(counts)
        clock = _clock(pc.subtract(counts, pc.multiply(days, _DAY)))
        text = pc.if_else(usual, text, concat(_julian(days), literal(" "), clock))
    return concat(text, literal(end)) if end else text


def _julian(days: pa.Array) -> pa.Array:
    """The server reads days since 4714 BC too, which has neither eras nor years of five digits."""
    return concat(literal("J"), pc.add(days, EPOCH).cast(TEXT))


def _floor_days(counts: pa.Array) -> pa.Array:
    days = pc.divide(counts, _DAY)
    return pc.subtract(days, pc.less(counts, pc.multiply(days, _DAY)).cast(pa.int64()))


def _durations(array: pa.Array) -> pa.Array:
    # With units, and a sign for each: the server reads the smallest interval in no shorter form.
    counts = array.view(pa.int64())
    sign = pc.if_else(pc.less(counts, 0), literal("-"), literal(""))
    hours = pc.divide(counts, _HOUR)
    rest = pc.abs(pc.subtract(counts, pc.multiply(hours, _HOUR)))
    seconds = pc.divide(rest, 1_000_000)
    fraction = pc.utf8_lpad(pc.subtract(rest, pc.multiply(seconds, 1_000_000)).cast(TEXT), 6, "0")
    parts = [sign, pc.abs(hours).cast(TEXT), literal(" hours "), sign, seconds.cast(TEXT), literal("."), fraction]
    return concat(*parts, literal(" seconds"))


def _clock(microseconds: pa.Array) -> pa.Array:
    """Hours, minutes, seconds and microseconds of less than a day."""
    return microseconds.cast(pa.time64("us")).cast(TEXT)


def _null_like(array: pa.Array, text: pa.Array) -> pa.Array:
    return text if array.null_count == 0 else pc.if_else(array.is_valid(), text, pa.scalar(None, TEXT))
