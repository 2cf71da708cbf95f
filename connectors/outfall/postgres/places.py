"""Where the rows to be moved stand in staging, in an order that can be halved.

A row is told by its address in staging (`ctid`, manual, 5.6 System Columns): it stays while a transaction holds the
table, which a rewrite would have to lock. So rows need no number of their own, and rows that were staged before dead
letters were asked for are isolated as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from psycopg import sql

from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName, escaped
from outfall.postgres.staging import STAGE

_PAGE_HEADER = 24
_SMALLEST_ROW = 28
"""Bytes of a page (storage/bufpage.h), and of a row in it with its pointer: a page has no address beyond their
quotient, `MaxHeapTuplesPerPage`."""

Rows = Literal["all", "addressed", "ranked", "one"]
"""Which staged rows a statement is about: those of all attempts; of them those from an address `low` to an address
`high`, exclusive; the last ones of their keys from rank `low` to rank `high`, exclusive; the one at address `place`."""

_RANKS = sql.SQL("pg_temp._outfall_ranks")
_CONDITIONS: dict[Rows, str] = {
    "all": "{stage} = ANY(%(stages)s)",
    "addressed": "{stage} = ANY(%(stages)s) AND ctid >= %(low)s::tid AND ctid < %(high)s::tid",
    "ranked": "ctid = ANY(ARRAY(SELECT place FROM {ranks} WHERE rank >= %(low)s AND rank < %(high)s))",
    "one": "ctid = %(place)s::tid",
}


def these(rows: Rows) -> sql.Composed:
    """Return the condition on staging that chooses rows."""
    return sql.SQL(_CONDITIONS[rows]).format(stage=escaped(STAGE), ranks=_RANKS)


class Places(Protocol):
    """The rows that are moved at first, by position from 0 on. In the transaction that made it."""

    rows: Rows
    """What chooses those between two positions."""
    count: int
    """How many positions there are."""

    def between(self, low: int, high: int) -> Mapping[str, Any]:
        """Return the parameters of what chooses those from a position to another, exclusive."""

    def place(self, position: int) -> str:
        """Return the address at a position."""

    def replaced(self, place: str) -> str | None:
        """Return the address of the row in whose stead this one is moved."""


class Addresses:
    """All rows, in the order of their addresses; there are positions without a row."""

    rows: Rows = "addressed"

    def __init__(self, connection: Connection, staging: TableName) -> None:
        size, page = connection.execute(
            "SELECT pg_relation_size(%s::regclass), current_setting('block_size')::int",
            (staging.identifier().as_string(connection),),
        ).fetchone() or (0, 1)
        self._per_page = (page - _PAGE_HEADER) // _SMALLEST_ROW + 1
        self.count = size // page * self._per_page

    def between(self, low: int, high: int) -> Mapping[str, Any]:
        return {"low": self.place(low), "high": self.place(high)}

    def place(self, position: int) -> str:
        return f"({position // self._per_page},{position % self._per_page})"

    def replaced(self, place: str) -> str | None:
        return None


class Ranks:
    """The last row of each key, in the order of their addresses; each knows the row of its key that came before it.

    They are found once, by one sort, and kept in a temporary table that ends with the transaction: a pooler, which
    gives the next one another session, does no harm.

    Args:
        connection: in a transaction.
        staging: where the rows are.
        keys: the columns that make one key.
        order: the keys, then what puts the last row of each first.
        stages: the attempts' numbers.
    """

    rows: Rows = "ranked"

    def __init__(
        self,
        connection: Connection,
        staging: TableName,
        keys: sql.Composable,
        order: sql.Composable,
        stages: Sequence[int],
    ) -> None:
        self._connection = connection
        connection.execute(
            sql.SQL("CREATE TEMPORARY TABLE {} (place tid, replaced tid, rank bigint) ON COMMIT DROP").format(_RANKS)
        )
        ranking = sql.SQL(
            "INSERT INTO {ranks} (place, replaced, rank) SELECT _outfall_place, _outfall_replaced,"
            " CASE WHEN _outfall_last"
            " THEN row_number() OVER (PARTITION BY _outfall_last ORDER BY _outfall_place) - 1 END"
            " FROM (SELECT ctid AS _outfall_place, row_number() OVER of_key = 1 AS _outfall_last,"
            " lead(ctid) OVER of_key AS _outfall_replaced FROM {staging} WHERE {all}"
            " WINDOW of_key AS (PARTITION BY {keys} ORDER BY {order})) AS ranked"
        ).format(ranks=_RANKS, staging=staging.escaped(), all=these("all"), keys=keys, order=order)
        connection.execute(ranking, {"stages": list(stages)})
        connection.execute(sql.SQL("CREATE INDEX ON {} (rank)").format(_RANKS))
        connection.execute(sql.SQL("CREATE INDEX ON {} (place)").format(_RANKS))
        connection.execute(sql.SQL("ANALYZE {}").format(_RANKS))
        found = connection.execute(sql.SQL("SELECT count(rank) FROM {}").format(_RANKS)).fetchone()
        self.count = int(found[0]) if found else 0

    def between(self, low: int, high: int) -> Mapping[str, Any]:
        return {"low": low, "high": high}

    def place(self, position: int) -> str:
        found = self._one(sql.SQL("SELECT place::text FROM {} WHERE rank = %s").format(_RANKS), position)
        if found is None:
            raise LookupError(f"no row has rank {position}")
        return found

    def replaced(self, place: str) -> str | None:
        return self._one(sql.SQL("SELECT replaced::text FROM {} WHERE place = %s::tid").format(_RANKS), place)

    def _one(self, query: sql.Composed, value: str | int) -> str | None:
        found = self._connection.execute(query, (value,)).fetchone()
        return found[0] if found else None
