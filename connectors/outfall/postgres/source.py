"""`offset_columns=…`: rows have the offsets of their source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from outfall.capabilities import CommitterInitContext, RowIdentity, TargetContext
from outfall.errors import TargetError, TerminalError, ValueRefusedError
from outfall.postgres.catalogue.table import check_unique
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.delivery import PostgresDelivery, PostgresTarget
from outfall.postgres.names import quote
from outfall.postgres.options import PostgresOptions
from outfall.sql.delivery import StagedDelivery
from outfall.sql.dialect import StagedRows, compose
from outfall.sql.options import STAGE
from outfall.sql.parts.target import DirectTarget
from outfall.sql.publish import Request, StagedCommitter, attempts_of
from outfall.sql.writer import StagingWriter
from outfall.trace_points import reached


class SourceDelivery(PostgresDelivery, StagedDelivery):
    """Writes each row exactly once, by the unique index on its offsets.

    No fencing is needed. The offsets identify a row, and the unique index rejects duplicates. A stale task of any
    generation and epoch has only rows with offsets of its source, and the source assigns each offset to one row. It
    therefore inserts rows that its successor would insert, or none.

    The rows are in the table before the commit. The driver checks that each attempt is registered, and writes the epoch
    to the ledger. A server that loses transactions loses the latest ones, so if the ledger has the epoch, the table has
    its rows.
    """

    def kind(self) -> str:
        return "postgres/source-offsets"

    def row_identity(self) -> RowIdentity:
        return RowIdentity("append by offset_columns", tuple(sorted(self.options.offset_columns)))

    def requires(self) -> Sequence[str]:
        names = ", ".join(self.options.offset_columns)
        return (
            *super().requires(),
            f"a source that replays all rows of an epoch, and whose offsets ({names}) always identify the same row",
            "rows that the query may replay are not deleted",
        )

    def build(self, step_id: str, worker_index: int, worker_count: int) -> SourceWriter:
        return SourceWriter(self._tables(self._writer()), self._writer())

    def create_committer(self, context: CommitterInitContext) -> SourceCommitter:
        return SourceCommitter(self._tables(context), context)

    def _check_columns(self, connection: PostgresConnection, schema: pa.Schema) -> None:
        super()._check_columns(connection, schema)
        self._check_unique(connection)

    def _check_table(self, connection: PostgresConnection) -> None:
        super()._check_table(connection)
        self._check_unique(connection)

    def _check_unique(self, connection: PostgresConnection) -> None:
        why = "without it, a replayed row cannot be distinguished from a new one"
        for index in check_unique(connection, self.table.resolved(self._found), self.options.offset_columns, why=why):
            if index.inexact:
                raise TargetError(
                    f"the index {index.name} of {self.table} compares distinct values of {', '.join(index.inexact)} as"
                    " equal",
                    why="of two rows with such offsets, one would be dropped as a duplicate of the other",
                    do='give the column a type and a collation that distinguish all values, such as text COLLATE "C"',
                )

    @property
    def _table_options(self) -> PostgresOptions:
        return self.options.model_copy(update={"key_columns": self.options.offset_columns})

    def _target(self, connection: PostgresConnection, context: TargetContext[Any]) -> SourceTarget:
        return SourceTarget(self._tables(context, self._table_options), self._written, connection)


class SourceTarget(DirectTarget, PostgresTarget):
    """Like `DirectTarget`, for rows with the offsets of their source."""

    def _published_by_others(self) -> None:
        """Return `None`: rows that are replayed under another checkpoint are already in the table."""


class SourceCommitter(StagedCommitter):
    """Records in the ledger that an epoch's rows are in the table, after checking that they are."""

    def commit(self, requests: Sequence[Request]) -> None:
        def settle_transactions(connection: PostgresConnection) -> None:
            row = self._row(connection, requests, lock=True)
            if self._is_published(row, requests) or self._signal_lost(connection, requests):
                return
            reached("sql: publishing")
            attempts = attempts_of(requests)
            self._ledger.published(connection, self._context, sum(staged.rows for staged in attempts))
            self._staging.forget(connection, [staged.stage for staged in attempts])
            for request in requests:
                request.signal_committed()

        self._tables.run("committing rows of", settle_transactions)

    def find_lost(self, requests: Sequence[Request]) -> None:
        def find(connection: PostgresConnection) -> None:
            if not self._row(connection, requests).holds(self._context.epoch):
                self._signal_lost(connection, requests)

        self._tables.run("checking rows of", find)

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        """Return true: rows that are already in the table can be written again."""
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
        # The other attempts are lost as well, so that a rewrite of the epoch does not find them registered.
        for request in requests if lost else ():
            if request not in lost:
                request.signal_lost("discarded with another attempt of its epoch")
        return bool(lost)


class SourceWriter(StagingWriter):
    """Copies rows to staging and from there into the table, in one transaction that also registers the attempt.

    Staging is cleared by the clean-up after its epoch. A temporary table would add catalog rows for each task and
    epoch, or remain in a session that a pooler shares. A lost acknowledgment of COMMIT is an ordinary error, because
    the rows can be sent again.
    """

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch.

        Raises `ValueRefusedError` if an offset is NULL, because NULLs are never equal in an index.
        """
        for name in self._tables.dialect.options.offset_columns:
            if batch.column(name).null_count:
                raise ValueRefusedError(
                    f"the offset column {name!r} is NULL in a row",
                    step=self._context.step_id,
                    epoch=self._context.epoch,
                    why="a replay of such a row could not be detected",
                    do="filter such rows, or use other offset_columns",
                )
        super().write_record_batch(batch)

    def _add_to_transaction(self, connection: PostgresConnection, staged: StagedRows) -> None:
        """Insert the rows that are not in the table."""
        self._context.metrics.add("rows_changed", self._insert(connection, staged))
        # Afterwards, since the INSERT has locked the table.
        if changed := self._tables.staging.unfit(connection, [staged])[staged.stage]:
            raise TerminalError(
                f"{self._tables.target} changed after this epoch began",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=changed,
                do="start the query again",
            )

    def _insert(self, connection: PostgresConnection, staged: StagedRows) -> int:
        self._tables.dialect.database.limit(connection)
        # In key order, so that two attempts with the same rows cannot deadlock.
        statement = compose(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {stage} = %s ORDER BY {offsets}"
            " ON CONFLICT ({offsets}) DO NOTHING",
            table=self._tables.target.sql,
            columns=", ".join(map(quote, staged.columns)),
            staging=self._tables.staging.table.sql,
            stage=quote(STAGE),
            offsets=", ".join(map(quote, self._tables.dialect.options.offset_columns)),
        )
        reached("sql: publishing")
        return int(connection.execute(statement, (staged.stage,)).rowcount)
