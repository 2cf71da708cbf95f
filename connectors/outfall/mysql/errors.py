"""What errors of MySQL, MariaDB and PyMySQL mean, and say without values of rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pymysql
from pymysql.constants import ER

from outfall.row_logging import RowLog
from outfall.sql.database import Means
from outfall.sql.dialect import PlainRefusal

_PASSING = {
    ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN, ER.TOO_MANY_USER_CONNECTIONS,
    ER.USER_LIMIT_REACHED, ER.NORMAL_SHUTDOWN, ER.QUERY_INTERRUPTED, ER.DISK_FULL, ER.OPTION_PREVENTS_STATEMENT,
    1020, 1047, 1053, 1180, 1412, 1792, 1836, 1927, 1969, 3024, 3032, 3100, 3101, 3572, *range(3781, 3784),
    *range(3796, 3800), 4031,
}  # fmt: skip
"""Deadlock, lock wait, too many connections, shutdown, killed, disk full, read-only. By number where PyMySQL has no
name: a row that changed since it was read (MariaDB from 11.6), a Galera node that is not ready, a commit that failed, a
table that was altered meanwhile, a read-only transaction or server, a killed connection, statement timeouts of both
servers, a server in offline mode, Group Replication's refusal, rollback, end and waits, a lock that is not available, a
client that was idle for too long."""

CLIENT = range(2000, 3000)
"""The client's own errors: the connection was lost, or could not be established."""

_READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1792, 1836}
"""The server takes no writes: a replica."""

_REFUSED = {
    ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, 1251, 1698, 1862, 2026, 2059, 3118, 3159,
}  # fmt: skip
"""User, password, database or TLS."""


_WITHOUT_VALUES = {
    ER.BAD_NULL_ERROR, ER.WARN_DATA_OUT_OF_RANGE, 1265, ER.DATA_TOO_LONG, ER.NO_REFERENCED_ROW, ER.ROW_IS_REFERENCED,
    ER.NO_REFERENCED_ROW_2, ER.ROW_IS_REFERENCED_2, ER.NO_DEFAULT_FOR_FIELD, ER.CONSTRAINT_FAILED, 3819, 1118, 1365,
    3151, 3156, 3157, 3699, 3751, 3752, 3903, 3904, 3905, 3906, 3907,
}  # fmt: skip
"""Errors of a row whose messages name columns and constraints only: NULL, out of range, truncated, too long, foreign
keys, no default, CHECK in both servers, a row that is too large, a division by zero. In MySQL also JSON with a name
that is too long, of another type than a generated column, or nested too deeply, a regular expression that takes too
long, and values that an index on an expression cannot hold."""

_QUOTING = {
    ER.DUP_ENTRY, 1586, ER.TRUNCATED_WRONG_VALUE, ER.TRUNCATED_WRONG_VALUE_FOR_FIELD, 1526, 1644,
    1411, 1690, 3037, 3140, 3141, 3616, 3617, 4078, 6138,
}  # fmt: skip
"""Errors of a row whose messages quote a value: a duplicate, a wrong value, no partition, a trigger's SIGNAL, an
argument of a function, an expression that is out of range, invalid geometries, JSON, coordinates and vectors, a type
that does not fit."""

_FOREIGN_KEY = {ER.NO_REFERENCED_ROW, ER.NO_REFERENCED_ROW_2}
_MISMATCH = {
    ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.BAD_FIELD_ERROR, ER.NO_DEFAULT_FOR_FIELD, ER.BAD_NULL_ERROR, 1906, 3105,
}  # fmt: skip
"""The table may be missing or have other columns. 1906 and 3105: a generated column in MariaDB and in MySQL."""

_DENIED = {
    ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR,
}  # fmt: skip

_UNKNOWN = 1105
"""Galera has no number of its own for a transaction that is too large."""

_INDEX = re.compile(r"for key '([\w.$ ]+)'$")

_REMEDIES = {
    1205: "find the session that holds the lock in information_schema.innodb_trx and the process list",
    1206: "raise innodb_buffer_pool_size",
    1180: "look into the server's log",
    1153: "raise max_allowed_packet of the server",
    1301: "raise max_allowed_packet of the server, so that the text of a rejected row fits",
    1665: "set binlog_format to ROW or MIXED on the server, as its default is",
    1317: "start the query again, unless the statement was stopped on purpose",
    1969: "find the session that locks the table; for large epochs, raise the option statement_timeout",
    3024: "find the session that locks the table; for large epochs, raise the option statement_timeout",
    3032: "wait until the server is ready again, or set its offline_mode to OFF",
    3098: "create the table with a primary key, as Group Replication requires",
    3100: "raise group_replication_transaction_size_limit, or make the epochs smaller; or the node has left its group",
    3750: "create the table with a primary key yourself, or set sql_require_primary_key to OFF",
    3973: "set subquery_to_derived=off in optimizer_switch of the server, as its default is",
    ER.DISK_FULL: "free disk space on the server",
} | dict.fromkeys(_READ_ONLY, "connect to the primary; a replica accepts no writes")
_REMEDIES[1792] += ". Or set transaction_read_only to OFF on the server (tx_read_only in MariaDB)"
_REMEDIES |= dict.fromkeys(
    range(3796, 3800), "connect to a node that is ONLINE in performance_schema.replication_group_members"
)

_MEANS = {
    Means.PASSES: _PASSING,
    Means.REFUSED: _REFUSED,
    Means.ROW: _WITHOUT_VALUES | _QUOTING,
    Means.QUOTES: _QUOTING,
    Means.TAKEN: {ER.DUP_ENTRY},
    Means.MISMATCH: _MISMATCH,
    Means.ABSENT: {ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR},
    Means.DENIED: _DENIED,
    Means.LOCKED: {ER.LOCK_WAIT_TIMEOUT, 3572},
}


def code_of(error: BaseException) -> int:
    """Return the number of an error; 0 without one."""
    first = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0


def means(error: BaseException) -> Means:
    """Return what an error means."""
    found, code = Means(0), code_of(error)
    if not isinstance(error, pymysql.MySQLError):
        return found
    for each, codes in _MEANS.items():
        if code in codes:
            found |= each
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        found |= Means.REFUSED
    # PyMySQL raises InterfaceError (0, "") on a connection that it has closed after an error.
    if code in CLIENT or isinstance(error, pymysql.InterfaceError):
        found |= Means.PASSES
    if Means.REFUSED in found:
        found &= ~(Means.PASSES | Means.DENIED)
    return found


def describe(error: BaseException, *, full: bool = False) -> str:
    """Return the server's message and number; unless `full`, a name for a message that may quote a value."""
    code = code_of(error)
    if code in _QUOTING and not full:
        return _without_values(code, str(error.args[1]))
    said = " ".join(str(part) for part in error.args[1:]) or type(error).__name__
    return f"{said} (error {code})" if code else said


def remedy(error: BaseException) -> str | None:
    """Return what to do about an error of the server's resources or limits."""
    if code_of(error) == _UNKNOWN and "writeset size" in str(error.args[1]):
        return "raise wsrep_max_ws_size on the nodes of the cluster, or make the epochs smaller"
    return _REMEDIES.get(code_of(error))


def _without_values(code: int, message: str) -> str:
    name = next((name for name, number in vars(ER).items() if number == code), "the row is rejected")
    index = _INDEX.search(message)
    text = name.lower().replace("_", " ") + (f" for key {index[1]}" if index else "")
    return f'{text} (error {code}); log_rows="full" shows the message'


@dataclass(frozen=True)
class MySQLRefusal(PlainRefusal):
    """The reason why a row was rejected. Its code is the number of the server's error."""

    @classmethod
    def of(cls, error: BaseException, *, ordered: bool = False) -> MySQLRefusal:
        """Return the reason from an error of the server; `ordered` if the rows must be written in order, as upserts.

        Otherwise the row may be accepted after the one that its foreign key names.
        """
        code = code_of(error)
        return cls(str(error.args[1]), str(code), may_be_accepted_later=code in _FOREIGN_KEY and not ordered)

    def summary(self, log: RowLog) -> str:
        """Return the reason with the number, with as much of the row as `log_rows` permits."""
        if self.code is None:
            return self.reason
        if int(self.code) in _QUOTING and not log.full:
            return _without_values(int(self.code), self.reason)
        return f"{self.reason} (error {self.code})"
