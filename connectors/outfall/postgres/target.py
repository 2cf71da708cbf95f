"""The table of a step: compared with the recovery log before an epoch begins, and opened afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetLostError, TargetNotEmptyError
from outfall.postgres.catalogue.columns import is_there
from outfall.postgres.catalogue.privileges import OWN_RIGHTS, check_granted
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.catalogue.table import Table, unlogged
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.ledger import LedgerRow, has_ledger, missing_ledger_ddl
from outfall.postgres.names import TableName
from outfall.postgres.tables import StepTables, Wanted
from outfall.target_record import check_record
from outfall.trace_points import reached

_BEGINNING = "outfall: beginning"
"""The name of advisory locks."""


class PostgresTarget:
    """One step's table in one epoch. Used on the driver.

    Args:
        tables: the tables of the step, with the options by which the target is created.
        context: the state of the recovery log.
        schema: the columns of the rows, if they are known.
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
        """Reject a table that does not match the recovery log. Changes nothing. Runs in the caller's transaction.

        Returns:
            The start states of new parts.

        Raises:
            TargetNotEmptyError: on the first run, the table has rows that `on_existing` does not allow.
            TargetLostError: the table or the ledger is behind the recovery log.
            TargetAheadError: the table is ahead of the recovery log.
            TargetError: the table is missing or does not fit; or a crash of the server would empty it or the ledger.
            ConfigurationError: see `Table.check_relation`.
        """
        self._table.check_relation(connection)
        self._check_logged(connection)
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
            what = (
                f"has no epoch of this query for {self._name}, but the query has completed epoch"
                f" {self._context.completed}"
            )
            raise self._ledger.lost(what, self._context.epoch)
        others = self._published_by_others(connection) if with_ledger else None
        self._check_rows(connection, others)
        return {}

    def check_support(self, connection: PostgresConnection) -> None:
        """Reject missing tables next to the target, if the sink must not create them. Changes nothing.

        Raises:
            TargetError: names the tables.
        """
        if self._options.create_staging == "if_missing" or not is_there(connection, self._name):
            return
        if any(wanted.missing(connection) for wanted in self._beside()):
            raise self._without_support()
        if self.stages:
            check_granted(connection, self._tables.staging.table, OWN_RIGHTS)

    def open(self) -> None:
        """Create the tables that the tasks need, and record this driver in the ledger.

        Raises:
            FencedError: another driver has opened the table.
            TargetError: a table is missing and must not be created.
        """
        if self._tables.run("opening", self._begin_if_complete):
            return
        for wanted in self._rows_need():
            self._tables.make(wanted)
        self._make_beside()
        self._tables.run("opening", self._begin)

    def _begin_if_complete(self, connection: PostgresConnection) -> bool:
        """Begin, unless a table or a column is missing; return whether it began."""
        if any(wanted.missing(connection) for wanted in [*self._rows_need(), *self._beside()]):
            return False
        self._begin(connection)
        return True

    def _begin(self, connection: PostgresConnection) -> None:
        reached("postgres: opening")
        self._ledger.begin(connection, self._context)

    def _rows_need(self) -> list[Wanted]:
        """Return the target itself, with the columns of the rows."""
        schema = self._schema
        if schema is None:
            return []
        return [Wanted((self._name.name,), lambda connection: self._table.missing_ddl(connection, schema))]

    def _beside(self) -> list[Wanted]:
        """Return the sink's own tables."""
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
        # The table may have been created, or may have got columns, since the check.
        if any(self._tables.run("checking", wanted.missing) for wanted in self._beside()):
            raise self._without_support()

    def _without_support(self) -> TargetError:
        names = [f"{self._options.metadata_schema}.ledger"]
        names += [str(self._tables.staging.table)] if self.stages else []
        names += [] if self._tables.letters is None else ["a table for dead letters"]
        return TargetError(
            f"{' or '.join(names)} is missing or does not match the table",
            step=self._context.step_id,
            why="create_staging is 'never'",
            do="have a DBA run the output of PostgresSink.ddl()",
        )

    def _check_logged(self, connection: PostgresConnection) -> None:
        """Reject a ledger or a dead-letter table that a crash of the server empties."""
        names = [TableName(self._options.metadata_schema, name) for name in ("ledger", "parts")]
        if self._tables.letters is not None and not self._options.allow_unlogged:
            names.append(self._tables.letters.table)
        for name in names:
            relation = read_relation(connection, name)
            if relation is not None and relation.unlogged:
                raise unlogged(name, relation)

    def _published_by_others(self, connection: PostgresConnection) -> int | None:
        """Return the newest epoch that this step wrote under another checkpoint."""
        return self._ledger.published_by_others(connection)

    def _has_written(self, connection: PostgresConnection, found: LedgerRow) -> bool:
        """Return whether the table has rows of this query, according to the ledger."""
        return found.epoch is not None

    def _check_there(self, connection: PostgresConnection) -> None:
        """Reject a missing table whose rows are recorded, instead of creating it again."""
        if not is_there(connection, self._name):
            raise TargetLostError(
                f"the table {self._name} is missing, but this query has written to it",
                step=self._context.step_id,
                why="it was dropped or renamed, or the search_path changed",
                do="restore the table, or start the query with a new checkpoint",
            )

    def _check_rows(self, connection: PostgresConnection, others: int | None) -> None:
        """Reject existing rows that `on_existing` does not allow."""
        choice = self._options.on_existing
        # A user who may only insert must not need SELECT if the result does not matter.
        looks = choice == "error" or (choice == "check" and others is not None)
        if not looks or not self._table.holds_rows(connection):
            return
        if others is not None:
            raise TargetNotEmptyError(
                f"{self._name} holds rows that step {self._context.step_id!r} wrote under another checkpoint, up to"
                f" epoch {others}",
                step=self._context.step_id,
                why="that checkpoint is lost, a batch job was killed after it had published, or another query uses the"
                " same step_id; this query could write the same rows again",
                do="restore the checkpoint; or give the query its own step_id; or, after checking the rows, set"
                ' on_existing="resume" to add to them or "overwrite" to delete them',
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
            ahead="make sure that no other run of the query is active, and restore the newest recovery log. If it is"
            " lost, compare the table with the source, remove manually the rows that will be replayed, and start with a"
            " new checkpoint",
        )


class OffsetTarget(PostgresTarget):
    """Like `PostgresTarget`, for tasks that publish: `on_existing="overwrite"` deletes rows before the first task.

    The tasks cannot do so, because none of their transactions is known to be the first one.
    """

    def _begin(self, connection: PostgresConnection) -> None:
        # Lock before reading, so that of two concurrent drivers of this query only one is the first.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))",
            (_BEGINNING, f"{self._context.incarnation} {self._name}"),
        )
        first = self._ledger.read(connection) is None
        super()._begin(connection)
        if first and self._options.on_existing == "overwrite":
            self._table.delete_rows(connection)
