"""The first contact with tables that rows name: what the driver checks and creates before it records their epoch.

It is repeated harmlessly: nothing is written but missing tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outfall.errors import TargetError
from outfall.sql.database import ExpectedTables
from outfall.sql.dialect import Found, StagedRows
from outfall.sql.epoch_tables import EpochTable, tables_of
from outfall.sql.target import SqlTarget, StepTables


def meet_tables(tables: StepTables[Any], attempts: Sequence[StagedRows], met: set[Found]) -> None:
    """Check the tables of an epoch that are not among those `met`, and create what they need.

    Raises `TargetError` if the sink cannot find the rows of a key in one, if one loses rows, or if it holds rows that
    `on_existing` does not allow.
    """
    new = [table for table in tables_of(tables, attempts) if table.only is not None and table.only.found not in met]
    if not new:
        return

    def check(session: Any) -> list[EpochTable]:
        dialect = tables.dialect
        dialect.read_ahead(session, [table.tables.target for table in new])
        named = {str(table.tables.ledger.key["target"]): table for table in new}
        known = tables.ledger.known_tables(session, list(named))
        for name, table in named.items():
            own = table.tables
            own.dialect.check_relation(session, own.target)
            own.dialect.check_keys(session, own.target, table.attempts[0].columns)
            if name not in known:
                SqlTarget(own, None, session).check_rows(own.step_id)
        return [
            table
            for table in new
            if table.tables.tombstones is not None and table.tables.tombstones.missing_ddl(session)
        ]

    for table in tables.run("checking", check, looks=True):
        _make_tombstones(table.tables)
    met.update(table.only.found for table in new if table.only is not None)


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
