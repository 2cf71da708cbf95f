"""One attempt: its rows go into staging by one COPY, in one transaction."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from outfall.capabilities import WriterInitContext
from outfall.encode import rows_to_batch
from outfall.errors import TerminalError, ValueRefusedError
from outfall.postgres.columns import TableColumn, read_columns
from outfall.postgres.connection import Connection, Database
from outfall.postgres.copy_encoder import CopyEncoder
from outfall.postgres.failures import explained
from outfall.postgres.staging import MARKER, ROW, STAGE, StagedRows, Staging, new_stage
from outfall.sinks import StatelessSinkPartition
from outfall.steps import reached


class StagingPart(StatelessSinkPartition[Any]):
    """Copies rows into the staging table. Until `prepare_commit` nothing of them outlives the connection.

    It takes a connection with its first row, so that tasks without rows cost the server nothing.
    """

    def __init__(self, database: Database, staging: Staging, context: WriterInitContext) -> None:
        self._database = database
        self._staging = staging
        self._context = context
        self._stack = ExitStack()
        self._copying = self._stack.enter_context(ExitStack())
        self._stage = new_stage()
        self._connection: Connection | None = None
        self._copy: psycopg.Copy | None = None
        self._encoder: CopyEncoder | None = None
        self._schema: pa.Schema | None = None
        self._rows = 0
        self._done = False

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        if batch.num_rows == 0:
            return
        with self._explained():
            copy, encoder = self._open(batch.schema)
            data = encoder.encode(self._staged(batch))
            reached("postgres: copying")
            copy.write(data)
        self._context.metrics.add("bytes", len(data))
        self._rows += batch.num_rows

    def prepare_commit(self) -> list[StagedRows]:
        """Commit the rows to staging and hand them over."""
        if self._connection is None or self._schema is None:
            return []
        with self._explained():
            self._finish_copy()
            staged = StagedRows(stage=self._stage, rows=self._rows, columns=self._columns(self._schema))
            self._staging.register(self._connection, self._context, staged)
            reached("postgres: staging")
            self._connection.execute("COMMIT")
            reached("postgres: staged")
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
            self._stack.close()

    def _open(self, schema: pa.Schema) -> tuple[psycopg.Copy, CopyEncoder]:
        if self._copy is not None and self._encoder is not None:
            if not schema.equals(self._schema):
                raise ValueRefusedError(
                    f"the columns change from {self._schema} to {schema}",
                    why="all rows of an epoch go into the same columns",
                    do="give all rows the same columns",
                )
            return self._copy, self._encoder
        self._connection = connection = self._stack.enter_context(self._database.connection())
        connection.execute("BEGIN")
        # A COPY lasts as long as its task has rows, whatever the server allows other statements.
        connection.execute("SET LOCAL statement_timeout = 0")
        self._schema = schema
        wanted = [*self._own().names, *(MARKER if self._is_marker(name) else name for name in schema.names)]
        columns = self._staging_columns(connection, wanted)
        self._encoder = CopyEncoder(self._staged_schema(schema), columns)
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            self._staging.name, sql.SQL(", ").join(map(sql.Identifier, wanted)), sql.SQL(self._encoder.format)
        )
        self._copy = self._copying.enter_context(connection.cursor().copy(command))
        self._copy.write(self._encoder.header())
        return self._copy, self._encoder

    def _staging_columns(self, connection: Connection, wanted: list[str]) -> list[TableColumn]:
        found = {column.name: column for column in read_columns(connection, self._staging.table)}
        missing = [name for name in wanted if name not in found]
        if missing:
            raise TerminalError(
                f"the staging table {self._staging.table} has no column {missing[0]!r}"
                if found
                else f"there is no staging table {self._staging.table}",
                why="the table changed, or staging was dropped, after this epoch began",
                do="start the query again; with create_staging='never' run what PostgresSink.ddl() prints",
            )
        return [found[name] for name in wanted]

    def _finish_copy(self) -> None:
        if self._copy is not None and self._encoder is not None:
            self._copy.write(self._encoder.trailer())
            self._copy = None
            self._copying.close()

    def _own(self) -> pa.Schema:
        """The columns that go before those of the rows."""
        upserts = self._database.options.write_mode == "upsert"
        return pa.schema([pa.field(name, pa.int64(), nullable=False) for name in (STAGE, ROW)[: 1 + upserts]])

    def _staged_schema(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([*self._own(), *schema])

    def _staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        own = [pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)]
        if len(self._own()) > 1:
            own.append(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows), start=self._rows))
        return pa.RecordBatch.from_arrays([*own, *batch.columns], schema=self._staged_schema(batch.schema))

    def _columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(name for name in schema.names if not self._is_marker(name))

    def _is_marker(self, name: str) -> bool:
        return name == self._database.options.delete_marker

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self._database, f"staging rows for {self._database.options.table}", self._context.step_id)
