"""What PostgreSQL's errors mean (manual, appendix A), and say without values of rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg

from outfall.formats.strings import RefusedRowError
from outfall.row_logging import RowLog
from outfall.sql.database import Means

_DENIED = "42501"
_QUOTING = ("23", "44")
"""The classes of constraints, and of a view's WITH CHECK OPTION. Their details may quote a row."""

_PASSING = (
    "08", "57P", "40001", "40P01", "53000", "53100", "53200", "53300", "55P03", "25006", "25P03", "25P04",
)  # fmt: skip
"""Connection lost, server stopping or starting, serialization failure, deadlock, out of disk, memory or connections,
lock not available, read-only server after a failover, and transaction idle or open for too long."""

_MEANS = {
    Means.PASSES: _PASSING,
    Means.ROW: ("22", *_QUOTING),
    Means.TAKEN: ("23505",),
    Means.MISMATCH: ("42P01", "42P10", "42703", "42804", "42883", "428C9", "23502"),
    Means.ABSENT: ("42P01", "3F000"),
    Means.LOCKED: ("55P03",),
}
"""By what an error means: how its code begins."""

_WITHOUT_VALUES = frozenset(
    ("08", "0A", "21", "25", "26", "28", "2B", "3D", "3F", "40", "42", "53", "54", "55", "57", "58")
)
"""The classes whose messages the server composes without values of rows."""

_CONSTRAINT_CHECKS = frozenset(
    ("domains.c", "execExprInterp.c", "execIndexing.c", "execMain.c", "execPartition.c", "nbtinsert.c", "ri_triggers.c")
)
"""The server's sources of messages of classes 23 and 44, which name constraints, tables and columns only. A trigger may
raise these classes too, with any text."""

_POLICY = "ExecWithCheckOptions"
"""The server's function that reports a violated policy with the code of a missing privilege."""

_COPIED = re.compile(r"^COPY .+?, line \d+, column ([^:\n]+)", re.MULTILINE)
"""The server's message about the position of an error in a COPY; a value may follow."""

_FUNCTION = re.compile(r"^(PL/\w+ function [\w.$]+)", re.MULTILINE)

_REMEDIES = {
    "25006": "connect to the primary, for example with several hosts and target_session_attrs=read-write in the dsn; or"
    " set default_transaction_read_only to off for the role and the database",
    "53100": "free disk space on the server",
    "53200": "give the server more memory, or raise the limit that its hint names, such as max_locks_per_transaction",
    "53400": "raise the limit that the message names, such as temp_file_limit",
    "54": "shorten the value or leave out the row, or change the index or the column that is too small for it",
    "55P03": "find the session that holds the lock in pg_locks and pg_stat_activity",
    "57014": "find the session that locks the table; for large epochs, raise the option statement_timeout; if the"
    " statement was canceled manually, start the query again",
    "58": "look for the cause in the server's log and in its file system",
}
"""What to do, by code or class."""


class ConnectionRefusedByServerError(psycopg.OperationalError):
    """A running server rejected this connection: the DSN is wrong, or no connection is available.

    Its `sqlstate` has the reason, if it could be determined.
    """


def describe(error: psycopg.Error, *, full: bool = False) -> str:
    """Return the server's message, detail and code; see `summary`."""
    diagnosis = error.diag
    # The client library's own messages have several lines.
    message = diagnosis.message_primary or " ".join(str(error).split())
    if full or not hides_message(error):
        # A hint is composed as the message is. That of a rejected row may quote it.
        hint = diagnosis.message_hint if full or (error.sqlstate or "")[:2] in _WITHOUT_VALUES else None
        text = summary(message, error.sqlstate, diagnosis.message_detail, full=full)
        return f"{text}. The server's hint: {hint.rstrip('.')}" if hint else text
    function = _FUNCTION.search(diagnosis.context or "")
    where = f" in {function[1]}" if function else ""
    return f'{_name(error.sqlstate)}{where} (SQLSTATE {error.sqlstate}); log_rows="full" shows the message'


def summary(message: str, code: str | None, detail: str | None, *, full: bool, column: str | None = None) -> str:
    """Return the server's message about an error, without values of rows unless `full`.

    The detail of a rejected row quotes the row ("Failing row contains …", "Key (id)=(…)"), and so does the message of
    class 22 ("invalid input syntax for type integer: …"), in the language of the server. Unless `full`, the name of the
    code replaces such a message.
    """
    where = f" in column {column}" if column else ""
    if not full and code is not None and code[:2] not in _WITHOUT_VALUES:
        detail = None
        if code[:2] not in ("23", "44"):
            message = _name(code) + where
    text = "; ".join(part for part in (message, detail) if part)
    return f"{text} (SQLSTATE {code})" if code else text


def hides_message(error: psycopg.Error) -> bool:
    """Return whether the message may quote a row, so that the name of its code replaces it.

    A trigger may raise any code with any text, and execute a statement with values in it.
    """
    code, diagnosis = error.sqlstate, error.diag
    if code is None or diagnosis.message_primary is None:
        return False
    source = diagnosis.source_file or ""
    if code.startswith(_QUOTING):
        return source not in _CONSTRAINT_CHECKS
    language = source.startswith("pl") and not source.startswith("plan")  # plancat.c is the planner's
    return code[:2] not in _WITHOUT_VALUES or language or diagnosis.internal_query is not None


def _name(code: str | None) -> str:
    try:
        name = psycopg.errors.lookup(code or "").__name__
    except KeyError:
        return "an error"
    return re.sub("(?<!^)(?=[A-Z])", " ", name).lower()


def means(error: BaseException) -> Means:
    """Return what an error means.

    One without a code comes from the client: the connection broke, or could not be established.
    """
    found = Means(0)
    if not isinstance(error, psycopg.Error):
        return found
    if isinstance(error, ConnectionRefusedByServerError):
        found |= Means.REFUSED
    code = error.sqlstate
    if code is None:
        broken = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return found | Means.PASSES if broken else found
    for each, codes in _MEANS.items():
        if code.startswith(codes):
            found |= each
    if code == _DENIED and not _breaks_policy(error):
        found |= Means.DENIED
    if hides_message(error) or code.startswith(_QUOTING):
        found |= Means.QUOTES
    return found


def _breaks_policy(error: psycopg.Error) -> bool:
    """Return whether a policy of the table (row-level security) excludes a row."""
    return error.sqlstate == _DENIED and error.diag.source_function == _POLICY


def remedy(error: psycopg.Error) -> str | None:
    """Return what to do about an error of the server's resources or limits."""
    code = error.sqlstate or ""
    if _breaks_policy(error):
        return "correct or leave out the row, change the policy, or give the sink's user BYPASSRLS"
    return _REMEDIES.get(code) or _REMEDIES.get(code[:2])


@dataclass(frozen=True)
class RowRefusal:
    """The reason why a row was rejected."""

    reason: str
    code: str | None = None
    """The SQLSTATE, if the server rejected the row."""
    detail: str | None = None
    do: str = "correct or leave out the row, or change the table"
    column: str | None = None
    """The column, if the server names it."""
    masked: str | None = None
    """The text instead of the reason, unless everything may be shown."""

    @classmethod
    def of(cls, error: psycopg.Error | RefusedRowError) -> RowRefusal:
        """Return the reason from an error of the server or the encoder."""
        if isinstance(error, RefusedRowError):
            return cls(error.reason, do=error.do or cls.do)
        diagnosis = error.diag
        column = _COPIED.search(diagnosis.context or "")
        return cls(
            diagnosis.message_primary or str(error).strip(), error.sqlstate, diagnosis.message_detail,
            column=None if column is None else column[1],
            masked=describe(error) if hides_message(error) and (error.sqlstate or "")[:2] != "22" else None,
        )  # fmt: skip

    @property
    def may_be_accepted_later(self) -> bool:
        """Whether the row may be accepted after others: those that its foreign key or unique value needs."""
        return self.code in ("23503", "23505")

    def summary(self, log: RowLog) -> str:
        """Return reason, detail and code in one sentence, with as much of the row as `log_rows` permits."""
        if self.masked is not None and not log.full:
            return self.masked
        return summary(self.reason, self.code, self.detail, full=log.full, column=self.column)
