"""The statements that move staged rows into the target. The sum of their row counts is the result.

The parameter `stages` has the numbers of the attempts, and `columns` are the target's columns for which the rows have
values. Rows are processed in key order, so that two queries that write the same keys cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outfall.postgres.names import TableName, doubled, quote
from outfall.postgres.options import PostgresOptions
from outfall.postgres.staging.selection_sql import Rows, is_removal, latest, listed, merged, order_of, these, updated
from outfall.sql.dialect import compose
from outfall.sql.options import REMOVED


def append(table: TableName, staging: TableName, columns: Sequence[str], rows: Rows) -> str:
    """Return the statement that inserts the rows of attempts."""
    return compose(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM {staging} WHERE {these}",
        table=table.sql, columns=listed(columns), staging=staging.sql, these=these(rows),
    )  # fmt: skip


def delete(
    options: PostgresOptions, table: TableName, staging: TableName, rows: Rows, nulls: Sequence[str]
) -> list[str]:
    """Return the statements that remove the rows of each key. `nulls` are the keys whose NULLs are equal."""
    keys = options.key_columns
    return [
        compose(
            "DELETE FROM {table} AS target USING (SELECT DISTINCT {keys} FROM {staging} WHERE {these}) AS removed"
            " WHERE {same}",
            table=table.sql, keys=listed(keys), staging=staging.sql, these=these(rows), same=same,
        )
        for same in _same({key: f"removed.{quote(key)}" for key in keys}, nulls)
    ]  # fmt: skip


def upsert(
    options: PostgresOptions,
    table: TableName,
    staging: TableName,
    columns: Sequence[str],
    rows: Rows,
    conflicting: str | None,
    nulls: Sequence[str],
) -> list[str]:
    """Return the statements that write the last row of each key, or remove it. `nulls` are as for `delete`.

    Rows are removed by a separate first statement, because one statement cannot write a row twice and a removed key may
    occur again. The key is then inserted from its first row, with updated columns from its last row, as if each row had
    arrived alone.

    If not all rows are selected, at most one row per key is. `conflicting` is an expression for whether a row can be in
    conflict with another one of its key; `None` for all.
    """
    written = compose(
        "WITH {latest}"
        " INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM latest WHERE NOT {removed} ORDER BY {keys}"
        " ON CONFLICT {conflict} {action}",
        latest=(merged if options.update_columns else latest)(options, staging, columns, rows, conflicting),
        keys=listed(options.key_columns),
        columns=listed(columns),
        table=table.sql,
        removed=quote(REMOVED),
        conflict=_conflict(options),
        action=_action(options, columns),
    )
    return [*_removals(options, table, staging, rows, nulls), written] if options.delete_marker else [written]


def _removals(
    options: PostgresOptions, table: TableName, staging: TableName, rows: Rows, nulls: Sequence[str]
) -> list[str]:
    """Return the statements for the last removal of each key.

    The subquery renames its columns, because the user's predicate has unqualified column names.
    """
    names = [name for name in dict.fromkeys([*options.key_columns, options.order_column]) if name is not None]
    own = {name: quote(f"_outfall_{number}") for number, name in enumerate(names)}
    conditions = []
    if options.order_column:
        conditions.append(_not_newer(options.order_column, f"removed.{own[options.order_column]}"))
    if options.conflict_where:
        conditions.append(f"({doubled(options.conflict_where)})")
    return [
        compose(
            "DELETE FROM {table} AS target USING (SELECT {first}{columns} FROM {staging} WHERE {these} AND {is_removal}"
            "{order}) AS removed WHERE {conditions}",
            table=table.sql,
            first=f"DISTINCT ON ({listed(options.key_columns)}) " if rows == "all" else "",
            columns=", ".join(f"{quote(name)} AS {own[name]}" for name in names),
            staging=staging.sql,
            these=these(rows, "removal"),
            is_removal=is_removal(options),
            order=f" ORDER BY {order_of(options)}" if rows == "all" else "",
            conditions=" AND ".join([same, *conditions]),
        )
        for same in _same({key: f"removed.{own[key]}" for key in options.key_columns}, nulls)
    ]


def _conflict(options: PostgresOptions) -> str:
    # The user's own SQL, as its option says.
    where = f" WHERE ({doubled(options.conflict_where)})" if options.conflict_where else ""
    return f"({listed(options.key_columns)}){where}"


def _action(options: PostgresOptions, columns: Sequence[str]) -> str:
    changed = updated(options, columns)
    if not changed:
        return "DO NOTHING"
    ordered = options.order_column
    newer = f" WHERE {_not_newer(ordered, f'excluded.{quote(ordered)}')}" if ordered else ""
    return f"DO UPDATE SET {assigned(changed)}{newer}"


def assigned(columns: Sequence[str]) -> str:
    """Return the assignments of the columns of an existing row."""
    return ", ".join(f"{quote(name)} = EXCLUDED.{quote(name)}" for name in columns)


def _not_newer(column: str, theirs: str) -> str:
    """Return the condition that the table's row is not newer."""
    return compose("(target.{0} IS NULL OR target.{0} <= {1})", quote(column), theirs)


def _same(keys: Mapping[str, str], nulls: Sequence[str]) -> list[str]:
    """Return the conditions under which rows of the table have one of the keys, which stand beside their columns.

    Keys with a NULL have a condition of their own, because no index finds rows by IS NOT DISTINCT FROM.
    """
    equal = {key: f"target.{quote(key)} = {value}" for key, value in keys.items()}
    found = [" AND ".join(equal.values())]
    if nulls:
        both = "({} OR target.{} IS NULL AND {} IS NULL)"
        alike = [compose(both, equal[key], quote(key), keys[key]) if key in nulls else equal[key] for key in keys]
        absent = " OR ".join(f"{keys[key]} IS NULL" for key in nulls)
        found.append(" AND ".join([*alike, f"({absent})"]))
    return found
