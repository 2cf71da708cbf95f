"""The tables that rows may name, and what options say of some of them, for all sinks with `table_column`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from outfall.values import require_columns

T = TypeVar("T")

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
    def table_columns(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that tables get, by name."""

    @property
    def by_table(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """The options that list columns by table: `table_columns`, and in sinks with keys `table_keys`."""

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
            *((option, bool(lists)) for option, lists in options.by_table.items()),
        ):
            if given:
                raise ValueError(f"{name} is an option of table_column")
        return
    if not options.allowed_tables:
        raise ValueError("table_column needs allowed_tables, because rows could otherwise name any table")
    listed = (name for lists in options.by_table.values() for names in lists.values() for name in names)
    if options.table_column in (*named, *listed):
        raise ValueError("table_column is not stored, so no other option can name it")
    if options.table_columns and options.unknown_columns == "fail":
        raise ValueError("table_columns needs unknown_columns='leave_out_null', because rows have the columns of all")
    if options.unknown_columns != "fail" and options.schema_evolution != "fail" and not options.table_columns:
        raise ValueError(
            "unknown_columns and schema_evolution exclude each other unless table_columns says what is added"
        )


def gets(options: RoutedOptions, column: str, named: Collection[str]) -> bool:
    """Return whether one of many tables gets a column of the rows if it lacks it. Options name the columns `named`."""
    lists = [*options.table_columns.values()]
    return not lists or column in lists[0] or column in named


def check_listed(options: RoutedOptions, columns: Sequence[str]) -> None:
    """Raise `ConfigurationError` if an option lists a column of a table that no row has."""
    for option, lists in options.by_table.items():
        for table, names in lists.items():
            require_columns(columns, {f"{option} of {table!r}": names})


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


class ByTable(Generic[T]):
    """What an option says of tables, by the parts of their names, such as a namespace and a table.

    An entry with the whole name outranks those with `*`, of which the first one counts.
    """

    def __init__(self, entries: Iterable[tuple[Sequence[str], T]]) -> None:
        self._whole: dict[tuple[str, ...], T] = {}
        self._patterns: list[tuple[list[re.Pattern[str]], T]] = []
        for name, value in entries:
            if any("*" in part for part in name):
                self._patterns.append(([pattern_of(part) for part in name], value))
            else:
                self._whole.setdefault(tuple(name), value)

    def find(self, name: Sequence[str]) -> T | None:
        """Return what the option says of a table; `None` if that is nothing."""
        if (whole := self._whole.get(tuple(name))) is not None:
            return whole
        return next((value for entry, value in self._patterns if _match(entry, name)), None)


def _match(patterns: Sequence[re.Pattern[str]], name: Sequence[str]) -> bool:
    return len(patterns) == len(name) and all(
        pattern.fullmatch(part) is not None for pattern, part in zip(patterns, name, strict=True)
    )
