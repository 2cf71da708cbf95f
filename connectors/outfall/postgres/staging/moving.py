"""Moves the rows of an epoch from staging into the table: all at once, or those that the table accepts.

The address of a row in staging identifies it (`ctid`, manual, 5.6 System Columns). The address is stable while a
transaction has locked the table, because a rewrite needs a lock. Rows therefore need no number, and dead letters also
work for rows that were staged before the option was set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import psycopg
from psycopg import sql

from outfall.postgres.catalogue.conflict import conflicting
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import is_rows_fault, may_go_later
from outfall.postgres.names import MARKER, TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.dead_letters import RowRefusal, isolate, row_log
from outfall.postgres.staging.publish_sql import RANKS, Rows, ranking, statements
from outfall.postgres.staging.staging_table import StagedRows

_PAGE_HEADER = 24
_SMALLEST_ROW = 28
"""Bytes of a page header (storage/bufpage.h), and of the smallest row with its pointer. They give the maximum number of
addresses in a page, `MaxHeapTuplesPerPage`."""


class Move:
    """Moves the rows of attempts, at least one, from staging into the table. Runs in the caller's transaction."""

    def __init__(
        self, options: PostgresOptions, table: TableName, staging: TableName, attempts: Sequence[StagedRows]
    ) -> None:
        self.expected = {staged.stage: staged.rows for staged in attempts}
        # On Spark, all attempts have the columns of one DataFrame; elsewhere, they may differ.
        self._columns = tuple(dict.fromkeys(name for staged in attempts for name in staged.columns))
        self._options = options
        self._table = table
        self._staging = staging

    def hold(self, connection: PostgresConnection) -> None:
        """Lock the tables as moving rows does, so that nobody alters them before. LOCK needs more privileges."""
        for each in self._statements(connection, "all") if self._columns else ():
            connection.execute(sql.SQL("EXPLAIN {}").format(each), {"stages": list(self.expected)})

    def whole(self, connection: PostgresConnection) -> int:
        """Move all rows with one statement; return the number of changed rows of the table."""
        if not self._columns:
            return 0
        return _execute(connection, self._statements(connection, "all"), {"stages": list(self.expected)})

    def sorting(self, connection: PostgresConnection) -> SortingMove:
        """Return a move of the rows that the table accepts."""
        # Take the lock here, because a rolled-back savepoint releases the locks that were taken in it.
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(self._staging.identifier()))
        # Deferred constraints would fail all rows at COMMIT without naming one.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        stages = list(self.expected)
        found = self._places(connection, stages)
        moving, moving_one = (self._statements(connection, rows) for rows in (found.rows, found.one))
        return SortingMove(connection, found, moving, moving_one, stages)

    def row_text(self, place: str) -> sql.Composed:
        """Return a query for the JSON text of one staged row, encoded by the server."""
        shown: list[sql.Composable] = [sql.Identifier(name) for name in self._columns]
        if self._options.delete_marker:
            shown.append(
                sql.SQL("{} AS {}").format(sql.Identifier(MARKER), sql.Identifier(self._options.delete_marker))
            )
        return sql.SQL("SELECT to_json(shown)::text FROM (SELECT {} FROM {} WHERE ctid = {}::tid) AS shown").format(
            sql.SQL(", ").join(shown), self._staging.identifier(), sql.Literal(place)
        )

    def name(self, connection: PostgresConnection, place: str) -> str:
        """Return a description of a staged row, as `log_rows` permits."""
        found = connection.execute(self.row_text(place)).fetchone()
        return row_log(connection, self._options).name("a row", found[0] if found else "")

    def _statements(self, connection: PostgresConnection, rows: Rows) -> list[sql.Composed]:
        # Only a statement for all rows ranks them; the others are given the result.
        which = self._conflicting(connection) if rows == "all" else None
        return statements(self._options, self._table, self._staging, self._columns, rows, which)

    def _places(self, connection: PostgresConnection, stages: Sequence[int]) -> Places:
        if self._options.write_mode != "upsert":
            return _addresses(connection, self._staging)
        return _rank(connection, ranking(self._options, self._staging, self._conflicting(connection)), stages)

    def _conflicting(self, connection: PostgresConnection) -> sql.Composable | None:
        """Return which staged rows can be in conflict with others of their key; `None` for all."""
        where = self._options.conflict_where
        if not where:
            return None
        return conflicting(connection, self._table, self._options.key_columns, where, self._columns)


class SortingMove:
    """Moves rows by bisection with savepoints, which finds the rejected rows and moves all others.

    Of several rows with one key, an upsert uses the last; if that is rejected, the one before it. The transaction of
    the connection has locked staging. `places` are the addresses of the rows that are moved first. `moving` are the
    statements for a range of rows, and `moving_one` those for one row. `stages` are the numbers of the attempts.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        places: Places,
        moving: Sequence[sql.Composed],
        moving_one: Sequence[sql.Composed],
        stages: Sequence[int],
    ) -> None:
        self.changed = 0
        """The number of changed rows of the table."""
        self.refused: dict[str, RowRefusal] = {}
        """The rejected rows, by address."""
        self._connection = connection
        self._places = places
        self._moving = moving
        self._moving_one = moving_one
        self._stages = list(stages)

    def first(self) -> tuple[str, RowRefusal] | None:
        """Move rows until one is rejected; return its address and the reason."""
        found = next(isolate(0, self._places.count, self._attempt), None)
        return None if found is None else (self._places.place(found[0]), found[1])

    def clash(self) -> list[str]:
        """Return the addresses of two rows that one statement cannot write, because they write the same row."""

        def clashes(low: int, high: int) -> bool:
            try:
                with self._connection.transaction(force_rollback=True):
                    given = {"stages": self._stages, **self._places.between(low, high)}
                    _execute(self._connection, self._moving, given)
            except psycopg.errors.CardinalityViolation:
                return True
            return False

        after = bisect_left(range(self._places.count + 1), True, key=lambda high: clashes(0, high))
        first = bisect_left(range(after), True, key=lambda low: not clashes(low, after)) - 1
        return [self._places.place(first), self._places.place(after - 1)] if after <= self._places.count else []

    def run(self) -> Iterator[RowRefusal]:
        """Move all accepted rows. Yields each rejection when it is found; `refused` has the final ones."""
        for position, refusal in isolate(0, self._places.count, self._attempt):
            self.refused[self._places.place(position)] = refusal
            yield refusal
        for place in list(self.refused):
            yield from self._fall_back(place)
        self._try_again()

    def _fall_back(self, place: str) -> Iterator[RowRefusal]:
        """Move the row that a rejected one had replaced."""
        while (found := self._places.replaced(place)) is not None:
            refusal = self._attempt_one(found)
            if refusal is None:
                return
            self.refused[found] = refusal
            yield refusal
            place = found

    def _try_again(self) -> None:
        """Retry rows that refer to other rows of the epoch by a foreign key."""
        progress = True
        while progress:
            progress = False
            for place, refusal in list(self.refused.items()):
                if may_go_later(refusal.code) and self._attempt_one(place) is None:
                    del self.refused[place]
                    progress = True

    def _attempt(self, low: int, high: int) -> RowRefusal | None:
        return self._move(self._moving, self._places.between(low, high))

    def _attempt_one(self, place: str) -> RowRefusal | None:
        return self._move(self._moving_one, {"place": place})

    def _move(self, moving: Sequence[sql.Composed], given: Mapping[str, Any]) -> RowRefusal | None:
        try:
            with self._connection.transaction():
                changed = _execute(self._connection, moving, {"stages": self._stages, **given})
        except psycopg.Error as error:
            if not is_rows_fault(error):
                raise
            return RowRefusal.of(error)
        self.changed += changed
        return None


def _execute(connection: PostgresConnection, moving: Sequence[sql.Composed], given: Mapping[str, Any]) -> int:
    """Run statements in order; return the number of rows that they changed."""
    return sum(connection.execute(each, given).rowcount for each in moving)


class Places(Protocol):
    """The rows that are moved first, by position from 0. Valid in the transaction that created it."""

    rows: Rows
    """The selection of rows between two positions."""
    one: Rows
    """The selection of one row by address."""
    count: int
    """The number of positions."""

    def between(self, low: int, high: int) -> Mapping[str, Any]:
        """Return the parameters that select the rows from a position to another (exclusive)."""

    def place(self, position: int) -> str:
        """Return the address at a position."""

    def replaced(self, place: str) -> str | None:
        """Return the address of the row that this one replaces; `None` if there is none."""


class Addresses:
    """All rows in address order. Some positions have no row."""

    rows: Rows = "addressed"
    one: Rows = "address"

    def __init__(self, count: int, per_page: int) -> None:
        self.count = count
        self._per_page = per_page

    def between(self, low: int, high: int) -> Mapping[str, Any]:
        return {"low": self.place(low), "high": self.place(high)}

    def place(self, position: int) -> str:
        return f"({position // self._per_page},{position % self._per_page})"

    def replaced(self, place: str) -> str | None:
        return None


def _addresses(connection: PostgresConnection, staging: TableName) -> Addresses:
    size, page = connection.execute(
        "SELECT pg_relation_size(%s::regclass), current_setting('block_size')::int",
        (staging.identifier().as_string(connection),),
    ).fetchone() or (0, 1)
    per_page = (page - _PAGE_HEADER) // _SMALLEST_ROW + 1
    return Addresses(size // page * per_page, per_page)


class Ranks:
    """The last row of each key, in address order, from the temporary table that `ranking` fills."""

    rows: Rows = "ranked"
    one: Rows = "rank"

    def __init__(self, count: int, connection: PostgresConnection) -> None:
        self.count = count
        self._connection = connection

    def between(self, low: int, high: int) -> Mapping[str, Any]:
        return {"low": low, "high": high}

    def place(self, position: int) -> str:
        found = self._one(sql.SQL("SELECT place::text FROM {} WHERE rank = %s").format(RANKS), position)
        if found is None:
            raise LookupError(f"no row has rank {position}")
        return found

    def replaced(self, place: str) -> str | None:
        return self._one(sql.SQL("SELECT replaced::text FROM {} WHERE place = %s::tid").format(RANKS), place)

    def _one(self, query: sql.Composed, value: str | int) -> str | None:
        found = self._connection.execute(query, (value,)).fetchone()
        return found[0] if found else None


def _rank(connection: PostgresConnection, fill: Sequence[sql.Composed], stages: Sequence[int]) -> Ranks:
    _execute(connection, fill, {"stages": list(stages)})
    found = connection.execute(sql.SQL("SELECT count(rank) FROM {}").format(RANKS)).fetchone()
    return Ranks(int(found[0]) if found else 0, connection)
