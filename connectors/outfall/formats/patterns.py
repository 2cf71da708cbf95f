"""Spark's datetime patterns that can be built from slices of ISO 8601 text, for the years 1 to 9999."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ConfigurationError, ValueRefusedError
from outfall.formats.strings import TEXT, RefusedRowError, concat, first_row, literal

ISO = "0000-00-00 00:00:00.000000"
"""The template from which patterns take slices."""

_DATE_FIELDS = {"yyyy": (0, 4), "uuuu": (0, 4), "MM": (5, 7), "dd": (8, 10)}
_TIME_FIELDS = {"HH": (11, 13), "mm": (14, 16), "ss": (17, 19)} | {"S" * n: (20, 20 + n) for n in range(1, 7)}
_TOKEN = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)
_EPOCH = date(1970, 1, 1)
_FIRST_DAY = (date.min - _EPOCH).days
_AFTER_LAST_DAY = (date.max - _EPOCH).days + 1
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}

Piece = tuple[int, int] | str
"""A slice of ISO text, or literal text of the pattern. `XXX` is the zone offset, which is never literal text."""

DATE = frozenset(_DATE_FIELDS)
TIMESTAMP_NTZ = DATE | frozenset(_TIME_FIELDS)
TIMESTAMP = TIMESTAMP_NTZ | {"XXX"}


@dataclass(frozen=True)
class Pattern:
    """A pattern as slices and literal texts. Fields that are adjacent in ISO text become one slice."""

    pieces: tuple[Piece, ...]

    @classmethod
    def parse(cls, pattern: str, allowed: frozenset[str]) -> Self:
        """Parse a pattern; `ValueError` names the part that cannot be written exactly like Spark."""
        pieces: list[Piece] = []
        for match in _TOKEN.finditer(pattern):
            token = match[0]
            if match[1]:
                if token not in allowed:
                    raise ValueError(f"the pattern's {token!r} is not supported; use {', '.join(sorted(allowed))}")
                _add(pieces, (_DATE_FIELDS | _TIME_FIELDS).get(token, "XXX"))
            else:
                _add(pieces, _text(token))
        if all(isinstance(piece, str) for piece in pieces):
            raise ValueError("the pattern contains no part of a date or a time")
        return cls(tuple(pieces))

    def format(self, array: pa.Array, path: str) -> pa.Array:
        """Format dates or timestamps; timestamps with a zone in local time."""
        offsets = None
        if pa.types.is_timestamp(array.type) and array.type.tz is not None:
            local = local_clock(array, path)
            if "XXX" in self.pieces:
                offsets = _offsets(array, local, path)
            array = local
            check_years(array, path)  # east of UTC, local time reaches the year 10000 before UTC
        if pa.types.is_timestamp(array.type):
            array = array.cast(pa.timestamp("us"))
        iso = array.cast(TEXT)
        return concat(*(self._column(piece, iso, offsets) for piece in self.pieces))

    def _column(self, piece: Piece, iso: pa.Array, offsets: pa.Array | None) -> pa.Array | pa.Scalar:
        if isinstance(piece, tuple):
            # As bytes, because ISO text is ASCII and slicing by code point counts code points first.
            return pc.binary_slice(iso.view(pa.large_binary()), *piece).view(TEXT)
        return offsets if piece == "XXX" else literal(piece)


def _text(part: str) -> str:
    if part == "''":
        part = "'"
    elif len(part) > 1:
        part = part[1:-1].replace("''", "'")
    elif part in "'[]{}#":
        raise ValueError(f"the pattern's {part} is not supported outside quotes")
    if any(character in '"\\' or character < " " for character in part):
        raise ValueError("the text of a pattern must not contain quotes, backslashes or control characters")
    if "XXX" in part:
        raise ValueError("the text of a pattern must not contain XXX")
    return part


def _add(pieces: list[Piece], piece: Piece) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, tuple):
        end = last[1]
        if isinstance(piece, tuple) and piece[0] == end:
            pieces[-1] = (last[0], piece[1])
            return
        # Only separators of ISO text: a digit of the template stands for any digit.
        if isinstance(piece, str) and piece in ("-", " ", ":", ".") and ISO[end : end + 1] == piece:
            pieces[-1] = (last[0], end + 1)
            return
    pieces.append(piece)


def local_clock(array: pa.Array, path: str) -> pa.Array:
    """Convert timestamps with a zone to its local time. Raises `ConfigurationError` if this host lacks the zone."""
    if array.type.tz == "UTC":
        return array.view(pa.timestamp(array.type.unit))
    try:
        return pc.local_timestamp(array)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"column {path!r} has the time zone {array.type.tz!r}, which is unknown on this host",
            why=str(error),
            do="set spark.sql.session.timeZone to a region such as Europe/Berlin or to UTC",
        ) from error


def _offsets(array: pa.Array, local: pa.Array, path: str) -> pa.Array:
    apart = pc.subtract(local.view(pa.int64()), array.view(pa.int64()))
    seconds = pc.divide(apart, _PER_SECOND[array.type.unit])
    # A column has few distinct offsets. Only these become Python objects.
    distinct = seconds.dictionary_encode()
    for value in distinct.dictionary.to_pylist():
        if value % 60:
            raise ValueRefusedError(
                f"column {path!r} contains a time whose UTC offset has seconds, in row"
                f" {first_row(pc.equal(seconds, value))} of the batch",
                why="XXX writes only hours and minutes, so the time could not be read back",
                do="leave XXX out of the pattern, or set spark.sql.session.timeZone to UTC",
            )
    texts = pa.array([_offset_text(value) for value in distinct.dictionary.to_pylist()], TEXT)
    return pa.DictionaryArray.from_arrays(distinct.indices, texts).cast(TEXT)


def _offset_text(seconds: int) -> str:
    if seconds == 0:
        return "Z"
    hours, minutes = divmod(abs(seconds) // 60, 60)
    return f"{'-' if seconds < 0 else '+'}{hours:02d}:{minutes:02d}"


def check_years(array: pa.Array, path: str) -> None:
    """Raise `ValueRefusedError` for years other than 1 to 9999, which Arrow and Spark write differently."""
    counts, per_day = _counts(array)
    first, end = _FIRST_DAY * per_day, _AFTER_LAST_DAY * per_day
    bounds = pc.min_max(counts)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= first and high < end):
        return
    row = first_row(pc.or_(pc.less(counts, first), pc.greater_equal(counts, end)))
    raise RefusedRowError(
        f"column {path!r} contains a year outside 1 to 9999",
        row,
        why="such a year does not have four digits, so the date could not be read back",
        do="correct the value, or cast the column to a string",
    )


def _counts(array: pa.Array) -> tuple[Any, int]:
    if pa.types.is_date(array.type):
        return array.view(pa.int32()), 1
    return array.view(pa.int64()), _PER_DAY[array.type.unit]
