"""The statements that move staged rows into the target, and which rows each is about. All take parameters.

A row is told by its address in staging (`ctid`, manual, 5.6 System Columns): it stays while a transaction holds the
table, which a rewrite would have to lock. So rows need no number of their own, and rows that were staged before dead
letters were asked for are found as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from psycopg import sql

from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import GONE, MARKER, NUMBER, ROW, STAGE, TableName, escaped, escaped_sql
from outfall.postgres.options import PostgresOptions

_PAGE_HEADER = 24
_SMALLEST_ROW = 28
"""Bytes of a page (storage/bufpage.h), and of a row in it with its pointer: a page has no address beyond their
quotient, `MaxHeapTuplesPerPage`."""

Rows = Literal["all", "addressed", "address", "ranked", "rank"]
"""Which staged rows a statement is about: those of all attempts; of them those from an address `low` to an address
`high`, exclusive, or the one at address `place`; or, for upserts, the last ones of their keys from rank `low` to rank
`high`, exclusive, or the one at `place` as if it were the last."""

_RANKS = sql.SQL("pg_temp._outfall_ranks")
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


def statements(
    options: PostgresOptions, table: TableName, staging: TableName, columns: Sequence[str], rows: Rows = "all"
) -> list[sql.Composed]:
    """Return what publishes rows, those of the attempts whose numbers are the parameter `stages`; the last one counts.

    What an upsert removes goes first, and by a statement of its own, since none can write a row twice: the key may come
    again. It is then inserted as its first row has it, with what is updated from its last row, as if each came alone.

    Rows of one key meet in the order of their keys, so that two queries that write the same keys cannot deadlock.

    Where it is not about all rows, an upsert is given one of each key at most.

    Args:
        options: how rows are written.
        table: the target.
        staging: where the rows are.
        columns: the target's columns that they have values for.
        rows: which of them.
    """
    match options.write_mode:
        case "append":
            return [_append(table, staging, columns, rows)]
        case "upsert":
            removal = [_removal(options, table, staging, rows)] if options.delete_marker else []
            return [*removal, _upsert(options, table, staging, columns, rows)]
        case "delete":
            return [_delete(options, table, staging, rows)]


def places(
    options: PostgresOptions, connection: PostgresConnection, staging: TableName, stages: Sequence[int]
) -> Places:
    """Find where the rows of attempts stand, in an order that can be halved; for upserts the last row of each key."""
    if options.write_mode == "upsert":
        return Ranks(connection, staging, options.key_columns, _order(options), _gone(options), stages)
    return Addresses(connection, staging)


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

    def __init__(self, connection: PostgresConnection, staging: TableName) -> None:
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
        connection: PostgresConnection,
        staging: TableName,
        keys: Sequence[str],
        order: sql.Composable,
        gone: sql.Composable,
        stages: Sequence[int],
    ) -> None:
        self._connection = connection
        tids = "place tid, replaced tid, removal tid, first tid"
        create = sql.SQL("CREATE TEMPORARY TABLE {} ({}, rank bigint) ON COMMIT DROP")
        connection.execute(create.format(_RANKS, sql.SQL(tids)))
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
            ranks=_RANKS,
            own=sql.SQL(", ").join(own),
            aliased=sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(escaped(key), name) for key, name in zip(keys, own, strict=True)
            ),
            gone=gone,
            staging=staging.escaped(),
            all=_these("all"),
            keys=sql.SQL(", ").join(map(escaped, keys)),
            order=order,
        )
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


def _these(rows: Rows, column: Literal["place", "removal"] = "place") -> sql.Composed:
    """Return the condition on staging that chooses rows, or for ranked ones what `Ranks` knows beside them."""
    return sql.SQL(_CONDITIONS[rows]).format(
        stage=escaped(STAGE), column=sql.Identifier(column), ranks=_RANKS, ranked=_ranked(rows)
    )


def _ranked(rows: Rows) -> sql.SQL:
    """Return the condition on `_RANKS` that chooses rows."""
    return sql.SQL(_RANKED.get(rows, "true"))


def _append(table: TableName, staging: TableName, columns: Sequence[str], rows: Rows) -> sql.Composed:
    return sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {these}").format(
        table=table.escaped(), columns=_list(columns), staging=staging.escaped(), these=_these(rows)
    )


def _delete(options: PostgresOptions, table: TableName, staging: TableName, rows: Rows) -> sql.Composed:
    keys = options.key_columns
    return sql.SQL(
        "DELETE FROM {table} AS target USING (SELECT DISTINCT {keys} FROM {staging} WHERE {these}) AS gone WHERE {same}"
    ).format(
        table=table.escaped(),
        keys=_list(keys),
        staging=staging.escaped(),
        these=_these(rows),
        same=_same(keys, "gone"),
    )


def _upsert(
    options: PostgresOptions, table: TableName, staging: TableName, columns: Sequence[str], rows: Rows
) -> sql.Composed:
    return sql.SQL(
        "WITH {latest}"
        " INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT {gone} ORDER BY {keys}"
        " ON CONFLICT {conflict} {action}"
    ).format(
        latest=(_merged if options.update_columns else _latest)(options, staging, columns, rows),
        keys=_list(options.key_columns),
        columns=_list(columns),
        table=table.escaped(),
        gone=sql.Identifier(GONE),
        conflict=_conflict(options),
        action=_action(options, columns),
    )


def _latest(options: PostgresOptions, staging: TableName, columns: Sequence[str], rows: Rows) -> sql.Composed:
    """The last row of each key."""
    first = sql.SQL("DISTINCT ON ({}) ").format(_list(options.key_columns)) if rows == "all" else sql.SQL("")
    order = sql.SQL(" ORDER BY {}").format(_order(options)) if rows == "all" else sql.SQL("")
    return sql.SQL(
        "latest AS (SELECT {first}{columns}, {is_gone} AS {gone} FROM {staging} WHERE {these}{order})"
    ).format(
        first=first,
        columns=_list(columns),
        is_gone=_gone(options),
        gone=sql.Identifier(GONE),
        staging=staging.escaped(),
        these=_these(rows),
        order=order,
    )


def _merged(options: PostgresOptions, staging: TableName, columns: Sequence[str], rows: Rows) -> sql.Composed:
    """What is updated of the last row of each key, and all else of the first one after the last that removes."""
    updated = _updated(options, columns)
    if rows == "all":
        picked = [
            escaped(name) if name in updated else sql.SQL("last_value({0}) OVER whole AS {0}").format(escaped(name))
            for name in columns
        ]
        return sql.SQL(
            "numbered AS (SELECT {columns}, row_number() OVER of_key AS {n}, bool_or({is_gone}) OVER of_key AS {gone}"
            " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {order})),"
            " picked AS (SELECT {picked}, {n}, {gone} FROM numbered WINDOW whole AS (PARTITION BY {keys}, {gone}"
            " ORDER BY {n} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)),"
            " latest AS (SELECT {columns}, {gone} FROM picked WHERE {n} = 1)"
        ).format(
            columns=_list(columns),
            n=sql.Identifier(NUMBER),
            gone=sql.Identifier(GONE),
            is_gone=_gone(options),
            staging=staging.escaped(),
            all=_these("all"),
            keys=_list(options.key_columns),
            order=_order(options),
            picked=sql.SQL(", ").join(picked),
        )
    chosen = [
        sql.SQL("{}.{}").format(sql.SQL("newest" if name in updated else "oldest"), escaped(name)) for name in columns
    ]
    marker = (
        sql.SQL("coalesce(newest.{}, false)").format(escaped(MARKER)) if options.delete_marker else sql.SQL("false")
    )
    return sql.SQL(
        "latest AS (SELECT {chosen}, {marker} AS {gone} FROM (SELECT place, first FROM {ranks} WHERE {ranked}) AS ranks"
        " JOIN {staging} AS newest ON newest.ctid = ranks.place"
        " LEFT JOIN {staging} AS oldest ON oldest.ctid = ranks.first)"
    ).format(
        chosen=sql.SQL(", ").join(chosen),
        marker=marker,
        gone=sql.Identifier(GONE),
        ranks=_RANKS,
        ranked=_ranked(rows),
        staging=staging.escaped(),
    )


def _gone(options: PostgresOptions) -> sql.Composable:
    """Whether a staged row removes."""
    return sql.SQL("coalesce({}, false)").format(escaped(MARKER)) if options.delete_marker else sql.SQL("false")


def _order(options: PostgresOptions) -> sql.Composed:
    """The last of each key first: by the ordering column, then as they were written."""
    keys = [escaped(key) for key in options.key_columns]
    latest = [sql.SQL("{} DESC NULLS LAST").format(escaped(options.order_column))] if options.order_column else []
    written = [sql.SQL("{} DESC").format(escaped(STAGE)), sql.SQL("{} DESC").format(escaped(ROW))]
    return sql.SQL(", ").join([*keys, *latest, *written])


def _removal(options: PostgresOptions, table: TableName, staging: TableName, rows: Rows) -> sql.Composed:
    """Delete what the last row says that removes. The predicate names columns without a table: none may have these."""
    names = [name for name in dict.fromkeys([*options.key_columns, options.order_column]) if name is not None]
    own = {name: escaped(f"_outfall_{number}") for number, name in enumerate(names)}
    conditions = [sql.SQL("target.{} = gone.{}").format(escaped(key), own[key]) for key in options.key_columns]
    if options.order_column:
        conditions.append(_not_newer(options.order_column, sql.SQL("gone.{}").format(own[options.order_column])))
    if options.conflict_where:
        conditions.append(sql.SQL("({})").format(escaped_sql(options.conflict_where)))
    first = sql.SQL("DISTINCT ON ({}) ").format(_list(options.key_columns)) if rows == "all" else sql.SQL("")
    order = sql.SQL(" ORDER BY {}").format(_order(options)) if rows == "all" else sql.SQL("")
    return sql.SQL(
        "DELETE FROM {table} AS target USING (SELECT {first}{columns} FROM {staging} WHERE {these} AND {is_gone}"
        "{order}) AS gone WHERE {conditions}"
    ).format(
        table=table.escaped(),
        first=first,
        columns=sql.SQL(", ").join(sql.SQL("{} AS {}").format(escaped(name), own[name]) for name in names),
        staging=staging.escaped(),
        these=_these(rows, "removal"),
        is_gone=_gone(options),
        order=order,
        conditions=sql.SQL(" AND ").join(conditions),
    )


def _conflict(options: PostgresOptions) -> sql.Composed:
    if options.conflict_constraint:
        return sql.SQL("ON CONSTRAINT {}").format(escaped(options.conflict_constraint))
    target = sql.SQL("({})").format(_list(options.key_columns))
    if options.conflict_where:
        # The user's own SQL, as its option says.
        target += sql.SQL(" WHERE ({})").format(escaped_sql(options.conflict_where))
    return target


def _action(options: PostgresOptions, columns: Sequence[str]) -> sql.Composable:
    changed = _updated(options, columns)
    if not changed:
        return sql.SQL("DO NOTHING")
    pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(escaped(name)) for name in changed]
    newer: sql.Composable = sql.SQL("")
    if options.order_column:
        theirs = sql.SQL("excluded.{}").format(escaped(options.order_column))
        newer = sql.SQL(" WHERE ") + _not_newer(options.order_column, theirs)
    return sql.SQL("DO UPDATE SET {}{}").format(sql.SQL(", ").join(pairs), newer)


def _updated(options: PostgresOptions, columns: Sequence[str]) -> list[str]:
    """The columns that an existing row gets anew."""
    # With what orders it, or the row would seem older than what it holds now.
    wanted = [*options.update_columns, options.order_column] if options.update_columns else columns
    return [name for name in dict.fromkeys(wanted) if name is not None and name not in options.key_columns]


def _not_newer(column: str, theirs: sql.Composable) -> sql.Composed:
    """The condition that the table's row is not newer."""
    return sql.SQL("(target.{0} IS NULL OR target.{0} <= {1})").format(escaped(column), theirs)


def _same(keys: Sequence[str], rows: str) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("target.{0} = {1}.{0}").format(escaped(key), escaped(rows)) for key in keys)


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(escaped, columns))
