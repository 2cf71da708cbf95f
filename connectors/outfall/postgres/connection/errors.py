"""PostgreSQL's errors: what their codes mean for a retry (manual, appendix A), and what Outfall raises for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError

if TYPE_CHECKING:
    from outfall.postgres.connection.database import PostgresDatabase

_MAY_PASS = ("08", "57P", "40001", "40P01", "53", "55P03", "25006", "25P03")
"""Connection lost, server stopping or starting, serialization failure, deadlock, out of connections or memory, a lock
that is not to be had, a server that is read-only since a failover, and a transaction that was silent for too long."""


class ConnectionRefusedByServerError(psycopg.OperationalError):
    """A server that takes connections refused this one: the dsn is wrong, or it has no connection to spare.

    Its `sqlstate` says which, where it could be found out.
    """


def describe(error: psycopg.Error, *, full: bool = False) -> str:
    """Return what the server said: code, message and detail; see `told`."""
    diagnosis = error.diag
    message = diagnosis.message_primary or str(error).strip()
    return told(message, error.sqlstate, diagnosis.message_detail, full=full)


def told(message: str, code: str | None, detail: str | None, *, full: bool, column: str | None = None) -> str:
    """Return the server's words about an error.

    The detail of a rejected row quotes the row ("Failing row contains …", "Key (id)=(…)"), and so does the message of
    class 22 ("invalid input syntax for type integer: …"), in the language of the server. Unless `full`, the name of the
    code replaces such a message.
    """
    where = f" in column {column}" if column else ""
    if not full and quotes_rows(code):
        detail = None
        if code is not None and code.startswith("22"):
            message = _name(code) + where
    text = "; ".join(part for part in (message, detail) if part)
    return f"{text} (SQLSTATE {code})" if code else text


def quotes_rows(code: str | None) -> bool:
    """Tell whether the texts of an error may quote a row: a value, a constraint, a view's check, or a trigger's own."""
    return (code or "")[:2] in ("22", "23", "44", "P0")


def _name(code: str) -> str:
    try:
        name = psycopg.errors.lookup(code).__name__
    except KeyError:
        return "a value is rejected"
    return re.sub("(?<!^)(?=[A-Z])", " ", name).lower()


def may_pass(error: psycopg.Error) -> bool:
    """Tell whether the same transaction may succeed later.

    An error without a code comes from the client: the connection broke, or none could be made.
    """
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code.startswith(_MAY_PASS)


def is_rows_fault(error: psycopg.Error) -> bool:
    """Tell whether rows are to blame: a value, a constraint, or a view's WITH CHECK OPTION."""
    return (error.sqlstate or "")[:2] in ("22", "23", "44")


def may_go_later(code: str | None) -> bool:
    """Tell whether a refused row may be taken once others are there: the one that its foreign key names."""
    return code == "23503"


def may_be_misfit(error: psycopg.Error) -> bool:
    """Tell whether a table may have other columns than the statement was made for, or is missing."""
    return error.sqlstate in ("42P01", "42703", "42804", "42883", "428C9", "23502")


def timed_out(error: psycopg.Error) -> bool:
    """Tell whether the statement was ended for the time it took."""
    return error.sqlstate == "57014"


def lacks_right(error: psycopg.Error) -> bool:
    """Tell whether a right is missing."""
    return error.sqlstate == "42501"


@contextmanager
def explained(database: PostgresDatabase, doing: str, step: str | None = None) -> Iterator[None]:
    """Turn the driver's errors into ours.

    Raises:
        TransientError: it may pass.
        ValueRefusedError: a row's value or a constraint; the server's text names it.
        TargetError: everything else, a missing right among them.
    """
    try:
        yield
    except psycopg.Error as error:
        hidden = quotes_rows(error.sqlstate) and database.options.log_rows != "full"
        raise translated(database, doing, error, step) from None if hidden else error


def translated(database: PostgresDatabase, doing: str, error: psycopg.Error, step: str | None = None) -> OutfallError:
    """Make our error of the driver's."""
    kind, do = _meaning(database, error)
    return kind(
        f"{doing} in {database.name()} failed",
        step=step,
        why=describe(error, full=database.options.log_rows == "full"),
        do=do,
    )


def _meaning(database: PostgresDatabase, error: psycopg.Error) -> tuple[type[OutfallError], str]:
    """What kind of error it is, and what to do."""
    refused = isinstance(error, ConnectionRefusedByServerError)
    if may_pass(error):
        do = "nothing, if it passes: the task or the query is tried again"
        if refused or error.sqlstate is None:
            # Poolers answer a wrong dsn with codes of a connection that broke, and what is no server gives none at all.
            do += (
                "; else correct the dsn, or give the server max_connections for what the sink asks for:"
                f" {database.connections_wanted()}{database.tls_advice()}"
            )
        return TransientError, do
    if is_rows_fault(error):
        return ValueRefusedError, "correct or leave out the row, or change the table"
    if lacks_right(error):
        do = "grant the right to the sink's user; PostgresSink.ddl() prints what a DBA can make beforehand"
    elif refused:
        do = (
            "correct user, password and database in the dsn, or let the user in (pg_hba.conf, CREATE ROLE, CREATE"
            " DATABASE)"
        )
    elif timed_out(error):
        do = "see what holds a lock on the table; for large epochs raise the option statement_timeout"
    else:
        do = "correct the table, the options or the server"
    return TargetError, do
