"""One attempt: loads its rows into staging in one transaction.

A batch is sent at once; if a row is rejected, ever fewer rows are sent until it is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from outfall.capabilities import WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import ValueRefusedError
from outfall.mysql.columns import MySQLColumn, read_columns
from outfall.mysql.errors import MySQLRefusal
from outfall.mysql.send import RowSender, RowTooLargeError
from outfall.mysql.types import mismatches
from outfall.sql.changes import keeps, removals
from outfall.sql.dead_letters import batch_row_name, row_log
from outfall.sql.dialect import Load, SqlName, isolate
from outfall.sql.writer import set_aside, staging_columns
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.mysql.dialect import MySQLDialect

_BYTES = 8 << 20
"""The Arrow size of one statement, to bound the memory for its text."""


class StagingLoad(Load):
    """Loads one attempt's rows. `schema` is that of every batch, and `stage` the attempt's number."""

    def __init__(
        self,
        dialect: MySQLDialect,
        staging: SqlName,
        target: SqlName,
        schema: pa.Schema,
        stage: int,
        context: WriterInitContext,
    ) -> None:
        self.dead_letters: list[DeadLetter] = []
        self._context = context
        self._dialect = dialect
        self._options = dialect.options
        self._stage = stage
        self._seen = 0
        self._lent = ExitStack()
        try:
            self.session = self._session = self._lent.enter_context(dialect.database.task())
            columns = staging_columns(self._session, dialect, staging, schema)
            self._columns = self._checked(target, schema)
            names = [column.name for column in columns]
            self._schema = pa.schema([*(pa.field(name, pa.int64()) for name in names[:2]), *schema])
            bits = [column.name for column in columns if column.kind == "bit"]
            self._sender = RowSender(self._session, staging, self._schema, names, bits)
        except BaseException:
            self.close()
            raise

    def write(self, batch: pa.RecordBatch) -> int:
        reached("sql: copying")
        before = self._sender.bytes
        # Rows are numbered from 1, also those that are rejected.
        numbers = pa.array(range(self._seen + 1, self._seen + 1 + batch.num_rows), pa.int64())
        stages = pa.repeat(pa.scalar(self._stage, pa.int64()), batch.num_rows)
        staged = pa.RecordBatch.from_arrays([stages, numbers, *batch.columns], schema=self._schema)
        self._seen += batch.num_rows
        refused = self._mismatches(batch)
        for row in sorted(refused):
            self._refuse(batch, row, refused[row])
        kept = [row for row in range(batch.num_rows) if row not in refused] if refused else None
        rest = staged if kept is None else staged.take(pa.array(kept, pa.int64()))
        for index, refusal in self._send(rest):
            self._refuse(batch, index if kept is None else kept[index], refusal)
        return self._sender.bytes - before

    def finish(self) -> int:
        return 0

    def commit(self) -> None:
        self._session.finish("COMMIT")

    def close(self) -> None:
        self._lent.close()

    def _checked(self, target: SqlName, schema: pa.Schema) -> list[tuple[int, MySQLColumn, bool]]:
        """Return the columns of the rows whose values are checked, and whether they may not be NULL."""
        options = self._options
        found = {column.name: column for column in read_columns(self._session, target)}
        written = options.key_columns if options.write_mode == "delete" else schema.names
        return [
            (index, found[name], found[name].not_null or name in options.key_columns)
            for index, name in enumerate(schema.names)
            if name in found and name in written
        ]

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

    def _refuse(self, batch: pa.RecordBatch, row: int, refusal: MySQLRefusal) -> None:
        """Keep a rejected row as a dead letter, or raise its error."""
        if self._options.dead_letter_table is not None:
            self.dead_letters.append(set_aside(self, batch, row, refusal, self._dialect, self._context))
            return
        log = row_log(self._session, self._dialect)
        name = batch_row_name(batch, row, log, self._seen - batch.num_rows + row)
        raise ValueRefusedError(
            f"the table {self._options.table} rejects {name}", why=refusal.summary(log), do=refusal.do
        )

    def _send(self, staged: pa.RecordBatch) -> Iterator[tuple[int, MySQLRefusal]]:
        """Send all accepted rows, and yield the rejected ones by index."""
        at_once = max(1, staged.num_rows * _BYTES // max(staged.nbytes, 1))
        for first in range(0, staged.num_rows, at_once):
            part = staged.slice(first, at_once)
            refused = 0
            for index, refusal in isolate(0, part.num_rows, partial(self._send_some, part)):
                refused += 1
                yield first + index, refusal
            self.rows += part.num_rows - refused

    def _send_some(self, part: pa.RecordBatch, low: int, high: int) -> MySQLRefusal | None:
        try:
            return self._sender.send(part.slice(low, high - low))
        except RowTooLargeError as error:
            # No dead letter: its text is about as long.
            log, own = row_log(self._session, self._dialect), 2
            position = error.row.column(1)[0].as_py() - 1
            row = pa.RecordBatch.from_arrays(error.row.columns[own:], schema=pa.schema(list(self._schema)[own:]))
            raise ValueRefusedError(
                f"the table {self._options.table} cannot take {batch_row_name(row, 0, log, position)}",
                why=error.why,
                do=f"{error.do}; or leave out the row",
            ) from None
