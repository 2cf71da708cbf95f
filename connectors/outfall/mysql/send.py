"""Sends rows to a table: those of a task to staging, and dead letters.

Rows are one LOAD DATA LOCAL, which has no limit and turns errors into warnings, or INSERTs where the server allows no
LOAD. If a count or a warning says that not every row is there as it was sent, the statement is undone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pymysql

from outfall.mysql.database import MySQLSession
from outfall.mysql.encode import RowEncoder
from outfall.mysql.errors import MySQLRefusal, means
from outfall.sql.database import Means
from outfall.sql.names import SqlName

_ROOM = 4 << 10
"""Bytes of `max_allowed_packet` that a statement leaves."""
_UNIT = 1024
"""The server rounds the variable down to a multiple of these bytes."""

_SOME = MySQLRefusal("the server would change a value")
"""The reason why several rows are rejected; inserting each alone finds the row."""


class RowTooLargeError(Exception):
    """A row does not fit into a statement. `index` is its place in those given; `why` and `do` are for a user."""

    def __init__(self, index: int, why: str, do: str) -> None:
        super().__init__(why)
        self.index = index
        self.why = why
        self.do = do


class RowSender:
    """Sends rows of a schema to the columns of a table, in the transaction of a session."""

    def __init__(
        self,
        session: MySQLSession,
        table: SqlName,
        schema: pa.Schema,
        columns: Sequence[str],
        bits: Collection[str] = (),
    ) -> None:
        self.bytes = 0
        """The bytes of the rows that the server has accepted."""
        self._session = session
        self._encoder = RowEncoder(table, schema, columns, bits)
        self._loads, self._packet = bool(session.loads), int(session.packet)

    def send(self, rows: pa.RecordBatch) -> MySQLRefusal | None:
        """Send rows; return the reason if one is rejected. Then none is there.

        Of several rows, the reason may be that of all. Raises `RowTooLargeError` if one does not fit into a statement,
        and the driver's error if no row caused it.
        """
        if self._loads:
            if self._load(rows):
                return None
            if rows.num_rows > 1:
                return _SOME
        try:
            with self._session.savepoint():
                sent = self._insert(rows)
        except _RefusedRowsError as error:
            return error.refusal
        self.bytes += sent
        return None

    def _load(self, rows: pa.RecordBatch) -> bool:
        """Send rows with LOAD DATA; return whether all were stored unchanged. Otherwise none is."""
        statement, data = self._encoder.load(rows)
        self._session.later("SAVEPOINT outfall_load")
        try:
            count, warnings = self._session.send(statement, data)
        except pymysql.MySQLError as error:
            if Means.ROW not in means(error):
                raise
            count, warnings = 0, 1
        if (count, warnings) == (rows.num_rows, 0):
            self.bytes += len(data)
            return True
        self._session.execute("ROLLBACK TO SAVEPOINT outfall_load")
        return False

    def _insert(self, rows: pa.RecordBatch, first: int = 0) -> int:
        """Send rows with as few INSERTs as the server's packets allow; return the number of bytes.

        `first` is the place of the first of them.
        """
        statement = self._encoder.insert(rows)
        if len(statement) + _ROOM > self._packet:
            if rows.num_rows > 1:
                half = rows.num_rows // 2
                return self._insert(rows.slice(0, half), first) + self._insert(rows.slice(half), first + half)
            raise self._too_large(rows, first, len(statement))
        try:
            count, warnings = self._session.send(statement)
        except pymysql.MySQLError as error:
            if Means.ROW not in means(error):
                raise
            raise _RefusedRowsError(MySQLRefusal.of(error)) from None
        if warnings or count != rows.num_rows:
            raise _RefusedRowsError(self._session.first_warning())
        return len(statement)

    def _too_large(self, row: pa.RecordBatch, index: int, size: int) -> RowTooLargeError:
        sizes = {name: column.nbytes for name, column in zip(row.schema.names, row.columns, strict=True)}
        largest = max(sizes, key=lambda name: sizes[name])
        return RowTooLargeError(
            index,
            f"its INSERT has {size} bytes, most of them for column {largest!r}, and max_allowed_packet of the server is"
            f" {self._packet}",
            f"set max_allowed_packet of the server to at least {-(-(size + _ROOM) // _UNIT) * _UNIT}"
            + ("" if self._loads else ", or local_infile to ON, which has no such limit"),
        )


class _RefusedRowsError(Exception):
    """The server rejects rows, or would change them."""

    def __init__(self, refusal: MySQLRefusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
