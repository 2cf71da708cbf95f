"""The unique index that `ON CONFLICT` on some columns needs."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from outfall.errors import TargetError
from outfall.postgres.columns import read_columns
from outfall.postgres.connection import Connection
from outfall.postgres.names import TableName

# A deferred constraint, a partial index and one that is being built cannot decide a conflict (manual, INSERT).
_QUERY = """
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_index AS i
    WHERE i.indrelid = to_regclass(%(table)s) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text)
           FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS key (attnum)
           JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = key.attnum)
        = (SELECT array_agg(name ORDER BY name) FROM unnest(%(columns)s::text[]) AS name)
)
"""


def check_unique(connection: Connection, table: TableName, columns: Sequence[str]) -> None:
    """Refuse a table without a unique index on exactly these columns. One that does not exist passes.

    Raises:
        TargetError: with the statement that makes the index.
    """
    if not read_columns(connection, table):
        return
    named = table.identifier().as_string(connection)
    found = connection.execute(_QUERY, {"table": named, "columns": list(columns)}).fetchone()
    if found and found[0]:
        return
    listed = sql.SQL(", ").join(map(sql.Identifier, columns)).as_string(connection)
    raise TargetError(
        f"{table} has no unique index on {', '.join(columns)}",
        why="nothing else tells a row that comes again from a new one",
        do=f"CREATE UNIQUE INDEX ON {named} ({listed}); it must be neither partial nor on expressions, and a constraint"
        " not deferrable",
    )
