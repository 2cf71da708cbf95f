"""The parts of one task: one connection, one COPY directly into the table, one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import SupportsFlush, WriterInitContext
from outfall.errors import ConfigurationError, TerminalError, TransientError
from outfall.part_ledger.checks import PartContext, PartCount, PartRow, check_step, missing_parts
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import BEGIN, PostgresConnection, TaskTransaction
from outfall.postgres.connection.errors import means
from outfall.postgres.copy.stream import CopyEncoder, RunningCopy, copy_command
from outfall.postgres.dialect import PostgresDialect
from outfall.postgres.offsets.ledger import PartLedger
from outfall.postgres.options import PostgresOptions
from outfall.sinks import StatefulSinkPartition
from outfall.sql.database import Means
from outfall.sql.dialect import compose
from outfall.sql.target import StepTables
from outfall.sql.writer import check_same_columns
from outfall.trace_points import reached
from outfall.values import rows_to_batch

ALTERNATIVE = '; or omit parts, because epochs accept any source, with a new checkpoint and on_existing="overwrite"'
"""The remedy for a source that does not replay the same rows."""

_INTEGERS = frozenset({"int2", "int4", "int8"})


class PartState(BaseModel):
    """The recorded position of a part."""

    model_config = ConfigDict(frozen=True)

    next_offset: int = Field(ge=0)
    """The number of its next row."""


class PartWriter(StatefulSinkPartition[Any, PartState], SupportsFlush):
    """Writes a part's rows with the COPY of its task.

    A task flushes all its parts before it takes the state of the first. The flush of the last part publishes the rows
    of all parts, so the state that `snapshot` returns is in the table, and `snapshot` writes nothing.
    """

    def __init__(
        self,
        tasks: PartTasks,
        tables: StepTables[PostgresDialect],
        state: PartState,
        context: WriterInitContext,
    ) -> None:
        self._tasks = tasks
        self._key = (context.incarnation, context.generation, context.epoch, context.attempt, context.worker_index)
        self._part = context.part or ""
        self._task = tasks.join(self._key, self._part, lambda: PartTask(tables, context))
        self._closed = False
        self._count = self._task.part(self._part, state.next_offset)

    def write_batch(self, values: list[Any]) -> None:
        self.write_record_batch(rows_to_batch(values))

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch."""
        self._task.write(self._count, batch)

    def flush(self, end_of_input: bool) -> None:
        """Publish the rows of the task, if this is the last of its parts."""
        # The engine flushes the parts of a task one after the other, and does not signal the last one.
        if self._task.is_last(self._part):
            self._task.publish()

    def snapshot(self) -> PartState:
        """Return the offset after the last row."""
        self._task.check_published(self._count)
        return PartState(next_offset=self._count.next_offset)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._tasks.leave(self._key, self._part)


class PartTask:
    """One attempt of one task. Its rows do not outlive its connection until the last part is flushed.

    Rows of a part whose ledger row already has the epoch are counted and hashed, but not sent.

    A part that is opened after the others are published is published by a separate transaction, because each part has
    its own row in the ledger.
    """

    def __init__(self, tables: StepTables[PostgresDialect], context: WriterInitContext) -> None:
        self._tables = tables
        self._table = tables.target
        self._context = context
        self._ledger = PartLedger(tables.ledger)
        self._transaction = TaskTransaction(tables.dialect.database)
        self._rows = PartRows(tables.dialect.options)
        self._copy: RunningCopy | None = None
        self._schema: pa.Schema | None = None
        self._sent = 0
        """The number of rows sent with the COPY."""
        self._present: frozenset[str] = frozenset()
        self._counts: dict[str, PartCount] = {}
        """The rows so far of the parts that are not published."""
        self._unflushed: set[str] = set()
        self._published: set[str] = set()

    def part(self, name: str, start: int) -> PartCount:
        """Begin with a part."""
        count = self._counts[name] = PartCount(name, start)
        self._unflushed.add(name)
        return count

    def write(self, count: PartCount, batch: pa.RecordBatch) -> None:
        """Send a part's rows, unless they are in the table."""
        if batch.num_rows == 0:
            return
        if count.part in self._published:
            raise TerminalError(
                f"rows for {self._table} were written after their part was flushed",
                step=self._context.step_id,
                epoch=self._context.epoch,
                part=count.part,
                why="the rows of a part and an epoch are published only once, by flush",
                do="write all rows of an epoch before flush; or omit parts",
            )
        with self._tables.translated_errors("copying rows into"):
            copy = self._open(count.part, batch.schema)
            if copy is not None:
                size = copy.write(self._rows.batch(batch, count.part, count.next_offset))
                self._context.metrics.add("bytes", size)
                self._sent += batch.num_rows
        count.hash.add(batch)

    def is_last(self, part: str) -> bool:
        """Note that a part has all its rows; return whether all parts have theirs."""
        self._unflushed.discard(part)
        return not self._unflushed

    def publish(self) -> None:
        """Commit the rows of all parts together with their ledger rows.

        Raises `FencedError`, `ReplayDiffersError`, `TargetLostError` or `TargetAheadError`, see `missing_parts`; and
        `TransientError` if another attempt may succeed.
        """
        if (connection := self._transaction.connection) is not None:
            with self._tables.translated_errors("copying rows into"):
                self._publish(connection)
            self._transaction.close()
        self._published.update(self._counts)
        self._counts = {}

    def check_published(self, count: PartCount) -> None:
        """Reject a state whose rows are not in the table. Raises `TerminalError` if not all parts were flushed."""
        if count.hash.rows and count.part not in self._published:
            raise TerminalError(
                f"the state of a part was requested before its rows for {self._table} were published",
                step=self._context.step_id,
                epoch=self._context.epoch,
                part=count.part,
                do="flush all parts of a task before snapshot()",
            )

    def close(self) -> None:
        """Return the connection, or close it if its transaction is open, which rolls back all changes."""
        self._transaction.close()
        if self._copy is not None:
            self._copy.abort()

    def _connect(self) -> PostgresConnection:
        if self._transaction.connection is None:
            found = self._ledger.read(self._transaction.connect())
            self._present = frozenset(part for part, row in found.items() if row.holds(self._context.epoch))
        return self._transaction.connect()

    def _open(self, part: str, schema: pa.Schema) -> RunningCopy | None:
        """Return the COPY for the rows of a part; `None` if they are in the table."""

        def start() -> RunningCopy | None:
            try:
                connection = self._connect()
                return None if part in self._present else self._start(connection, schema)
            except BaseException:
                self._transaction.close()
                raise

        if self._copy is None:
            # No row is sent yet, so a server that restarts is waited for. Later, only the task can be repeated.
            return self._tables.database.repeated("copying rows into", start)
        if part in self._present:
            return None
        check_same_columns(self._schema, schema)
        return self._copy

    def _start(self, connection: PostgresConnection, schema: pa.Schema) -> RunningCopy:
        self._transaction.begin()
        # Lock the table as the COPY does, so that it stays as the rows are encoded. LOCK needs more privileges.
        connection.execute(compose("EXPLAIN INSERT INTO {} DEFAULT VALUES", self._table.sql))
        columns = read_columns(connection, self._table)
        self._rows = PartRows.into(self._tables.dialect.options, columns)
        written = self._rows.schema(schema)
        found = {column.name: column for column in columns}
        missing = [name for name in written.names if name not in found]
        if missing:
            raise TerminalError(
                f"{self._table} has no column {missing[0]!r}",
                why="the table changed after this epoch began",
                do="start the query again",
            )
        encoder = CopyEncoder(written, [found[name] for name in written.names])
        self._copy = RunningCopy.start(connection, copy_command(self._table, written.names, encoder), encoder)
        self._schema = schema
        return self._copy

    def _publish(self, connection: PostgresConnection) -> None:
        sent = self._finish_copy()
        if not sent:
            # This session was idle as long as the task had rows, and the server may have ended it.
            self._transaction.close()
            connection = self._transaction.connect()
            connection.execute(*BEGIN)
        self._tables.dialect.database.limit(connection)
        wanted = {name: count.row(self._context) for name, count in self._counts.items() if count.hash.rows}
        step = self._tables.ledger.read_with(connection, " FOR SHARE")
        opened = check_step(str(self._table), step.record if step else None, self._context)
        found = self._ledger.read(connection, wanted, lock=True)
        place = PartContext(str(self._table), self._context.step_id, self._context.epoch, ALTERNATIVE)
        missing = missing_parts(place, opened, found, wanted)
        copied = wanted.keys() - self._present if sent else frozenset()
        present = sum(wanted[part].rows for part in wanted.keys() - missing)
        if present:
            self._context.metrics.add("rows_present", present)
        if missing != copied or not missing:
            self._give_up(connection, missing)
            return
        reached("sql: publishing")
        self._ledger.published(connection, [wanted[part] for part in sorted(missing)])
        reached("sql: before COMMIT")
        self._commit(connection, wanted)
        reached("sql: after COMMIT")

    def _finish_copy(self) -> bool:
        if self._copy is None:
            return False
        self._context.metrics.add("bytes", self._copy.finish())
        if skipped := self._sent - self._copy.stored:
            self._context.metrics.add("rows_skipped", skipped)
        self._copy = None
        return True

    def _give_up(self, connection: PostgresConnection, missing: frozenset[str]) -> None:
        """Roll back: another attempt has written all parts, or some of them, which one COPY cannot separate."""
        connection.execute("ROLLBACK")
        if missing:
            raise TransientError(
                "another attempt of this task has written some of its parts",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="nothing: the task is retried and finds them in the table",
            )

    def _commit(self, connection: PostgresConnection, wanted: dict[str, PartRow]) -> None:
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            connection.close()
            if Means.PASSES not in means(error) or not self._committed(wanted):
                raise
            self._context.metrics.add("commits_settled")

    def _committed(self, wanted: dict[str, PartRow]) -> bool:
        """Return whether a COMMIT without acknowledgment succeeded. Holding the locks shows that it has ended."""
        found = self._tables.run(
            "checking a commit to", lambda connection: self._ledger.read(connection, wanted, lock=True)
        )
        return all(part in found and found[part].same_rows(row) for part, row in wanted.items())


class PartTasks:
    """The open tasks of a sink, shared by the parts of one attempt. Pickled without its tasks."""

    def __init__(self) -> None:
        """Start without tasks."""
        self._lock = threading.Lock()
        self._open: dict[Hashable, tuple[PartTask, set[str]]] = {}

    def __reduce__(self) -> Any:
        return PartTasks, ()

    def join(self, key: Hashable, part: str, make: Callable[[], PartTask]) -> PartTask:
        """Return the task of a key; the first part creates it."""
        with self._lock:
            if key not in self._open:
                self._open[key] = (make(), set())
            task, parts = self._open[key]
            parts.add(part)
            return task

    def leave(self, key: Hashable, part: str) -> None:
        """Close the task with the first part that closes: its rows are published by then, or never will be."""
        with self._lock:
            task, parts = self._open[key]
            parts.discard(part)
            if not parts:
                del self._open[key]
        task.close()


@dataclass(frozen=True)
class PartRows:
    """Converts rows to the columns of the table. With `text` the part's column is a string instead of an integer."""

    options: PostgresOptions
    text: bool = False

    @classmethod
    def into(cls, options: PostgresOptions, columns: Sequence[TableColumn]) -> PartRows:
        """Return the conversion for the columns of the table, if there is one."""
        found = next((column for column in columns if column.name == options.part_column), None)
        return cls(options, found is not None and found.kind.name not in _INTEGERS)

    def schema(self, given: pa.Schema) -> pa.Schema:
        """Return the columns that are written for rows with a schema.

        Raises `ConfigurationError` if a column of the rows has the name of a column of the sink.
        """
        own = self._own_fields()
        payload = self.options.payload_column
        if payload is not None:
            return pa.schema([*own, pa.field(payload, pa.struct(list(given)), nullable=False)])
        for field in own:
            if field.name in given.names:
                option = "part_column" if field.name == self.options.part_column else "part_offset_column"
                raise ConfigurationError(
                    f"the rows have a column {field.name!r}, which {option} reserves for the sink",
                    do=f'set another {option}, drop the column, or set offset_keys="ledger"',
                )
        return pa.schema([*own, *given])

    def batch(self, given: pa.RecordBatch, part: str, start: int) -> pa.RecordBatch:
        """Return the rows to write, numbered from `start`."""
        rows = given.num_rows
        columns: list[pa.Array] = []
        if self.options.offset_keys == "columns":
            value = pa.scalar(part) if self.text else pa.scalar(int(part), pa.int32())
            ones = pa.repeat(pa.scalar(1, pa.int64()), rows)
            columns = [pa.repeat(value, rows), pc.cumulative_sum(ones, start=start - 1)]
        if self.options.payload_column is None:
            columns += given.columns
        else:
            columns.append(pa.StructArray.from_arrays(given.columns, fields=list(given.schema)))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema(given.schema))

    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """Return the options from which `create_table` derives the primary key."""
        if self.options.key_columns or self.options.offset_keys == "ledger":
            return {}
        return {"key_columns": (self.options.part_column, self.options.part_offset_column)}

    def _own_fields(self) -> list[pa.Field]:
        if self.options.offset_keys == "ledger":
            return []
        kind = pa.string() if self.text else pa.int32()
        return [
            pa.field(self.options.part_column, kind, nullable=False),
            pa.field(self.options.part_offset_column, pa.int64(), nullable=False),
        ]
