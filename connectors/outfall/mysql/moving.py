"""Moves the rows of an epoch from staging into the table.

Staging has the table's own column types, so no statement converts a value. The number of an attempt and that of a row
in it are the primary key of staging, and the address of a row.

An upsert writes rows in order with ON DUPLICATE KEY UPDATE, each on its own, and the last one of a key
wins: so rows are ranked by their order, and keys compared by the index of the table, under its own collation.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from outfall.mysql.columns import read_columns
from outfall.mysql.database import MySQLSession
from outfall.mysql.names import quote
from outfall.mysql.options import MySQLOptions
from outfall.mysql.types import json_value
from outfall.sql.dialect import Move, PositionedRows, SqlName, StagedRows, among, compose
from outfall.sql.options import MARKER, REMOVED, ROW, STAGE

_STAGE, _ROW, _MARKER = quote(STAGE), quote(ROW), quote(MARKER)
_RANKS = "_outfall_ranks"


class MySQLMove(Move):
    """Moves rows by the numbers of their attempts and their own. Each write mode has its own statements."""

    def __init__(self, options: MySQLOptions, table: SqlName, staging: SqlName, attempts: Sequence[StagedRows]) -> None:
        super().__init__(attempts)
        self._options = options
        self._table = table
        self.staging = staging

    def hold(self, session: MySQLSession) -> None:
        # As moving rows does, because a SELECT needs another privilege. The lock of a table lasts until COMMIT.
        if self.columns:
            session.execute(compose("EXPLAIN {}", self._emptily()))

    def whole(self, session: MySQLSession, *, at_once: bool = False) -> int:
        return self.these(session, f"{_STAGE} {among(self.expected)}") if self.columns else 0

    def positioned_rows(self, session: MySQLSession) -> PositionedRows:
        order = self._options.ordered_by
        return RowsByNumber(session, self) if order is None else RowsByOrder(session, self, quote(order))

    def row_text(self, session: MySQLSession, place: str) -> str:
        found = {column.name: column for column in read_columns(session, self.staging)}
        selected = {name: json_value(found[name]) for name in self.columns}
        for name, staged in self._options.not_stored.items():
            selected[name] = compose("ELT({} + 1, 'false', 'true')", _MARKER) if staged == MARKER else quote(staged)
        pairs = ", ".join(f"{_text(name)}, {column}" for name, column in selected.items())
        return compose("SELECT JSON_OBJECT({}) FROM {} WHERE {}", pairs, self.staging.sql, _at(place))

    @abstractmethod
    def these(self, session: MySQLSession, condition: str) -> int:
        """Move the staged rows of a condition, in order; return the number of rows that were written or removed."""

    def _emptily(self) -> str:
        """Return a statement that changes the table as `these` does, and no row."""
        return compose("{} WHERE false", self._insertion())

    def _insertion(self) -> str:
        return compose(
            "INSERT INTO {} ({columns}) SELECT {columns} FROM {}",
            self._table.sql, self.staging.sql, columns=", ".join(map(quote, self.columns)),
        )  # fmt: skip

    def _deletion(self, condition: str) -> str:
        return compose(
            "DELETE target FROM {} AS target JOIN {} AS removed ON {} WHERE {}",
            self._table.sql, self.staging.sql, self._same("target", "removed"), condition,
        )  # fmt: skip

    def _updates(self) -> str:
        """Return the assignments of an existing row."""
        options, table = self._options, self._table.sql
        wanted = [name for name in options.update_columns or self.columns if name not in options.key_columns]
        ordered = options.ordered_by
        if ordered is None:
            key = quote(options.key_columns[0])
            return ", ".join(f"{quote(name)} = latest.{quote(name)}" for name in wanted) or f"{key} = {table}.{key}"
        newer = _not_newer(table, ordered, "latest")
        # The server assigns from left to right, and what is compared must be assigned last.
        wanted = [*(name for name in wanted if name != ordered), ordered]
        return ", ".join(f"{quote(name)} = IF({newer}, latest.{quote(name)}, {table}.{quote(name)})" for name in wanted)

    def _same(self, target: str, rows: str) -> str:
        return " AND ".join(f"{target}.{quote(key)} = {rows}.{quote(key)}" for key in self._options.key_columns)


class MySQLAppendMove(MySQLMove):
    """Inserts each row."""

    def these(self, session: MySQLSession, condition: str) -> int:
        statement = compose("{} WHERE {} ORDER BY {}, {}", self._insertion(), condition, _STAGE, _ROW)
        return session.execute(statement).rowcount


class MySQLDeleteMove(MySQLMove):
    """Removes the rows of each key."""

    def these(self, session: MySQLSession, condition: str) -> int:
        return session.execute(self._deletion(condition)).rowcount

    def _emptily(self) -> str:
        return compose("DELETE FROM {} WHERE false", self._table.sql)


class MySQLUpsertMove(MySQLMove):
    """Writes the last row of each key, or removes it."""

    def these(self, session: MySQLSession, condition: str) -> int:
        removed = session.execute(self._removal(condition)).rowcount if self._options.delete_marker else 0
        session.execute(self._upsert(condition))
        return removed + session.records

    def _removal(self, condition: str) -> str:
        newer = (
            [] if self._options.order_column is None else [_not_newer("target", self._options.order_column, "removed")]
        )
        return compose("{} AND {}", self._deletion(condition), " AND ".join([f"removed.{_MARKER}", *newer]))

    def _upsert(self, condition: str) -> str:
        ordered = self._options.order_column
        columns = ", ".join(map(quote, self.columns))
        source, rest = f"{self.staging.sql} AS latest", condition
        if self._options.delete_marker:
            # A row is written unless it is a removal or a removal of its key follows.
            latest = f"{quote(ordered)} DESC, " if ordered else ""
            source = compose(
                "(SELECT {columns}, {stage}, {row}, SUM(COALESCE({marker}, FALSE)) OVER (PARTITION BY {keys} ORDER BY"
                " {latest}{stage} DESC, {row} DESC ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS {removed}"
                " FROM {staging} WHERE {condition}) AS latest",
                columns=columns, stage=_STAGE, row=_ROW, marker=_MARKER, removed=quote(REMOVED), latest=latest,
                keys=", ".join(map(quote, self._options.key_columns)), staging=self.staging.sql, condition=condition,
            )  # fmt: skip
            rest = f"{quote(REMOVED)} = 0"
        return compose(
            "INSERT INTO {} ({columns}) SELECT {columns} FROM {} WHERE {} ORDER BY {}{}, {} ON DUPLICATE KEY UPDATE {}",
            self._table.sql, source, rest, f"{quote(ordered)}, " if ordered else "", _STAGE, _ROW, self._updates(),
            columns=columns,
        )  # fmt: skip


class RowsByNumber(PositionedRows):
    """All rows in the order in which they were written: attempts one after another. Some positions have no row."""

    def __init__(self, session: MySQLSession, move: MySQLMove) -> None:
        self._session = session
        self._move = move
        query = "SELECT {0}, MAX({1}) FROM {2} WHERE {0} {3} GROUP BY {0} ORDER BY {0}"
        found = session.execute(compose(query, _STAGE, _ROW, move.staging.sql, among(move.expected))).fetchall()
        self._stages = [int(stage) for stage, _ in found]
        self._firsts = [0, *accumulate(int(last) for _, last in found)]
        """The position of the first row of each attempt, whose rows are numbered from 1; and the number of all."""
        self.count = self._firsts[-1]

    def move(self, low: int, high: int) -> int:
        parts = []
        for stage, first, after in zip(self._stages, self._firsts, self._firsts[1:], strict=False):
            begin, end = max(low, first) - first + 1, min(high, after) - first
            if begin <= end:
                parts.append(f"({_STAGE} = {stage} AND {_ROW} BETWEEN {begin} AND {end})")
        return self._move.these(self._session, f"({' OR '.join(parts)})") if parts else 0

    def move_one(self, place: str) -> int:
        return self._move.these(self._session, _at(place))

    def place(self, position: int) -> str:
        index = bisect_right(self._firsts, position) - 1
        return f"{self._stages[index]}:{position - self._firsts[index] + 1}"

    def replaced(self, place: str) -> str | None:
        # The previous row of the key was written earlier, and stays.
        return None


class RowsByOrder(PositionedRows):
    """All rows in the order of `order_column`, from a temporary table."""

    def __init__(self, session: MySQLSession, move: MySQLMove, order: str) -> None:
        self._session = session
        self._move = move
        session.execute(compose("DROP TEMPORARY TABLE IF EXISTS {}", _RANKS))
        statement = compose(
            "CREATE TEMPORARY TABLE {} (place BIGINT PRIMARY KEY, stage BIGINT, number BIGINT) ENGINE = InnoDB SELECT"
            " ROW_NUMBER() OVER (ORDER BY {order}, {stage}, {row}) - 1 AS place, {stage} AS stage, {row} AS number"
            " FROM {} WHERE {stage} {}",
            _RANKS, move.staging.sql, among(move.expected), order=order, stage=_STAGE, row=_ROW,
        )  # fmt: skip
        session.execute(statement)
        self.count = int(session.execute(compose("SELECT COUNT(*) FROM {}", _RANKS)).fetchone()[0])

    def move(self, low: int, high: int) -> int:
        chosen = compose("SELECT stage, number FROM {} WHERE place >= {} AND place < {}", _RANKS, low, high)
        return self._move.these(self._session, f"({_STAGE}, {_ROW}) IN ({chosen})")

    def move_one(self, place: str) -> int:
        return self._move.these(self._session, _at(place))

    def place(self, position: int) -> str:
        query = compose("SELECT stage, number FROM {} WHERE place = %s", _RANKS)
        stage, row = self._session.execute(query, (position,)).fetchone()
        return f"{stage}:{row}"

    def replaced(self, place: str) -> str | None:
        return None


def _at(place: str) -> str:
    """Return the condition for the row at an address."""
    stage, row = map(int, place.split(":"))
    return f"{_STAGE} = {stage} AND {_ROW} = {row}"


def _not_newer(table: str, column: str, rows: str) -> str:
    """Return the condition that the table's row is not newer."""
    name = quote(column)
    return f"({table}.{name} IS NULL OR {table}.{name} <= {rows}.{name})"


def _text(name: str) -> str:
    """Return a name as a literal, for a statement with parameters."""
    return "'" + name.replace("\\", "\\\\").replace("'", "''").replace("%", "%%") + "'"
