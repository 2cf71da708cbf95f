"""Values without children as text, a column at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.formats.options import FormatOptions
from outfall.formats.patterns import DATE, TIMESTAMP, TIMESTAMP_NTZ, Pattern
from outfall.formats.strings import TEXT, concat, literal
from outfall.formats.years import check_years

_UP_TO_MILLIS = len("0000-00-00T00:00:00.000")


@dataclass(frozen=True)
class Piece:
    """A column's text between two constants, kept apart so that one join writes everything once."""

    before: str
    text: pa.Array
    after: str

    def joined(self) -> pa.Array:
        """The whole text; NULL stays NULL."""
        if not self.before and not self.after:
            return self.text
        return concat(literal(self.before), self.text, literal(self.after))


@dataclass(frozen=True)
class Scalars:
    """How a file's values are written.

    Args:
        quote: what stands around texts that are neither numbers nor truth values: JSON's quote, or nothing.
        date: the pattern of dates, timestamps and timestamps without zone; `None` for ISO 8601.
    """

    quote: str
    date: Pattern | None
    timestamp: Pattern | None
    timestamp_ntz: Pattern | None

    @classmethod
    def of(cls, options: FormatOptions, quote: str) -> Self:
        """Take the patterns from options."""
        return cls(
            quote,
            _pattern(options.date_format, DATE),
            _pattern(options.timestamp_format, TIMESTAMP),
            _pattern(options.timestamp_ntz_format, TIMESTAMP_NTZ),
        )

    def piece(self, array: pa.Array, path: str) -> Piece:
        """Turn a column of a type without children, strings apart, into text; NULL stays NULL."""
        kind = array.type
        if pa.types.is_boolean(kind):
            # A third of what the cast costs.
            return Piece("", pc.if_else(array, literal("true"), literal("false")), "")
        if pa.types.is_floating(kind):
            return Piece("", _floats(array, self.quote), "")
        if pa.types.is_date(kind):
            check_years(array, path)
            return self._quoted(array.cast(TEXT) if self.date is None else self.date.format(array, path))
        if pa.types.is_timestamp(kind):
            check_years(array, path)
            return self._timestamps(array, path)
        return Piece("", array.cast(TEXT), "")

    def _timestamps(self, array: pa.Array, path: str) -> Piece:
        zoned = array.type.tz is not None
        pattern = self.timestamp if zoned else self.timestamp_ntz
        if pattern is not None:
            return self._quoted(pattern.format(array, path))
        return self._quoted(_iso_timestamps(array), "Z" if zoned else "")

    def _quoted(self, text: pa.Array, end: str = "") -> Piece:
        return Piece(self.quote, text, end + self.quote)


def _pattern(text: str | None, allowed: frozenset[str]) -> Pattern | None:
    return None if text is None else Pattern.parse(text, allowed)


def _floats(array: pa.Array, quote: str) -> pa.Array:
    text = array.cast(TEXT)
    # "1" would come back as an integer where Spark infers the schema, and "-0" without its sign everywhere.
    integral = pc.equal(array, pc.trunc(array))
    if pc.any(integral).as_py():
        bare = pc.and_(integral, pc.invert(pc.match_substring(text, "e")))
        text = concat(text, pc.if_else(bare, literal(".0"), literal("")))
    if not pc.all(pc.is_finite(array)).as_py():
        signs = [literal(f"{quote}{word}{quote}") for word in ("Infinity", "-Infinity", "NaN")]
        infinity = pc.if_else(pc.greater(array, 0), signs[0], signs[1])
        text = pc.if_else(pc.is_inf(array), infinity, pc.if_else(pc.is_nan(array), signs[2], text))
    return text


def _iso_timestamps(array: pa.Array) -> pa.Array:
    """Text in UTC with milliseconds, as Spark writes it, or with microseconds where the value has them."""
    # Arrow stores the instant in UTC; printing it with its zone would look the zone up for every row.
    naive = array.view(pa.timestamp(array.type.unit))
    millis = naive.cast(pa.timestamp("ms"), safe=False)
    whole = pc.equal(millis.cast(naive.type), naive)
    if pc.all(whole).as_py() is not False:
        return _iso(millis)
    text = _iso(naive)
    if not pc.any(whole).as_py():
        return text
    # Cut, since a second cast would cost five times as much; as bytes, since slicing by code point counts them first.
    cut = pc.binary_slice(text.view(pa.large_binary()), 0, _UP_TO_MILLIS).view(TEXT)
    return pc.if_else(whole, cut, text)


def _iso(naive: pa.Array) -> pa.Array:
    return pc.binary_replace_slice(naive.cast(TEXT), 10, 11, "T")
