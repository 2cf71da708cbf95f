"""Classifies the errors of MySQL and MariaDB, and translates them to Outfall's errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pymysql
from pymysql.constants import ER

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.mysql.connection import READ_ONLY, code_of, describe, is_refused, is_transient
from outfall.mysql.names import quote
from outfall.row_logging import RowLog

if TYPE_CHECKING:
    from outfall.mysql.database import MySQLDatabase

_WITHOUT_VALUES = {
    ER.BAD_NULL_ERROR, ER.WARN_DATA_OUT_OF_RANGE, 1265, ER.DATA_TOO_LONG, ER.NO_REFERENCED_ROW, ER.ROW_IS_REFERENCED,
    ER.NO_REFERENCED_ROW_2, ER.ROW_IS_REFERENCED_2, ER.NO_DEFAULT_FOR_FIELD, ER.CONSTRAINT_FAILED, 3819, 1118, 1365,
    3151, 3156, 3157, 3699, 3751, 3752, 3903, 3904, 3905, 3906, 3907,
}  # fmt: skip
"""Errors of a row whose messages name columns and constraints only: NULL, out of range, truncated, too long, foreign
keys, no default, CHECK in both servers, a row that is too large, a division by zero. In MySQL also JSON with a name
that is too long, of another type than a generated column, or nested too deeply, a regular expression that takes too
long, and values that an index on an expression cannot hold."""

_ACCOUNT = re.compile(r"'[^']*'@'[^']*'")

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
} | dict.fromkeys(READ_ONLY, "connect to the primary; a replica accepts no writes")
_REMEDIES[1792] += ". Or set transaction_read_only to OFF on the server (tx_read_only in MariaDB)"
_REMEDIES |= dict.fromkeys(
    range(3796, 3800), "connect to a node that is ONLINE in performance_schema.replication_group_members"
)


def is_rows_fault(error: BaseException) -> bool:
    """Return whether rows caused the error: a value, a constraint, or a trigger that rejects them."""
    return code_of(error) in _WITHOUT_VALUES | _QUOTING


def may_be_mismatch(error: BaseException) -> bool:
    """Return whether the table may be missing or have other columns than those of the statement."""
    return code_of(error) in _MISMATCH


def is_missing(error: BaseException) -> bool:
    """Return whether a table is missing."""
    return code_of(error) in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR)


def is_denied(error: BaseException) -> bool:
    """Return whether a privilege is missing."""
    return code_of(error) in _DENIED


def quotes_rows(error: BaseException) -> bool:
    """Return whether the message of an error may quote a value."""
    return code_of(error) in _QUOTING


def masked(error: BaseException) -> str:
    """Return the server's message and number; a name instead of a message that may quote a value."""
    return describe(error) if not quotes_rows(error) else _without_values(code_of(error), str(error.args[1]))


def remedy(error: BaseException) -> str | None:
    """Return what to do about an error of the server's resources or limits."""
    if code_of(error) == _UNKNOWN and "writeset size" in str(error.args[1]):
        return "raise wsrep_max_ws_size on the nodes of the cluster, or make the epochs smaller"
    return _REMEDIES.get(code_of(error))


def translated(database: MySQLDatabase, doing: str, error: pymysql.MySQLError, step: str | None) -> OutfallError:
    """Return Outfall's error for one of PyMySQL's."""
    kind, do = _meaning(database, error)
    full = database.options.log_rows == "full"
    why = describe(error) if full else masked(error)
    if quotes_rows(error) and not full:
        # A traceback shows the text of the cause too.
        error.args = (code_of(error), why)
    return kind(f"{doing} in {database.name()} failed", step=step, why=why, do=do)


def _meaning(database: MySQLDatabase, error: BaseException) -> tuple[type[OutfallError], str]:
    if is_transient(error):
        do = "if the query has failed, start it again: no rows are lost"
        return TransientError, f"{remedy(error) or database.unavailable()}; {do}"
    if is_rows_fault(error):
        return ValueRefusedError, "correct or leave out the row, or change the table"
    if is_denied(error) and not is_refused(error):
        return (
            TargetError,
            "grant the privilege to the sink's user; MySQLSink.ddl() prints SQL for a DBA",
        )
    own = database.options.metadata_schema
    if code_of(error) == ER.DBACCESS_DENIED_ERROR and f"'{own}'" in str(error.args[1]):
        found = _ACCOUNT.search(str(error.args[1]))
        account = found[0] if found else "the user of the dsn"
        return TargetError, (
            f"GRANT CREATE, DROP, SELECT, INSERT, UPDATE, DELETE ON {quote(own)}.* TO {account}; or set metadata_schema"
            " to a database in which the user may create tables, such as that of the table"
        )
    if is_refused(error):
        return TargetError, (
            f"correct user, password and database in the dsn, or give the user access{database.tls_advice()}"
        )
    return TargetError, remedy(error) or "correct the table, the options or the server"


def _without_values(code: int, message: str) -> str:
    name = next((name for name, number in vars(ER).items() if number == code), "the row is rejected")
    index = _INDEX.search(message)
    text = name.lower().replace("_", " ") + (f" for key {index[1]}" if index else "")
    return f'{text} (error {code}); log_rows="full" shows the message'


@dataclass(frozen=True)
class MySQLRefusal:
    """The reason why a row was rejected."""

    reason: str
    code: str | None = None
    """The number of the server's error, if it rejected the row."""
    detail: str | None = None
    do: str = "correct or leave out the row, or change the table"
    may_be_accepted_later: bool = False
    """Whether the row may be accepted after the one that its foreign key names. Not by an upsert: the order of its rows
    decides."""

    @classmethod
    def of(cls, error: BaseException, *, ordered: bool = False) -> MySQLRefusal:
        """Return the reason from an error of the server; `ordered` if the rows must be written in order."""
        code = code_of(error)
        return cls(str(error.args[1]), str(code), may_be_accepted_later=code in _FOREIGN_KEY and not ordered)

    def summary(self, log: RowLog) -> str:
        """Return the reason with the number, with as much of the row as `log_rows` permits."""
        if self.code is None:
            return self.reason
        if int(self.code) in _QUOTING and not log.full:
            return _without_values(int(self.code), self.reason)
        return f"{self.reason} (error {self.code})"
