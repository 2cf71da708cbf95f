"""The tables of a recovery log in MySQL or MariaDB: transactions, the server's identity, and errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pymysql
from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.mysql.database import MySQLDatabase
from outfall.mysql.options import MySQLOptions
from outfall.options import parse_duration
from outfall.sql.log_database import LogDatabase, LogSession

if TYPE_CHECKING:
    from outfall.mysql.recovery import MySQLRecoveryConfig

# Names of logs, states and servers are ASCII, and differ in case. LONGBLOB holds any piece.
_CREATE = (
    "CREATE TABLE IF NOT EXISTS {entries} (log VARCHAR(401) NOT NULL, number BIGINT NOT NULL,"
    " server VARCHAR(300) NOT NULL, writer CHAR(32) NOT NULL, pieces INT NOT NULL, data LONGBLOB NOT NULL,"
    " PRIMARY KEY (log, number)) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin",
    "CREATE TABLE IF NOT EXISTS {blobs} (log VARCHAR(401) NOT NULL, name VARCHAR(255) NOT NULL,"
    " piece INT NOT NULL, generation BIGINT, data LONGBLOB NOT NULL,"
    " PRIMARY KEY (log, name, piece)) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin",
)

_ENGINES = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = %s AND table_name IN (%s, %s)"

_FLUSHED = "innodb_flush_log_at_trx_commit"
_VARIABLES = ("server_uuid", "server_uid", "server_id", "hostname", "port", "read_only", "super_read_only")


class MySQLLogDatabase(LogDatabase):
    """The tables of one location."""

    loses = "it or its host fails"
    correct = "set it to 1"
    allow = (
        "run SET PERSIST innodb_flush_log_at_trx_commit = 1 (MariaDB: SET GLOBAL, and in its configuration),"
        " or add allow_unsafe=true to the location, if a crash may lose acknowledged entries"
    )
    access = (
        "correct user and database in the recovery location, give the password (?password=env:NAME, MYSQL_PWD"
        " or ~/.my.cnf), create the database, or give the user access; for a certificate of a private authority"
        " set ?tls_ca=FILE, and for a self-signed one, as MariaDB creates from 11.4, ?tls=prefer"
    )

    def __init__(self, config: MySQLRecoveryConfig) -> None:
        """Connect to nothing."""
        dsn, timeout = SecretStr(config.dsn), parse_duration(config.timeout)
        options = MySQLOptions(dsn=dsn, table=config.tables()[0], statement_timeout=timeout, retry_deadline=timeout)
        super().__init__(config, MySQLDatabase(options, config.server()))

    def server(self, session: LogSession) -> str:
        found = _variables(session, *_VARIABLES)
        if "ON" in (found.get("read_only"), found.get("super_read_only")):
            raise pymysql.OperationalError(1836, "the server is read-only, as a replica is")
        # MariaDB has no UUID, and before 10.6.19 no `server_uid`.
        unique = found.get("server_uuid") or found.get("server_uid") or f"{found['hostname']}:{found['port']}"
        ((database,),) = session.run("SELECT database()")
        return f"server {unique} id {found['server_id']} database {database}"

    def _quoted(self, table: str) -> str:
        # Only letters, digits and underscores, so that it contains no quote.
        return f"`{table}`"

    def _begin(self, session: LogSession, *, snapshot: bool) -> None:
        session.run(f"SET TRANSACTION ISOLATION LEVEL {'REPEATABLE READ' if snapshot else 'READ COMMITTED'}")
        session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT" if snapshot else "START TRANSACTION")

    def _why_unsafe(self, session: LogSession) -> str | None:
        flushed = _variables(session, _FLUSHED)[_FLUSHED]
        # MariaDB's 3 flushes as 1 does.
        return None if flushed in ("1", "3") else f"its setting {_FLUSHED} is {flushed}"

    def _found(self, session: LogSession) -> Collection[str]:
        engines = dict(session.run(_ENGINES, self._database.database_name(), *self._tables.values()))
        for name, engine in engines.items():
            if engine != "InnoDB":
                raise ConfigurationError(
                    f"the table {name} of the recovery log in {self.name()} has the engine {engine}",
                    why="it has no transactions, so an entry could be stored partially",
                    do=f"run ALTER TABLE {name} ENGINE = InnoDB",
                )
        return engines

    def _create(self) -> None:
        # Each CREATE commits, so they are outside of any transaction that needs them.
        with self._session() as session:
            for statement in _CREATE:
                session.run(statement)
            self._found(session)

    def _rights(self) -> str:
        tables = " and ".join(self._tables.values())
        database = self._database.database_name()
        return f"grant SELECT, INSERT, UPDATE and DELETE on {tables} in {database}; without tables also CREATE"


def _variables(session: LogSession, *names: str) -> dict[str, str]:
    rows = session.run(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({', '.join(['%s'] * len(names))})", *names)
    return {str(name).lower(): str(value) for name, value in rows}
