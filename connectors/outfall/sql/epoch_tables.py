"""The tables of an epoch: what of its attempts goes to which of them.

An epoch of one table has one. If a column names the tables, the record of the epoch has them by staging table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outfall.sql.dialect import StagedRows, StagedTable
from outfall.sql.keyed import Move
from outfall.sql.names import Found
from outfall.sql.routing import ListedTables
from outfall.sql.target import StepTables


@dataclass(frozen=True)
class EpochTable:
    """The rows of an epoch for one table."""

    tables: StepTables[Any]
    """The tables of the step, of which the target is this one."""
    attempts: Sequence[StagedRows]
    """Those in its staging table."""
    only: StagedTable | None = None
    """Which rows of them are for it; `None` if all are."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(attempt.rows for attempt in self.attempts) if self.only is None else self.only.rows

    def move(self) -> Move:
        """Return the move of the rows."""
        tables = self.tables
        tombstones = None if tables.tombstones is None else tables.tombstones.table
        return Move(tables.dialect, tables.target, tables.staging.table, self.attempts, tombstones, self.only)


def tables_of(tables: StepTables[Any], attempts: Sequence[StagedRows]) -> list[EpochTable]:
    """Return the tables of an epoch, in the order of their names, so that two steps cannot deadlock."""
    if not tables.are_many:
        return [EpochTable(tables, attempts)]
    found = []
    for some in alike(attempts):
        for only in merged(some):
            table = tables.of_table(only.found, only.spelled[0], staging=some[0].staging, keys=some[0].keys)
            found.append(EpochTable(table, some, only))
    return sorted(found, key=lambda table: table.only.found if table.only else ("", ""))


def alike(attempts: Sequence[StagedRows]) -> list[list[StagedRows]]:
    """Return the attempts that have rows, those together that have one staging table and one key."""
    found: dict[tuple[Found, tuple[str, ...]], list[StagedRows]] = {}
    for attempt in attempts:
        if attempt.staging is not None:
            found.setdefault((attempt.staging, attempt.keys), []).append(attempt)
    return list(found.values())


def merged(attempts: Sequence[StagedRows]) -> list[StagedTable]:
    """Return the tables of attempts, once each."""
    found: dict[Found, StagedTable] = {}
    for table in (table for attempt in attempts for table in attempt.tables):
        known = found.get(table.found)
        spelled = table.spelled if known is None else tuple(dict.fromkeys([*known.spelled, *table.spelled]))
        rows = table.rows if known is None else known.rows + table.rows
        found[table.found] = StagedTable(found=table.found, spelled=spelled, rows=rows)
    return list(found.values())


def recorded_once(attempts: Sequence[StagedRows]) -> list[StagedRows]:
    """Return the attempts of an epoch with its tables once, so that a record stays small."""
    first = {some[0].stage: tuple(merged(some)) for some in alike(attempts)}
    return [attempt.model_copy(update={"tables": first.get(attempt.stage, ())}) for attempt in attempts]


def in_two_places(tables: Sequence[EpochTable]) -> Mapping[int, str]:
    """Return the attempts with rows of a table that others have staged for other columns, with the reason."""
    lost: dict[int, str] = {}
    seen: dict[Found, EpochTable] = {}
    for table in tables:
        if table.only is None:
            continue
        other = seen.setdefault(table.only.found, table)
        if other is not table:
            why = f"the columns of {table.tables.target} changed while its rows were staged"
            lost |= {attempt.stage: why for attempt in (*other.attempts, *table.attempts)}
    return lost


def with_other_keys(session: Any, step: StepTables[Any], tables: Sequence[EpochTable]) -> Mapping[int, str]:
    """Return the attempts with rows of a table that has another primary key than they were staged for, with the reason.

    Of rows with one key, only the newest is moved, so the key must be that of the table, unless `table_keys` has it.
    """
    lost: dict[int, str] = {}
    if not step.options.keys_differ:
        return lost
    listed = ListedTables(step.dialect, step.target.place)
    for table in tables:
        staged = table.attempts[0].keys if table.only is not None else ()
        dialect, target = table.tables.dialect, table.tables.target
        if table.only is not None and set(listed.given_keys(target, table.only.found)) == set(staged):
            continue
        # A missing table is an error of its own.
        if staged and set(dialect.primary_key(session, target)) != set(staged) and dialect.columns(session, target):
            why = f"the primary key of {target} changed while its rows were staged"
            lost |= {attempt.stage: why for attempt in table.attempts}
    return lost
