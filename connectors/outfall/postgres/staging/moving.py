"""The rows of an epoch by position, for those that the table accepts, and rows that a trigger gives one key.

The address of a row in staging identifies it. Rows therefore need no number, and dead letters also work for rows that
were staged before the option was set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

import psycopg

from outfall.errors import OutfallError, TargetError
from outfall.postgres.catalogue.relation import read_relation
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.connection.errors import describe
from outfall.postgres.names import quote
from outfall.postgres.words import RANKS, PostgresWords, pass_over, ranked, ranks
from outfall.sql.dialect import compose
from outfall.sql.keyed import Move, PositionedRows
from outfall.sql.names import SqlName
from outfall.sql.publish import EpochCommitter, Request
from outfall.sql.table_move import staged_row_name
from outfall.sql.words import Selection

_PAGE_HEADER = 24
_SMALLEST_ROW = 28
"""Bytes of a page header (storage/bufpage.h), and of the smallest row with its pointer. They give the maximum number of
addresses in a page, `MaxHeapTuplesPerPage`."""

_DEFERRED = "SET CONSTRAINTS ALL DEFERRED"


def positioned_rows(session: PostgresConnection, move: Move, *, by_key: bool) -> PositionedRows:
    """Return the rows of a move by position."""
    # Take the lock here, because a rolled-back savepoint releases the locks that were taken in it.
    session.execute(compose("LOCK TABLE {} IN ACCESS SHARE MODE", move.staging.sql))
    # Deferred constraints would fail all rows at COMMIT without naming one.
    session.execute(PostgresWords.at_once)
    return RowsByRank(session, move) if by_key else RowsByAddress(session, move)


def row_text(staging: SqlName, shown: Mapping[str, str], place: str) -> str:
    """Return a query for the JSON text of a staged row, with names for columns."""
    listed = (quote(name) if name == source else f"{quote(source)} AS {quote(name)}" for name, source in shown.items())
    text = "SELECT to_json(shown)::text FROM (SELECT {} FROM {} WHERE ctid = '{}'::tid) AS shown"
    return compose(text, ", ".join(listed), staging.sql, place)


class _StagedPositions(PositionedRows):
    """Rows of staging, which can be moved before deferrable constraints are checked."""

    def move_together(self, places: Sequence[str]) -> Iterator[Callable[[], int]]:
        yield lambda: self._deferred(places)

    def _deferred(self, places: Sequence[str]) -> int:
        """Move rows before deferrable constraints are checked."""
        self._session.execute(_DEFERRED)
        changed = sum(map(self.move_one, places))
        self._session.execute(PostgresWords.at_once)
        return changed

    def make_room(self, places: Sequence[str]) -> bool:
        if not self._statements.keys:
            return False
        same = (compose("target.{0} = staged.{0}", quote(key)) for key in self._statements.keys)
        statement = compose(
            "DELETE FROM {} AS target USING {} AS staged WHERE staged.ctid = ANY(%s::tid[]) AND {}",
            self._statements.table, self._statements.staging, " AND ".join(same),
        )  # fmt: skip
        self._session.execute(statement, (list(places),))
        return True


class RowsByAddress(_StagedPositions):
    """All rows in address order. Some positions have no row."""

    def __init__(self, session: PostgresConnection, move: Move) -> None:
        super().__init__(session, move)
        size, page = session.execute(
            "SELECT pg_relation_size(%s::regclass), current_setting('block_size')::int", (move.staging.quoted,)
        ).fetchone() or (0, 1)
        self._per_page = (page - _PAGE_HEADER) // _SMALLEST_ROW + 1
        self.count = size // page * self._per_page

    def _between(self, low: int, high: int) -> Selection:
        every = self._move.all
        given = {**every.given, "low": self.place(low), "high": self.place(high)}
        return Selection(f"{every.condition} AND ctid >= %(low)s::tid AND ctid < %(high)s::tid", given)

    def _at(self, place: str) -> Selection:
        return Selection("ctid = %(place)s::tid", {"place": place})

    def place(self, position: int) -> str:
        return f"({position // self._per_page},{position % self._per_page})"


class RowsByRank(_StagedPositions):
    """The last row of each key, in address order, without stale changes."""

    def __init__(self, session: PostgresConnection, move: Move) -> None:
        super().__init__(session, move)
        if move.is_one_of_many:
            session.execute(compose("DROP TABLE IF EXISTS {}", RANKS))
        for statement in ranks(self._statements, move.all):
            session.execute(statement, move.all.given)
        found = session.execute(compose("SELECT count(rank) FROM {}", RANKS)).fetchone()
        self.count = int(found[0]) if found else 0
        if self._statements.options.write_mode == "changes":
            move.stale = session.execute(pass_over(self._statements)).rowcount

    def _between(self, low: int, high: int) -> Selection:
        return ranked("rank >= %(low)s AND rank < %(high)s", low=low, high=high)

    def _at(self, place: str) -> Selection:
        return ranked("place = %(place)s::tid", place=place)

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
            return [staged_row_name(session, move, place) for place in _clash(session, move.positioned_rows(session))]

        def find_all(session: PostgresConnection, move: Move) -> tuple[SqlName, list[str]] | None:
            names = find(session, move)
            return (move.table, names) if names else None

        table, names = self.move_again(requests, find_all) or (self._tables.target, [])
        relation = self._tables.run("checking", lambda session: read_relation(session, table))
        if not names or relation is None:
            return None
        return TargetError(
            f"two rows of different keys write the same row of {table}: {' and '.join(names)}",
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
