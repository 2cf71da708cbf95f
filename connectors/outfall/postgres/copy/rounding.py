"""Finds the values that the server would store rounded or truncated, without an error.

An input function of PostgreSQL rounds to the type modifier of its column: numeric(p,s), timestamp(p), time(p), interval
fields (src/backend/utils/adt/{numeric,timestamp,date}.c). It also ignores what a type does not store, such as the time
in a string for a date, or the zone in a string for a timestamp without time zone.
"""

from __future__ import annotations

from decimal import Decimal, DecimalException

import pyarrow as pa
import pyarrow.compute as pc

from outfall.postgres.catalogue.columns import Kind

_HEADER = 4
"""The server's offset in the type modifier of numeric."""

_MICROSECONDS = 6
"""Digits after the decimal point that a time has without a modifier."""

_MINUTE, _HOUR = 11, 10
_SECOND = 12
"""Bits of interval fields in a type modifier (utils/timestamp.h)."""

_CLOCK = frozenset({"timestamp", "timestamptz", "time", "timetz"})
_TIME = r"^\s*(?:T?\d{1,2}:\d{2}(?::\d{1,2}(?:\.\d*)?)?|T?\d{4}|T?\d{6}(?:\.\d*)?|allballs)\s*(?:[AaPp][Mm])?\s*$"
_TIME_IN_DATE = r"\d:\d|[\d\s]T\d"
_MIDNIGHT = r"[T\s]00:00(?::00(?:\.0*)?)?\s*(?:BC|bc)?\s*$"
_ZONE = r":[\d.]+\s*(?:[+-]\d|[Zz]\b|[A-Za-z]{3,}|[A-Za-z]+/)"


def precision_and_scale(typmod: int) -> tuple[int, int]:
    """Return both numbers of numeric(p,s); the scale may be negative."""
    packed = typmod - _HEADER
    scale = packed & 0x7FF
    return packed >> 16 & 0xFFFF, scale - 0x800 if scale >= 0x400 else scale


def coarse(array: pa.Array, target: Kind) -> pa.Array | None:
    """Return a mask of times, timestamps or durations that are finer than their column; `None` if none can be.

    The values are in microseconds.
    """
    unit = _unit(target)
    if unit == 1:
        return None
    counts = array.view(pa.int64())
    # Arrow has no remainder.
    kept = pc.multiply(pc.divide(counts, unit), unit) if unit else 0
    return pc.not_equal(counts, kept)


def rounded_floats(array: pa.Array, target: Kind) -> pa.Array | None:
    """Return a mask of floats whose shortest decimal form has more digits than numeric(p,s); `None` if none can."""
    if target.typmod < 0:
        return None
    _, scale = precision_and_scale(target.typmod)
    return _confirmed(array, pc.not_equal(pc.round(array, scale), array), scale)


def rounded_text(text: pa.Array, target: Kind) -> pa.Array | None:
    """Return a mask of strings that the server would store rounded or in part; `None` if none can be."""
    name, digits = target.name, target.typmod
    if name == "numeric" and digits >= 0:
        _, scale = precision_and_scale(digits)
        fraction = rf"\.\d{{{max(scale, 0)}}}\d*[1-9]|[eE]" if scale >= 0 else r"\d"
        return _confirmed(text, pc.match_substring_regex(text, fraction), scale)
    if name == "char":
        return pc.greater(pc.binary_length(text), 1)
    if name == "date":
        found = pc.match_substring_regex(text, _TIME_IN_DATE)
        return pc.and_(found, pc.invert(pc.match_substring_regex(text, _MIDNIGHT)))
    if name == "interval":
        return pc.match_substring_regex(text, _finer(r"\.", _MICROSECONDS))
    if name not in _CLOCK:
        return None
    found = pc.match_substring_regex(text, _finer(r"(?::\d{1,2}|\d{6})\.", digits if digits >= 0 else _MICROSECONDS))
    if name == "time":
        return pc.or_(found, pc.invert(pc.match_substring_regex(text, _TIME)))
    if name == "timestamp":
        return pc.or_(found, pc.match_substring_regex(text, _ZONE))
    return found


def _finer(before: str, digits: int) -> str:
    return rf"{before}\d{{{digits}}}\d*[1-9]"


def _unit(target: Kind) -> int:
    """Return the smallest duration of a column, in microseconds; 0 if it stores no time at all."""
    digits, fields = target.typmod, 1 << _SECOND
    if target.name == "interval" and target.typmod >= 0:
        digits, fields = target.typmod & 0xFFFF, target.typmod >> 16 & 0x7FFF
    if not fields & 1 << _SECOND:
        return 60_000_000 if fields & 1 << _MINUTE else 3_600_000_000 if fields & 1 << _HOUR else 0
    return int(10 ** (_MICROSECONDS - digits)) if 0 <= digits < _MICROSECONDS else 1


def _confirmed(array: pa.Array, suspects: pa.Array, scale: int) -> pa.Array:
    """Return the mask of those suspects that do not have so few digits, in exact decimal arithmetic."""
    suspects = suspects.fill_null(False)
    if not pc.any(suspects).as_py():
        return suspects
    # As text, because this is how they are sent: with the fewest digits that identify a float.
    rounds = pa.array([_rounds(text, scale) for text in array.filter(suspects).cast(pa.string()).to_pylist()])
    return pc.replace_with_mask(suspects, suspects, rounds)


def _rounds(text: str, scale: int) -> bool:
    try:
        number = Decimal(text.strip())
    except DecimalException:  # the server rejects it, or knows a form without a fraction, such as 0x1F
        return False
    exponent = number.normalize().as_tuple().exponent
    return isinstance(exponent, int) and exponent < -scale
