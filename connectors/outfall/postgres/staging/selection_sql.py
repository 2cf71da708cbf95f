"""How statements select staged rows, and find the last row of each key. All have parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from psycopg import sql

from outfall.postgres.names import TableName, escaped
from outfall.postgres.options import PostgresOptions
from outfall.sql.changes import REMOVALS
from outfall.sql.options import MARKER, NUMBER, OPERATION, REMOVED, ROW, STAGE

Rows = Literal["all", "addressed", "address", "ranked", "rank"]
"""The staged rows that a statement selects: all rows of the attempts; those from address `low` to `high` (exclusive);
the one at address `place`; or, for upserts, the last rows of their keys from rank `low` to `high` (exclusive), or the
row at `place` as if it were the last."""

_PLACE = "_outfall_place"
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


def ranking(options: PostgresOptions, staging: TableName, conflicting: sql.Composable | None) -> list[sql.Composed]:
    """Return the statements that rank the last rows of all keys, in address order. The parameter is `stages`.

    Each row has the previous row of its key (`replaced`), the last removal up to itself (`removal`), and the first row
    after that (`first`), which inserts.

    They are determined once, by one sort, and stored in a temporary table that ends with the transaction, so connection
    poolers are supported.
    """
    keys = _group(options, conflicting)
    tids = "place tid, replaced tid, removal tid, first tid"
    create = sql.SQL("CREATE TEMPORARY TABLE {} ({}, rank bigint) ON COMMIT DROP").format(RANKS, sql.SQL(tids))
    own = [sql.Identifier(f"_outfall_key_{number}") for number in range(len(keys))]
    # In time order, the rows of a key form stretches. Each stretch except the first begins with a removal.
    fill = sql.SQL(
        "INSERT INTO {ranks} (place, replaced, removal, first, rank)"
        " SELECT _outfall_place, _outfall_replaced,"
        " CASE WHEN _outfall_stretch > 0 THEN first_value(_outfall_place) OVER of_stretch END,"
        " CASE WHEN _outfall_stretch > 0 THEN nth_value(_outfall_place, 2) OVER of_stretch"
        " ELSE first_value(_outfall_place) OVER of_stretch END,"
        " CASE WHEN _outfall_n = 1"
        " THEN row_number() OVER (PARTITION BY _outfall_n = 1 ORDER BY _outfall_place) - 1 END"
        " FROM (SELECT *, count(*) FILTER (WHERE _outfall_gone)"
        " OVER (PARTITION BY {own} ORDER BY _outfall_n DESC) AS _outfall_stretch"
        " FROM (SELECT {aliased}, {removed} AS _outfall_gone, ctid AS _outfall_place,"
        " row_number() OVER of_key AS _outfall_n, lead(ctid) OVER of_key AS _outfall_replaced"
        " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {order})) AS numbered)"
        " AS placed"
        " WINDOW of_stretch AS (PARTITION BY {own}, _outfall_stretch ORDER BY _outfall_n DESC)"
    ).format(
        ranks=RANKS,
        own=sql.SQL(", ").join(own),
        aliased=sql.SQL(", ").join(sql.SQL("{} AS {}").format(key, name) for key, name in zip(keys, own, strict=True)),
        removed=is_removal(options),
        staging=staging.escaped(),
        all=these("all"),
        keys=sql.SQL(", ").join(keys),
        order=order_of(options, conflicting),
    )
    indexes = [sql.SQL("CREATE INDEX ON {} ({})").format(RANKS, sql.Identifier(name)) for name in ("rank", "place")]
    return [create, fill, *indexes, sql.SQL("ANALYZE {}").format(RANKS)]


def these(rows: Rows, column: Literal["place", "removal"] = "place") -> sql.Composed:
    """Return the condition on staging that selects rows, or a related row in `RANKS` for ranked ones."""
    return sql.SQL(_CONDITIONS[rows]).format(
        stage=escaped(STAGE), column=sql.Identifier(column), ranks=RANKS, ranked=_ranked(rows)
    )


def _ranked(rows: Rows) -> sql.SQL:
    """Return the condition on `RANKS` that selects rows."""
    return sql.SQL(_RANKED.get(rows, "true"))


def latest(
    options: PostgresOptions,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: sql.Composable | None,
) -> sql.Composed:
    """Return a query for the last row of each key."""
    group = sql.SQL(", ").join(_group(options, conflicting))
    first = sql.SQL("DISTINCT ON ({}) ").format(group) if rows == "all" else sql.SQL("")
    order = sql.SQL(" ORDER BY {}").format(order_of(options, conflicting)) if rows == "all" else sql.SQL("")
    return sql.SQL(
        "latest AS (SELECT {first}{columns}, {is_removal} AS {removed} FROM {staging} WHERE {these}{order})"
    ).format(
        first=first,
        columns=listed(columns),
        is_removal=is_removal(options),
        removed=sql.Identifier(REMOVED),
        staging=staging.escaped(),
        these=these(rows),
        order=order,
    )


def merged(
    options: PostgresOptions,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: sql.Composable | None,
) -> sql.Composed:
    """Return a query for updated columns from the last row of each key, and others from the first after a removal."""
    newest = updated(options, columns)
    if rows == "all":
        picked = [
            escaped(name) if name in newest else sql.SQL("last_value({0}) OVER whole AS {0}").format(escaped(name))
            for name in columns
        ]
        return sql.SQL(
            "numbered AS (SELECT {columns}, {alone} AS {place}, row_number() OVER of_key AS {n},"
            " bool_or({is_removal}) OVER of_key AS {removed}"
            " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys}, {alone} ORDER BY {order})),"
            " picked AS (SELECT {picked}, {n}, {removed} FROM numbered"
            " WINDOW whole AS (PARTITION BY {keys}, {place}, {removed}"
            " ORDER BY {n} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)),"
            " latest AS (SELECT {columns}, {removed} FROM picked WHERE {n} = 1)"
        ).format(
            columns=listed(columns),
            n=sql.Identifier(NUMBER),
            removed=sql.Identifier(REMOVED),
            is_removal=is_removal(options),
            staging=staging.escaped(),
            all=these("all"),
            keys=listed(options.key_columns),
            alone=_alone(options, conflicting) or sql.SQL("NULL::tid"),
            place=sql.Identifier(_PLACE),
            order=order_of(options, conflicting),
            picked=sql.SQL(", ").join(picked),
        )
    chosen = [
        sql.SQL("{}.{}").format(sql.SQL("newest" if name in newest else "oldest"), escaped(name)) for name in columns
    ]
    marker = (
        sql.SQL("coalesce(newest.{}, false)").format(escaped(MARKER)) if options.delete_marker else sql.SQL("false")
    )
    return sql.SQL(
        "latest AS (SELECT {chosen}, {marker} AS {removed} FROM (SELECT place, first FROM {ranks} WHERE {ranked})"
        " AS ranks JOIN {staging} AS newest ON newest.ctid = ranks.place"
        " LEFT JOIN {staging} AS oldest ON oldest.ctid = ranks.first)"
    ).format(
        chosen=sql.SQL(", ").join(chosen),
        marker=marker,
        removed=sql.Identifier(REMOVED),
        ranks=RANKS,
        ranked=_ranked(rows),
        staging=staging.escaped(),
    )


def is_removal(options: PostgresOptions) -> sql.Composable:
    """Return the expression for whether a staged row is a removal."""
    if options.operation_column:
        return sql.SQL("lower({}) = ANY({})").format(escaped(OPERATION), sql.Literal(list(REMOVALS)))
    return sql.SQL("coalesce({}, false)").format(escaped(MARKER)) if options.delete_marker else sql.SQL("false")


def _group(options: PostgresOptions, conflicting: sql.Composable | None) -> list[sql.Composable]:
    """Return what rows that replace one another share: the key; beyond a partial index, a row is alone."""
    keys: list[sql.Composable] = [escaped(key) for key in options.key_columns]
    alone = _alone(options, conflicting)
    return keys if alone is None else [*keys, alone]


def _alone(options: PostgresOptions, conflicting: sql.Composable | None) -> sql.Composable | None:
    """Return the address of a row that replaces no other one, and NULL for other rows; `None` if all are others."""
    if conflicting is None:
        return None
    return sql.SQL("CASE WHEN NOT ({} OR {}) THEN ctid END").format(is_removal(options), conflicting)


def order_of(options: PostgresOptions, conflicting: sql.Composable | None = None) -> sql.Composed:
    """Return the sort order with the last row of each key first: by the ordering column, then by write order."""
    keys = _group(options, conflicting)
    newest = [sql.SQL("{} DESC NULLS LAST").format(escaped(options.ordered_by))] if options.ordered_by else []
    written = [sql.SQL("{} DESC").format(escaped(STAGE)), sql.SQL("{} DESC").format(escaped(ROW))]
    return sql.SQL(", ").join([*keys, *newest, *written])


def updated(options: PostgresOptions, columns: Sequence[str]) -> list[str]:
    """Return the columns of an existing row that are updated."""
    # Includes the ordering column, or the row would seem older than its new values.
    wanted = [*options.update_columns, options.ordered_by] if options.update_columns else columns
    return [name for name in dict.fromkeys(wanted) if name is not None and name not in options.key_columns]


def listed(columns: Sequence[str]) -> sql.Composed:
    """Return columns as SQL."""
    return sql.SQL(", ").join(map(escaped, columns))
