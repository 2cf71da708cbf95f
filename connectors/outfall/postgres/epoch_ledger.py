"""The ledger's row as a recorded epoch needs it."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from outfall.capabilities import CommitterInitContext
from outfall.errors import FencedError, TargetLostError
from outfall.postgres.connection import Connection
from outfall.postgres.ledger import Ledger, LedgerRow
from outfall.postgres.names import TableName
from outfall.postgres.staging import StagedRows


class EpochLedger:
    """Reads and writes the row, and explains why it cannot. Every call runs in the caller's transaction.

    Args:
        metadata_schema: where the ledger is.
        table: the target.
        context: the epoch.
    """

    def __init__(self, metadata_schema: str, table: TableName, context: CommitterInitContext) -> None:
        self._schema = metadata_schema
        self._table = table
        self._context = context
        self._ledger = Ledger(metadata_schema, context.incarnation, table)

    def read(self, connection: Connection, attempts: Sequence[StagedRows], *, lock: bool = False) -> LedgerRow:
        """Return the row; with `lock` no other transaction writes it meanwhile.

        Args:
            connection: a connection.
            attempts: what is recorded of the epoch, for texts.
            lock: see above.

        Raises:
            TargetLostError: there is none.
        """
        try:
            row = self._ledger.read(connection, lock=lock)
        except psycopg.errors.UndefinedTable:
            raise self._lost(attempts) from None
        if row is None:
            raise self._lost(attempts)
        return row

    def published(self, connection: Connection, rows: int) -> None:
        """Write that the epoch's rows are in the table. The caller holds the lock."""
        self._ledger.published(connection, epoch=self._context.epoch, rows=rows)

    def revoke(self, connection: Connection) -> None:
        """Write that the epoch's generation may publish no more. The caller holds the lock."""
        self._ledger.revoke(connection, generation=self._context.generation)

    def fenced(self, generation: int) -> FencedError:
        """Make the error of a driver that finds a newer generation, or its own revoked."""
        context = self._context
        return FencedError(
            f"the ledger of {self._table} is at generation {generation}",
            step=context.step_id,
            epoch=context.epoch,
            why=f"these rows were written under generation {context.generation}; a newer driver writes them anew",
            do="nothing, if the newer one is meant to run",
        )

    def _lost(self, attempts: Sequence[StagedRows]) -> TargetLostError:
        why = "the ledger was emptied or dropped, or the database was restored from a copy older than this query"
        do = "restore the database, or start the query with a new checkpoint"
        former = next((staged.staging[0] for staged in attempts if staged.staging), self._schema)
        if former != self._schema:
            why = f"metadata_schema is {self._schema!r}, and was {former!r} when the rows of this epoch were written"
            do = f"set metadata_schema to {former!r} again"
        return TargetLostError(
            f"the ledger has no row for this query's writes to {self._table}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=why,
            do=do,
        )
