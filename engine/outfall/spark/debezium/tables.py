"""The tables whose changes a query reads: one, or several with their columns, whose rows become rows with all columns.

A row of one of several tables has NULL in the columns that only others have, whatever fields its event has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from outfall.errors import ConfigurationError
from outfall.spark.debezium.captured import CapturedTable
from outfall.spark.debezium.events import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from outfall.spark.debezium.values import Unit


_PART = re.compile(r'"(?:[^"]|"")+"|`(?:[^`]|``)+`|[^"`.]+')


class ReadTables:
    """Several tables by the names that their events have: `schema.table`, in MySQL `database.table`."""

    def __init__(self, tables: Mapping[str, StructType], times: Mapping[str, Mapping[str, Unit]]) -> None:
        """Keep the columns of each, and the units of numbers in place of timestamps.

        Raises `ConfigurationError` if two are one table for a sink, or a column of two of them differs in its type,
        unit or case.
        """
        from pyspark.sql.types import StructType

        self._given = _by_event(tables)
        self._with: dict[str, list[str]] = {}
        self.columns = StructType()
        """The columns of all tables, in the order of the tables."""
        self.times: dict[str, Unit] = {}
        """The units that are known, by column."""
        first: dict[str, tuple[str, str, str]] = {}
        for table, given in self._given.items():
            units = times.get(given, {})
            self.times |= units
            for field in tables[given]:
                unit = f" in {units[field.name]}" if field.name in units else ""
                kind = f"{field.dataType.simpleString()}{unit}"
                former, name, known = first.setdefault(field.name.lower(), (table, field.name, kind))
                if name != field.name:
                    raise ConfigurationError(
                        f"the column {name!r} of {former} is {field.name!r} in {table}",
                        why="Spark takes names that differ only in their case for one column",
                        do="write one of the tables by another query",
                    )
                if known != kind:
                    raise ConfigurationError(
                        f"the column {field.name!r} is {known} in {former}, and {kind} in {table}",
                        why="the rows of all tables have one schema",
                        do="name one type that holds the values of both, or write one of the tables by another query",
                    )
                if field.name not in self._with:
                    self.columns = self.columns.add(field.name, field.dataType)
                self._with.setdefault(field.name, []).append(table)
        self.names = list(self._given)
        """The tables, as events name them."""

    def has(self, table: str, name: str) -> str | None:
        """Return the condition that a table, an expression, has a column; `None` if each of them has it."""
        having = self._with[name]
        return None if having == self.names else f"{table} IN ({', '.join(map(literal, having))})"

    def given(self, table: str) -> str:
        """Return a table, an expression, as `columns` has it."""
        spelled = {name: given for name, given in self._given.items() if name != given}
        cases = " ".join(f"WHEN {literal(name)} THEN {literal(given)}" for name, given in spelled.items())
        return f"CASE {table} {cases} ELSE {table} END" if cases else table

    def is_listed(self, table: str) -> str:
        """Return the condition that a table is one of these."""
        return f"{table} IN ({', '.join(map(literal, self.names))})"


def _by_event(tables: Iterable[str]) -> dict[str, str]:
    """Return what `columns` has by the names that events have, which are not quoted."""
    found: dict[str, str] = {}
    alike: dict[str, str] = {}
    for given in tables:
        parts = _PART.findall(given)
        # Of a name that is not in parts, such as one with a quote inside, all is the name.
        whole = ".".join(parts) == given
        name = ".".join(map(_unquoted, parts)) if whole else given
        other = found.setdefault(name, given)
        if name == given:
            # As in SQL, where the case of a name without quotes need not matter.
            other = alike.setdefault(name.lower(), given)
        if other != given:
            raise ConfigurationError(
                f"columns has {other!r} and {given!r}",
                why="a sink may take them for one table",
                do='quote the names as the sink does, such as public."Orders"',
            )
    return found


def _unquoted(part: str) -> str:
    quote = part[0] if part[0] in '"`' else ""
    return part[1:-1].replace(2 * quote, quote) if quote else part


def columns_of(columns: object, session: SparkSession, argument: str = "columns") -> StructType:
    """Return the columns of a table. Raises `ConfigurationError` if there are none."""
    from pyspark.sql.types import StructType

    # Not by `StructType.fromDDL`, which Spark 3.5 does not have.
    found = session.createDataFrame([], columns).schema if isinstance(columns, str) else columns
    if not isinstance(found, StructType) or not found.names:
        raise ConfigurationError(
            f"{argument} is {columns!r}", do='pass the columns of the table, as "id BIGINT, city STRING"'
        )
    return found


def tables_of(given: Mapping[str, object], session: SparkSession) -> ReadTables:
    """Return several tables with their columns. Raises `ConfigurationError` if there are none."""
    captured = {table: each for table, each in given.items() if isinstance(each, CapturedTable)}
    columns = {**given, **{table: each.columns for table, each in captured.items()}}
    if not columns:
        raise ConfigurationError("columns is empty", do='pass tables, as {"public.orders": "id BIGINT, city STRING"}')
    return ReadTables(
        {table: columns_of(each, session, f"columns[{table!r}]") for table, each in columns.items()},
        {table: each.times for table, each in captured.items()},
    )
