"""PostgreSQL's errors as Outfall's: what happened, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.postgres.connection import ConnectionRefusedByServerError, Database, describe
from outfall.postgres.sqlstate import is_rows_fault, lacks_right, may_pass, timed_out


@contextmanager
def explained(database: Database, doing: str, step: str | None = None) -> Iterator[None]:
    """Turn the driver's errors into ours.

    Raises:
        TransientError: it may pass.
        ValueRefusedError: a row's value or a constraint; the server's text names it.
        TargetError: everything else, a missing right among them.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translated(database, doing, error, step) from error


def translated(database: Database, doing: str, error: psycopg.Error, step: str | None = None) -> OutfallError:
    """Make our error of the driver's."""
    what, why = f"{doing} in {database.name()} failed", describe(error)
    refused = isinstance(error, ConnectionRefusedByServerError)
    if may_pass(error) and (refused or error.sqlstate is None):
        # Poolers answer a wrong dsn with codes of a connection that broke, and what is no server gives none at all.
        return TransientError(
            what,
            step=step,
            why=why,
            do="nothing, if it passes: the task or the query is tried again; else correct the dsn, or give the server"
            f" max_connections for what the sink asks for: {database.connections_wanted()}{database.tls_advice()}",
        )
    if may_pass(error):
        return TransientError(
            what, step=step, why=why, do="nothing, if it passes: the task or the query is tried again"
        )
    if is_rows_fault(error):
        return ValueRefusedError(what, step=step, why=why, do="correct or leave out the row, or change the table")
    if refused and not lacks_right(error):
        return TargetError(
            what,
            step=step,
            why=why,
            do="correct user, password and database in the dsn, or let the user in (pg_hba.conf, CREATE ROLE, CREATE"
            " DATABASE)",
        )
    if lacks_right(error):
        return TargetError(
            what,
            step=step,
            why=why,
            do="grant the right to the sink's user; PostgresSink.ddl() prints what a DBA can make beforehand",
        )
    if timed_out(error):
        return TargetError(
            what,
            step=step,
            why=why,
            do="see what holds a lock on the table; for large epochs raise the option statement_timeout",
        )
    return TargetError(what, step=step, why=why, do="correct the table, the options or the server")
