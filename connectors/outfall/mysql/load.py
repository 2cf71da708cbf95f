"""One attempt: loads its rows into staging, or into the table, in one transaction.

A batch is sent at once; if a row is rejected, ever fewer rows are sent until it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import ValueRefusedError
from outfall.mysql.columns import MySQLColumn, read_columns
from outfall.mysql.database import MySQLSession
from outfall.mysql.errors import MySQLRefusal
from outfall.mysql.send import RowSender, RowTooLargeError
from outfall.mysql.types import mismatches
from outfall.row_logging import RowLog
from outfall.sql.changes import keeps, removals
from outfall.sql.dead_letters import batch_row_name, row_log, table_of
from outfall.sql.dialect import Load, isolate
from outfall.sql.names import SqlName
from outfall.sql.writer import set_aside, staging_columns
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.mysql.database import MySQLSession
    from outfall.mysql.dialect import MySQLDialect

_BYTES = 8 << 20
"""The Arrow size of one statement, to bound the memory for its text."""


class TableLoad:
    """Sends rows to a table, if its columns can hold each value unchanged.

    `schema` is that of every batch, of whose values `columns` are checked; `sender` sends to other columns than these.
    """

    def __init__(
        self,
        dialect: MySQLDialect,
        session: MySQLSession,
        table: SqlName,
        schema: pa.Schema,
        columns: Sequence[MySQLColumn],
        sender: RowSender | None = None,
    ) -> None:
        self.stored = 0
        """The number of rows that the table has."""
        self.seen = 0
        """The number of rows, also those that are rejected."""
        self._dialect = dialect
        self._options = dialect.options
        self._session = session
        found = {column.name: column for column in columns}
        written = self._options.key_columns if self._options.write_mode == "delete" else schema.names
        self._columns = [
            (index, found[name], found[name].not_null or name in self._options.key_columns)
            for index, name in enumerate(schema.names)
            if name in found and name in written
        ]
        self._sender = sender or RowSender(session, table, schema, schema.names, bits_of(columns))

    def write(self, batch: pa.RecordBatch) -> int:
        """Send rows; return the number of bytes. Raises `ValueRefusedError`, which names the rejected row."""
        return self.send(batch, batch, self.refuse)

    def finish(self) -> int:
        """Return 0: the server has replied to each statement."""
        return 0

    def abort(self) -> None:
        """Do nothing: no statement is open."""

    def send(
        self, batch: pa.RecordBatch, sent: pa.RecordBatch, refuse: Callable[[pa.RecordBatch, int, MySQLRefusal], None]
    ) -> int:
        """Send the accepted rows of a batch, as `sent` has them, and give the others to `refuse`."""
        reached("sql: copying")
        before = self._sender.bytes
        self.seen += batch.num_rows
        refused = self._mismatches(batch)
        for row in sorted(refused):
            refuse(batch, row, refused[row])
        kept = [row for row in range(batch.num_rows) if row not in refused] if refused else range(batch.num_rows)
        rest = sent.take(pa.array(kept, pa.int64())) if refused else sent
        for index, refusal in self._send(batch, rest, kept):
            refuse(batch, kept[index], refusal)
        return self._sender.bytes - before

    def refuse(self, batch: pa.RecordBatch, row: int, refusal: MySQLRefusal) -> None:
        """Raise the error of a rejected row."""
        name, log = self._name(batch, row)
        raise ValueRefusedError(
            f"the table {table_of(self._options, batch, row)} rejects {name}", why=refusal.summary(log), do=refusal.do
        )

    def _name(self, batch: pa.RecordBatch, row: int) -> tuple[str, RowLog]:
        log = row_log(self._session, self._dialect)
        return batch_row_name(batch, row, log, self.seen - batch.num_rows + row), log

    def _mismatches(self, batch: pa.RecordBatch) -> dict[int, MySQLRefusal]:
        """Return the rows that the table cannot hold unchanged, by index."""
        found: dict[int, MySQLRefusal] = {}
        deleted = self._removals(batch)
        for index, column, required in self._columns:
            values = batch.column(index)
            masks = list(mismatches(values, column))
            if required and values.null_count:
                absent = values.is_null()
                # Of a removal, only the key is used, and an update may keep the value of the table.
                if deleted is not None and column.name not in self._options.key_columns:
                    absent = pc.and_not(absent, deleted)
                    if (operation := self._options.operation_column) is not None:
                        absent = pc.and_not(absent, keeps(batch.column(operation), column.name))
                masks.append((absent, "NULL is not allowed in it"))
            for mask, why in masks:
                if pc.any(mask).as_py():
                    refusal = MySQLRefusal(f"column {column.name!r} cannot hold the value: {why}")
                    for row in pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist():
                        found.setdefault(row, refusal)
        return found

    def _removals(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return which rows are removals; `None` if none can be."""
        options = self._options
        if options.operation_column is not None:
            return removals(batch.column(options.operation_column))
        marker = options.delete_marker
        # A marker without any value has no type.
        return None if marker is None else pc.fill_null(batch.column(marker).cast(pa.bool_()), False)

    def _send(
        self, batch: pa.RecordBatch, sent: pa.RecordBatch, kept: Sequence[int]
    ) -> Iterator[tuple[int, MySQLRefusal]]:
        """Send all accepted rows, and yield the rejected ones by index. `kept` are their places in the batch."""
        at_once = max(1, sent.num_rows * _BYTES // max(sent.nbytes, 1))
        for first in range(0, sent.num_rows, at_once):
            part = sent.slice(first, at_once)
            refused = 0
            try:
                for index, refusal in isolate(0, part.num_rows, partial(self._send_some, part)):
                    refused += 1
                    yield first + index, refusal
            except RowTooLargeError as error:
                # No dead letter: its text is about as long.
                name, _ = self._name(batch, kept[first + error.index])
                raise ValueRefusedError(
                    f"the table {table_of(self._options, batch, kept[first + error.index])} cannot take {name}",
                    why=error.why,
                    do=f"{error.do}; or leave out the row",
                ) from None
            self.stored += part.num_rows - refused

    def _send_some(self, part: pa.RecordBatch, low: int, high: int) -> MySQLRefusal | None:
        try:
            return self._sender.send(part.slice(low, high - low))
        except RowTooLargeError as error:
            raise RowTooLargeError(low + error.index, error.why, error.do) from None


class StagingLoad(Load):
    """Loads one attempt's rows into staging. `schema` is that of every batch, and `stage` the attempt's number.

    `session` is that of the caller, if there is one.
    """

    def __init__(
        self,
        dialect: MySQLDialect,
        staging: SqlName,
        target: SqlName,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
        session: MySQLSession | None = None,
    ) -> None:
        self.dead_letters: list[DeadLetter] = []
        self._context = context
        self._dialect = dialect
        self._stage = stage
        self._lent = ExitStack()
        try:
            self.session = self._session = session or self._lent.enter_context(dialect.database.task())
            columns = staging_columns(self._session, dialect, staging, schema)
            names = [column.name for column in columns]
            self._schema = pa.schema([*(pa.field(name, pa.int64()) for name in names[:2]), *schema])
            sender = RowSender(self._session, staging, self._schema, names, bits_of(columns))
            wanted = read_columns(self._session, target)
            self._load = TableLoad(dialect, self._session, staging, schema, wanted, sender)
        except BaseException:
            self.close()
            raise

    def write(self, batch: pa.RecordBatch) -> int:
        # Rows are numbered from 1, also those that are rejected.
        first = self._load.seen + 1
        numbers = pa.array(range(first, first + batch.num_rows), pa.int64())
        stages = pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)
        staged = pa.RecordBatch.from_arrays([stages, numbers, *batch.columns], schema=self._schema)
        size = self._load.send(batch, staged, self._refuse)
        self.rows = self._load.stored
        return size

    def finish(self) -> int:
        return 0

    def commit(self) -> None:
        self._session.finish("COMMIT")

    def close(self) -> None:
        self._lent.close()

    def _refuse(self, batch: pa.RecordBatch, row: int, refusal: MySQLRefusal) -> None:
        """Keep a rejected row as a dead letter, or raise its error."""
        if self._dialect.options.dead_letter_table is None:
            self._load.refuse(batch, row, refusal)
        self.rows = self._load.stored
        self.dead_letters.append(set_aside(self, batch, row, refusal, self._dialect, self._context))


def bits_of(columns: Sequence[MySQLColumn]) -> list[str]:
    """Return the columns of type BIT, which need a cast."""
    return [column.name for column in columns if column.kind == "bit"]
