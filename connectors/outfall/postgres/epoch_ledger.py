"""The ledger's row as a recorded epoch needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import psycopg

from outfall.capabilities import CommitterInitContext
from outfall.errors import FencedError, TargetLostError
from outfall.postgres.connection import Connection
from outfall.postgres.ledger import Ledger, LedgerRow
from outfall.postgres.names import TableName
from outfall.postgres.staging import StagedRows
from outfall.target_record import TargetRecord, check_publishing


class EpochLedger:
    """Reads and writes the row, and explains why it cannot. Every call runs in the caller's transaction.

    Args:
        ledger: the row.
        table: the target, for texts.
        context: the epoch.
    """

    def __init__(self, ledger: Ledger, table: TableName, context: CommitterInitContext) -> None:
        self._table = table
        self._context = context
        self._ledger = ledger

    def read(self, connection: Connection, attempts: Sequence[StagedRows], *, lock: bool = False) -> LedgerRow:
        """Return the row; with `lock` no other transaction writes it meanwhile.

        Args:
            connection: a connection.
            attempts: what is recorded of the epoch, for texts.
            lock: see above.

        Raises:
            TargetLostError: there is none.
            FencedError: another driver opened the table since, or has published rows of its own as this epoch.
        """
        try:
            row = self._ledger.read(connection, lock=lock)
        except psycopg.errors.UndefinedTable:
            raise self._lost(attempts) from None
        if row is None:
            raise self._lost(attempts)
        check_publishing(str(self._table), row.record(), self._context)
        if row.holds(self._context.epoch):
            published = replace(row.record(), generation=self._context.generation, token=row.published_token)
            check_publishing(f"epoch {row.epoch} of {self._table}", published, self._context)
        return row

    def published(self, connection: Connection, found: LedgerRow, rows: int) -> None:
        """Write that the epoch's rows are in the table. The caller holds the lock."""
        context = self._context
        written = TargetRecord(context.generation, context.token, context.epoch)
        self._ledger.published(connection, found, written, rows=rows)

    def revoke(self, connection: Connection, found: LedgerRow) -> None:
        """Write that the epoch's generation may publish no more. The caller holds the lock."""
        self._ledger.revoke(connection, found, generation=self._context.generation)

    def fenced(self) -> FencedError:
        """Make the error of a driver that finds its own generation revoked."""
        context = self._context
        return FencedError(
            f"the ledger of {self._table} takes no more rows of generation {context.generation}",
            step=context.step_id,
            epoch=context.epoch,
            why="a newer driver found some of them lost, and writes the epoch anew",
            do="nothing, if the newer one is meant to run",
        )

    def _lost(self, attempts: Sequence[StagedRows]) -> TargetLostError:
        why = "the ledger was emptied or dropped, or the database was restored from a copy older than this query"
        do = "restore the database, or start the query with a new checkpoint"
        schema = self._ledger.metadata_schema
        former = next((staged.staging[0] for staged in attempts if staged.staging), schema)
        if former != schema:
            why = f"metadata_schema is {schema!r}, and was {former!r} when the rows of this epoch were written"
            do = f"set metadata_schema to {former!r} again"
        return TargetLostError(
            f"the ledger has no row for this query's writes to {self._table}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=why,
            do=do,
        )
