"""The statements that move staged rows into the target."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from outfall.postgres.names import TableName
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging import MARKER, ROW, STAGE


def statement(options: PostgresOptions, table: TableName, staging: TableName, columns: Sequence[str]) -> sql.Composed:
    """Return the one statement that publishes the attempts whose numbers are its parameter `stages`.

    Rows of one key meet in the order of their keys, so that two queries that write the same keys cannot deadlock.

    Args:
        options: how rows are written.
        table: the target.
        staging: where the rows are.
        columns: the target's columns that they have values for.
    """
    match options.write_mode:
        case "append":
            return _append(table, staging, columns)
        case "upsert":
            return _upsert(options, table, staging, columns)
        case "delete":
            return _delete(options, table, staging)


def _append(table: TableName, staging: TableName, columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {stage} = ANY(%(stages)s)"
    ).format(
        table=table.identifier(), columns=_list(columns), staging=staging.identifier(), stage=sql.Identifier(STAGE)
    )


def _delete(options: PostgresOptions, table: TableName, staging: TableName) -> sql.Composed:
    keys = options.key_columns
    return sql.SQL(
        "DELETE FROM {table} AS target USING"
        " (SELECT DISTINCT {keys} FROM {staging} WHERE {stage} = ANY(%(stages)s)) AS gone WHERE {same}"
    ).format(
        table=table.identifier(),
        keys=_list(keys),
        staging=staging.identifier(),
        stage=sql.Identifier(STAGE),
        same=_same(keys, "gone"),
    )


def _upsert(options: PostgresOptions, table: TableName, staging: TableName, columns: Sequence[str]) -> sql.Composed:
    marker = sql.Identifier(MARKER) if options.delete_marker else sql.SQL("false")
    return sql.SQL(
        "WITH latest AS (SELECT DISTINCT ON ({keys}) {columns}, coalesce({marker}, false) AS gone FROM {staging}"
        " WHERE {stage} = ANY(%(stages)s) ORDER BY {order}){removal}"
        " INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT gone ORDER BY {keys}"
        " ON CONFLICT {conflict} {action}"
    ).format(
        keys=_list(options.key_columns),
        columns=_list(columns),
        marker=marker,
        staging=staging.identifier(),
        stage=sql.Identifier(STAGE),
        order=_order(options),
        removal=_removal(options, table) if options.delete_marker else sql.SQL(""),
        table=table.identifier(),
        conflict=_conflict(options),
        action=_action(options, columns),
    )


def _order(options: PostgresOptions) -> sql.Composed:
    """The last of each key first: by the ordering column, then as they were written."""
    keys = [sql.Identifier(key) for key in options.key_columns]
    latest = (
        [sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(options.order_column))] if options.order_column else []
    )
    written = [sql.SQL("{} DESC").format(sql.Identifier(STAGE)), sql.SQL("{} DESC").format(sql.Identifier(ROW))]
    return sql.SQL(", ").join([*keys, *latest, *written])


def _removal(options: PostgresOptions, table: TableName) -> sql.Composed:
    return sql.SQL(
        ", removed AS (DELETE FROM {table} AS target USING latest WHERE latest.gone AND {same}{newer})"
    ).format(
        table=table.identifier(),
        same=_same(options.key_columns, "latest"),
        newer=_newer(options, "latest", sql.SQL(" AND ")),
    )


def _conflict(options: PostgresOptions) -> sql.Composed:
    if options.conflict_constraint:
        return sql.SQL("ON CONSTRAINT {}").format(sql.Identifier(options.conflict_constraint))
    target = sql.SQL("({})").format(_list(options.key_columns))
    if options.conflict_where:
        # The user's own SQL, as its option says.
        target += sql.SQL(" WHERE ({})").format(sql.SQL(options.conflict_where))
    return target


def _action(options: PostgresOptions, columns: Sequence[str]) -> sql.Composable:
    changed = options.update_columns or [name for name in columns if name not in options.key_columns]
    if not changed:
        return sql.SQL("DO NOTHING")
    pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in changed]
    return sql.SQL("DO UPDATE SET {}{}").format(
        sql.SQL(", ").join(pairs), _newer(options, "excluded", sql.SQL(" WHERE "))
    )


def _newer(options: PostgresOptions, rows: str, joined_by: sql.SQL) -> sql.Composable:
    """The condition that the table's row is not newer."""
    if not options.order_column:
        return sql.SQL("")
    return joined_by + sql.SQL("(target.{0} IS NULL OR target.{0} <= {1}.{0})").format(
        sql.Identifier(options.order_column), sql.Identifier(rows)
    )


def _same(keys: Sequence[str], rows: str) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("target.{0} = {1}.{0}").format(sql.Identifier(key), sql.Identifier(rows)) for key in keys
    )


def _list(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
