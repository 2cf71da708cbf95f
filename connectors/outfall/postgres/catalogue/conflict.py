"""Which rows can be in conflict with another one of their key, where a partial unique index decides.

A partial index has no entry for a row outside its predicate: such a row is inserted beside others of its key (manual,
11.8 Partial Indexes). The predicate is that of the index that the planner chooses for ON CONFLICT, which may be wider
than `conflict_where`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from psycopg import sql

from outfall.errors import TargetError
from outfall.postgres.catalogue.columns import TableColumn, read_columns
from outfall.postgres.connection.database import PostgresConnection
from outfall.postgres.names import TableName, escaped, escaped_sql

_PREDICATES = """
SELECT c.relname, pg_get_expr(i.indpred, i.indrelid),
       ARRAY(SELECT DISTINCT a.attname::text FROM pg_catalog.pg_depend AS d
             JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
             WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = i.indexrelid
               AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid > 0)
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s)
"""

_DEFAULTS = """
SELECT a.attname::text, pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef AS d
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE d.adrelid = to_regclass(%s) AND a.attgenerated = ''
"""

_SAME_IN_A_TRANSACTION = re.compile(
    r"""\(?(?:'(?:[^']|'')*'|-?\d+(?:\.\d+)?|true|false|NULL|now\(\)|CURRENT_\w+)\)?(?:::[\w ".\[\](),]+)?""",
    re.IGNORECASE,
)
"""A default whose value at ranking is the value that is inserted."""


def conflicting(
    connection: PostgresConnection, table: TableName, keys: Sequence[str], where: str, columns: Sequence[str]
) -> sql.Composable | None:
    """Return whether a staged row can be in conflict with another one of its key, as an expression over its columns.

    Args:
        connection: a connection in a transaction.
        table: the target, which has an index for these keys and this predicate.
        keys: the columns of the key.
        where: `conflict_where`.
        columns: the target's columns for which the rows have values.

    Returns:
        SQL for a statement with parameters; `None` if every row can, because an index without a predicate decides.

    Raises:
        TargetError: the predicate needs a column that the rows lack, and whose default can differ between rows.
        psycopg.Error: an error of the server, for example if no index matches.
    """
    found = connection.execute(
        sql.SQL("EXPLAIN (FORMAT JSON, VERBOSE) {}").format(insert_nothing(table, keys, where))
    ).fetchone()
    plan = found[0][0]["Plan"] if found else {}
    indexes = connection.execute(_PREDICATES, (plan["Schema"], plan["Conflict Arbiter Indexes"])).fetchall()
    if any(predicate is None for _, predicate, _ in indexes):
        return None
    given = {column.name: column for column in read_columns(connection, table)}
    named = table.identifier().as_string(connection)
    defaults = dict(connection.execute(_DEFAULTS, (named,)).fetchall())
    stored: dict[str, sql.Composable] = {name: escaped(name) for name in columns}
    for index, _, needed in indexes:
        for name in needed:
            stored.setdefault(name, _omitted(given.get(name), defaults.get(name), f"{index} of {table}", name))
    # A row of its own, so that the names of the predicate are those of the target.
    return sql.SQL("(SELECT {} FROM (SELECT {}) AS stored)").format(
        sql.SQL(" OR ").join(sql.SQL("coalesce({}, false)").format(escaped_sql(each)) for _, each, _ in indexes),
        sql.SQL(", ").join(sql.SQL("{} AS {}").format(value, escaped(name)) for name, value in stored.items()),
    )


def insert_nothing(table: TableName, keys: Sequence[str], where: str) -> sql.Composed:
    """Return a statement that inserts no row, to be planned: only the planner can match a predicate with an index."""
    return sql.SQL(
        "INSERT INTO {table} AS target ({keys}) SELECT {keys} FROM {table} WHERE false"
        " ON CONFLICT ({keys}) WHERE ({where}) DO NOTHING"
    ).format(table=table.identifier(), keys=sql.SQL(", ").join(map(sql.Identifier, keys)), where=sql.SQL(where))


def _omitted(column: TableColumn | None, default: str | None, index: str, name: str) -> sql.Composable:
    """Return the value that the server stores in a column that the rows lack."""
    if column is None or not column.writable or (default and not _SAME_IN_A_TRANSACTION.fullmatch(default)):
        raise TargetError(
            f"the index {index} decides conflicts by column {name!r}, which the rows do not have",
            why=f"its default is not a constant: {default}" if default else "the server computes it",
            do="add the column to the rows, or use an index whose predicate needs only columns of the rows",
        )
    return sql.SQL("{}::{}").format(escaped_sql(f"({default or 'NULL'})"), escaped_sql(column.type))
