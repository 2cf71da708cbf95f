"""One attempt: copies its rows to staging in one transaction.

It uses as few COPYs as possible, or one per batch if rejected rows become dead letters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import TerminalError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import PostgresConnection, TaskTransaction, set_timeouts
from outfall.postgres.connection.errors import is_rows_fault
from outfall.postgres.copy.stream import CopyEncoder, RunningCopy, check_same_columns, copy_command
from outfall.postgres.copy.values import RefusedRowError
from outfall.postgres.names import MARKER, ROW, STAGE
from outfall.postgres.staging.dead_letters import (
    RowRefusal,
    batch_row_name,
    isolate,
    row_log,
    too_many,
)
from outfall.postgres.staging.staging_table import StagedRows, new_stage
from outfall.postgres.tables import StepTables
from outfall.sinks import StatelessSinkPartition
from outfall.trace_points import reached
from outfall.values import rows_to_batch

COPY_BYTES = 4 << 20
"""The Arrow size of one COPY. Smaller ones wait for the server more often, larger ones need more memory."""


class StagingWriter(StatelessSinkPartition[Any]):
    """Copies rows to the staging table. Until `prepare_commit`, no row outlives the connection."""

    def __init__(self, tables: StepTables, context: WriterInitContext) -> None:
        self._tables = tables
        self._staging = tables.staging
        self._letters = tables.letters
        self._context = context
        self._transaction = TaskTransaction(tables.database)
        self._stage = new_stage()
        self._copy: StagingCopy | None = None
        self._schema: pa.Schema | None = None

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        if batch.num_rows == 0:
            return
        with self._tables.explained("staging rows for"):
            size = self._open(batch.schema).write(batch)
        self._context.metrics.add("bytes", size)

    def prepare_commit(self) -> list[StagedRows]:
        """Commit the rows to staging, and return them as a committable."""
        connection, copy = self._transaction.connection, self._copy
        if connection is None or copy is None or self._schema is None:
            return []
        with self._tables.explained("staging rows for"):
            self._context.metrics.add("bytes", copy.finish())
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
            self._add_to_transaction(connection, staged)
            reached("postgres: staging")
            connection.execute("COMMIT")
            reached("postgres: staged")
        if copy.letters:
            self._context.metrics.add("dead_letters", len(copy.letters))
        return [staged]

    def close(self) -> None:
        self._transaction.close()
        if self._copy is not None:
            self._copy.close()

    def _add_to_transaction(self, connection: PostgresConnection, staged: StagedRows) -> None:
        """Do nothing: the committer publishes the rows."""

    def _open(self, schema: pa.Schema) -> StagingCopy:
        if self._copy is not None:
            check_same_columns(self._schema, schema)
            return self._copy
        connection = self._transaction.begin()
        self._schema = schema
        way = StreamingCopy if self._letters is None else SortingCopy
        columns = _staging_columns(connection, self._tables, schema)
        self._copy = way(connection, self._tables, schema, columns, self._stage, self._context)
        return self._copy

    def _columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(name for name in schema.names if name != self._tables.options.delete_marker)


class StagingCopy(ABC):
    """Copies one attempt's rows to staging, in the caller's transaction. The sink's columns precede those of the rows.

    `schema` is that of every batch. `columns` are those of staging, with the sink's. `stage` is the attempt's number.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        tables: StepTables,
        schema: pa.Schema,
        columns: Sequence[TableColumn],
        stage: int,
        context: WriterInitContext,
    ) -> None:
        self.rows = 0
        """The number of rows in staging."""
        self.letters: list[DeadLetter] = []
        """The rows that staging rejected."""
        self._bytes = 0
        """The number of bytes sent by separate COPYs."""
        self._connection = connection
        self._context = context
        self._options = tables.options
        self._stage = stage
        names = [column.name for column in columns]
        own = names[: len(names) - len(schema)]
        self._schema = pa.schema([*(pa.field(name, pa.int64(), nullable=False) for name in own), *schema])
        self._encoder = CopyEncoder(self._schema, columns)
        self._command = copy_command(tables.staging.table, names, self._encoder)

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> int:
        """Send rows; return the number of bytes.

        Raises `ValueRefusedError`, which names the rejected row, or `psycopg.Error`.
        """

    def finish(self) -> int:
        """Wait until all sent rows are in staging; return the number of bytes since `write`. Raises like `write`."""
        return 0

    def close(self) -> None:
        """Abort a running COPY."""

    def _staged(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Add the sink's columns before those of a batch, with rows numbered after `first`."""
        own = [pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)]
        if len(self._schema) > batch.num_columns + 1:
            own.append(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows), start=first))
        return pa.RecordBatch.from_arrays([*own, *batch.columns], schema=self._schema)

    def _isolate(self, staged: pa.RecordBatch) -> Iterator[tuple[int, RowRefusal]]:
        """Send all accepted rows, and yield the rejected ones."""

        def attempt(low: int, high: int) -> RowRefusal | None:
            whole = high - low == staged.num_rows
            return self._attempt(staged if whole else staged.take(pa.array(range(low, high), pa.int64())))

        return isolate(0, staged.num_rows, attempt)

    def _attempt(self, staged: pa.RecordBatch) -> RowRefusal | None:
        """Send rows with a separate COPY; return the reason if they are rejected."""
        try:
            data = self._encoder.whole(staged)
            with self._connection.transaction(), self._connection.cursor().copy(self._command) as copy:
                copy.write(data)
        except RefusedRowError as error:
            return RowRefusal.of(error)
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return RowRefusal.of(error)
        self._bytes += len(data)
        return None


class StreamingCopy(StagingCopy):
    """One COPY for many batches. A rejected row ends it.

    The server reports a rejected row only when a COPY ends (libpq reads no response while it sends). The size of a COPY
    is therefore limited, which also limits the rows in which a rejected one is searched.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        tables: StepTables,
        schema: pa.Schema,
        columns: Sequence[TableColumn],
        stage: int,
        context: WriterInitContext,
    ) -> None:
        super().__init__(connection, tables, schema, columns, stage, context)
        self._copy: RunningCopy | None = None
        self._sent: list[tuple[int, pa.RecordBatch]] = []
        self._sent_bytes = 0

    def write(self, batch: pa.RecordBatch) -> int:
        self._sent.append((self.rows, batch))
        self._sent_bytes += batch.nbytes
        try:
            if self._copy is None:
                self._copy = RunningCopy.start(self._connection, self._command, self._encoder.again())
            size = self._copy.write(self._staged(batch, self.rows))
        except (RefusedRowError, psycopg.Error) as error:
            raise self._named(error) from error if self._options.log_rows == "full" else None
        self.rows += batch.num_rows
        return size + self.finish() if self._sent_bytes >= COPY_BYTES else size

    def finish(self) -> int:
        if self._copy is None:
            return 0
        try:
            size = self._copy.finish()
        except psycopg.Error as error:
            raise self._named(error) from error if self._options.log_rows == "full" else None
        self._copy = None
        self._sent, self._sent_bytes = [], 0
        return size

    def close(self) -> None:
        if self._copy is not None:
            self._copy.abort()

    def _named(self, error: RefusedRowError | psycopg.Error) -> Exception:
        if isinstance(error, psycopg.Error) and not is_rows_fault(error):
            return error
        try:
            found = self._find(error)
        except psycopg.Error:
            return error
        if found is None:
            return error
        name, why, do = found
        return ValueRefusedError(f"the table {self._options.table} rejects {name}", why=why, do=do)

    def _find(self, error: RefusedRowError | psycopg.Error) -> tuple[str, str, str] | None:
        """Send the rows of the last COPY again by bisection, until one is rejected; then roll back."""
        connection = self._connection
        if self._copy is not None:
            self._copy.abort(error)
        connection.execute("ROLLBACK")
        with connection.transaction(force_rollback=True):
            set_timeouts(connection)
            log = row_log(connection, self._options)
            if isinstance(error, RefusedRowError):
                first, batch = self._sent[-1]
                refusal = RowRefusal.of(error)
                return batch_row_name(batch, error.row, log, first + error.row), refusal.told(log), refusal.do
            for first, batch in self._sent:
                for row, refusal in self._isolate(self._staged(batch, first)):
                    return batch_row_name(batch, row, log, first + row), refusal.told(log), refusal.do
        return None


class SortingCopy(StagingCopy):
    """One COPY for each batch, in a savepoint. Rejected rows become dead letters, up to a limit."""

    def write(self, batch: pa.RecordBatch) -> int:
        reached("postgres: copying")
        before, sent = len(self.letters), self._bytes
        for row, refusal in self._isolate(self._staged(batch, self.rows + before)):
            self._set_aside(batch, row, refusal)
        self.rows += batch.num_rows - (len(self.letters) - before)
        return self._bytes - sent

    def _set_aside(self, batch: pa.RecordBatch, row: int, refusal: RowRefusal) -> None:
        text = row_texts(batch.slice(row, 1))[0]
        if len(self.letters) == self._options.max_dead_letters:
            log = row_log(self._connection, self._options)
            name = batch_row_name(batch, row, log, self.rows + row)
            raise too_many(self._options.max_dead_letters, name, refusal, log)
        self.letters.append(
            DeadLetter(
                text,
                refusal.reason,
                self._context.step_id,
                self._context.epoch,
                part=f"writer {self._context.worker_index}",
                code=refusal.code,
                excerpt=refusal.detail,
            )
        )


def _staging_columns(connection: PostgresConnection, tables: StepTables, schema: pa.Schema) -> list[TableColumn]:
    """Return the columns of staging for rows with a schema: first the sink's, then theirs.

    Raises `TerminalError` if staging is missing or lacks a column.
    """
    options, staging = tables.options, tables.staging
    own = (STAGE, ROW)[: 1 + (options.write_mode == "upsert")]
    wanted = [*own, *(MARKER if name == options.delete_marker else name for name in schema.names)]
    found = {column.name: column for column in read_columns(connection, staging.table)}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise TerminalError(
            f"the staging table {staging.table} has no column {missing[0]!r}"
            if found
            else f"the staging table {staging.table} does not exist",
            why="the table changed, or staging was dropped, after this epoch began",
            do="start the query again; with create_staging='never', run the output of PostgresSink.ddl()",
        )
    return [found[name] for name in wanted]
