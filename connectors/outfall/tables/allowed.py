"""The tables that rows may name: the options `table_column` and `allowed_tables`, for all sinks that have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Protocol

_PART = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.=-]*[A-Za-z0-9_=-])?")
_STRANGE = re.compile(r"[^A-Za-z0-9_.=-]")


class RoutedOptions(Protocol):
    """The options of a sink whose rows may name their tables."""

    @property
    def table_column(self) -> str | None:
        """The column with the table of each row; `None` if there is one table only."""

    @property
    def allowed_tables(self) -> tuple[str, ...]:
        """The tables that rows may name."""

    @property
    def unknown_columns(self) -> str:
        """What to do with columns of the rows that a table does not have."""

    @property
    def schema_evolution(self) -> str:
        """Whether columns are added to a table."""


def check_routed(options: RoutedOptions, named: Collection[str | None]) -> None:
    """Raise `ValueError` if the options of tables in rows do not fit each other.

    `named` are the columns that other options name.
    """
    if options.table_column is None:
        for name, given in (
            ("allowed_tables", bool(options.allowed_tables)),
            ("unknown_columns", options.unknown_columns != "fail"),
        ):
            if given:
                raise ValueError(f"{name} is an option of table_column")
        return
    if not options.allowed_tables:
        raise ValueError("table_column needs allowed_tables, because rows could otherwise name any table")
    if options.table_column in named:
        raise ValueError("table_column is not stored, so no other option can name it")
    if options.unknown_columns != "fail" and options.schema_evolution != "fail":
        raise ValueError("unknown_columns and schema_evolution exclude each other: columns are left out or added")


def pattern_of(part: str) -> re.Pattern[str]:
    """Return what a part of an entry matches: `*` stands for any characters of that part.

    A part has no separator of names, so no `*` lets a row choose another schema, namespace or directory.
    """
    return re.compile(".*".join(map(re.escape, part.split("*"))), re.DOTALL)


def check_part(part: str) -> None:
    """Reject a part of a name that is also a level of a path, unless every store and catalog takes it as it is.

    Parsers of URLs drop or decode other characters, some only at an end, so that a path may lead to another place than
    the name that was checked. `ValueError` states what is wrong.
    """
    if _PART.fullmatch(part) is not None:
        return
    if not part.strip():
        raise ValueError("has an empty part" if part == "" else "has a blank part")
    strange = _STRANGE.search(part)
    if strange is not None:
        raise ValueError(f"contains {strange[0]!r}; names in rows consist of ASCII letters, digits, _, -, = and .")
    how = "ends with a dot" if part[0].isalnum() else f"begins with {part[0]!r}"
    raise ValueError(f"has the part {part!r}, which {how}")


class AllowedNames:
    """The tables that rows may name, by the parts of their names, such as a namespace and a table."""

    def __init__(self, entries: Sequence[Sequence[str]]) -> None:
        self._entries = [[pattern_of(part) for part in entry] for entry in entries]

    def allows(self, name: Sequence[str]) -> bool:
        """Return whether rows may name this table."""
        return any(len(entry) == len(name) and all(map(_matches, entry, name)) for entry in self._entries)


def _matches(pattern: re.Pattern[str], part: str) -> bool:
    return pattern.fullmatch(part) is not None
