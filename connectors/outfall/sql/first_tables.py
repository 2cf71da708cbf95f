"""The first contact with tables that rows name: what the driver checks and creates before it records their epoch.

It is repeated harmlessly: nothing is written but missing tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.errors import TargetError
from outfall.sql.database import ExpectedTables
from outfall.sql.dialect import StagedRows
from outfall.sql.epoch_tables import EpochTable, tables_of
from outfall.sql.names import Found
from outfall.sql.table import Table
from outfall.sql.target import SqlTarget, StepTables


class MetTables:
    """The tables that rows of a query have named, and that its driver has checked."""

    def __init__(self) -> None:
        self._found: set[Found] = set()
        self._most = 0
        """The most tables of an epoch so far."""

    def meet(self, tables: StepTables[Any], attempts: Sequence[StagedRows]) -> None:
        """Check the tables of an epoch that are new, and create what they need.

        Raises `TargetError` if the sink cannot find the rows of a key in one, if one loses rows, if it holds rows that
        `on_existing` does not allow or may not delete, or if the server cannot lock so many in one transaction.
        """
        every = [(table, table.only.found) for table in tables_of(tables, attempts) if table.only is not None]
        new = [table for table, found in every if found not in self._found]
        more = [table for table, _ in every] if len(every) > self._most else []
        if not new and not more:
            return

        def check(session: Any) -> list[EpochTable]:
            return _check(session, tables, new, more)

        if lacking := tables.run("checking", check, looks=True):
            for table in lacking:
                _make_tombstones(table.tables)
            tables.run("checking", check, looks=True)
        self._found.update(found for _, found in every)
        self._most = max(self._most, len(every))


def _check(
    session: Any, tables: StepTables[Any], new: Sequence[EpochTable], more: Sequence[EpochTable]
) -> list[EpochTable]:
    """Check new tables, and whether more than before can be locked together.

    Returns those whose tombstones must be created before all is checked.
    """
    dialect = tables.dialect
    tombstones = [table.tables.tombstones.table for table in new if table.tables.tombstones is not None]
    dialect.read_ahead(session, [*(table.tables.target for table in more or new), *tombstones])
    keys = [table.tables.options.key_columns for table in new]
    dialect.read_checked(session, [table.tables.target for table in new], keys)
    for table in new:
        table.tables.dialect.check_relation(session, table.tables.target)
        table.tables.dialect.check_keys(session, table.tables.target, table.attempts[0].columns)
    if lacking := [table for table in new if _lacks_tombstones(session, table)]:
        return lacking
    if more:
        dialect.check_together(session, [table.move() for table in more])
    named = {str(table.tables.ledger.key["target"]): table.tables for table in new}
    known = tables.ledger.known_tables(session, list(named))
    unknown = [own for name, own in named.items() if name not in known]
    others = bool(unknown) and tables.ledger.others_have_published(session)
    for own in unknown:
        SqlTarget(own, None, session).check_rows(own.step_id, others=others)
    _check_overwrite(session, tables, unknown)
    return []


def _check_overwrite(session: Any, tables: StepTables[Any], unknown: Sequence[StepTables[Any]]) -> None:
    """Reject new tables of which `on_existing="overwrite"` may delete rows of earlier epochs together with theirs."""
    if not unknown or tables.options.existing.others != "delete":
        return
    row = tables.ledger.read(session)
    if row is None or row.epoch is None:
        return  # All rows are deleted before the first ones are written.
    for own in unknown:
        held = Table(own.dialect, own.target).holds_rows(session)
        why = own.dialect.deletes_elsewhere(session, own.target) if held else None
        if why is not None:
            raise TargetError(
                f"{own.target} holds rows, and to delete them may delete rows of other tables, written by this query",
                step=own.step_id,
                why=f"on_existing is 'overwrite', an earlier epoch had no row for the table, and {why}",
                do='set on_existing="resume", which keeps what this table and those that rows name later hold',
            )


def _lacks_tombstones(session: Any, table: EpochTable) -> bool:
    tombstones = table.tables.tombstones
    return tombstones is not None and bool(tombstones.missing_ddl(session))


def _make_tombstones(tables: StepTables[Any]) -> None:
    tombstones = tables.tombstones
    if tombstones is None:
        return
    if tables.options.create_staging == "never":
        raise TargetError(
            f"{tombstones.table} is missing or does not match the table",
            step=tables.step_id,
            why="create_staging is 'never'",
            do=f"have a DBA run the output of {tables.dialect.sink}.ddl()",
        )
    tables.make(ExpectedTables((tables.options.metadata_schema, tombstones.table.name), tombstones.missing_ddl))
