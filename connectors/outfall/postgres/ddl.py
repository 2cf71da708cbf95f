"""Making what is missing in a database that other queries write to as well, without keeping them waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from outfall.errors import TransientError
from outfall.postgres.connection import Connection, Database
from outfall.trace_points import reached

_SPACE = "outfall: making"
_LONGEST_WAIT = 2.0
"""Seconds for one lock. Whoever waits for a table's lock keeps all out that come later, readers among them."""


@dataclass(frozen=True)
class Wanted:
    """Things that are made together where one of them is missing."""

    names: tuple[str, ...]
    """What they are, for whoever makes the same: tables without their schemas, which not everybody names."""
    missing: Callable[[Connection], Sequence[sql.Composed]]
    """Looks, and returns the statements that make what is missing."""


def make(database: Database, wanted: Wanted) -> None:
    """Make what is missing, in a transaction of its own. Nothing is locked where nothing is.

    Called by drivers of several queries at once. A lock that another session keeps is waited for in short tries, until
    `retry_deadline`; between them everything is let go.

    Raises:
        TransientError: the deadline has passed.
        psycopg.Error: an error that will not pass.
    """
    if not database.run("looking at", wanted.missing):
        return
    try:
        database.run("making what is missing for", lambda connection: _make(connection, wanted))
    except TransientError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise
        raise TransientError(
            f"making what is missing for {database.options.table} in {database.name()} waited in vain for a lock",
            why=f"another session holds {' or '.join(wanted.names)}",
            do="see in pg_locks and pg_stat_activity who does; nothing was changed, and the next run of the query goes"
            " on; for longer waits raise the option retry_deadline",
        ) from error


def _make(connection: Connection, wanted: Wanted) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(_LONGEST_WAIT * 1000)}ms",))
    # IF NOT EXISTS is no lock: of two that make the same at once one fails.
    for name in sorted(wanted.names):
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", (_SPACE, name))
    for statement in wanted.missing(connection):
        reached("postgres: making")
        connection.execute(statement)
