"""Publishing an epoch: one transaction that holds the ledger's row."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext
from outfall.errors import CommitRefusedError, FencedError, LostCommittableError, TargetLostError
from outfall.postgres.connection import Connection, Database, describe
from outfall.postgres.failures import translated
from outfall.postgres.ledger import Ledger, LedgerRow
from outfall.postgres.names import TableName
from outfall.postgres.publish import statement
from outfall.postgres.sqlstate import is_rows_fault
from outfall.postgres.staging import StagedRows, Staging
from outfall.steps import reached

Request = CommitRequest[StagedRows]


class PostgresCommitter(Committer[StagedRows]):
    """Moves the rows of an epoch's winners from staging into the table, all or none, and writes the epoch beside them.

    Two drivers that publish the same epoch meet at the ledger's row: whoever comes second finds the epoch there.
    """

    strict = True

    def __init__(
        self, database: Database, table: TableName, staging: Staging, ledger: Ledger, context: CommitterInitContext
    ) -> None:
        self._database = database
        self._table = table
        self._staging = staging
        self._ledger = ledger
        self._context = context

    def commit(self, requests: Sequence[Request]) -> None:
        try:
            self._database.run("publishing to", lambda connection: self._publish(connection, requests))
        except _RowsLostError:
            self.find_lost(requests)
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise translated(
                    self._database, f"publishing to {self._table}", error, self._context.step_id
                ) from error
            refusal = CommitRefusedError(
                f"{self._table} refuses rows of this epoch",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why=describe(error),
                do="correct the row at its source or change the table, and start the query again; nothing of the epoch"
                " is in the table",
            )
            for request in requests:
                request.signal_failed_with_known_reason(refusal)

    def find_lost(self, requests: Sequence[Request]) -> None:
        counts = self._database.run(
            "looking into staging of", lambda connection: self._staging.counts(connection, _stages(requests))
        )
        for request in requests:
            staged = request.committable
            found = counts.get(staged.stage, 0)
            if found != staged.rows:
                request.signal_lost(
                    f"{self._staging.table} holds {found} of the {staged.rows} rows of attempt {staged.stage}: a crash"
                    " of the server empties it"
                )

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        row = self._database.run(
            "looking at the ledger of", lambda connection: self._ledger.read(connection, lock=True)
        )
        return row is not None and not row.holds(self._context.epoch)

    def revoke(self, requests: Sequence[Request]) -> None:
        self._database.run("revoking rows of", lambda connection: self._revoke(connection, requests))
        reached("postgres: revoked")

    def _publish(self, connection: Connection, requests: Sequence[Request]) -> None:
        context = self._context
        row = self._locked(connection)
        if row.holds(context.epoch):
            for request in requests:
                request.signal_already_committed()
            return
        if row.generation > context.generation or row.revoked >= context.generation:
            raise FencedError(
                f"the ledger of {self._table} is at generation {max(row.generation, row.revoked)}",
                step=context.step_id,
                epoch=context.epoch,
                why=f"these rows were written under generation {context.generation}; a newer driver writes them anew",
                do="nothing, if the newer one is meant to run",
            )
        reached("postgres: publishing")
        if row.epoch is None and self._database.options.on_existing == "overwrite":
            connection.execute(sql.SQL("DELETE FROM {}").format(self._table.identifier()))
        changed = self._move(connection, requests)
        self._ledger.published(connection, epoch=context.epoch, rows=changed)
        self._staging.forget(connection, _stages(requests))
        context.metrics.add("rows_changed", changed)
        for request in requests:
            request.signal_committed()

    def _move(self, connection: Connection, requests: Sequence[Request]) -> int:
        expected = {request.committable.stage: request.committable.rows for request in requests}
        moving = statement(self._database.options, self._table, self._staging.table, _columns(requests))
        changed = connection.execute(moving, {"stages": list(expected)}).rowcount
        # Appends tell by themselves that no row was lost, unless the table's triggers or rules leave rows out.
        told = self._database.options.write_mode == "append" and changed == sum(expected.values())
        if not told and self._staging.counts(connection, expected) != expected:
            raise _RowsLostError
        return changed

    def _revoke(self, connection: Connection, requests: Sequence[Request]) -> None:
        context = self._context
        if self._locked(connection).holds(context.epoch):
            raise LostCommittableError(
                f"epoch {context.epoch} is in {self._table} already and cannot be revoked",
                step=context.step_id,
                epoch=context.epoch,
                do="start the query again: the ledger settles it",
            )
        self._ledger.revoke(connection, generation=context.generation)
        self._staging.forget(connection, _stages(requests))

    def _locked(self, connection: Connection) -> LedgerRow:
        row = self._ledger.read(connection, lock=True)
        if row is None:
            raise TargetLostError(
                f"the ledger has no row for this query's writes to {self._table}",
                step=self._context.step_id,
                epoch=self._context.epoch,
                why="the ledger was emptied, or the database was restored from a copy older than this query",
                do="restore the database, or start the query with a new checkpoint",
            )
        return row


class _RowsLostError(Exception):
    """Fewer rows are in staging than were recorded: the transaction must not commit."""


def _stages(requests: Sequence[Request]) -> list[int]:
    return [request.committable.stage for request in requests]


def _columns(requests: Sequence[Request]) -> tuple[str, ...]:
    """The columns of the epoch: on Spark those of one DataFrame; elsewhere those that any attempt has."""
    return tuple(dict.fromkeys(name for request in requests for name in request.committable.columns))
