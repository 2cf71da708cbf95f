"""`delivery="offset", offset_columns=…`: rows carry the numbers that their source gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql

from outfall.capabilities import CommitterInitContext, TargetContext
from outfall.errors import ValueRefusedError
from outfall.postgres.catalogue.table import check_unique
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import STAGE, escaped
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.epochs import StagedDelivery
from outfall.postgres.staging.publish import Request, StagedCommitter, attempts_of
from outfall.postgres.staging.staging_table import StagedRows
from outfall.postgres.staging.staging_writer import StagingWriter
from outfall.postgres.target import OffsetTarget
from outfall.trace_points import reached


class SourceDelivery(StagedDelivery):
    """A row is in the table once, by the unique index on its offsets.

    Nobody needs to be fenced. A row is named by its offsets, and the unique index lets each name in once. An attempt
    that wakes late, of whatever generation and epoch, can only bring rows of names that its source gave it; what is in
    the table under such a name is that row, since the source gives a name to one row only. So it inserts what its
    successor has not inserted yet, and would have, or nothing.

    The rows are in the table before anything is committed. What the driver commits is that they are: it finds each
    attempt registered, and writes the epoch into the ledger. A server that loses transactions loses the last ones, so
    that none of a task can go while that one stays.
    """

    def kind(self) -> str:
        return "postgres/source-offsets"

    def requires(self) -> Sequence[str]:
        names = ", ".join(self.options.offset_columns)
        return (
            *super().requires(),
            f"a source that brings all rows of an epoch again, and whose offsets ({names}) always name the same row",
            "no one who deletes rows that the query may still bring again",
        )

    def build(self, step_id: str, worker_index: int, worker_count: int) -> SourceWriter:
        return SourceWriter(self._tables(self._writer()), self._writer())

    def create_committer(self, context: CommitterInitContext) -> SourceCommitter:
        return SourceCommitter(self._tables(context), context)

    def _check_columns(self, connection: PostgresConnection, schema: pa.Schema) -> None:
        super()._check_columns(connection, schema)
        why = "nothing else tells a row that comes again from a new one"
        check_unique(connection, self.table, self.options.offset_columns, why=why)

    @property
    def _table_options(self) -> PostgresOptions:
        return self.options.model_copy(update={"key_columns": self.options.offset_columns})

    def _target(self, context: TargetContext[Any]) -> SourceTarget:
        return SourceTarget(self._tables(context, self._table_options), context, self._written)


class SourceTarget(OffsetTarget):
    """As `OffsetTarget`, for rows that carry their source's offsets."""

    def _published_by_others(self, connection: PostgresConnection) -> None:
        """Nothing: rows that come again under another checkpoint find themselves there."""


class SourceCommitter(StagedCommitter):
    """Writes into the ledger that an epoch's rows are in the table, if they still are."""

    def commit(self, requests: Sequence[Request]) -> None:
        def settle(connection: PostgresConnection) -> None:
            row = self._row(connection, requests, lock=True)
            if self._is_published(row, requests) or self._signal_lost(connection, requests):
                return
            reached("postgres: publishing")
            attempts = attempts_of(requests)
            self._ledger.published(connection, row, self._context, sum(staged.rows for staged in attempts))
            self._staging.forget(connection, [staged.stage for staged in attempts])
            for request in requests:
                request.signal_committed()

        self._tables.run("settling rows of", settle)

    def find_lost(self, requests: Sequence[Request]) -> None:
        def find(connection: PostgresConnection) -> None:
            if not self._row(connection, requests).holds(self._context.epoch):
                self._signal_lost(connection, requests)

        self._tables.run("looking for rows of", find)

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        """Rows that are there may be written again: they find themselves there."""
        return True

    def revoke(self, requests: Sequence[Request]) -> None:
        stages = [request.committable.stage for request in requests]
        self._tables.run("giving up rows of", lambda connection: self._staging.forget(connection, stages))

    def _signal_lost(self, connection: PostgresConnection, requests: Sequence[Request]) -> bool:
        there = self._staging.registered(connection, [request.committable.stage for request in requests])
        lost = [request for request in requests if request.committable.stage not in there]
        for request in lost:
            staged = request.committable
            request.signal_lost(
                f"the server lost attempt {staged.stage} with its {staged.rows} rows, although it had confirmed them"
            )
        # Who writes the epoch anew is not to find those registered that are given up with them.
        for request in requests if lost else ():
            if request not in lost:
                request.signal_lost("given up with another attempt of its epoch")
        return bool(lost)


class SourceWriter(StagingWriter):
    """Copies rows into staging and from there into the table, in one transaction, which also registers the attempt.

    Staging is cleared with the clean-up after its epoch: a temporary table would be a row of the catalogue
    per task and epoch, or stay in a session that poolers share. That the reply to COMMIT is lost is an error like any
    other: the rows may be sent again.
    """

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch.

        Raises:
            ValueRefusedError: an offset is NULL, which no index takes for the same as another.
        """
        for name in self._tables.options.offset_columns:
            if batch.column(name).null_count:
                raise ValueRefusedError(
                    f"the offset column {name!r} is NULL in a row",
                    step=self._context.step_id,
                    epoch=self._context.epoch,
                    why="such a row could not be told from another when it comes again",
                    do="leave such rows out, or choose other offset_columns",
                )
        super().write_record_batch(batch)

    def _add_to_transaction(self, connection: PostgresConnection, staged: StagedRows) -> None:
        """Insert the rows that the table has not."""
        self._context.metrics.add("rows_changed", self._insert(connection, staged.columns))

    def _insert(self, connection: PostgresConnection, columns: tuple[str, ...]) -> int:
        self._tables.database.limit(connection)
        listed = sql.SQL(", ").join(map(escaped, columns))
        offsets = sql.SQL(", ").join(map(escaped, self._tables.options.offset_columns))
        # In the order of the keys, so that two attempts that bring the same rows wait for each other one way only.
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {stage} = %s ORDER BY {offsets}"
            " ON CONFLICT ({offsets}) DO NOTHING"
        ).format(
            table=self._tables.target.escaped(),
            columns=listed,
            staging=self._staging.table.escaped(),
            stage=escaped(STAGE),
            offsets=offsets,
        )
        reached("postgres: publishing")
        return connection.execute(statement, (self._stage,)).rowcount
