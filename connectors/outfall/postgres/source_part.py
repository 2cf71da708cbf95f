"""One attempt whose rows carry their source's offsets: it publishes them by itself."""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from outfall.capabilities import WriterInitContext
from outfall.errors import ValueRefusedError
from outfall.postgres.connection import Connection, Database
from outfall.postgres.names import TableName, escaped
from outfall.postgres.staging import STAGE, StagedRows, Staging
from outfall.postgres.staging_writer import StagingPart
from outfall.trace_points import reached


class SourcePart(StagingPart):
    """Copies rows into staging and from there into the table, in one transaction, which also registers the attempt.

    What stays in staging is cleared with the sweep after its epoch: a temporary table would be a row of the catalogue
    per task and epoch, or stay in a session that poolers share. That the reply to COMMIT is lost is an error like any
    other: the rows may be sent again.
    """

    def __init__(self, database: Database, staging: Staging, table: TableName, context: WriterInitContext) -> None:
        super().__init__(database, staging, None, context)
        self._table = table

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch.

        Raises:
            ValueRefusedError: an offset is NULL, which no index takes for the same as another.
        """
        for name in self._database.options.offset_columns:
            if batch.column(name).null_count:
                raise ValueRefusedError(
                    f"the offset column {name!r} is NULL in a row",
                    step=self._context.step_id,
                    epoch=self._context.epoch,
                    why="such a row could not be told from another when it comes again",
                    do="leave such rows out, or choose other offset_columns",
                )
        super().write_record_batch(batch)

    def _publish(self, connection: Connection, staged: StagedRows) -> None:
        """Insert the rows that the table has not."""
        self._context.metrics.add("rows_changed", self._insert(connection, staged.columns))

    def _insert(self, connection: Connection, columns: tuple[str, ...]) -> int:
        self._database.limit(connection)
        listed = sql.SQL(", ").join(map(escaped, columns))
        offsets = sql.SQL(", ").join(map(escaped, self._database.options.offset_columns))
        # In the order of the keys, so that two attempts that bring the same rows wait for each other one way only.
        statement = sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {stage} = %s ORDER BY {offsets}"
            " ON CONFLICT ({offsets}) DO NOTHING"
        ).format(
            table=self._table.escaped(),
            columns=listed,
            staging=self._staging.table.escaped(),
            stage=escaped(STAGE),
            offsets=offsets,
        )
        reached("postgres: publishing")
        return connection.execute(statement, (self._stage,)).rowcount
