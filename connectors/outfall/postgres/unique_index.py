"""The unique index that `ON CONFLICT` needs."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from outfall.errors import TargetError
from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection, describe
from outfall.postgres.names import TableName
from outfall.postgres.sqlstate import lacks_right

# A deferred constraint, a partial index without its predicate and an index that is being built cannot decide a conflict
# (manual, INSERT). Those of a view are its table's.
_INDEX = """
SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(%(table)s) AND relkind = 'v') OR EXISTS (
    SELECT 1 FROM pg_catalog.pg_index AS i
    WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND (i.indpred IS NULL OR %(partial)s) AND i.indexprs IS NULL
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text)
           FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS key (attnum)
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = key.attnum)
        = (SELECT array_agg(name ORDER BY name) FROM unnest(%(columns)s::text[]) AS name)
)
"""

_CONSTRAINT = """
SELECT c.contype IN ('u', 'p') AND NOT c.condeferrable,
       (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM unnest(c.conkey) AS key (attnum)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = key.attnum)
FROM pg_catalog.pg_constraint AS c WHERE c.conrelid = to_regclass(%s) AND c.conname = %s
"""


def check_unique(
    connection: Connection, table: TableName, columns: Sequence[str], *, why: str, where: str | None = None
) -> None:
    """Refuse a table without a unique index on exactly these columns. One that does not exist passes.

    Args:
        connection: in a transaction.
        table: the table.
        columns: in any order.
        why: what the index is for.
        where: the predicate that a partial one may have, as SQL.

    Raises:
        TargetError: with the statement that makes the index.
    """
    if not read_columns(connection, table):
        return
    named = table.identifier().as_string(connection)
    given = {"table": named, "columns": list(columns), "partial": where is not None}
    found = connection.execute(_INDEX, given).fetchone()
    if found and found[0]:
        if where is not None:
            _check_predicate(connection, table, columns, where)
        return
    listed = sql.SQL(", ").join(map(sql.Identifier, columns)).as_string(connection)
    raise TargetError(
        f"{table} has no unique index on {', '.join(columns)}",
        why=why,
        do=f"CREATE UNIQUE INDEX ON {named} ({listed})"
        + (f" WHERE {where}; it must not be" if where else "; it must be neither partial nor")
        + " on expressions, and a constraint not deferrable",
    )


def check_constraint(connection: Connection, table: TableName, name: str, columns: Sequence[str]) -> None:
    """Refuse a constraint that is missing, or is not a unique one on exactly these columns.

    Raises:
        TargetError: saying which.
    """
    named = table.identifier().as_string(connection)
    found = connection.execute(_CONSTRAINT, (named, name)).fetchone()
    if found is None:
        what = f"{table} has no constraint {name!r}"
    elif not found[0]:
        what = f"the constraint {name!r} of {table} is none that a conflict can be decided by"
    elif sorted(found[1]) != sorted(columns):
        what = (
            f"the constraint {name!r} of {table} is on {', '.join(found[1])}, and key_columns are {', '.join(columns)}"
        )
    else:
        return
    raise TargetError(
        what,
        why="an upsert finds the row of a key by it",
        do="name a unique constraint, not deferrable, on the key columns; or leave conflict_constraint out",
    )


def _check_predicate(connection: Connection, table: TableName, columns: Sequence[str], where: str) -> None:
    """Let the server plan a statement with the predicate: it alone knows which index that implies."""
    planned = sql.SQL(
        "EXPLAIN INSERT INTO {table} AS target ({columns}) SELECT {columns} FROM {table} WHERE false"
        " ON CONFLICT ({columns}) WHERE ({where}) DO NOTHING"
    ).format(table=table.identifier(), columns=sql.SQL(", ").join(map(sql.Identifier, columns)), where=sql.SQL(where))
    try:
        with connection.transaction():
            connection.execute(planned)
    except psycopg.ProgrammingError as error:
        if lacks_right(error):
            raise
        raise TargetError(
            f"no unique index of {table} on {', '.join(columns)} fits conflict_where",
            why=describe(error),
            do="give the predicate of a partial unique index as it was created",
        ) from error
