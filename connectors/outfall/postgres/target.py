"""The table as the recovery data knows it: checked before an epoch begins, and opened once it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from psycopg import sql

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetLostError, TargetNotEmptyError
from outfall.postgres.catalogue.columns import is_there
from outfall.postgres.catalogue.table import Table
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.ledger import LedgerRow, has_ledger, missing_ledger_ddl
from outfall.postgres.tables import StepTables, Wanted
from outfall.target_record import check_record
from outfall.trace_points import reached

_BEGINNING = "outfall: beginning"
"""The name of advisory locks."""


class PostgresTarget:
    """One step's table in one epoch. Used on the driver.

    Args:
        tables: the step's; their options are those that the table is made by.
        context: what the recovery data says.
        schema: the columns of the rows, where they are known.
    """

    stages = True
    """Whether tasks stage rows."""

    def __init__(self, tables: StepTables, context: TargetContext[Any], schema: pa.Schema | None) -> None:
        self._tables = tables
        self._options = tables.options
        self._name = tables.target
        self._table = Table(tables.options, tables.target)
        self._ledger = tables.ledger
        self._context = context
        self._schema = schema

    def check(self, connection: PostgresConnection) -> Mapping[str, Any]:
        """Refuse a table that is not what the recovery data says, and change nothing. In the caller's transaction.

        Returns:
            Where parts begin that have no state yet.

        Raises:
            TargetNotEmptyError, TargetLostError, TargetAheadError, TargetError.
        """
        if self._tables.letters is not None:
            self._tables.letters.check(connection, self._name)
        with_ledger = has_ledger(connection, self._options.metadata_schema)
        found = self._ledger.read(connection) if with_ledger else None
        if found is not None:
            self._check_row(found)
            if self._context.completed is not None or self._has_written(connection, found):
                self._check_there(connection)
            return {}
        if self._context.completed is not None:
            what = f"knows of no epoch that this query wrote to {self._name}, and it wrote {self._context.completed}"
            raise self._ledger.lost(what, self._context.epoch)
        others = self._published_by_others(connection) if with_ledger else None
        self._check_rows(connection, others)
        return {}

    def open(self) -> None:
        """Make what the tasks need, and tell the ledger who writes from now on.

        Raises:
            FencedError: another driver has told it so already.
            TargetError: something is missing and may not be made.
        """
        if self._tables.run("opening", self._begin_if_complete):
            return
        for wanted in self._rows_need():
            self._tables.make(wanted)
        self._make_beside()
        self._tables.run("opening", self._begin)

    def _begin_if_complete(self, connection: PostgresConnection) -> bool:
        """Begin, unless something is missing."""
        if any(wanted.missing(connection) for wanted in [*self._rows_need(), *self._beside()]):
            return False
        self._begin(connection)
        return True

    def _begin(self, connection: PostgresConnection) -> None:
        reached("postgres: opening")
        self._ledger.begin(connection, self._context)

    def _rows_need(self) -> list[Wanted]:
        """The table itself, with the columns of the rows."""
        schema = self._schema
        if schema is None:
            return []
        return [Wanted((self._name.name,), lambda connection: self._table.missing_ddl(connection, schema))]

    def _beside(self) -> list[Wanted]:
        """What is made beside the table."""
        schema, add_tokens = self._options.metadata_schema, self._options.create_staging == "if_missing"
        wanted = [
            Wanted((schema,), lambda connection: missing_ledger_ddl(connection, schema, add_tokens=add_tokens)),
        ]
        letters, staging = self._tables.letters, self._tables.staging
        if letters is not None:
            wanted.append(Wanted((schema, letters.table.name), letters.missing_ddl))
        if self.stages:
            wanted.append(Wanted((staging.table.name,), staging.missing_ddl))
        return wanted

    def _make_beside(self) -> None:
        if self._options.create_staging == "if_missing":
            for wanted in self._beside():
                self._tables.make(wanted)
            return
        if not any(self._tables.run("looking at", wanted.missing) for wanted in self._beside()):
            return
        names = [f"{self._options.metadata_schema}.ledger"]
        names += [str(self._tables.staging.table)] if self.stages else []
        names += [] if self._tables.letters is None else ["a table for dead letters"]
        raise TargetError(
            f"{' or '.join(names)} is missing or not as the table is",
            step=self._context.step_id,
            why="create_staging is 'never'",
            do="have a DBA run what PostgresSink.ddl() prints",
        )

    def _published_by_others(self, connection: PostgresConnection) -> int | None:
        """The newest epoch that this step wrote under a checkpoint that is not this one."""
        return self._ledger.published_by_others(connection)

    def _has_written(self, connection: PostgresConnection, found: LedgerRow) -> bool:
        """Tell whether rows of this query are in the table, as the ledger knows it."""
        return found.epoch is not None

    def _check_there(self, connection: PostgresConnection) -> None:
        """Refuse to make a table anew whose rows are recorded."""
        if not is_there(connection, self._name):
            raise TargetLostError(
                f"there is no table {self._name} any more, and this query wrote to it",
                step=self._context.step_id,
                why="it was dropped or renamed, or the search_path is another one",
                do="restore the table, or start the query with a new checkpoint",
            )

    def _check_rows(self, connection: PostgresConnection, others: int | None) -> None:
        """Refuse rows that are not to be mixed with ours."""
        choice = self._options.on_existing
        # Who may only insert is not to be asked for the right to look where nothing would follow from it.
        looks = choice == "error" or (choice == "check" and others is not None)
        if not looks or not self._table.holds_rows(connection):
            return
        if others is not None:
            raise TargetNotEmptyError(
                f"{self._name} holds rows that step {self._context.step_id!r} wrote under another checkpoint, up to"
                f" epoch {others}",
                step=self._context.step_id,
                why="that checkpoint is lost, or a run of a batch job was killed after it had published, or another"
                " query uses the same step_id; this one would write rows again that are there",
                do="restore the checkpoint; or give the query a step_id of its own; or, knowing what is there, set"
                ' on_existing="resume" to add to it or "overwrite" to delete it',
            )
        if choice == "error":
            raise TargetNotEmptyError(
                f"{self._name} holds rows",
                step=self._context.step_id,
                why="on_existing is 'error'",
                do='empty the table, or set on_existing="resume" to keep its rows or "overwrite" to delete them',
            )

    def _check_row(self, found: LedgerRow) -> None:
        check_record(
            str(self._name),
            found.record(),
            self._context,
            ahead="see that no other run of the query is active, and restore the newest recovery data. If that is lost,"
            " compare the table with the source, take out by hand what will come again, and start with a new"
            " checkpoint",
        )


class OffsetTarget(PostgresTarget):
    """As `PostgresTarget`, for tasks that publish: what `on_existing="overwrite"` deletes goes before the first task.

    Later it is too late: no transaction of a task is the first one of all.
    """

    def _begin(self, connection: PostgresConnection) -> None:
        # Before looking: of two drivers of this query that begin at once one is the first.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))",
            (_BEGINNING, f"{self._context.incarnation} {self._name}"),
        )
        first = self._ledger.read(connection) is None
        super()._begin(connection)
        if first and self._options.on_existing == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(self._name.identifier()))
