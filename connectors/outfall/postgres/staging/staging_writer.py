"""One attempt: its rows go into staging by COPY, in one transaction.

All rows go by as few COPYs as will do; or, where rows that are refused are to be set aside, by one for each batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import TerminalError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase, TaskTransaction
from outfall.postgres.connection.errors import explained, is_rows_fault
from outfall.postgres.copy.stream import CopyEncoder, RunningCopy, check_same_columns, copy_command
from outfall.postgres.copy.values import RefusedRowError
from outfall.postgres.names import MARKER, ROW, STAGE
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.dead_letters import DeadLetters, RowRefusal, batch_row_name, isolate, key_names, too_many
from outfall.postgres.staging.staging_table import StagedRows, Staging, new_stage
from outfall.sinks import StatelessSinkPartition
from outfall.trace_points import reached
from outfall.values import rows_to_batch

COPY_BYTES = 4 << 20
"""How much one COPY is given, as Arrow has it. Smaller ones wait more often for the server, larger ones hold more."""


class StagingWriter(StatelessSinkPartition[Any]):
    """Copies rows into the staging table. Until `prepare_commit` nothing of them outlives the connection."""

    def __init__(
        self, database: PostgresDatabase, staging: Staging, letters: DeadLetters | None, context: WriterInitContext
    ) -> None:
        self._database = database
        self._staging = staging
        self._letters = letters
        self._context = context
        self._transaction = TaskTransaction(database)
        self._stage = new_stage()
        self._copy: WayIn | None = None
        self._schema: pa.Schema | None = None

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
        connection, copy = self._transaction.connection, self._copy
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
        """Do nothing: whoever commits publishes the rows."""

    def _open(self, schema: pa.Schema) -> WayIn:
        if self._copy is not None:
            check_same_columns(self._schema, schema)
            return self._copy
        connection = self._transaction.begin()
        self._schema = schema
        made = StagingCopy(connection, self._staging, self._database.options, schema, self._stage)
        self._copy = (
            StreamingCopy(made) if self._letters is None else SortingCopy(made, self._context, self._letters.most)
        )
        return self._copy

    def _columns(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(name for name in schema.names if name != self._database.options.delete_marker)

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self._database, f"staging rows for {self._database.options.table}", self._context.step_id)


class StagingCopy:
    """COPY into staging's columns, our own before those of the rows. In the caller's transaction.

    Raises:
        TerminalError: staging is gone or has not these columns.
    """

    def __init__(
        self, connection: PostgresConnection, staging: Staging, options: PostgresOptions, schema: pa.Schema, stage: int
    ) -> None:
        self.connection = connection
        self.options = options
        self.bytes = 0
        """How many `attempt` has sent."""
        self._stage = stage
        own = (STAGE, ROW)[: 1 + (options.write_mode == "upsert")]
        self._schema = pa.schema([*(pa.field(name, pa.int64(), nullable=False) for name in own), *schema])
        names = [*own, *(MARKER if name == options.delete_marker else name for name in schema.names)]
        self.encoder = CopyEncoder(self._schema, _staging_columns(connection, staging, names))
        self.command = copy_command(staging.table, names, self.encoder)

    def staged(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Put our columns before those of a batch, whose rows are numbered behind `first`."""
        own = [pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)]
        if len(self._schema) > batch.num_columns + 1:
            own.append(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows), start=first))
        return pa.RecordBatch.from_arrays([*own, *batch.columns], schema=self._schema)

    def attempt(self, staged: pa.RecordBatch) -> RowRefusal | None:
        """Send rows by a COPY of their own, all or none, and tell why none."""
        try:
            data = self.encoder.whole(staged)
            with self.connection.transaction(), self.connection.cursor().copy(self.command) as copy:
                copy.write(data)
        except RefusedRowError as error:
            return RowRefusal.of(error)
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return RowRefusal.of(error)
        self.bytes += len(data)
        return None


class WayIn(Protocol):
    """How the rows of one attempt are sent."""

    rows: int
    """How many are in staging."""
    letters: list[DeadLetter]
    """What staging refused."""

    def write(self, batch: pa.RecordBatch) -> int:
        """Send rows; return the number of bytes.

        Raises:
            ValueRefusedError: naming the row that is refused.
            psycopg.Error: everything else.
        """

    def finish(self) -> None:
        """Wait until all that was sent is in staging. Raises as `write`."""

    def close(self) -> None:
        """Let go of what is under way."""


class StreamingCopy:
    """COPY of many batches, which are waited for together. A row that is refused ends it.

    The server tells of it when a COPY ends, and not before (libpq reads no answer while it sends): so a COPY ends once
    what it was given, and what a refused row is looked for in, has a size.
    """

    def __init__(self, copy: StagingCopy) -> None:
        self.rows = 0
        self.letters: list[DeadLetter] = []
        self._made = copy
        self._copy: RunningCopy | None = None
        self._sent: list[tuple[int, pa.RecordBatch]] = []
        self._sent_bytes = 0

    def write(self, batch: pa.RecordBatch) -> int:
        made = self._made
        self._sent.append((self.rows, batch))
        self._sent_bytes += batch.nbytes
        try:
            if self._copy is None:
                self._copy = RunningCopy(made.connection, made.command, made.encoder.again())
            size = self._copy.write(made.staged(batch, self.rows))
        except (RefusedRowError, psycopg.Error) as error:
            raise self._named(error) from error
        self.rows += batch.num_rows
        if self._sent_bytes >= COPY_BYTES:
            self.finish()
        return size

    def finish(self) -> None:
        if self._copy is None:
            return
        try:
            self._copy.finish()
        except psycopg.Error as error:
            raise self._named(error) from error
        self._copy = None
        self._sent, self._sent_bytes = [], 0

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
        name, refusal = found
        return ValueRefusedError(f"{self._made.options.table} refuses {name}", why=str(refusal), do=refusal.do)

    def _find(self, error: RefusedRowError | psycopg.Error) -> tuple[str, RowRefusal] | None:
        """Send again what was sent last, by halves, until a row is refused; nothing of it stays."""
        connection = self._made.connection
        if self._copy is not None:
            self._copy.abort(error)
        connection.execute("ROLLBACK")
        with connection.transaction(force_rollback=True):
            keys = key_names(connection, self._made.options, self._sent[-1][1].schema.names)
            if isinstance(error, RefusedRowError):
                first, batch = self._sent[-1]
                return batch_row_name(batch, error.row, keys, first + error.row), RowRefusal.of(error)
            for first, batch in self._sent:
                for row, refusal in _isolate(self._made, self._made.staged(batch, first)):
                    return batch_row_name(batch, row, keys, first + row), refusal
        return None


class SortingCopy:
    """One COPY for each batch, in a savepoint. Rows that are refused become dead letters, up to a number."""

    def __init__(self, copy: StagingCopy, context: WriterInitContext, most: int) -> None:
        self.rows = 0
        self.letters: list[DeadLetter] = []
        self._made = copy
        self._context = context
        self._most = most

    def write(self, batch: pa.RecordBatch) -> int:
        reached("postgres: copying")
        before, sent = len(self.letters), self._made.bytes
        for row, refusal in _isolate(self._made, self._made.staged(batch, self.rows + before)):
            self._set_aside(batch, row, refusal)
        self.rows += batch.num_rows - (len(self.letters) - before)
        return self._made.bytes - sent

    def finish(self) -> None:
        """Do nothing: each COPY was waited for."""

    def close(self) -> None:
        """Do nothing: no COPY is under way."""

    def _set_aside(self, batch: pa.RecordBatch, row: int, refusal: RowRefusal) -> None:
        text = row_texts(batch.slice(row, 1))[0]
        if len(self.letters) == self._most:
            keys = key_names(self._made.connection, self._made.options, batch.schema.names)
            raise too_many(self._most, batch_row_name(batch, row, keys, self.rows + row), refusal)
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


def _isolate(copy: StagingCopy, staged: pa.RecordBatch) -> Iterator[tuple[int, RowRefusal]]:
    def attempt(low: int, high: int) -> RowRefusal | None:
        whole = high - low == staged.num_rows
        return copy.attempt(staged if whole else staged.take(pa.array(range(low, high), pa.int64())))

    return isolate(0, staged.num_rows, attempt)


def _staging_columns(connection: PostgresConnection, staging: Staging, wanted: list[str]) -> list[TableColumn]:
    found = {column.name: column for column in read_columns(connection, staging.table)}
    missing = [name for name in wanted if name not in found]
    if missing:
        raise TerminalError(
            f"the staging table {staging.table} has no column {missing[0]!r}"
            if found
            else f"there is no staging table {staging.table}",
            why="the table changed, or staging was dropped, after this epoch began",
            do="start the query again; with create_staging='never' run what PostgresSink.ddl() prints",
        )
    return [found[name] for name in wanted]
