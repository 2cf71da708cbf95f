"""The statements that move staged rows into the target, and how they select rows. All have parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from psycopg import sql

from outfall.postgres.names import TableName, escaped, escaped_sql
from outfall.postgres.options import PostgresOptions
from outfall.sql.options import GONE, MARKER, NUMBER, ROW, STAGE

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


def statements(
    options: PostgresOptions,
    table: TableName,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows = "all",
    conflicting: sql.Composable | None = None,
) -> list[sql.Composed]:
    """Return the statements that publish the rows of attempts. The sum of their row counts is the result.

    The parameter `stages` has the numbers of the attempts.

    An upsert removes rows with a separate first statement, because one statement cannot write a row twice and a removed
    key may occur again. The key is then inserted from its first row, with updated columns from its last row, as if each
    row had arrived alone.

    Rows are processed in key order, so that two queries that write the same keys cannot deadlock.

    If not all rows are selected, an upsert selects at most one row per key.

    `columns` are the target's columns for which the rows have values. `conflicting` is an expression for whether a row
    can be in conflict with another one of its key; `None` for all.
    """
    match options.write_mode:
        case "append":
            return [_append(table, staging, columns, rows)]
        case "upsert":
            removal = [_removal(options, table, staging, rows)] if options.delete_marker else []
            return [*removal, _upsert(options, table, staging, columns, rows, conflicting)]
        case "delete":
            return [_delete(options, table, staging, rows)]


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
        " FROM (SELECT {aliased}, {gone} AS _outfall_gone, ctid AS _outfall_place,"
        " row_number() OVER of_key AS _outfall_n, lead(ctid) OVER of_key AS _outfall_replaced"
        " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys} ORDER BY {order})) AS numbered)"
        " AS placed"
        " WINDOW of_stretch AS (PARTITION BY {own}, _outfall_stretch ORDER BY _outfall_n DESC)"
    ).format(
        ranks=RANKS,
        own=sql.SQL(", ").join(own),
        aliased=sql.SQL(", ").join(sql.SQL("{} AS {}").format(key, name) for key, name in zip(keys, own, strict=True)),
        gone=_gone(options),
        staging=staging.escaped(),
        all=_these("all"),
        keys=sql.SQL(", ").join(keys),
        order=_order(options, conflicting),
    )
    indexes = [sql.SQL("CREATE INDEX ON {} ({})").format(RANKS, sql.Identifier(name)) for name in ("rank", "place")]
    return [create, fill, *indexes, sql.SQL("ANALYZE {}").format(RANKS)]


def _these(rows: Rows, column: Literal["place", "removal"] = "place") -> sql.Composed:
    """Return the condition on staging that selects rows, or a related row in `RANKS` for ranked ones."""
    return sql.SQL(_CONDITIONS[rows]).format(
        stage=escaped(STAGE), column=sql.Identifier(column), ranks=RANKS, ranked=_ranked(rows)
    )


def _ranked(rows: Rows) -> sql.SQL:
    """Return the condition on `RANKS` that selects rows."""
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
    options: PostgresOptions,
    table: TableName,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: sql.Composable | None,
) -> sql.Composed:
    return sql.SQL(
        "WITH {latest}"
        " INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT {gone} ORDER BY {keys}"
        " ON CONFLICT {conflict} {action}"
    ).format(
        latest=(_merged if options.update_columns else _latest)(options, staging, columns, rows, conflicting),
        keys=_list(options.key_columns),
        columns=_list(columns),
        table=table.escaped(),
        gone=sql.Identifier(GONE),
        conflict=_conflict(options),
        action=_action(options, columns),
    )


def _latest(
    options: PostgresOptions,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: sql.Composable | None,
) -> sql.Composed:
    """Return a query for the last row of each key."""
    group = sql.SQL(", ").join(_group(options, conflicting))
    first = sql.SQL("DISTINCT ON ({}) ").format(group) if rows == "all" else sql.SQL("")
    order = sql.SQL(" ORDER BY {}").format(_order(options, conflicting)) if rows == "all" else sql.SQL("")
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


def _merged(
    options: PostgresOptions,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: sql.Composable | None,
) -> sql.Composed:
    """Return a query for updated columns from the last row of each key, and others from the first after a removal."""
    updated = _updated(options, columns)
    if rows == "all":
        picked = [
            escaped(name) if name in updated else sql.SQL("last_value({0}) OVER whole AS {0}").format(escaped(name))
            for name in columns
        ]
        return sql.SQL(
            "numbered AS (SELECT {columns}, {alone} AS {place}, row_number() OVER of_key AS {n},"
            " bool_or({is_gone}) OVER of_key AS {gone}"
            " FROM {staging} WHERE {all} WINDOW of_key AS (PARTITION BY {keys}, {alone} ORDER BY {order})),"
            " picked AS (SELECT {picked}, {n}, {gone} FROM numbered"
            " WINDOW whole AS (PARTITION BY {keys}, {place}, {gone}"
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
            alone=_alone(options, conflicting) or sql.SQL("NULL::tid"),
            place=sql.Identifier(_PLACE),
            order=_order(options, conflicting),
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
        ranks=RANKS,
        ranked=_ranked(rows),
        staging=staging.escaped(),
    )


def _gone(options: PostgresOptions) -> sql.Composable:
    """Return the expression for whether a staged row is a removal."""
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
    return sql.SQL("CASE WHEN NOT ({} OR {}) THEN ctid END").format(_gone(options), conflicting)


def _order(options: PostgresOptions, conflicting: sql.Composable | None = None) -> sql.Composed:
    """Return the sort order with the last row of each key first: by the ordering column, then by write order."""
    keys = _group(options, conflicting)
    latest = [sql.SQL("{} DESC NULLS LAST").format(escaped(options.order_column))] if options.order_column else []
    written = [sql.SQL("{} DESC").format(escaped(STAGE)), sql.SQL("{} DESC").format(escaped(ROW))]
    return sql.SQL(", ").join([*keys, *latest, *written])


def _removal(options: PostgresOptions, table: TableName, staging: TableName, rows: Rows) -> sql.Composed:
    """Return the statement for the last removal of each key.

    The subquery renames its columns, because the user's predicate has unqualified column names.
    """
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
    """Return the columns of an existing row that are updated."""
    # Includes the ordering column, or the row would seem older than its new values.
    wanted = [*options.update_columns, options.order_column] if options.update_columns else columns
    return [name for name in dict.fromkeys(wanted) if name is not None and name not in options.key_columns]


def _not_newer(column: str, theirs: sql.Composable) -> sql.Composed:
    """Return the condition that the table's row is not newer."""
    return sql.SQL("(target.{0} IS NULL OR target.{0} <= {1})").format(escaped(column), theirs)


def _same(keys: Sequence[str], rows: str) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("target.{0} = {1}.{0}").format(escaped(key), escaped(rows)) for key in keys)


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(escaped, columns))
