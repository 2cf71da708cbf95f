"""The statements that move staged rows into the target. The sum of their row counts is the result.

The parameter `stages` has the numbers of the attempts, and `columns` are the target's columns for which the rows have
values. Rows are processed in key order, so that two queries that write the same keys cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psycopg import sql

from outfall.postgres.names import TableName, escaped, escaped_sql
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.selection_sql import Rows, is_removal, latest, listed, merged, order_of, these, updated
from outfall.sql.options import REMOVED


def append(table: TableName, staging: TableName, columns: Sequence[str], rows: Rows) -> sql.Composed:
    """Return the statement that inserts the rows of attempts."""
    return sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {these}").format(
        table=table.escaped(), columns=listed(columns), staging=staging.escaped(), these=these(rows)
    )


def delete(
    options: PostgresOptions, table: TableName, staging: TableName, rows: Rows, nulls: Sequence[str]
) -> list[sql.Composed]:
    """Return the statements that remove the rows of each key. `nulls` are the keys whose NULLs are equal."""
    keys = options.key_columns
    return [
        sql.SQL(
            "DELETE FROM {table} AS target USING (SELECT DISTINCT {keys} FROM {staging} WHERE {these}) AS removed"
            " WHERE {same}"
        ).format(table=table.escaped(), keys=listed(keys), staging=staging.escaped(), these=these(rows), same=same)
        for same in _same({key: sql.SQL("removed.{}").format(escaped(key)) for key in keys}, nulls)
    ]


def upsert(
    options: PostgresOptions,
    table: TableName,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: sql.Composable | None,
    nulls: Sequence[str],
) -> list[sql.Composed]:
    """Return the statements that write the last row of each key, or remove it. `nulls` are as for `delete`.

    Rows are removed by a separate first statement, because one statement cannot write a row twice and a removed key may
    occur again. The key is then inserted from its first row, with updated columns from its last row, as if each row had
    arrived alone.

    If not all rows are selected, at most one row per key is. `conflicting` is an expression for whether a row can be in
    conflict with another one of its key; `None` for all.
    """
    written = sql.SQL(
        "WITH {latest}"
        " INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT {removed} ORDER BY {keys}"
        " ON CONFLICT {conflict} {action}"
    ).format(
        latest=(merged if options.update_columns else latest)(options, staging, columns, rows, conflicting),
        keys=listed(options.key_columns),
        columns=listed(columns),
        table=table.escaped(),
        removed=sql.Identifier(REMOVED),
        conflict=_conflict(options),
        action=_action(options, columns),
    )
    return [*_removals(options, table, staging, rows, nulls), written] if options.delete_marker else [written]


def _removals(
    options: PostgresOptions, table: TableName, staging: TableName, rows: Rows, nulls: Sequence[str]
) -> list[sql.Composed]:
    """Return the statements for the last removal of each key.

    The subquery renames its columns, because the user's predicate has unqualified column names.
    """
    names = [name for name in dict.fromkeys([*options.key_columns, options.order_column]) if name is not None]
    own = {name: escaped(f"_outfall_{number}") for number, name in enumerate(names)}
    removed_keys = {key: sql.SQL("removed.{}").format(own[key]) for key in options.key_columns}
    conditions = []
    if options.order_column:
        conditions.append(_not_newer(options.order_column, sql.SQL("removed.{}").format(own[options.order_column])))
    if options.conflict_where:
        conditions.append(sql.SQL("({})").format(escaped_sql(options.conflict_where)))
    first = sql.SQL("DISTINCT ON ({}) ").format(listed(options.key_columns)) if rows == "all" else sql.SQL("")
    order = sql.SQL(" ORDER BY {}").format(order_of(options)) if rows == "all" else sql.SQL("")
    return [
        sql.SQL(
            "DELETE FROM {table} AS target USING (SELECT {first}{columns} FROM {staging} WHERE {these} AND {is_removal}"
            "{order}) AS removed WHERE {conditions}"
        ).format(
            table=table.escaped(),
            first=first,
            columns=sql.SQL(", ").join(sql.SQL("{} AS {}").format(escaped(name), own[name]) for name in names),
            staging=staging.escaped(),
            these=these(rows, "removal"),
            is_removal=is_removal(options),
            order=order,
            conditions=sql.SQL(" AND ").join([same, *conditions]),
        )
        for same in _same(removed_keys, nulls)
    ]


def _conflict(options: PostgresOptions) -> sql.Composed:
    if options.conflict_constraint:
        return sql.SQL("ON CONSTRAINT {}").format(escaped(options.conflict_constraint))
    target = sql.SQL("({})").format(listed(options.key_columns))
    if options.conflict_where:
        # The user's own SQL, as its option says.
        target += sql.SQL(" WHERE ({})").format(escaped_sql(options.conflict_where))
    return target


def _action(options: PostgresOptions, columns: Sequence[str]) -> sql.Composable:
    changed = updated(options, columns)
    if not changed:
        return sql.SQL("DO NOTHING")
    pairs = [sql.SQL("{0} = EXCLUDED.{0}").format(escaped(name)) for name in changed]
    newer: sql.Composable = sql.SQL("")
    if options.order_column:
        theirs = sql.SQL("excluded.{}").format(escaped(options.order_column))
        newer = sql.SQL(" WHERE ") + _not_newer(options.order_column, theirs)
    return sql.SQL("DO UPDATE SET {}{}").format(sql.SQL(", ").join(pairs), newer)


def _not_newer(column: str, theirs: sql.Composable) -> sql.Composed:
    """Return the condition that the table's row is not newer."""
    return sql.SQL("(target.{0} IS NULL OR target.{0} <= {1})").format(escaped(column), theirs)


def _same(keys: Mapping[str, sql.Composable], nulls: Sequence[str]) -> list[sql.Composed]:
    """Return the conditions under which rows of the table have one of the keys, which stand beside their columns.

    Keys with a NULL have a condition of their own, because no index finds rows by IS NOT DISTINCT FROM.
    """
    equal = {key: sql.SQL("target.{} = {}").format(escaped(key), value) for key, value in keys.items()}
    found = [sql.SQL(" AND ").join(equal.values())]
    if nulls:
        both = sql.SQL("({} OR target.{} IS NULL AND {} IS NULL)")
        alike = [both.format(equal[key], escaped(key), keys[key]) if key in nulls else equal[key] for key in keys]
        absent = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(keys[key]) for key in nulls)
        found.append(sql.SQL(" AND ").join([*alike, sql.SQL("({})").format(absent)]))
    return found
