"""Moves the rows of an epoch from staging into the table, with the statements of `publish_sql`.

The address of a row in staging identifies it (`ctid`, manual, 5.6 System Columns). The address is stable while a
transaction has locked the table, because a rewrite needs a lock. Rows therefore need no number, and dead letters also
work for rows that were staged before the option was set.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import psycopg

from outfall.errors import OutfallError, TargetError
from outfall.postgres.catalogue.columns import read_columns
from outfall.postgres.catalogue.conflict import conflicting, nulls_are_equal
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import describe
from outfall.postgres.names import TableName, quote
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.publish_sql import append, delete, upsert
from outfall.postgres.staging.selection_sql import RANKS, Rows, ranking
from outfall.sql.dialect import Move, PositionedRows, StagedRows, compose
from outfall.sql.publish import EpochCommitter, Request

_PAGE_HEADER = 24
_SMALLEST_ROW = 28
"""Bytes of a page header (storage/bufpage.h), and of the smallest row with its pointer. They give the maximum number of
addresses in a page, `MaxHeapTuplesPerPage`."""

AT_ONCE = "SET CONSTRAINTS ALL IMMEDIATE"
DEFERRED = "SET CONSTRAINTS ALL DEFERRED"


class PostgresMove(Move):
    """Moves rows by their addresses. Each write mode has its own statements."""

    def __init__(
        self, options: PostgresOptions, table: TableName, staging: TableName, attempts: Sequence[StagedRows]
    ) -> None:
        super().__init__(attempts)
        self._options = options
        self._table = self.table = table
        self.keys = options.key_columns
        self._staging = staging
        self._equal_nulls: Sequence[str] | None = None

    def hold(self, session: PostgresConnection) -> None:
        # As moving rows does, because LOCK needs more privileges.
        for each in self.statements(session, "all") if self.columns else ():
            session.execute(f"EXPLAIN {each}", {"stages": list(self.expected)})

    def whole(self, session: PostgresConnection, *, at_once: bool = False) -> int:
        if at_once:
            session.execute(AT_ONCE)
        if not self.columns:
            return 0
        return _execute(session, self.statements(session, "all"), {"stages": list(self.expected)})

    def positioned_rows(self, session: PostgresConnection) -> PositionedRows:
        self._prepare_places(session)
        return RowsByAddress(
            session, self, self._staging, [self.statements(session, rows) for rows in RowsByAddress.selects]
        )

    def _prepare_places(self, session: PostgresConnection) -> None:
        # Take the lock here, because a rolled-back savepoint releases the locks that were taken in it.
        session.execute(compose("LOCK TABLE {} IN ACCESS SHARE MODE", self._staging.sql))
        # Deferred constraints would fail all rows at COMMIT without naming one.
        session.execute(AT_ONCE)

    def row_text(self, session: PostgresConnection, place: str) -> str:
        selected = [quote(name) for name in self.columns]
        selected += [f"{quote(staged)} AS {quote(name)}" for name, staged in self._options.not_stored.items()]
        template = "SELECT to_json(shown)::text FROM (SELECT {} FROM {} WHERE ctid = '{}'::tid) AS shown"
        return compose(template, ", ".join(selected), self._staging.sql, place)

    def equal_nulls(self, session: PostgresConnection) -> Sequence[str]:
        """Return the keys in which a NULL equals another one."""
        if self._equal_nulls is None:
            nullable = [column.name for column in read_columns(session, self._table) if not column.not_null]
            keys = [key for key in self._options.key_columns if key in nullable]
            self._equal_nulls = keys if keys and nulls_are_equal(session, self._table, self._options) else []
        return self._equal_nulls

    @abstractmethod
    def statements(self, session: PostgresConnection, rows: Rows) -> list[str]:
        """Return the statements that move a selection of rows."""


class PostgresAppendMove(PostgresMove):
    """Inserts each row."""

    def statements(self, session: PostgresConnection, rows: Rows) -> list[str]:
        return [append(self._table, self._staging, self.columns, rows)]


class PostgresDeleteMove(PostgresMove):
    """Removes the rows of each key."""

    def statements(self, session: PostgresConnection, rows: Rows) -> list[str]:
        return delete(self._options, self._table, self._staging, rows, self.equal_nulls(session))


class PostgresUpsertMove(PostgresMove):
    """Writes the last row of each key, or removes it."""

    def statements(self, session: PostgresConnection, rows: Rows) -> list[str]:
        # Only a statement for all rows ranks them; the others are given the result.
        which = self._conflicting(session) if rows == "all" else None
        nulls = self.equal_nulls(session) if self._options.delete_marker else []
        return upsert(self._options, self._table, self._staging, self.columns, rows, which, nulls)

    def positioned_rows(self, session: PostgresConnection) -> PositionedRows:
        self._prepare_places(session)
        return RowsByRank(session, self, self._staging, [self.statements(session, rows) for rows in RowsByRank.selects])

    def ranking(self, session: PostgresConnection) -> list[str]:
        """Return the statements that rank the last rows of all keys."""
        return ranking(self._options, self._staging, self._conflicting(session))

    def _conflicting(self, session: PostgresConnection) -> str | None:
        """Return which staged rows can be in conflict with others of their key; `None` for all."""
        return conflicting(session, self._table, self._options, self.columns)


def _execute(session: PostgresConnection, moving: Sequence[str], given: Mapping[str, Any]) -> int:
    """Run statements in order; return the number of rows that they changed."""
    return sum(session.execute(each, given).rowcount for each in moving)


class _StagedPositions(PositionedRows):
    """Rows of staging that statements select. `moving` are those for rows between two positions, and for one row."""

    selects: ClassVar[tuple[Rows, Rows]]

    def __init__(
        self,
        session: PostgresConnection,
        move: PostgresMove,
        staging: TableName,
        moving: Sequence[Sequence[str]],
    ) -> None:
        self._session = session
        self._staging = staging
        self._stages = list(move.expected)
        self._table = move.table
        self._keys = move.keys
        self._between, self._one = moving
        self._prepare(move)

    @abstractmethod
    def _prepare(self, move: PostgresMove) -> None:
        """Count the positions."""

    @abstractmethod
    def _bounds(self, low: int, high: int) -> Mapping[str, Any]:
        """Return the parameters that select the rows from a position to another (exclusive)."""

    def move(self, low: int, high: int) -> int:
        return self._run(self._between, {"stages": self._stages, **self._bounds(low, high)})

    def move_one(self, place: str) -> int:
        return self._run(self._one, {"stages": self._stages, "place": place})

    def move_together(self, places: Sequence[str]) -> Iterator[Callable[[], int]]:
        yield lambda: self._deferred(places)

    def _deferred(self, places: Sequence[str]) -> int:
        """Move rows before deferrable constraints are checked."""
        self._session.execute(DEFERRED)
        changed = sum(map(self.move_one, places))
        self._session.execute(AT_ONCE)
        return changed

    def make_room(self, places: Sequence[str]) -> bool:
        if not self._keys:
            return False
        same = (compose("target.{0} = staged.{0}", quote(key)) for key in self._keys)
        statement = compose(
            "DELETE FROM {} AS target USING {} AS staged WHERE staged.ctid = ANY(%s::tid[]) AND {}",
            self._table.sql, self._staging.sql, " AND ".join(same),
        )  # fmt: skip
        self._session.execute(statement, (list(places),))
        return True

    def _run(self, moving: Sequence[str], given: Mapping[str, Any]) -> int:
        """Run the statements for some rows; return how many rows of the table were changed."""
        return _execute(self._session, moving, given)


class RowsByAddress(_StagedPositions):
    """All rows in address order. Some positions have no row."""

    selects = ("addressed", "address")

    def _prepare(self, move: PostgresMove) -> None:
        size, page = self._session.execute(
            "SELECT pg_relation_size(%s::regclass), current_setting('block_size')::int", (self._staging.quoted,)
        ).fetchone() or (0, 1)
        self._per_page = (page - _PAGE_HEADER) // _SMALLEST_ROW + 1
        self.count = size // page * self._per_page

    def _bounds(self, low: int, high: int) -> Mapping[str, Any]:
        return {"low": self.place(low), "high": self.place(high)}

    def place(self, position: int) -> str:
        return f"({position // self._per_page},{position % self._per_page})"

    def replaced(self, place: str) -> str | None:
        return None


class RowsByRank(_StagedPositions):
    """The last row of each key, in address order, from the temporary table that `ranking` fills."""

    selects = ("ranked", "rank")

    def _prepare(self, move: Any) -> None:
        _execute(self._session, move.ranking(self._session), {"stages": self._stages})
        found = self._session.execute(compose("SELECT count(rank) FROM {}", RANKS)).fetchone()
        self.count = int(found[0]) if found else 0

    def _bounds(self, low: int, high: int) -> Mapping[str, Any]:
        return {"low": low, "high": high}

    def place(self, position: int) -> str:
        found = self._find(compose("SELECT place::text FROM {} WHERE rank = %s", RANKS), position)
        if found is None:
            raise LookupError(f"no row has rank {position}")
        return found

    def replaced(self, place: str) -> str | None:
        return self._find(compose("SELECT replaced::text FROM {} WHERE place = %s::tid", RANKS), place)

    def _find(self, query: str, value: str | int) -> str | None:
        found = self._session.execute(query, (value,)).fetchone()
        return found[0] if found else None


class PostgresCommitter(EpochCommitter):
    """Publishes epochs, and names the rows that a trigger has given one key."""

    def explain(self, requests: Sequence[Request], error: Exception) -> OutfallError | None:
        """Return the error of two rows of different keys that write one row of the table; `None` if none do now."""
        if not isinstance(error, psycopg.errors.CardinalityViolation):
            return None

        def find(session: PostgresConnection, move: Move) -> list[str]:
            return [self.row_name(session, move, place) for place in _clash(session, move.positioned_rows(session))]

        names = self.move_again(requests, find)
        relation = self._tables.run("checking", lambda session: read_relation(session, self._table))
        if not names or relation is None:
            return None
        return TargetError(
            f"two rows of different keys write the same row of {self._table}: {' and '.join(names)}",
            step=self._context.step_id,
            epoch=self._context.epoch,
            why=f"{', '.join(relation.intercepting) or 'the server'} changes key_columns; {describe(error)}",
            do="change the trigger so that it keeps the key_columns, and do its change in the query; then start the"
            " query again: nothing of the epoch is in the table",
        )


def _clash(session: PostgresConnection, rows: PositionedRows) -> list[str]:
    """Return the addresses of two rows that one statement cannot write, because they write the same row."""

    def clashes(low: int, high: int) -> bool:
        try:
            with session.savepoint(undo=True):
                rows.move(low, high)
        except psycopg.errors.CardinalityViolation:
            return True
        return False

    after = bisect_left(range(rows.count + 1), True, key=lambda high: clashes(0, high))
    first = bisect_left(range(after), True, key=lambda low: not clashes(low, after)) - 1
    return [rows.place(first), rows.place(after - 1)] if after <= rows.count else []
