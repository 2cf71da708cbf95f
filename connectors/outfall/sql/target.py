"""How a table keeps the record of a step: in the ledger, in the transactions that write its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from outfall.capabilities import TargetContext
from outfall.errors import TargetError, TargetLostError, TargetNotEmptyError
from outfall.possession.possession import Change, FoundRecord, RecordPort, open_target
from outfall.sql.database import ExpectedTables, Session
from outfall.sql.ledger import LedgerRow
from outfall.sql.table import Table, dropped
from outfall.sql.tables import StepTables
from outfall.trace_points import reached


class SqlTarget(RecordPort[LedgerRow]):
    """One step's table in one epoch. Used on the driver, in one transaction.

    The options of `tables` are those by which the target is created. `schema` has the columns of the rows, if known.
    """

    locks = True
    stages = True
    """Whether tasks stage rows."""
    ahead = (
        "make sure that no other run of the query is active, and restore the newest recovery log. If it is lost,"
        " compare the table with the source, remove manually the rows that will be replayed, and start with a new"
        " checkpoint. If a log in a database lost its newest entry in a failover, and both have the same epoch, run"
        ' `outfall reset` and start once with on_existing="resume", and a stream with adopt_checkpoint=True'
    )

    def __init__(self, tables: StepTables[Any], schema: pa.Schema | None, session: Any) -> None:
        self._tables = tables
        self._dialect = tables.dialect
        self._name_of_table = tables.target
        self._table = Table(tables.dialect, tables.target)
        self._ledger = tables.ledger
        self._schema = schema
        self._session = session
        self.where = str(tables.target)
        self.overwrites = tables.options.existing.others == "delete"
        self.name = f"in {tables.options.metadata_schema}.ledger"

    # --- the record

    def read(self) -> FoundRecord[LedgerRow] | None:
        row = self._ledger.read(self._session) if self._ledger.exists(self._session) else None
        return None if row is None else FoundRecord(row)

    def open(self, context: TargetContext[Any], change: Change[LedgerRow]) -> LedgerRow | None:
        row = self._ledger.read(self._session, lock=True)
        if row is None:
            return None
        after = change(FoundRecord(row))
        self._ledger.open(self._session, after)
        return after

    def create(self, context: TargetContext[Any]) -> None:
        self._ledger.create(self._session)

    def missing(self, epoch: int, context: TargetContext[Any]) -> TargetLostError:
        what = f"has no epoch of this query for {self.where}, but the query has completed epoch {epoch}"
        return self._ledger.lost(what, context.epoch)

    # --- checks

    def check_table(self) -> None:
        """Reject a table that does not fit, or that a crash of the server would empty. Changes nothing.

        Raises `TargetError` if the table does not fit, or `ConfigurationError`, as `Dialect.check_relation` does.
        """
        self._check_relation()
        if self._tables.dead_letters is not None:
            self._tables.dead_letters.check(self._session, self._name_of_table)

    def _check_relation(self) -> None:
        self._dialect.check_relation(self._session, self._name_of_table)

    def starts(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        """Return the start states of new parts."""
        return {}

    def check_data(self, found: FoundRecord[LedgerRow] | None, context: TargetContext[Any]) -> None:
        """Reject a missing table whose rows are recorded, instead of creating it again."""
        written = found is not None and (context.completed is not None or self._has_written(found.stored))
        if written and not self._exists():
            raise dropped(self._name_of_table, context.step_id)

    def check_existing(self, context: TargetContext[Any]) -> None:
        self.check_rows(context.step_id)

    def check_rows(self, step_id: str, *, others: bool = True) -> None:
        """Reject what the table holds before the first epoch, unless `on_existing` allows it.

        With `others`, the step may have written it under another checkpoint.
        """
        before = self._published_by_others() if others and self._ledger.exists(self._session) else None
        existing = self._tables.options.existing
        # A user who may only insert must not need SELECT if the result does not matter.
        looks = existing.others == "reject" or (existing.own == "reject" and before is not None)
        if not looks or not self._table.holds_rows(self._session):
            return
        if before is not None:
            raise TargetNotEmptyError(
                f"{self.where} holds rows that step {step_id!r} wrote under another checkpoint, up to epoch {before}",
                step=step_id,
                why="that checkpoint is lost, a batch job was killed after it had published, or another query uses the"
                " same step_id; this query could write the same rows again",
                do="if another query uses this step_id, give this one its own; if the checkpoint is lost, restore it,"
                ' or set on_existing="overwrite" to write all rows again, or "resume" after deleting the rows that the'
                " source will replay",
            )
        raise TargetNotEmptyError(
            f"{self.where} holds rows",
            step=step_id,
            why="on_existing is 'error'",
            do='set on_existing="resume" to keep its rows or "overwrite" to delete them, or name another table',
        )

    def _published_by_others(self) -> int | None:
        """Return the newest epoch that this step wrote under another checkpoint."""
        return self._ledger.published_by_others(self._session)

    def _has_written(self, found: LedgerRow) -> bool:
        """Return whether the table has rows of this query, according to the ledger."""
        return found.epoch is not None

    def _exists(self) -> bool:
        return bool(self._dialect.columns(self._session, self._name_of_table))

    # --- the tables that the tasks need

    def check_support(self) -> None:
        """Reject missing tables next to the target, if the sink must not create them. Changes nothing.

        Raises `TargetError`, which names the tables.
        """
        if self._tables.options.create_staging == "if_missing" or not self._exists():
            return
        if any(expected.missing(self._session) for expected in self.own_tables()):
            raise self.without_support()
        if self.stages:
            self._dialect.check_own(self._session, self._tables.staging.table)
        if self._tables.tombstones is not None:
            self._dialect.check_own(self._session, self._tables.tombstones.table)

    def lacks(self) -> bool:
        """Return whether a table or a column is missing."""
        return any(expected.missing(self._session) for expected in [*self.rows_need(), *self.own_tables()])

    def rows_need(self) -> list[ExpectedTables]:
        """Return the target itself, with the columns of the rows."""
        schema = self._schema
        if schema is None:
            return []
        return [ExpectedTables((self._name_of_table.name,), lambda session: self._table.missing_ddl(session, schema))]

    def own_tables(self) -> list[ExpectedTables]:
        """Return the sink's own tables."""
        schema, dead_letters, staging = (
            self._tables.options.metadata_schema,
            self._tables.dead_letters,
            self._tables.staging,
        )
        expected = [ExpectedTables((schema,), self._ledger.missing_ddl)]
        if dead_letters is not None:
            expected.append(ExpectedTables((schema, dead_letters.table.name), dead_letters.missing_ddl))
        if self.stages:
            expected.append(ExpectedTables((staging.table.name,), staging.missing_ddl))
        if (tombstones := self._tables.tombstones) is not None:
            expected.append(ExpectedTables((schema, tombstones.table.name), tombstones.missing_ddl))
        return expected

    def without_support(self) -> TargetError:
        """Return the error of missing tables that the sink must not create."""
        names = [f"{self._tables.options.metadata_schema}.ledger"]
        names += [str(self._tables.staging.table)] if self.stages else []
        names += [] if self._tables.dead_letters is None else ["a table for dead letters"]
        names += [] if self._tables.tombstones is None else [str(self._tables.tombstones.table)]
        return TargetError(
            f"{' or '.join(names)} is missing or does not match the table",
            step=self._tables.step_id,
            why="create_staging is 'never'",
            do=f"have a DBA run the output of {self._dialect.sink}.ddl()",
        )


def open_tables(tables: StepTables[Any], make: Callable[[Any], SqlTarget], context: TargetContext[Any]) -> None:
    """Create the tables that the tasks need, and record this driver in the ledger.

    `make` makes the target of a transaction; `context` is the state of the recovery log. Raises `FencedError` if
    another driver has opened the table, and `TargetError` if a table is missing and must not be created.
    """

    def opened(session: Session, *, anyway: bool = False) -> bool:
        target = make(session)
        if not anyway and target.lacks():
            return False
        reached("sql: opening")
        open_target(target, context, None)
        return True

    known = [tables.ledger.reading()] if context.completed is not None else []
    if tables.run("opening", opened, foreseen=known, looks=True):
        return
    target = tables.run("checking", make)
    for expected in target.rows_need():
        tables.make(expected)
    if tables.options.create_staging == "if_missing":
        for expected in target.own_tables():
            tables.make(expected)
    # The table may have been created, or may have got columns, since the check.
    elif any(tables.run("checking", expected.missing) for expected in target.own_tables()):
        raise target.without_support()
    tables.run("opening", partial(opened, anyway=True))
