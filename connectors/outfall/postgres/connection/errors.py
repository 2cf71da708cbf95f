"""Classifies PostgreSQL's errors (manual, appendix A), and translates them to Outfall's errors."""

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
"""Connection lost, server stopping or starting, serialization failure, deadlock, out of connections or memory, lock not
available, read-only server after a failover, and transaction idle for too long."""


class ConnectionRefusedByServerError(psycopg.OperationalError):
    """A running server rejected this connection: the DSN is wrong, or no connection is available.

    Its `sqlstate` has the reason, if it could be determined.
    """


def describe(error: psycopg.Error, *, full: bool = False) -> str:
    """Return the server's message, detail and code; see `told`."""
    diagnosis = error.diag
    message = diagnosis.message_primary or str(error).strip()
    return told(message, error.sqlstate, diagnosis.message_detail, full=full)


def told(message: str, code: str | None, detail: str | None, *, full: bool, column: str | None = None) -> str:
    """Return the server's message about an error, without values of rows unless `full`.

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
    """Return whether the message of an error may quote a row: of a value, a constraint, a view's check or a trigger."""
    return (code or "")[:2] in ("22", "23", "44", "P0")


def _name(code: str) -> str:
    try:
        name = psycopg.errors.lookup(code).__name__
    except KeyError:
        return "a value is rejected"
    return re.sub("(?<!^)(?=[A-Z])", " ", name).lower()


def may_pass(error: psycopg.Error) -> bool:
    """Return whether the same transaction may succeed later.

    An error without a code comes from the client: the connection broke, or could not be established.
    """
    code = error.sqlstate
    if code is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code.startswith(_MAY_PASS)


def is_rows_fault(error: psycopg.Error) -> bool:
    """Return whether rows caused the error: a value, a constraint, or a view's WITH CHECK OPTION."""
    return (error.sqlstate or "")[:2] in ("22", "23", "44")


def may_go_later(code: str | None) -> bool:
    """Return whether a rejected row may be accepted after others, such as the one that its foreign key names."""
    return code == "23503"


def may_be_misfit(error: psycopg.Error) -> bool:
    """Return whether the table may be missing or have other columns than those of the statement."""
    return error.sqlstate in ("42P01", "42703", "42804", "42883", "428C9", "23502")


def timed_out(error: psycopg.Error) -> bool:
    """Return whether the statement timed out."""
    return error.sqlstate == "57014"


def lacks_right(error: psycopg.Error) -> bool:
    """Return whether a privilege is missing."""
    return error.sqlstate == "42501"


@contextmanager
def explained(database: PostgresDatabase, doing: str, step: str | None = None) -> Iterator[None]:
    """Translate psycopg's errors.

    Raises:
        TransientError: a retry may succeed.
        ValueRefusedError: a value or a constraint; the server's message names it.
        TargetError: any other error, such as a missing privilege.
    """
    try:
        yield
    except psycopg.Error as error:
        hidden = quotes_rows(error.sqlstate) and database.options.log_rows != "full"
        raise translated(database, doing, error, step) from None if hidden else error


def translated(database: PostgresDatabase, doing: str, error: psycopg.Error, step: str | None = None) -> OutfallError:
    """Return Outfall's error for one of psycopg's."""
    kind, do = _meaning(database, error)
    return kind(
        f"{doing} in {database.name()} failed",
        step=step,
        why=describe(error, full=database.options.log_rows == "full"),
        do=do,
    )


def _meaning(database: PostgresDatabase, error: psycopg.Error) -> tuple[type[OutfallError], str]:
    """Return the kind of an error, and its remedy."""
    refused = isinstance(error, ConnectionRefusedByServerError)
    if may_pass(error):
        do = "if the query has failed, start it again: no rows are lost"
        if refused or error.sqlstate is None:
            # For a wrong DSN, poolers return codes of a broken connection, and hosts without a server return none.
            do += (
                "; otherwise correct the dsn, or raise max_connections of the server to what the sink needs:"
                f" {database.connections_wanted()}{database.tls_advice()}"
            )
        return TransientError, do
    if is_rows_fault(error):
        return ValueRefusedError, "correct or leave out the row, or change the table"
    if lacks_right(error):
        do = "grant the privilege to the sink's user; PostgresSink.ddl() prints SQL that a DBA can run beforehand"
    elif refused:
        do = (
            "correct user, password and database in the dsn, or give the user access (pg_hba.conf, CREATE ROLE, CREATE"
            " DATABASE)"
        )
    elif timed_out(error):
        do = "find the session that locks the table; for large epochs, raise the option statement_timeout"
    else:
        do = "correct the table, the options or the server"
    return TargetError, do
