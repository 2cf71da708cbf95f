"""Empties a large staging table at once."""

from __future__ import annotations

import psycopg

from outfall.postgres.connection.database import PostgresConnection
from outfall.sql.dialect import compose
from outfall.sql.names import SqlName

_TRUNCATE_BYTES = 8 << 20
"""A staging table of at most this size is cleared with DELETE. TRUNCATE creates a new file and locks the table."""


def emptied(session: PostgresConnection, table: SqlName, attempts: str) -> bool:
    """Truncate a large table if the user may, no attempt may still be published, and no task is writing.

    Returns whether it is empty. `attempts` is the table of attempts.
    """
    live = compose("EXISTS (SELECT 1 FROM {} WHERE staging = %s)", attempts)
    query = compose("SELECT pg_relation_size(%s::regclass), {}", live)
    size, waiting = session.execute(query, (table.quoted, str(table))).fetchone() or (0, True)
    if not size or size <= _TRUNCATE_BYTES or waiting:
        return not size
    try:
        with session.transaction():
            # A writing attempt holds a lock until it commits.
            session.execute(compose("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT", table.sql))
            found = session.execute(compose("SELECT {}", live), (str(table),)).fetchone()
            if found is None or found[0]:
                return False
            session.execute(compose("TRUNCATE {}", table.sql))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False
    return True
