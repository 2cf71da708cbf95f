"""Moving staged rows into the table: all by one statement, or all but those that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import sql

from outfall.postgres.bisect import Refusal, isolate
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.publish_sql import ranks, statements
from outfall.postgres.row_names import key_names, row_name
from outfall.postgres.row_ranges import Addresses, Places, Rows
from outfall.postgres.sqlstate import is_rows_fault, may_go_later
from outfall.postgres.staging import MARKER, StagedRows


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
        return execute(connection, self._statements("all"), {"stages": list(self.expected)})

    def sorting(self, connection: Connection) -> SortingMove:
        """Begin to move the rows that the table takes."""
        # A savepoint gives up the locks that were taken in it.
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(self._staging.identifier()))
        # Constraints that wait for COMMIT would fail all rows there, and name none.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        stages = list(self.expected)
        places: Places = (
            ranks(self._options, connection, self._staging, stages)
            if self._options.write_mode == "upsert"
            else Addresses(connection, self._staging)
        )
        return SortingMove(connection, places, self._statements(places.rows), self._statements(places.one), stages)

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

    def _statements(self, rows: Rows) -> list[sql.Composed]:
        return statements(self._options, self._table, self._staging, self._columns, rows)


class SortingMove:
    """Moves rows by halves, each in a savepoint, so that those which are refused are found and the others are moved.

    Of rows with one key an upsert takes the last; when that is refused, the one before it.

    Args:
        connection: in a transaction, which holds staging.
        places: where the rows are that are moved at first.
        moving: the statements for some of them.
        moving_one: the statements for any one.
        stages: the attempts' numbers.
    """

    def __init__(
        self,
        connection: Connection,
        places: Places,
        moving: Sequence[sql.Composed],
        moving_one: Sequence[sql.Composed],
        stages: Sequence[int],
    ) -> None:
        self.changed = 0
        """How many rows of the table the moves have changed."""
        self.refused: dict[str, Refusal] = {}
        """The rows that are not moved, by their address."""
        self._connection = connection
        self._places = places
        self._moving = moving
        self._moving_one = moving_one
        self._stages = list(stages)

    def first(self) -> tuple[str, Refusal] | None:
        """Move rows until one is refused, and return it with its address."""
        found = next(isolate(0, self._places.count, self._attempt), None)
        return None if found is None else (self._places.place(found[0]), found[1])

    def run(self) -> Iterator[Refusal]:
        """Move all rows that are taken. Yields each refusal as it is found; `refused` has those that stay."""
        for position, refusal in isolate(0, self._places.count, self._attempt):
            self.refused[self._places.place(position)] = refusal
            yield refusal
        for place in list(self.refused):
            yield from self._fall_back(place)
        self._try_again()

    def _fall_back(self, place: str) -> Iterator[Refusal]:
        """Take the row that a refused one had replaced."""
        while (found := self._places.replaced(place)) is not None:
            refusal = self._attempt_one(found)
            if refusal is None:
                return
            self.refused[found] = refusal
            yield refusal
            place = found

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
        return self._move(self._moving, self._places.between(low, high))

    def _attempt_one(self, place: str) -> Refusal | None:
        return self._move(self._moving_one, {"place": place})

    def _move(self, moving: Sequence[sql.Composed], given: Mapping[str, Any]) -> Refusal | None:
        try:
            with self._connection.transaction():
                changed = execute(self._connection, moving, {"stages": self._stages, **given})
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return Refusal.of(error)
        self.changed += changed
        return None


def execute(connection: Connection, moving: Sequence[sql.Composed], given: Mapping[str, Any]) -> int:
    """Run statements one after the other, and return how many rows the last of them has changed."""
    return [connection.execute(each, given).rowcount for each in moving][-1]
