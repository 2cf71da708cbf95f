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

Rows = Literal["all", "addressed", "address", "ranked", "rank"]
"""Which staged rows a statement is about: those of all attempts; of them those from an address `low` to an address
`high`, exclusive, or the one at address `place`; or, for upserts, the last ones of their keys from rank `low` to rank
`high`, exclusive, or the one at `place` as if it were the last."""

RANKS = sql.SQL("pg_temp._outfall_ranks")
_CONDITIONS: dict[Rows, str] = {
    "all": "{stage} = ANY(%(stages)s)",
    "addressed": "{stage} = ANY(%(stages)s) AND ctid >= %(low)s::tid AND ctid < %(high)s::tid",
    "address": "ctid = %(place)s::tid",
    "ranked": "ctid = ANY(ARRAY(SELECT {column} FROM {ranks} WHERE {ranked}))",
    "rank": "ctid = ANY(ARRAY(SELECT {column} FROM {ranks} WHERE {ranked}))",
}
_RANKED: dict[Rows, str] = {
    "ranked": "rank >= %(low)s AND rank < %(high)s",
    "rank": "place = %(place)s::tid",
}


def these(rows: Rows, column: Literal["place", "removal"] = "place") -> sql.Composed:
    """Return the condition on staging that chooses rows, or for ranked ones what `Ranks` knows beside them."""
    return sql.SQL(_CONDITIONS[rows]).format(
        stage=escaped(STAGE), column=sql.Identifier(column), ranks=RANKS, ranked=ranked(rows)
    )


def ranked(rows: Rows) -> sql.SQL:
    """Return the condition on `RANKS` that chooses rows."""
    return sql.SQL(_RANKED.get(rows, "true"))


class Places(Protocol):
    """The rows that are moved at first, by position from 0 on. In the transaction that made it."""

    rows: Rows
    """What chooses those between two positions."""
    one: Rows
    """What chooses any one by its address."""
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
    one: Rows = "address"

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
    """The last row of each key, in the order of their addresses.

    Each row knows the one of its key that came before it (`replaced`), the last one that removes, up to itself
    (`removal`), and the first one after that (`first`), which inserts.

    They are found once, by one sort, and kept in a temporary table that ends with the transaction: a pooler, which
    gives the next one another session, does no harm.

    Args:
        connection: in a transaction.
        staging: where the rows are.
        keys: the columns that make one key.
        order: the keys, then what puts the last row of each first.
        gone: whether a row removes.
        stages: the attempts' numbers.
    """

    rows: Rows = "ranked"
    one: Rows = "rank"

    def __init__(
        self,
        connection: Connection,
        staging: TableName,
        keys: Sequence[str],
        order: sql.Composable,
        gone: sql.Composable,
        stages: Sequence[int],
    ) -> None:
        self._connection = connection
        tids = "place tid, replaced tid, removal tid, first tid"
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({}, rank bigint) ON COMMIT DROP")
        connection.execute(create.format(RANKS, sql.SQL(tids)))
        own = [sql.Identifier(f"_outfall_key_{number}") for number in range(len(keys))]
        # By time, rows of a key fall into stretches, each of which but the first begins with one that removes.
        ranking = sql.SQL(
            "INSERT INTO {ranks} (place, replaced, removal, first, rank)"
            " SELECT _outfall_place, _outfall_replaced,"
            " CASE WHEN _outfall_stretch > 0 THEN first_value(_outfall_place) OVER of_stretch END,"
            " CASE WHEN _outfall_stretch > 0 THEN nth_value(_outfall_place, 2) OVER of_stretch"
            " ELSE first_value(_outfall_place) OVER of_stretch END,"
            " CASE WHEN _outfall_n = 1"
            " THEN row_number() OVER (PARTITION BY _outfall_n = 1 ORDER BY _outfall_place) - 1 END"
            " FROM (SELECT *, count(*) FILTER (WHERE _outfall_gone)"
            " OVER (PARTITION BY {own} ORDER BY _outfall_n DESC) AS _outfall_stretch"
            " FROM (SELECT {aliased}, {gone} AS _outfall_gone, ctid AS _outfall_place,"
            " row_number() OVER of_key AS _outfall_n, lead(ctid) OVER of_key AS _outfall_replaced"
            " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {order})) AS numbered)"
            " AS placed"
            " WINDOW of_stretch AS (PARTITION BY {own}, _outfall_stretch ORDER BY _outfall_n DESC)"
        ).format(
            ranks=RANKS,
            own=sql.SQL(", ").join(own),
            aliased=sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(escaped(key), name) for key, name in zip(keys, own, strict=True)
            ),
            gone=gone,
            staging=staging.escaped(),
            all=these("all"),
            keys=sql.SQL(", ").join(map(escaped, keys)),
            order=order,
        )
        connection.execute(ranking, {"stages": list(stages)})
        connection.execute(sql.SQL("CREATE INDEX ON {} (rank)").format(RANKS))
        connection.execute(sql.SQL("CREATE INDEX ON {} (place)").format(RANKS))
        connection.execute(sql.SQL("ANALYZE {}").format(RANKS))
        found = connection.execute(sql.SQL("SELECT count(rank) FROM {}").format(RANKS)).fetchone()
        self.count = int(found[0]) if found else 0

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
