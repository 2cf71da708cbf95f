"""The statements that move staged rows into the target. All are executed with parameters."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from outfall.postgres.names import TableName, escaped, escaped_sql
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging import MARKER, ROW, STAGE

PLACE = "_outfall_place"
"""Where a row stands in staging, as a statement carries it along."""

GONE = "_outfall_gone"
"""Whether a row of an upsert is one that removes, as a statement carries it along."""

_BETWEEN = "{0} >= %(low)s::tid AND {0} < %(high)s::tid"


def statement_columns(options: PostgresOptions) -> list[str]:
    """Return the names that `statement` gives to columns of its own, beside those of staging and of the target."""
    return [GONE, PLACE] if options.write_mode == "upsert" else []


def statement(
    options: PostgresOptions, table: TableName, staging: TableName, columns: Sequence[str], *, partly: bool = False
) -> sql.Composed:
    """Return the one statement that publishes the attempts whose numbers are its parameter `stages`.

    Rows of one key meet in the order of their keys, so that two queries that write the same keys cannot deadlock.

    With `partly` it publishes those that stand in staging from address `low` to address `high`, exclusive; an upsert
    does as if the rows at the addresses `without` were not there. Addresses stay while the table is locked.

    Args:
        options: how rows are written.
        table: the target.
        staging: where the rows are.
        columns: the target's columns that they have values for.
        partly: whether only some rows are published.
    """
    match options.write_mode:
        case "append":
            return _append(table, staging, columns, partly)
        case "upsert":
            return _upsert(options, table, staging, columns, partly)
        case "delete":
            return _delete(options, table, staging, partly)


def before(options: PostgresOptions, staging: TableName) -> sql.Composed:
    """Return the statement that finds the row of an upsert which the one at address `place` had replaced.

    It returns an address or nothing, and does as if the rows at the addresses `without` were not there.
    """
    alike = sql.SQL(" AND ").join(
        sql.SQL("{0} IS NOT DISTINCT FROM (SELECT {0} FROM {1} WHERE ctid = %(place)s::tid)").format(
            escaped(key), staging.escaped()
        )
        for key in options.key_columns
    )
    return sql.SQL(
        "SELECT ctid::text FROM {staging} WHERE {stage} = ANY(%(stages)s) AND ctid <> ALL(%(without)s::tid[])"
        " AND {alike} ORDER BY {order} LIMIT 1"
    ).format(staging=staging.escaped(), stage=escaped(STAGE), alike=alike, order=_order(options))


def _append(table: TableName, staging: TableName, columns: Sequence[str], partly: bool) -> sql.Composed:
    return sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {these}").format(
        table=table.escaped(), columns=_list(columns), staging=staging.escaped(), these=_these(partly)
    )


def _delete(options: PostgresOptions, table: TableName, staging: TableName, partly: bool) -> sql.Composed:
    keys = options.key_columns
    return sql.SQL(
        "DELETE FROM {table} AS target USING (SELECT DISTINCT {keys} FROM {staging} WHERE {these}) AS gone WHERE {same}"
    ).format(
        table=table.escaped(),
        keys=_list(keys),
        staging=staging.escaped(),
        these=_these(partly),
        same=_same(keys, "gone"),
    )


def _these(partly: bool) -> sql.Composed:
    these = sql.SQL("{} = ANY(%(stages)s)").format(escaped(STAGE))
    return these + sql.SQL(" AND ") + sql.SQL(_BETWEEN).format(sql.SQL("ctid")) if partly else these


def _upsert(
    options: PostgresOptions, table: TableName, staging: TableName, columns: Sequence[str], partly: bool
) -> sql.Composed:
    return sql.SQL(
        "WITH {latest}{removal}"
        " INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT {gone} ORDER BY {keys}"
        " ON CONFLICT {conflict} {action}"
    ).format(
        latest=_latest(options, staging, columns, partly),
        keys=_list(options.key_columns),
        columns=_list(columns),
        removal=_removal(options, table) if options.delete_marker else sql.SQL(""),
        table=table.escaped(),
        gone=sql.Identifier(GONE),
        conflict=_conflict(options),
        action=_action(options, columns),
    )


def _latest(options: PostgresOptions, staging: TableName, columns: Sequence[str], partly: bool) -> sql.Composed:
    """The last row of each key; with `partly` those of them that stand in the part, whatever else their keys have."""
    given = {
        "keys": _list(options.key_columns),
        "columns": _list(columns),
        "marker": escaped(MARKER) if options.delete_marker else sql.SQL("false"),
        "staging": staging.escaped(),
        "all": _these(partly=False),
        "order": _order(options),
        "gone": sql.Identifier(GONE),
    }
    if not partly:
        return sql.SQL(
            "latest AS (SELECT DISTINCT ON ({keys}) {columns}, coalesce({marker}, false) AS {gone} FROM {staging}"
            " WHERE {all} ORDER BY {order})"
        ).format(**given)
    nulls = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(escaped(key)) for key in options.key_columns)
    return sql.SQL(
        "candidates AS (SELECT DISTINCT ON ({keys}) {columns}, coalesce({marker}, false) AS {gone}, ctid AS {place}"
        " FROM {staging} WHERE {all} AND ctid <> ALL(%(without)s::tid[])"
        # IN never finds a NULL, and what finds it cannot be hashed.
        " AND (({keys}) IN (SELECT {keys} FROM {staging} WHERE {these}) OR {nulls}) ORDER BY {order}),"
        " latest AS (SELECT * FROM candidates WHERE {between})"
    ).format(
        place=escaped(PLACE),
        these=_these(partly=True),
        nulls=nulls,
        between=sql.SQL(_BETWEEN).format(escaped(PLACE)),
        **given,
    )


def _order(options: PostgresOptions) -> sql.Composed:
    """The last of each key first: by the ordering column, then as they were written."""
    keys = [escaped(key) for key in options.key_columns]
    latest = [sql.SQL("{} DESC NULLS LAST").format(escaped(options.order_column))] if options.order_column else []
    written = [sql.SQL("{} DESC").format(escaped(STAGE)), sql.SQL("{} DESC").format(escaped(ROW))]
    return sql.SQL(", ").join([*keys, *latest, *written])


def _removal(options: PostgresOptions, table: TableName) -> sql.Composed:
    """Delete what is gone. The predicate names columns without a table: beside the target none may have these names."""
    names = [name for name in dict.fromkeys([*options.key_columns, options.order_column]) if name is not None]
    own = {name: escaped(f"_outfall_{number}") for number, name in enumerate(names)}
    conditions = [sql.SQL("target.{} = gone.{}").format(escaped(key), own[key]) for key in options.key_columns]
    if options.order_column:
        conditions.append(_not_newer(options.order_column, sql.SQL("gone.{}").format(own[options.order_column])))
    if options.conflict_where:
        conditions.append(sql.SQL("({})").format(escaped_sql(options.conflict_where)))
    return sql.SQL(
        ", removed AS (DELETE FROM {table} AS target USING (SELECT {columns} FROM latest WHERE {gone}) AS gone"
        " WHERE {conditions})"
    ).format(
        table=table.escaped(),
        gone=sql.Identifier(GONE),
        columns=sql.SQL(", ").join(sql.SQL("{} AS {}").format(escaped(name), own[name]) for name in names),
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
    # With what orders it, or the row would seem older than what it holds now.
    wanted = [*options.update_columns, options.order_column] if options.update_columns else columns
    changed = [name for name in dict.fromkeys(wanted) if name is not None and name not in options.key_columns]
    if not changed:
        return sql.SQL("DO NOTHING")
    pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(escaped(name)) for name in changed]
    newer: sql.Composable = sql.SQL("")
    if options.order_column:
        theirs = sql.SQL("excluded.{}").format(escaped(options.order_column))
        newer = sql.SQL(" WHERE ") + _not_newer(options.order_column, theirs)
    return sql.SQL("DO UPDATE SET {}{}").format(sql.SQL(", ").join(pairs), newer)


def _not_newer(column: str, theirs: sql.Composable) -> sql.Composed:
    """The condition that the table's row is not newer."""
    return sql.SQL("(target.{0} IS NULL OR target.{0} <= {1})").format(escaped(column), theirs)


def _same(keys: Sequence[str], rows: str) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("target.{0} = {1}.{0}").format(escaped(key), escaped(rows)) for key in keys)


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(escaped, columns))
