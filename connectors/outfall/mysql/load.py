"""One attempt: loads its rows into staging in one transaction.

Each batch is one LOAD DATA LOCAL, which turns errors into warnings, or an INSERT where the server allows no LOAD. If a
count or a warning says that not every row is there as it was sent, the batch is undone, and INSERTs find the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import ValueRefusedError
from outfall.mysql.columns import MySQLColumn, read_columns
from outfall.mysql.encode import RowEncoder
from outfall.mysql.errors import MySQLRefusal, is_rows_fault
from outfall.mysql.types import misfits
from outfall.sql.changes import removals
from outfall.sql.dead_letters import batch_row_name, row_log
from outfall.sql.dialect import Load, SqlName, isolate
from outfall.sql.writer import set_aside, staging_columns
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.mysql.dialect import MySQLDialect

_BYTES = 8 << 20
"""The Arrow size of one statement, to bound the memory for its text."""
_ROOM = 4 << 10
"""Bytes of `max_allowed_packet` that a statement leaves."""


class StagingLoad(Load):
    """Loads one attempt's rows. `schema` is that of every batch, and `stage` the attempt's number."""

    def __init__(
        self, dialect: MySQLDialect, staging: SqlName, schema: pa.Schema, stage: int, context: WriterInitContext
    ) -> None:
        self.letters: list[DeadLetter] = []
        self._context = context
        self._dialect = dialect
        self._options = dialect.options
        self._stage = stage
        self._seen = 0
        self._bytes = 0
        self._lent = ExitStack()
        try:
            self.session = self._session = self._lent.enter_context(dialect.database.task())
            columns = staging_columns(self._session, dialect, staging, schema)
            self._columns = self._checked(schema)
            found = self._session.execute("SELECT @@local_infile, @@max_allowed_packet").fetchone()
        except BaseException:
            self.close()
            raise
        names = [column.name for column in columns]
        self._loads, self._packet = bool(found[0]), int(found[1])
        self._schema = pa.schema([*(pa.field(name, pa.int64()) for name in names[:2]), *schema])
        self._encoder = RowEncoder(staging, self._schema, names)

    def write(self, batch: pa.RecordBatch) -> int:
        reached("sql: copying")
        before = self._bytes
        # Rows are numbered from 1, also those that are rejected.
        numbers = pa.array(range(self._seen + 1, self._seen + 1 + batch.num_rows), pa.int64())
        stages = pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)
        staged = pa.RecordBatch.from_arrays([stages, numbers, *batch.columns], schema=self._schema)
        self._seen += batch.num_rows
        refused = self._misfits(batch)
        for row in sorted(refused):
            self._refuse(batch, row, refused[row])
        kept = [row for row in range(batch.num_rows) if row not in refused] if refused else None
        rest = staged if kept is None else staged.take(pa.array(kept, pa.int64()))
        for index, refusal in self._send(rest):
            self._refuse(batch, index if kept is None else kept[index], refusal)
        return self._bytes - before

    def finish(self) -> int:
        return 0

    def commit(self) -> None:
        self._session.execute("COMMIT")

    def close(self) -> None:
        self._lent.close()

    def _checked(self, schema: pa.Schema) -> list[tuple[int, MySQLColumn, bool]]:
        """Return the columns of the rows whose values are checked, and whether they may not be NULL."""
        options = self._options
        target = self._dialect.parse(options.table)
        found = {column.name: column for column in read_columns(self._session, target)}
        written = options.key_columns if options.write_mode == "delete" else schema.names
        return [
            (index, found[name], found[name].not_null or name in options.key_columns)
            for index, name in enumerate(schema.names)
            if name in found and name in written
        ]

    def _misfits(self, batch: pa.RecordBatch) -> dict[int, MySQLRefusal]:
        """Return the rows that the table cannot hold unchanged, by index."""
        found: dict[int, MySQLRefusal] = {}
        gone = self._removals(batch)
        for index, column, required in self._columns:
            values = batch.column(index)
            masks = list(misfits(values, column))
            if required and values.null_count:
                absent = values.is_null()
                # Of a removal, only the key is used.
                if gone is not None and column.name not in self._options.key_columns:
                    absent = pc.and_not(absent, gone)
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

    def _refuse(self, batch: pa.RecordBatch, row: int, refusal: MySQLRefusal) -> None:
        """Keep a rejected row as a dead letter, or raise its error."""
        if self._options.dead_letter_table is not None:
            self.letters.append(set_aside(self, batch, row, refusal, self._dialect, self._context))
            return
        log = row_log(self._session, self._dialect)
        name = batch_row_name(batch, row, log, self._seen - batch.num_rows + row)
        raise ValueRefusedError(f"the table {self._options.table} rejects {name}", why=refusal.told(log), do=refusal.do)

    def _send(self, staged: pa.RecordBatch) -> Iterator[tuple[int, MySQLRefusal]]:
        """Send all accepted rows, and yield the rejected ones by index."""
        at_once = max(1, staged.num_rows * _BYTES // max(staged.nbytes, 1))
        for first in range(0, staged.num_rows, at_once):
            part = staged.slice(first, at_once)
            if self._loads and self._load(part):
                self.rows += part.num_rows
                continue
            before = len(self.letters)
            for index, refusal in isolate(0, part.num_rows, partial(self._insert, part)):
                yield first + index, refusal
            self.rows += part.num_rows - (len(self.letters) - before)

    def _load(self, part: pa.RecordBatch) -> bool:
        """Send rows with LOAD DATA; return whether all are there unchanged. Otherwise none is."""
        statement, data = self._encoder.load(part)
        self._session.execute("SAVEPOINT outfall_load")
        try:
            rows, warnings = self._session.send(statement, data)
        except pymysql.MySQLError as error:
            if not is_rows_fault(error):
                raise
            rows, warnings = 0, 1
        if (rows, warnings) == (part.num_rows, 0):
            self._bytes += len(data)
            return True
        self._session.execute("ROLLBACK TO SAVEPOINT outfall_load")
        return False

    def _insert(self, part: pa.RecordBatch, low: int, high: int) -> MySQLRefusal | None:
        """Send rows with INSERT; return the reason if they are rejected. Then none is there."""
        try:
            with self._session.savepoint():
                sent = self._insert_all(part.slice(low, high - low))
        except _RefusedRowsError as error:
            return error.refusal
        self._bytes += sent
        return None

    def _insert_all(self, rows: pa.RecordBatch) -> int:
        """Send rows with as few INSERTs as the server's packets allow; return the number of bytes."""
        statement = self._encoder.insert(rows)
        if len(statement) + _ROOM > self._packet:
            if rows.num_rows > 1:
                half = rows.num_rows // 2
                return self._insert_all(rows.slice(0, half)) + self._insert_all(rows.slice(half))
            raise _RefusedRowsError(
                MySQLRefusal(
                    f"the row needs {len(statement)} bytes, and max_allowed_packet of the server is {self._packet}",
                    do="raise max_allowed_packet, or set local_infile of the server to ON",
                )
            )
        try:
            count, warnings = self._session.send(statement)
        except pymysql.MySQLError as error:
            if not is_rows_fault(error):
                raise
            raise _RefusedRowsError(MySQLRefusal.of(error)) from None
        if warnings or count != rows.num_rows:
            raise _RefusedRowsError(self._session.first_warning())
        return len(statement)


class _RefusedRowsError(Exception):
    """The server rejects rows, or would change them."""

    def __init__(self, refusal: MySQLRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
