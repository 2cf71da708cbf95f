"""The ways into staging: one COPY for all rows of an attempt, or one for each batch, which sets refused rows aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Protocol

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import TerminalError, ValueRefusedError
from outfall.formats.row_text import row_texts
from outfall.postgres.bisect import Refusal, isolate, too_many
from outfall.postgres.columns import TableColumn, read_columns
from outfall.postgres.connection import Connection
from outfall.postgres.copy_encoder import CopyEncoder
from outfall.postgres.copy_values import RefusedRowError
from outfall.postgres.options import PostgresOptions
from outfall.postgres.row_names import batch_row_name, key_names
from outfall.postgres.sqlstate import is_rows_fault
from outfall.postgres.staging import MARKER, ROW, STAGE, Staging
from outfall.trace_points import reached

COPY_BYTES = 4 << 20
"""How much one COPY is given, as Arrow has it. Smaller ones wait more often for the server, larger ones hold more."""


class StagingCopy:
    """COPY into staging's columns, our own before those of the rows. In the caller's transaction.

    Raises:
        TerminalError: staging is gone or has not these columns.
    """

    def __init__(
        self, connection: Connection, staging: Staging, options: PostgresOptions, schema: pa.Schema, stage: int
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
        self.command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            staging.name, sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(self.encoder.format)
        )

    def staged(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Put our columns before those of a batch, whose rows are numbered behind `first`."""
        own = [pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)]
        if len(self._schema) > batch.num_columns + 1:
            own.append(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows), start=first))
        return pa.RecordBatch.from_arrays([*own, *batch.columns], schema=self._schema)

    def attempt(self, staged: pa.RecordBatch) -> Refusal | None:
        """Send rows by a COPY of their own, all or none, and tell why none."""
        try:
            data = self.encoder.whole(staged)
            with self.connection.transaction(), self.connection.cursor().copy(self.command) as copy:
                copy.write(data)
        except RefusedRowError as error:
            return Refusal.of(error)
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return Refusal.of(error)
        self.bytes += len(data)
        return None


class Copy(Protocol):
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
        self._stack = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._encoder = copy.encoder
        self._sent: list[tuple[int, pa.RecordBatch]] = []
        self._sent_bytes = 0

    def write(self, batch: pa.RecordBatch) -> int:
        self._sent.append((self.rows, batch))
        self._sent_bytes += batch.nbytes
        try:
            copy = self._copy or self._begin()
            data = self._encoder.encode(self._made.staged(batch, self.rows))
            reached("postgres: copying")
            copy.write(data)
        except (RefusedRowError, psycopg.Error) as error:
            raise self._named(error) from error
        self.rows += batch.num_rows
        if self._sent_bytes >= COPY_BYTES:
            self.finish()
        return len(data)

    def finish(self) -> None:
        if self._copy is None:
            return
        try:
            self._copy.write(self._encoder.trailer())
            self._stack.close()
        except psycopg.Error as error:
            raise self._named(error) from error
        self._copy = None
        self._sent, self._sent_bytes = [], 0

    def close(self) -> None:
        self._stack.close()

    def _begin(self) -> psycopg.Copy:
        self._copy = copy = self._stack.enter_context(self._made.connection.cursor().copy(self._made.command))
        self._encoder = self._made.encoder.again()
        copy.write(self._encoder.header())
        return copy

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

    def _find(self, error: RefusedRowError | psycopg.Error) -> tuple[str, Refusal] | None:
        """Send again what was sent last, by halves, until a row is refused; nothing of it stays."""
        connection = self._made.connection
        with suppress(psycopg.Error):
            self._stack.__exit__(type(error), error, None)
        connection.execute("ROLLBACK")
        with connection.transaction(force_rollback=True):
            keys = key_names(connection, self._made.options, self._sent[-1][1].schema.names)
            if isinstance(error, RefusedRowError):
                first, batch = self._sent[-1]
                return batch_row_name(batch, error.row, keys, first + error.row), Refusal.of(error)
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

    def _set_aside(self, batch: pa.RecordBatch, row: int, refusal: Refusal) -> None:
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


def _isolate(copy: StagingCopy, staged: pa.RecordBatch) -> Iterator[tuple[int, Refusal]]:
    def attempt(low: int, high: int) -> Refusal | None:
        whole = high - low == staged.num_rows
        return copy.attempt(staged if whole else staged.take(pa.array(range(low, high), pa.int64())))

    return isolate(0, staged.num_rows, attempt)


def _staging_columns(connection: Connection, staging: Staging, wanted: list[str]) -> list[TableColumn]:
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
