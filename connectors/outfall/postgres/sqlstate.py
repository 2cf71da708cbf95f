"""What PostgreSQL's error codes mean for a retry (manual, appendix A)."""

from __future__ import annotations

import psycopg

_MAY_PASS = ("08", "57P", "40001", "40P01", "53", "55P03", "25006", "25P03")
"""Connection lost, server stopping or starting, serialization failure, deadlock, out of connections or memory, a lock
that is not to be had, a server that is read-only since a failover, and a transaction that was silent for too long."""


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
