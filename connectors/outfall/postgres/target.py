"""How a table of PostgreSQL keeps the record of a step: in the ledger, in the transactions that write its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetLostError, TargetNotEmptyError
from outfall.possession.possession import Change, FoundRecord, RecordPort, open_target
from outfall.postgres.catalogue.columns import is_there
from outfall.postgres.catalogue.privileges import OWN_RIGHTS, check_granted
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.catalogue.table import Table, dropped, unlogged
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.ledger import LedgerRow, has_ledger, missing_ledger_ddl
from outfall.postgres.names import TableName
from outfall.postgres.tables import StepTables, Wanted
from outfall.trace_points import reached

_BEGINNING = "outfall: beginning"
"""The name of advisory locks."""


class PostgresTarget(RecordPort[LedgerRow]):
    """One step's table in one epoch. Used on the driver, in one transaction.

    The options of `tables` are those by which the target is created. `schema` has the columns of the rows, if known.
    """

    locks = True
    stages = True
    """Whether tasks stage rows."""
    ahead = (
        "make sure that no other run of the query is active, and restore the newest recovery log. If it is lost,"
        " compare the table with the source, remove manually the rows that will be replayed, and start with a new"
        " checkpoint"
    )

    def __init__(self, tables: StepTables, schema: pa.Schema | None, connection: PostgresConnection) -> None:
        self._tables = tables
        self._options = tables.options
        self._name = tables.target
        self._table = Table(tables.options, tables.target)
        self._ledger = tables.ledger
        self._schema = schema
        self._connection = connection
        self.where = str(tables.target)
        self.overwrites = self._options.existing.others == "delete"
        self.name = f"in {self._options.metadata_schema}.ledger"

    # --- the record

    def read(self) -> FoundRecord[LedgerRow] | None:
        if not has_ledger(self._connection, self._options.metadata_schema):
            return None
        row = self._ledger.read(self._connection)
        return None if row is None else FoundRecord(row)

    def open(self, context: TargetContext[Any], change: Change[LedgerRow]) -> LedgerRow | None:
        row = self._ledger.read(self._connection, lock=True)
        if row is None:
            return None
        after = change(FoundRecord(row))
        self._ledger.open(self._connection, row, after)
        return after

    def create(self, context: TargetContext[Any]) -> None:
        self._ledger.create(self._connection)

    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        what = f"has no epoch of this query for {self._name}, but the query has completed epoch {epoch}"
        return self._ledger.lost(what, context.epoch)

    # --- checks

    def check_table(self) -> None:
        """Reject a table that does not fit, or that a crash of the server would empty. Changes nothing.

        Raises `TargetError` if the table is missing or does not fit, or if a crash of the server would empty it or the
        ledger, and `ConfigurationError` as `Table.check_relation` does.
        """
        self._table.check_relation(self._connection)
        self._check_logged()
        if self._tables.letters is not None:
            self._tables.letters.check(self._connection, self._name)

    def starts(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        """Return the start states of new parts."""
        return {}

    def check_data(self, found: FoundRecord[LedgerRow] | None, context: TargetContext[Any]) -> None:
        """Reject a missing table whose rows are recorded, instead of creating it again."""
        written = found is not None and (context.completed is not None or self._has_written(found.stored))
        if written and not is_there(self._connection, self._name):
            raise dropped(self._name, context.step_id)

    def check_existing(self, context: TargetContext[Any]) -> None:
        others = None
        if has_ledger(self._connection, self._options.metadata_schema):
            others = self._published_by_others()
        existing = self._options.existing
        # A user who may only insert must not need SELECT if the result does not matter.
        looks = existing.others == "reject" or (existing.own == "reject" and others is not None)
        if not looks or not self._table.holds_rows(self._connection):
            return
        if others is not None:
            raise TargetNotEmptyError(
                f"{self._name} holds rows that step {context.step_id!r} wrote under another checkpoint, up to"
                f" epoch {others}",
                step=context.step_id,
                why="that checkpoint is lost, a batch job was killed after it had published, or another query uses the"
                " same step_id; this query could write the same rows again",
                do="restore the checkpoint; or give the query its own step_id; or, after checking the rows, set"
                ' on_existing="resume" to add to them or "overwrite" to delete them',
            )
        raise TargetNotEmptyError(
            f"{self._name} holds rows",
            step=context.step_id,
            why="on_existing is 'error'",
            do='empty the table, or set on_existing="resume" to keep its rows or "overwrite" to delete them',
        )

    def _published_by_others(self) -> int | None:
        """Return the newest epoch that this step wrote under another checkpoint."""
        return self._ledger.published_by_others(self._connection)

    def _has_written(self, found: LedgerRow) -> bool:
        """Return whether the table has rows of this query, according to the ledger."""
        return found.epoch is not None

    def _check_logged(self) -> None:
        """Reject a ledger or a dead-letter table that a crash of the server empties."""
        names = [TableName(self._options.metadata_schema, name) for name in ("ledger", "parts")]
        if self._tables.letters is not None and not self._options.allow_unlogged:
            names.append(self._tables.letters.table)
        for name in names:
            relation = read_relation(self._connection, name)
            if relation is not None and relation.unlogged:
                raise unlogged(name, relation)

    # --- the tables that the tasks need

    def check_support(self, step_id: str) -> None:
        """Reject missing tables next to the target, if the sink must not create them. Changes nothing.

        Raises `TargetError`, which names the tables.
        """
        connection = self._connection
        if self._options.create_staging == "if_missing" or not is_there(connection, self._name):
            return
        if any(wanted.missing(connection) for wanted in self.beside()):
            raise self.without_support(step_id)
        if self.stages:
            check_granted(connection, self._tables.staging.table, OWN_RIGHTS)

    def lacks(self) -> bool:
        """Return whether a table or a column is missing."""
        return any(wanted.missing(self._connection) for wanted in [*self.rows_need(), *self.beside()])

    def rows_need(self) -> list[Wanted]:
        """Return the target itself, with the columns of the rows."""
        schema = self._schema
        if schema is None:
            return []
        return [Wanted((self._name.name,), lambda connection: self._table.missing_ddl(connection, schema))]

    def beside(self) -> list[Wanted]:
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

    def without_support(self, step_id: str) -> TargetError:
        """Return the error of missing tables that the sink must not create."""
        names = [f"{self._options.metadata_schema}.ledger"]
        names += [str(self._tables.staging.table)] if self.stages else []
        names += [] if self._tables.letters is None else ["a table for dead letters"]
        return TargetError(
            f"{' or '.join(names)} is missing or does not match the table",
            step=step_id,
            why="create_staging is 'never'",
            do="have a DBA run the output of PostgresSink.ddl()",
        )


class OffsetTarget(PostgresTarget):
    """Like `PostgresTarget`, for tasks that publish: `on_existing="overwrite"` deletes rows before the first task.

    The tasks cannot do so, because none of their transactions is known to be the first one.
    """

    @contextmanager
    def opening(self) -> Iterator[None]:
        # Of two concurrent drivers of this query only one is the first.
        self._connection.execute(
            "SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))",
            (_BEGINNING, f"{self._ledger.key['incarnation']} {self._name}"),
        )
        yield

    def delete_existing(self, context: TargetContext[Any]) -> None:
        self._table.delete_rows(self._connection)


Make = Callable[[PostgresConnection], PostgresTarget]


def open_tables(tables: StepTables, make: Make, context: TargetContext[Any]) -> None:
    """Create the tables that the tasks need, and record this driver in the ledger.

    `make` makes the target of a transaction; `context` is the state of the recovery log. Raises `FencedError` if
    another driver has opened the table, and `TargetError` if a table is missing and must not be created.
    """

    def opened(connection: PostgresConnection, *, anyway: bool = False) -> bool:
        target = make(connection)
        if not anyway and target.lacks():
            return False
        reached("postgres: opening")
        open_target(target, context, None)
        return True

    if tables.run("opening", opened):
        return
    target = tables.run("checking", make)
    for wanted in target.rows_need():
        tables.make(wanted)
    if tables.options.create_staging == "if_missing":
        for wanted in target.beside():
            tables.make(wanted)
    # The table may have been created, or may have got columns, since the check.
    elif any(tables.run("checking", wanted.missing) for wanted in target.beside()):
        raise target.without_support(context.step_id)
    tables.run("opening", partial(opened, anyway=True))
