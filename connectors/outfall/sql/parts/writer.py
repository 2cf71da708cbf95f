"""The parts of one task: one connection, rows sent straight into the table, one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from outfall.capabilities import SupportsFlush, WriterInitContext
from outfall.errors import TargetError, TerminalError, TransientError
from outfall.part_ledger.checks import PartContext, PartCount, PartRow, check_step, missing_parts
from outfall.sinks import StatefulSinkPartition
from outfall.sql.database import Means
from outfall.sql.dialect import Column, DirectLoad, compose
from outfall.sql.parts.ledger import PartLedger
from outfall.sql.parts.rows import PartRows
from outfall.sql.tables import StepTables
from outfall.sql.writer import check_same_columns
from outfall.trace_points import reached
from outfall.values import rows_to_batch

ALTERNATIVE = '; or omit parts, because epochs accept any source, with a new checkpoint and on_existing="overwrite"'
"""The remedy for a source that does not replay the same rows."""


class PartState(BaseModel):
    """The recorded position of a part."""

    model_config = ConfigDict(frozen=True)

    next_offset: int = Field(ge=0)
    """The number of its next row."""


class PartWriter(StatefulSinkPartition[Any, PartState], SupportsFlush):
    """Writes a part's rows with the load of its task.

    A task flushes all its parts before it takes the state of the first. The flush of the last part publishes the rows
    of all parts, so the state that `snapshot` returns is in the table, and `snapshot` writes nothing.
    """

    def __init__(
        self,
        tasks: PartTasks,
        tables: StepTables[Any],
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

    def __init__(self, tables: StepTables[Any], context: WriterInitContext) -> None:
        self._tables = tables
        self._table = tables.target
        self._context = context
        self._dialect = tables.dialect
        self._ledger = PartLedger(tables.dialect, tables.ledger)
        self._lent = ExitStack()
        self._session: Any = None
        """The session with the open transaction, after the first row."""
        self._rows = PartRows(tables.dialect.options)
        self._load: DirectLoad | None = None
        self._schema: pa.Schema | None = None
        self._sent = 0
        """The number of rows sent with the load."""
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
            load = self._open(count.part, batch.schema)
            if load is not None:
                size = load.write(self._rows.batch(batch, count.part, count.next_offset))
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
        if self._session is not None:
            with self._tables.translated_errors("copying rows into"):
                self._publish()
            self._end()
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
        self._end()
        if self._load is not None:
            self._load.abort()

    def _begin(self) -> Any:
        """Begin the transaction of the task, unless it is open."""
        if self._session is None:
            asked = self._ledger.reading()
            self._session = self._lent.enter_context(self._tables.database.task([asked]))
            found = self._ledger.read(self._session)
            self._present = frozenset(part for part, row in found.items() if row.holds(self._context.epoch))
        return self._session

    def _end(self) -> None:
        self._session = None
        self._lent.close()

    def _open(self, part: str, schema: pa.Schema) -> DirectLoad | None:
        """Return the load for the rows of a part; `None` if they are in the table."""

        def start() -> DirectLoad | None:
            try:
                session = self._begin()
                return None if part in self._present else self._start(session, schema)
            except BaseException:
                self._end()
                raise

        if self._load is None:
            # No row is sent yet, so a server that restarts is waited for. Later, only the task can be repeated.
            return self._tables.database.repeated("copying rows into", start)
        if part in self._present:
            return None
        check_same_columns(self._schema, schema)
        return self._load

    def _start(self, session: Any, schema: pa.Schema) -> DirectLoad:
        names = self._rows.schema(schema).names
        self._columns(session, names)
        # Lock the table as the load does, so that it stays as the rows are encoded.
        listed, nothing = self._dialect.words.listed(names), ", ".join(["NULL"] * len(names))
        holding = compose(self._dialect.words.holding, table=self._table.sql, columns=listed, nothing=nothing)
        session.hold([(holding, ())])
        columns = self._columns(session, names)
        self._rows = PartRows.into(self._dialect, columns)
        self._load = self._dialect.direct(session, self._table, self._rows.schema(schema), columns)
        self._schema = schema
        return self._load

    def _columns(self, session: Any, names: list[str]) -> list[Column]:
        """Return the columns of the table that are written."""
        found = {column.name: column for column in self._dialect.columns(session, self._table)}
        for name in names:
            if name not in found:
                raise TerminalError(
                    f"{self._table} has no column {name!r}",
                    why="the table changed after this epoch began",
                    do="start the query again",
                )
        return [found[name] for name in names]

    def _publish(self) -> None:
        sent = self._finish()
        if not sent:
            # This session was idle as long as the task had rows, and the server may have ended it.
            known = self._present
            self._end()
            self._begin()
            self._present = known
        session = self._session
        self._tables.database.limit(session)
        wanted = {name: count.row(self._context) for name, count in self._counts.items() if count.hash.rows}
        step = self._tables.ledger.read_with(session, self._dialect.words.sharing)
        opened = check_step(str(self._table), step.record if step else None, self._context)
        found = self._ledger.locked(session, wanted)
        if not session.is_busy():
            raise self._ended()
        place = PartContext(str(self._table), self._context.step_id, self._context.epoch, ALTERNATIVE)
        missing = missing_parts(place, opened, found, wanted)
        copied = wanted.keys() - self._present if sent else frozenset()
        present = sum(wanted[part].rows for part in wanted.keys() - missing)
        if present:
            self._context.metrics.add("rows_present", present)
        if missing != copied or not missing:
            self._give_up(session, missing)
            return
        reached("sql: publishing")
        self._ledger.published(session, [wanted[part] for part in sorted(missing)])
        reached("sql: before COMMIT")
        self._commit(session, wanted)
        reached("sql: after COMMIT")

    def _ended(self) -> TargetError:
        return TargetError(
            f"the server has ended the transaction of a task that writes {self._table}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why="a setting or a trigger of the server commits on its own",
            do="remove it; then compare the table with the source, because rows of this task are in it twice after the"
            " query is started again",
        )

    def _finish(self) -> bool:
        if self._load is None:
            return False
        self._context.metrics.add("bytes", self._load.finish())
        if skipped := self._sent - self._load.stored:
            self._context.metrics.add("rows_skipped", skipped)
        self._load = None
        return True

    def _give_up(self, session: Any, missing: frozenset[str]) -> None:
        """Roll back: another attempt has written all parts, or some of them, which one load cannot separate."""
        session.finish("ROLLBACK")
        if missing:
            raise TransientError(
                "another attempt of this task has written some of its parts",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="nothing: the task is retried and finds them in the table",
            )

    def _commit(self, session: Any, wanted: dict[str, PartRow]) -> None:
        try:
            session.finish("COMMIT")
        except self._tables.database.errors as error:
            session.shut()
            if Means.PASSES not in self._tables.database.means(error) or not self._committed(wanted):
                raise
            self._context.metrics.add("commits_settled")

    def _committed(self, wanted: dict[str, PartRow]) -> bool:
        """Return whether a COMMIT without acknowledgment succeeded. Holding the locks shows that it has ended."""
        found = self._tables.run("checking a commit to", lambda session: self._ledger.locked(session, wanted))
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
