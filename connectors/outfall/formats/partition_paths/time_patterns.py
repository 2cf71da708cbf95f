"""A time pattern as levels of directories: `'dt='yyyy-MM-dd/'hour='HH`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from outfall.errors import ValueRefusedError
from outfall.formats.partition_paths.directory_names import NULL_NAME, Distinct, check_level, escape, escape_text, level
from outfall.formats.patterns import ISO, TIMESTAMP, Pattern, Piece, check_years, local_clock
from outfall.formats.strings import first_row, literal

_FLOORS = {10: "day", 13: "hour", 16: "minute", 19: "second"}
"""The end of a slice of ISO text, and the unit at that end."""


@dataclass(frozen=True)
class Level:
    """One directory level of a pattern: `name=value`, as text and pieces. `name` is `None` if there is no `=`."""

    name: str | None
    value: tuple[Piece, ...]

    @property
    def varies(self) -> bool:
        """Whether the directory depends on the time."""
        return any(_is_field(piece) for piece in self.value)

    def format(self, times: pa.Array, column: str) -> pa.Array | pa.Scalar:
        """Return the directory names of times; NULL if no directory can represent NULL."""
        if not self.varies:
            return literal(self._sample())
        texts = Pattern(self.value).format(times, column)
        return escape(texts) if self.name is None else level(self.name, texts)

    def matches(self, directory: str) -> bool:
        """Return whether a directory can have the name of some time, or of some value, at this level."""
        if self.name is not None:
            return directory.startswith(f"{escape_text(self.name)}=")
        return re.fullmatch("".join(map(_expression, self.value)), directory) is not None

    def check(self) -> None:
        """Reject a level whose names are all invalid; `ValueError` states the reason."""
        check_level(self.name, self._sample())
        if self.name is not None and self.varies:
            check_level(self.name, f"{escape_text(self.name)}={NULL_NAME}")

    def _sample(self) -> str:
        value = escape_text("".join(_longest(piece) for piece in self.value))
        return value if self.name is None else f"{escape_text(self.name)}={value}"


@lru_cache(maxsize=64)
def parse_levels(pattern: str, allowed: frozenset[str] = TIMESTAMP) -> tuple[Level, ...]:
    """Parse a pattern whose slashes, quoted or not, separate directories.

    Raises `ValueError` if it cannot be written like Spark, or has directories that Spark's readers skip.
    """
    groups: list[list[Piece]] = [[]]
    for piece in Pattern.parse(pattern, allowed).pieces:
        if _is_field(piece):
            groups[-1].append(piece)
            continue
        first, *others = str(piece).split("/")
        groups[-1].append(first)
        groups.extend([other] for other in others)
    made = tuple(_level([piece for piece in group if piece != ""]) for group in groups)
    for found in made:
        found.check()
    _check_names(made)
    return made


def time_directories(column: pa.Array, name: str, levels: tuple[Level, ...]) -> Distinct:
    """Return the directories of at least one date or timestamp, by levels of a pattern that fits their type.

    Raises `ValueRefusedError` with column and row if a year cannot be written, or a NULL has no directory.
    """
    check_years(column, name)
    if any("XXX" in level.value for level in levels):
        paths = Distinct.of(_paths(column, name, levels))
    else:
        times = Distinct.of(_floored(column, name, levels))
        paths = times.replaced(_paths(times.values, name, levels))
    number = first_row(pc.is_null(paths.values))
    if number >= 0:
        raise ValueRefusedError(
            f"column {name!r} is NULL in row {paths.first_row(number)} of the batch",
            why="a level of directory_pattern has no `name=`, and readers would skip a directory that represents NULL",
            do="filter such rows, fill the column, or name each level of directory_pattern, as in \"'day='yyyy-MM-dd\"",
        )
    return paths


def clock_directories(now: datetime, levels: tuple[Level, ...]) -> Distinct:
    """Return the directories of the time of writing, in UTC. Raises `ValueError` if `now` has no zone."""
    if now.tzinfo is None:
        raise ValueError("the time of writing needs a zone")
    return Distinct(_paths(pa.array([now], pa.timestamp("us", "UTC")), "now", levels), None)


def _paths(times: pa.Array, column: str, levels: tuple[Level, ...]) -> pa.Array:
    return pc.binary_join_element_wise(*(level.format(times, column) for level in levels), literal("/"))


def _floored(column: pa.Array, name: str, levels: tuple[Level, ...]) -> pa.Array:
    """Truncate times to the unit of the pattern, in the local time of their zone, so that few distinct ones remain."""
    if not pa.types.is_timestamp(column.type):
        return column
    local = column
    if column.type.tz is not None:
        local = local_clock(column, name)
        check_years(local, name)
    pieces = [piece for level in levels for piece in level.value]
    last = max(piece[1] for piece in pieces if isinstance(piece, tuple))
    unit = next((unit for end, unit in _FLOORS.items() if last <= end), None)
    return local if unit is None else pc.floor_temporal(local, unit=unit)


def _level(pieces: list[Piece]) -> Level:
    before = ""
    for index, piece in enumerate(pieces):
        if _is_field(piece):
            if any("=" in str(later) for later in pieces[index:] if not _is_field(later)):
                raise ValueError("the name of a level, before its =, must not contain parts of a time")
            break
        head, equals, tail = str(piece).partition("=")
        before += head
        if equals:
            value = [*([tail] if tail else []), *pieces[index + 1 :]]
            if not value:
                raise ValueError(f"the level '{before}=' has no value after its =")
            return Level(before, tuple(value))
    return Level(None, tuple(pieces))


def _check_names(levels: tuple[Level, ...]) -> None:
    names = [level.name.lower() for level in levels if level.name is not None]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"two levels have the name {twice[0]!r}")


def hidden_name(levels: tuple[Level, ...], above: bool) -> str | None:
    """Return the name of a level that Spark's readers cannot find, because an unnamed level precedes it.

    `above` tells whether levels of columns precede those of the pattern.
    """
    varied, between = above, False
    for found in levels:
        if found.name is not None and between:
            return found.name
        between = between or (found.name is None and (varied or found.varies))
        varied = varied or found.varies or found.name is not None
    return None


def _is_field(piece: Piece) -> bool:
    return isinstance(piece, tuple) or piece == "XXX"


def _expression(piece: Piece) -> str:
    if piece == "XXX":
        return rf"(Z|[+-]\d\d{re.escape(escape_text(':'))}\d\d)"
    text = ISO[slice(*piece)] if isinstance(piece, tuple) else piece
    digits = isinstance(piece, tuple)
    return "".join(r"\d" if digits and each == "0" else re.escape(escape_text(each)) for each in text)


def _longest(piece: Piece) -> str:
    if isinstance(piece, tuple):
        return ISO[slice(*piece)]
    return "+00:00" if piece == "XXX" else piece
