"""The rows of an epoch by position, for moving those that the table accepts, in the order in which they are written.

The number of an attempt and that of a row in it are the primary key of staging, and the address of a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

from outfall.mysql.columns import read_columns
from outfall.mysql.database import MySQLSession
from outfall.mysql.names import quote
from outfall.mysql.types import json_value
from outfall.mysql.words import address_of
from outfall.sql.dialect import compose
from outfall.sql.keyed import Move, PositionedRows, RowsByOrder
from outfall.sql.names import SqlName
from outfall.sql.options import MARKER, ROW, STAGE
from outfall.sql.words import Selection

_STAGE, _ROW, _MARKER = quote(STAGE), quote(ROW), quote(MARKER)


def positioned_rows(session: MySQLSession, move: Move, order: str | None) -> PositionedRows:
    """Return the rows of a move by position."""
    if order is None:
        return RowsByNumber(session, move)
    if move.dialect.options.write_mode == "changes":
        move.stale = _count_stale(session, move)
    return RowsByOrder(session, move, order)


def row_text(session: MySQLSession, staging: SqlName, shown: Mapping[str, str], place: str) -> str:
    """Return a query for the JSON text of a staged row, with names for columns."""
    found = {column.name: column for column in read_columns(session, staging)}
    pairs = []
    for name, source in shown.items():
        if source == MARKER:
            value = compose("ELT({} + 1, 'false', 'true')", _MARKER)
        else:
            value = json_value(found[source]) if name == source else quote(source)
        pairs.append(f"{_text(name)}, {value}")
    stage, row = address_of(place)
    condition = f"{_STAGE} = {stage} AND {_ROW} = {row}"
    return compose("SELECT JSON_OBJECT({}) FROM {} WHERE {}", ", ".join(pairs), staging.sql, condition)


class RowsByNumber(PositionedRows):
    """All rows in the order in which they were written: attempts one after another. Some positions have no row."""

    def __init__(self, session: MySQLSession, move: Move) -> None:
        super().__init__(session, move)
        query = "SELECT {0}, MAX({1}) FROM {2} WHERE {3} GROUP BY {0} ORDER BY {0}"
        every = move.all
        found = session.execute(compose(query, _STAGE, _ROW, move.staging.sql, every.condition), every.given).fetchall()
        self._stages = [int(stage) for stage, _ in found]
        self._firsts = [0, *accumulate(int(last) for _, last in found)]
        """The position of the first row of each attempt, whose rows are numbered from 1; and the number of all."""
        self.count = self._firsts[-1]

    def _between(self, low: int, high: int) -> Selection:
        parts = []
        for stage, first, after in zip(self._stages, self._firsts, self._firsts[1:], strict=False):
            begin, end = max(low, first) - first + 1, min(high, after) - first
            if begin <= end:
                parts.append(f"({_STAGE} = {stage} AND {_ROW} BETWEEN {begin} AND {end})")
        chosen = f"({' OR '.join(parts) or 'false'})"
        return self._move.of_table(Selection(chosen))

    def place(self, position: int) -> str:
        index = bisect_right(self._firsts, position) - 1
        return f"{self._stages[index]}:{position - self._firsts[index] + 1}"


def _count_stale(session: MySQLSession, move: Move) -> int:
    statements = move.statements(session)
    latest = statements.words.latest(statements, move.all, ())
    conditions = " AND ".join([*latest.conditions, statements.stale()])
    query = compose("SELECT COUNT(*) FROM {} WHERE {}", latest.source, conditions)
    return int(session.execute(query, move.all.given).fetchone()[0])


def _text(name: str) -> str:
    """Return a name as a literal, for a statement with parameters."""
    return "'" + name.replace("\\", "\\\\").replace("'", "''").replace("%", "%%") + "'"
