"""One attempt: its rows go into staging by COPY, in one transaction."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any

import psycopg
import pyarrow as pa

from outfall.capabilities import WriterInitContext
from outfall.errors import ValueRefusedError
from outfall.postgres.connection import Connection, Database
from outfall.postgres.dead_letters import DeadLetters
from outfall.postgres.failures import explained
from outfall.postgres.staging import StagedRows, Staging, new_stage
from outfall.postgres.staging_copy import Copy, SortingCopy, StagingCopy, StreamingCopy
from outfall.sinks import StatelessSinkPartition
from outfall.trace_points import reached
from outfall.values import rows_to_batch


class StagingPart(StatelessSinkPartition[Any]):
    """Copies rows into the staging table. Until `prepare_commit` nothing of them outlives the connection.

    It takes a connection with its first row, so that tasks without rows cost the server nothing.
    """

    def __init__(
        self, database: Database, staging: Staging, letters: DeadLetters | None, context: WriterInitContext
    ) -> None:
        self._database = database
        self._staging = staging
        self._letters = letters
        self._context = context
        self._stack = ExitStack()
        self._stage = new_stage()
        self._connection: Connection | None = None
        self._copy: Copy | None = None
        self._schema: pa.Schema | None = None
        self._done = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        if batch.num_rows == 0:
            return
        with self._explained():
            size = self._open(batch.schema).write(batch)
        self._context.metrics.add("bytes", size)

    def prepare_commit(self) -> list[StagedRows]:
        """Commit the rows to staging and hand them over."""
        connection, copy = self._connection, self._copy
        if connection is None or copy is None or self._schema is None:
            return []
        with self._explained():
            copy.finish()
            table = self._staging.table
            staged = StagedRows(
                stage=self._stage,
                rows=copy.rows,
                columns=self._columns(self._schema),
                letters=len(copy.letters),
                staging=(table.schema or "", table.name),
            )
            self._staging.register(connection, self._context, staged)
            if self._letters is not None:
                self._letters.stage(connection, self._stage, copy.letters)
            self._publish(connection, staged)
            reached("postgres: staging")
            connection.execute("COMMIT")
            reached("postgres: staged")
        if copy.letters:
            self._context.metrics.add("dead_letters", len(copy.letters))
        self._done = True
        return [staged]

    def close(self) -> None:
        """Give the connection back, or close it in the middle of its transaction: then nothing of it stays."""
        connection, self._connection = self._connection, None
        if self._done or connection is None:
            self._stack.close()
            return
        connection.close()
        # What was under way on it complains.
        with suppress(psycopg.Error):
            if self._copy is not None:
                self._copy.close()
            self._stack.close()

    def _publish(self, connection: Connection, staged: StagedRows) -> None:
        """Do nothing: whoever commits publishes the rows."""

    def _open(self, schema: pa.Schema) -> Copy:
        if self._copy is not None:
            if not schema.equals(self._schema):
                raise ValueRefusedError(
                    f"the columns change from {self._schema} to {schema}",
                    why="all rows of an epoch go into the same columns",
                    do="give all rows the same columns",
                )
            return self._copy
        self._connection = connection = self._stack.enter_context(self._database.connection())
        connection.execute("BEGIN")
        # A COPY lasts as long as its task has rows, whatever the server allows other statements.
        connection.execute("SET LOCAL statement_timeout = 0")
        self._schema = schema
        made = StagingCopy(connection, self._staging, self._database.options, schema, self._stage)
        if self._letters is None:
            self._copy = StreamingCopy(made)
        else:
            self._copy = SortingCopy(made, self._context, self._letters.most)
        return self._copy

    def _columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(name for name in schema.names if name != self._database.options.delete_marker)

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self._database, f"staging rows for {self._database.options.table}", self._context.step_id)
