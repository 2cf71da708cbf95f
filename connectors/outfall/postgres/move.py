"""Moving staged rows into the table: all by one statement, or all but those that it refuses.

A row is told by its address in staging (`ctid`, manual, 5.6 System Columns): it stays while a transaction holds the
table, which a rewrite would have to lock. So rows need no number of their own, and rows that were staged before dead
letters were asked for are isolated as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from outfall.postgres.connection import Connection
from outfall.postgres.isolate import Refusal, isolate
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.publish import before, statement
from outfall.postgres.row_names import key_names, row_name
from outfall.postgres.sqlstate import is_rows_fault, may_go_later
from outfall.postgres.staging import MARKER, StagedRows

_PAGE_HEADER = 24
_SMALLEST_ROW = 28
"""Bytes of a page (storage/bufpage.h), and of a row in it with its pointer: a page has no address beyond their
quotient, `MaxHeapTuplesPerPage`."""


class Move:
    """Moves the rows of attempts from staging into the table. Every call runs in the caller's transaction.

    Args:
        options: how rows are written.
        table: the target.
        staging: where the rows are.
        attempts: whose rows; at least one.
    """

    def __init__(
        self, options: PostgresOptions, table: TableName, staging: TableName, attempts: Sequence[StagedRows]
    ) -> None:
        self.expected = {staged.stage: staged.rows for staged in attempts}
        # On Spark those of one DataFrame; elsewhere those that any attempt has.
        self._columns = tuple(dict.fromkeys(name for staged in attempts for name in staged.columns))
        self._options = options
        self._table = table
        self._staging = staging

    def whole(self, connection: Connection) -> int:
        """Move all rows by one statement and return how many rows of the table that changed."""
        if not self._columns:
            return 0
        moving = statement(self._options, self._table, self._staging, self._columns)
        return connection.execute(moving, {"stages": list(self.expected)}).rowcount

    def sorting(self, connection: Connection) -> SortingMove:
        """Begin to move the rows that the table takes."""
        moving = statement(self._options, self._table, self._staging, self._columns, partly=True)
        return SortingMove(connection, moving, self._replaced(), self._staging, list(self.expected))

    def row_text(self, place: str, columns: Sequence[str] = ()) -> sql.Composed:
        """Return a query for the JSON text of one staged row, as the server writes it."""
        shown: list[sql.Composable] = [sql.Identifier(name) for name in columns or self._columns]
        if self._options.delete_marker and not columns:
            shown.append(
                sql.SQL("{} AS {}").format(sql.Identifier(MARKER), sql.Identifier(self._options.delete_marker))
            )
        return sql.SQL("SELECT to_json(shown)::text FROM (SELECT {} FROM {} WHERE ctid = {}::tid) AS shown").format(
            sql.SQL(", ").join(shown), self._staging.identifier(), sql.Literal(place)
        )

    def name(self, connection: Connection, place: str) -> str:
        """Name a staged row by its key, else by how it begins."""
        keys = key_names(connection, self._options, self._columns)
        found = connection.execute(self.row_text(place, keys)).fetchone()
        return row_name(found[0] if found else "", by_key=bool(keys))

    def _replaced(self) -> sql.Composed | None:
        return before(self._options, self._staging) if self._options.write_mode == "upsert" else None


class SortingMove:
    """Moves rows by halves, each in a savepoint, so that those which are refused are found and the others are moved.

    Of rows with one key an upsert takes the last; when that is refused, the one before it.

    Args:
        connection: in a transaction, which holds staging from now on.
        moving: `statement(partly=True)`.
        replaced: `before()` for an upsert.
        staging: where the rows are.
        stages: the attempts' numbers.
    """

    def __init__(
        self,
        connection: Connection,
        moving: sql.Composed,
        replaced: sql.Composed | None,
        staging: TableName,
        stages: Sequence[int],
    ) -> None:
        self.changed = 0
        """How many rows of the table the moves have changed."""
        self.refused: dict[str, Refusal] = {}
        """The rows that are not moved, by their address."""
        self._connection = connection
        self._moving = moving
        self._replaced = replaced
        self._stages = list(stages)
        # A savepoint gives up the locks that were taken in it.
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(staging.identifier()))
        # Constraints that wait for COMMIT would fail all rows there, and name none.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        size, page = connection.execute(
            "SELECT pg_relation_size(%s::regclass), current_setting('block_size')::int",
            (staging.identifier().as_string(connection),),
        ).fetchone() or (0, 1)
        self._per_page = (page - _PAGE_HEADER) // _SMALLEST_ROW + 1
        self._after = size // page * self._per_page

    def first(self) -> tuple[str, Refusal] | None:
        """Move rows until one is refused, and return it with its address."""
        found = next(isolate(0, self._after, self._attempt), None)
        return None if found is None else (self._place(found[0]), found[1])

    def run(self) -> Iterator[Refusal]:
        """Move all rows that are taken. Yields each refusal as it is found; `refused` has those that stay."""
        for position, refusal in isolate(0, self._after, self._attempt):
            self.refused[self._place(position)] = refusal
            yield refusal
        for place in list(self.refused):
            yield from self._fall_back(place)
        self._try_again()

    def _fall_back(self, place: str) -> Iterator[Refusal]:
        """Take the row that a refused one had replaced."""
        if self._replaced is None:
            return
        given = {"stages": self._stages, "place": place}
        while True:
            without = {"without": list(self.refused)}
            found = self._connection.execute(self._replaced, given | without).fetchone()
            refusal = self._attempt_one(found[0]) if found else None
            if found is None or refusal is None:
                return
            self.refused[found[0]] = refusal
            yield refusal

    def _try_again(self) -> None:
        """Rows that refer to others of the epoch are taken once these are there."""
        progress = True
        while progress:
            progress = False
            for place, refusal in list(self.refused.items()):
                if may_go_later(refusal.code) and self._attempt_one(place) is None:
                    del self.refused[place]
                    progress = True

    def _attempt(self, low: int, high: int) -> Refusal | None:
        return self._move({"low": self._place(low), "high": self._place(high), "without": list(self.refused)})

    def _attempt_one(self, place: str) -> Refusal | None:
        page, _, row = place.strip("()").partition(",")
        return self._move(
            {
                "low": place,
                "high": f"({page},{int(row) + 1})",
                "without": [other for other in self.refused if other != place],
            }
        )

    def _move(self, given: Mapping[str, Any]) -> Refusal | None:
        try:
            with self._connection.transaction():
                changed = self._connection.execute(self._moving, {"stages": self._stages, **given}).rowcount
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return Refusal.of(error)
        self.changed += changed
        return None

    def _place(self, position: int) -> str:
        return f"({position // self._per_page},{position % self._per_page})"
