"""The table as the recovery data knows it: checked before an epoch begins, and opened once it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetLostError, TargetNotEmptyError
from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection, Database
from outfall.postgres.ddl import Wanted, make
from outfall.postgres.dead_letters import DeadLetters
from outfall.postgres.ledger import Ledger, LedgerRow, find_tokens, ledger_ddl, token_ddl
from outfall.postgres.names import TableName
from outfall.postgres.staging import Staging
from outfall.postgres.table import Table
from outfall.target_record import TargetRecord, check_opening, check_record
from outfall.trace_points import reached


class Target:
    """One step's table in one epoch. Used on the driver."""

    def __init__(
        self,
        database: Database,
        table: TableName,
        staging: Staging | None,
        letters: DeadLetters | None,
        ledger: Ledger,
        context: TargetContext[Any],
    ) -> None:
        self._database = database
        self._name = table
        self._table = Table(database.options, table)
        self._staging = staging
        self._letters = letters
        self._context = context
        self._ledger = ledger

    def check(self) -> None:
        """Refuse a table that is not what the recovery data says, and change nothing.

        Raises:
            TargetNotEmptyError, TargetLostError, TargetAheadError, TargetError.
        """
        self._database.run("looking at", self._check, starting=True)

    def _check(self, connection: Connection) -> None:
        if self._letters is not None:
            self._letters.check(connection, self._name)
        has_ledger = self._has_ledger(connection)
        found = self._ledger.read(connection) if has_ledger else None
        if found is not None:
            self._check_row(found)
            if self._context.completed is not None or self._has_written(connection, found):
                self._check_there(connection)
            return
        self._check_not_emptied()
        others = self._others(connection) if has_ledger else None
        self._check_rows(connection, others)

    def _others(self, connection: Connection) -> int | None:
        """The newest epoch that this step wrote under a checkpoint that is not this one."""
        return self._ledger.published_by_others(connection)

    def open(self, schema: pa.Schema | None) -> None:
        """Make what the tasks need, and tell the ledger who writes from now on.

        Raises:
            FencedError: another driver has told it so already.
            TargetError: something is missing and may not be made.
        """
        if not self._database.run("opening", lambda connection: self._open(connection, schema)):
            for wanted in self._rows_need(schema):
                make(self._database, wanted)
            self._make_beside()
            self._database.run("opening", self._begin)

    def _open(self, connection: Connection, schema: pa.Schema | None) -> bool:
        """Begin, unless something is missing."""
        if any(wanted.missing(connection) for wanted in [*self._rows_need(schema), *self._beside()]):
            return False
        self._begin(connection)
        return True

    def _begin(self, connection: Connection) -> None:
        reached("postgres: opening")
        context = self._context
        self._ledger.begin(
            connection,
            TargetRecord(context.generation, context.token),
            epoch=-1 if context.epoch is None else context.epoch,
            check=lambda found: check_opening(str(self._name), found.record(), context),
        )

    def _rows_need(self, schema: pa.Schema | None) -> list[Wanted]:
        """The table itself, with the columns of the rows."""
        if schema is None:
            return []
        return [Wanted((self._name.name,), lambda connection: self._table.missing_ddl(connection, schema))]

    def _beside(self) -> list[Wanted]:
        """What is made beside the table."""
        schema = self._database.options.metadata_schema
        wanted = [Wanted((schema,), self._shared_ddl)]
        if self._database.options.create_staging == "if_missing":
            wanted.append(Wanted((schema,), lambda connection: self._token_ddl(connection, schema)))
        if (letters := self._letters) is not None:
            wanted.append(Wanted((schema, letters.table.name), letters.missing_ddl))
        if self._staging is not None:
            staging = self._staging.table
            wanted.append(Wanted((staging.name,), lambda connection: self._table.staging_ddl(connection, staging)))
        return wanted

    def _make_beside(self) -> None:
        options = self._database.options
        if options.create_staging == "if_missing":
            for wanted in self._beside():
                make(self._database, wanted)
            return
        if not any(self._database.run("looking at", wanted.missing) for wanted in self._beside()):
            return
        names = [f"{options.metadata_schema}.ledger"]
        names += [] if self._staging is None else [str(self._staging.table)]
        names += [] if self._letters is None else ["a table for dead letters"]
        raise TargetError(
            f"{' or '.join(names)} is missing or not as the table is",
            step=self._context.step_id,
            why="create_staging is 'never'",
            do="have a DBA run what PostgresSink.ddl() prints",
        )

    def _has_ledger(self, connection: Connection) -> bool:
        schema = self._database.options.metadata_schema
        return all(read_columns(connection, TableName(schema, name)) for name in ("ledger", "attempts"))

    def _check_not_emptied(self) -> None:
        context = self._context
        if context.completed is not None:
            raise TargetLostError(
                f"the ledger knows of no epoch that this query wrote to {self._name}, and it wrote {context.completed}",
                step=context.step_id,
                epoch=context.epoch,
                why="it was emptied, or metadata_schema is another one, or the database is, or was restored from a copy"
                " older than this query",
                do="restore the database, or start the query with a new checkpoint",
            )

    def _shared_ddl(self, connection: Connection) -> Sequence[sql.Composed]:
        if self._has_ledger(connection):
            return []
        schema = self._database.options.metadata_schema
        found = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = %s)", (schema,)
        ).fetchone()
        statements = ledger_ddl(schema)
        # IF NOT EXISTS asks for the right to make a schema also where there is one.
        return statements[1:] if found and found[0] else statements

    def _token_ddl(self, connection: Connection, schema: str) -> Sequence[sql.Composed]:
        may = self._has_ledger(connection) and find_tokens(connection, schema) == "may be added"
        return token_ddl(schema) if may else []

    def _has_written(self, connection: Connection, found: LedgerRow) -> bool:
        """Tell whether rows of this query are in the table, as the ledger knows it."""
        return found.epoch is not None

    def _check_there(self, connection: Connection) -> None:
        """Refuse to make a table anew whose rows are recorded."""
        if not read_columns(connection, self._name):
            raise TargetLostError(
                f"there is no table {self._name} any more, and this query wrote to it",
                step=self._context.step_id,
                why="it was dropped or renamed, or the search_path is another one",
                do="restore the table, or start the query with a new checkpoint",
            )

    def _check_rows(self, connection: Connection, others: int | None) -> None:
        """Refuse rows that are not to be mixed with ours."""
        choice = self._database.options.on_existing
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
