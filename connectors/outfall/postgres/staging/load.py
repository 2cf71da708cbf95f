"""One attempt: copies its rows to staging in one transaction.

It uses as few COPYs as possible, or one per batch if rejected rows become dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import ValueRefusedError
from outfall.formats.strings import RefusedRowError
from outfall.postgres.catalogue.conflict import nulls_are_equal
from outfall.postgres.connection.database import PostgresConnection, timeouts
from outfall.postgres.connection.errors import RowRefusal, means
from outfall.postgres.copy.stream import CopyEncoder, RunningCopy, copy_command
from outfall.postgres.names import TableName
from outfall.sql.changes import Problem
from outfall.sql.database import Means
from outfall.sql.dead_letters import batch_row_name, row_log, table_of
from outfall.sql.dialect import Load, isolate
from outfall.sql.writer import set_aside, staging_columns
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.postgres.dialect import PostgresDialect

COPY_BYTES = 4 << 20
"""The Arrow size of one COPY. Smaller ones wait for the server more often, larger ones need more memory."""


class StagingCopy(Load):
    """Copies one attempt's rows to staging. The sink's columns precede those of the rows.

    `schema` is that of every batch, and `stage` the attempt's number. `session` is that of the caller, if there is one.
    """

    def __init__(
        self,
        dialect: PostgresDialect,
        staging: TableName,
        target: TableName,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
        session: PostgresConnection | None = None,
    ) -> None:
        self.dead_letters: list[DeadLetter] = []
        self._target = target
        self._nulls_are_equal: bool | None = None
        """Whether a NULL in a key equals another one; `None` as long as no key has one."""
        self._bytes = 0
        """The number of bytes sent by separate COPYs."""
        self._context = context
        self._dialect = dialect
        self._options = dialect.options
        self._stage = stage
        self._lent = ExitStack()
        try:
            self._connection = self.session = session or self._lent.enter_context(dialect.database.task())
            columns = staging_columns(self._connection, dialect, staging, schema)
        except BaseException:
            self._lent.close()
            raise
        names = [column.name for column in columns]
        own = names[: len(names) - len(schema)]
        # Of staging, only domains that are NOT NULL.
        self.required = [
            name for name, column in zip(schema.names, columns[len(own) :], strict=True) if column.not_null
        ]
        self._schema = pa.schema([*(pa.field(name, pa.int64(), nullable=False) for name in own), *schema])
        self._encoder = CopyEncoder(self._schema, columns)
        self._command = copy_command(staging, names, self._encoder)

    def problems(self, batch: pa.RecordBatch) -> Mapping[int, Problem]:
        options = self._options
        found: dict[int, Problem] = {}
        if options.write_mode not in ("upsert", "delete"):
            return found
        for name in options.key_columns:
            if name not in batch.schema.names:
                continue
            rows = pc.indices_nonzero(batch.column(name).is_null()).to_pylist()
            if rows and self._takes_nulls_for_equal():
                return {}
            found |= {row: _without_key(name) for row in rows if row not in found}
        if options.conflict_where and found:
            # Rows that the index may not hold are inserted beside others; but a removal would remove nothing.
            marked = options.delete_marker and pc.fill_null(batch.column(options.delete_marker).cast(pa.bool_()), False)
            found = {row: problem for row, problem in found.items() if marked and marked[row].as_py()}
        return dict(sorted(found.items()))

    def _takes_nulls_for_equal(self) -> bool:
        if self._nulls_are_equal is None:
            # No statement can be executed while a COPY runs.
            self.finish()
            # The task must not hold the locks of a statement that is only planned.
            with self._connection.savepoint(undo=True):
                self._nulls_are_equal = nulls_are_equal(self._connection, self._target, self._options)
        return self._nulls_are_equal

    def finish(self) -> int:
        return 0

    def commit(self) -> None:
        self._connection.finish("COMMIT")

    def close(self) -> None:
        self._lent.close()

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
            if Means.ROW not in means(error):
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
        dialect: PostgresDialect,
        staging: TableName,
        target: TableName,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
        session: PostgresConnection | None = None,
    ) -> None:
        super().__init__(dialect, staging, target, schema, stage, context, session)
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
        super().close()
        if self._copy is not None:
            self._copy.abort()

    def _named(self, error: RefusedRowError | psycopg.Error) -> Exception:
        if isinstance(error, psycopg.Error) and Means.ROW not in means(error):
            return error
        try:
            found = self._find(error)
        except psycopg.Error:
            return error
        if found is None:
            return error
        table, name, why, do = found
        return ValueRefusedError(f"the table {table} rejects {name}", why=why, do=do)

    def _find(self, error: RefusedRowError | psycopg.Error) -> tuple[str, str, str, str] | None:
        """Send the rows of the last COPY again by bisection, until one is rejected; then roll back.

        Returns its table, its name, the reason and the remedy.
        """
        connection = self._connection
        if self._copy is not None:
            self._copy.abort(error)
        connection.execute("ROLLBACK")
        with connection.transaction(force_rollback=True):
            connection.execute(*timeouts(connection, {}))
            log = row_log(connection, self._dialect)
            if isinstance(error, RefusedRowError):
                first, batch = self._sent[-1]
                refusal = RowRefusal.of(error)
                name = batch_row_name(batch, error.row, log, first + error.row)
                return table_of(self._options, batch, error.row), name, refusal.summary(log), refusal.do
            for first, batch in self._sent:
                for row, refusal in self._isolate(self._staged(batch, first)):
                    name = batch_row_name(batch, row, log, first + row)
                    return table_of(self._options, batch, row), name, refusal.summary(log), refusal.do
        return None


class SortingCopy(StagingCopy):
    """One COPY for each batch, in a savepoint. Rejected rows become dead letters, up to a limit."""

    def write(self, batch: pa.RecordBatch) -> int:
        reached("sql: copying")
        before, sent = len(self.dead_letters), self._bytes
        for row, refusal in self._isolate(self._staged(batch, self.rows + before)):
            self.dead_letters.append(set_aside(self, batch, row, refusal, self._dialect, self._context))
        self.rows += batch.num_rows - (len(self.dead_letters) - before)
        return self._bytes - sent


def _without_key(name: str) -> Problem:
    """Return the problem of a row with a NULL in its key, of which the table would keep any number."""
    return Problem(
        f"its key column {name!r} is NULL, which the server takes for unequal to every other NULL",
        "correct the row at its source, or leave it out with a filter; or create the unique index on the keys with"
        " NULLS NOT DISTINCT, which PostgreSQL has from version 15 on",
    )
