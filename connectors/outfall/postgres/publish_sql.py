"""The statements that move staged rows into the target. All are executed with parameters."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName, escaped, escaped_sql
from outfall.postgres.options import PostgresOptions
from outfall.postgres.row_ranges import RANKS, Ranks, Rows, ranked, these
from outfall.postgres.staging import MARKER, ROW, STAGE

GONE = "_outfall_gone"
"""Whether a row of an upsert is one that removes, as a statement carries it along."""

_NUMBER = "_outfall_number"
"""Which row of its key it is, from the last one on."""


def statement_columns(options: PostgresOptions) -> list[str]:
    """Return the names that `statements` gives to columns of its own, beside those of staging and of the target."""
    return [GONE, _NUMBER] if options.write_mode == "upsert" else []


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


def ranks(options: PostgresOptions, connection: Connection, staging: TableName, stages: Sequence[int]) -> Ranks:
    """Find the last row of each key."""
    return Ranks(connection, staging, options.key_columns, _order(options), _gone(options), stages)


def _append(table: TableName, staging: TableName, columns: Sequence[str], rows: Rows) -> sql.Composed:
    return sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {these}").format(
        table=table.escaped(), columns=_list(columns), staging=staging.escaped(), these=these(rows)
    )


def _delete(options: PostgresOptions, table: TableName, staging: TableName, rows: Rows) -> sql.Composed:
    keys = options.key_columns
    return sql.SQL(
        "DELETE FROM {table} AS target USING (SELECT DISTINCT {keys} FROM {staging} WHERE {these}) AS gone WHERE {same}"
    ).format(
        table=table.escaped(),
        keys=_list(keys),
        staging=staging.escaped(),
        these=these(rows),
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
        these=these(rows),
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
            n=sql.Identifier(_NUMBER),
            gone=sql.Identifier(GONE),
            is_gone=_gone(options),
            staging=staging.escaped(),
            all=these("all"),
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
        ranks=RANKS,
        ranked=ranked(rows),
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
        these=these(rows, "removal"),
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
