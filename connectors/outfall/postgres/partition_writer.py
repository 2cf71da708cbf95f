"""All parts that one task writes: one connection, one COPY straight into the table, one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from outfall.capabilities import WriterInitContext
from outfall.errors import TerminalError, TransientError, ValueRefusedError
from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection, Database
from outfall.postgres.copy_encoder import CopyEncoder
from outfall.postgres.failures import explained
from outfall.postgres.ledger import Ledger
from outfall.postgres.names import TableName
from outfall.postgres.part_checks import Place, check_step, missing_parts
from outfall.postgres.part_ledger import PartLedger, PartRow
from outfall.postgres.part_rows import PartRows
from outfall.postgres.row_hash import RowHash
from outfall.postgres.sqlstate import may_pass
from outfall.trace_points import reached


@dataclass
class PartCount:
    """What came for one part so far."""

    part: str
    start: int
    """The offset of its first row."""
    hash: RowHash = field(default_factory=RowHash)

    @property
    def next_offset(self) -> int:
        """The offset after its last row."""
        return self.start + self.hash.rows


class PartTask:
    """One attempt of one task. Nothing of it outlives the connection until `publish`.

    Rows of a part whose ledger row has the epoch already are counted and hashed, and not sent.
    """

    def __init__(self, database: Database, table: TableName, ledger: Ledger, context: WriterInitContext) -> None:
        self._database = database
        self._table = table
        self._context = context
        self._step = ledger
        self._ledger = PartLedger(ledger)
        self._stack = ExitStack()
        self._copying = self._stack.enter_context(ExitStack())
        self._connection: Connection | None = None
        self._rows = PartRows(database.options)
        self._copy: psycopg.Copy | None = None
        self._encoder: CopyEncoder | None = None
        self._schema: pa.Schema | None = None
        self._present: frozenset[str] = frozenset()
        self._counts: dict[str, PartCount] = {}
        self._done = False

    def part(self, name: str, start: int) -> PartCount:
        """Begin with a part."""
        count = self._counts[name] = PartCount(name, start)
        return count

    def write(self, count: PartCount, batch: pa.RecordBatch) -> None:
        """Send a part's rows, unless the table has them."""
        if batch.num_rows == 0:
            return
        with self._explained():
            connection = self._connected()
            if count.part not in self._present:
                copy, encoder = self._open(connection, batch.schema)
                data = encoder.encode(self._rows.batch(batch, count.part, count.next_offset))
                reached("postgres: copying")
                copy.write(data)
                self._context.metrics.add("bytes", len(data))
        count.hash.add(batch)

    def publish(self) -> None:
        """Commit the rows of all parts with their ledger's rows, once.

        Raises:
            FencedError, ReplayDiffersError, TargetLostError, TargetAheadError: see `missing_parts`.
            TransientError: it may succeed in another attempt.
        """
        if self._done or self._connection is None:
            return
        with self._explained():
            self._publish(self._connection)
        self._done = True

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

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._stack.enter_context(self._database.connection())
            found = self._ledger.read(self._connection)
            self._present = frozenset(part for part, row in found.items() if row.holds(self._context.epoch))
        return self._connection

    def _open(self, connection: Connection, schema: pa.Schema) -> tuple[psycopg.Copy, CopyEncoder]:
        if self._copy is not None and self._encoder is not None:
            if schema != self._schema:
                raise ValueRefusedError(
                    f"the columns change from {self._schema} to {schema}",
                    why="all rows of an epoch go into the same columns",
                    do="give all rows the same columns",
                )
            return self._copy, self._encoder
        columns = read_columns(connection, self._table)
        self._rows = PartRows.into(self._database.options, columns)
        written = self._rows.schema(schema)
        found = {column.name: column for column in columns}
        missing = [name for name in written.names if name not in found]
        if missing:
            raise TerminalError(
                f"{self._table} has no column {missing[0]!r}",
                why="the table changed after this epoch began",
                do="start the query again",
            )
        self._encoder = CopyEncoder(written, [found[name] for name in written.names])
        self._begin(connection)
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            self._table.identifier(),
            sql.SQL(", ").join(map(sql.Identifier, written.names)),
            sql.SQL(self._encoder.format),
        )
        self._copy = self._copying.enter_context(connection.cursor().copy(command))
        self._schema = schema
        self._copy.write(self._encoder.header())
        return self._copy, self._encoder

    def _begin(self, connection: Connection) -> None:
        connection.execute("BEGIN")
        # A COPY lasts as long as its task has rows, whatever the server allows other statements. Only for the keys of
        # another attempt, which may be stopped, it does not wait for ever.
        connection.execute("SET LOCAL statement_timeout = 0")
        longest = self._database.options.statement_milliseconds
        connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{longest}ms",))

    def _publish(self, connection: Connection) -> None:
        sent = self._finish_copy()
        if not sent:
            connection.execute("BEGIN")
        self._database.limit(connection)
        wanted = {name: self._row(count) for name, count in self._counts.items() if count.hash.rows}
        step = check_step(str(self._table), self._step.share(connection), self._context)
        found = self._ledger.read(connection, wanted, lock=True)
        place = Place(str(self._table), self._context.step_id, self._context.epoch)
        missing = missing_parts(place, step, found, wanted)
        copied = wanted.keys() - self._present if sent else frozenset()
        present = sum(wanted[part].rows for part in wanted.keys() - missing)
        if present:
            self._context.metrics.add("rows_present", present)
        if missing != copied or not missing:
            self._give_up(connection, missing)
            return
        reached("postgres: publishing")
        self._ledger.published(connection, [wanted[part] for part in sorted(missing)])
        reached("postgres: before COMMIT")
        self._commit(connection, wanted)
        reached("postgres: after COMMIT")

    def _give_up(self, connection: Connection, missing: frozenset[str]) -> None:
        """Write nothing: all is there; or some of it, by a faster attempt, and COPY takes back all rows or none."""
        connection.execute("ROLLBACK")
        if missing:
            raise TransientError(
                "another attempt of this task wrote some of its parts meanwhile",
                step=self._context.step_id,
                epoch=self._context.epoch,
                do="nothing: the task is tried again, and finds them there",
            )

    def _commit(self, connection: Connection, wanted: dict[str, PartRow]) -> None:
        try:
            connection.execute("COMMIT")
        except psycopg.Error as error:
            connection.close()
            if not may_pass(error) or not self._committed(wanted):
                raise
            self._context.metrics.add("commits_settled")

    def _committed(self, wanted: dict[str, PartRow]) -> bool:
        """Whether a COMMIT without an answer took place: who holds the locks knows that it is over."""
        found = self._database.run(
            "settling a commit to", lambda connection: self._ledger.read(connection, wanted, lock=True)
        )
        return all(part in found and found[part].same_rows(row) for part, row in wanted.items())

    def _finish_copy(self) -> bool:
        if self._copy is None or self._encoder is None:
            return False
        self._copy.write(self._encoder.trailer())
        self._copy = None
        self._copying.close()
        return True

    def _row(self, count: PartCount) -> PartRow:
        context = self._context
        return PartRow(
            part=count.part,
            generation=context.generation,
            epoch=context.epoch,
            attempt=context.attempt,
            next_offset=count.next_offset,
            rows=count.hash.rows,
            hash=count.hash.value,
        )

    def _explained(self) -> AbstractContextManager[None]:
        return explained(self._database, f"copying rows into {self._table}", self._context.step_id)


class PartTasks:
    """The open tasks of a sink: parts of one attempt find each other here. Travels empty, from driver to task."""

    def __init__(self) -> None:
        """Start without tasks."""
        self._lock = threading.Lock()
        self._open: dict[Hashable, tuple[PartTask, set[str]]] = {}

    def __reduce__(self) -> Any:
        return PartTasks, ()

    def join(self, key: Hashable, part: str, make: Callable[[], PartTask]) -> PartTask:
        """Return the task of this key, made if it is the first of its parts."""
        with self._lock:
            if key not in self._open:
                self._open[key] = (make(), set())
            task, parts = self._open[key]
            parts.add(part)
            return task

    def leave(self, key: Hashable, part: str) -> None:
        """Close the task with its first part that closes: all is published then, or nothing of it will be."""
        with self._lock:
            task, parts = self._open[key]
            parts.discard(part)
            if not parts:
                del self._open[key]
        task.close()
