"""The tables of a recovery log in MySQL or MariaDB: transactions, the server's identity, and errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.mysql.connection import READ_ONLY, MySQLServer, code_of, describe, is_refused, is_transient
from outfall.sql.log_database import LogSession
from outfall.sql.log_location import LogOptions, ServerUrl

_log = logging.getLogger(__name__)

# Names of logs, states and servers are ASCII, and differ in case. LONGBLOB holds any piece.
_CREATE = {
    "entries": "CREATE TABLE IF NOT EXISTS {entries} (log VARCHAR(401) NOT NULL, number BIGINT NOT NULL,"
    " server VARCHAR(300) NOT NULL, writer CHAR(32) NOT NULL, pieces INT NOT NULL, data LONGBLOB NOT NULL,"
    " PRIMARY KEY (log, number)) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin",
    "blobs": "CREATE TABLE IF NOT EXISTS {blobs} (log VARCHAR(401) NOT NULL, name VARCHAR(255) NOT NULL,"
    " piece INT NOT NULL, generation BIGINT, data LONGBLOB NOT NULL,"
    " PRIMARY KEY (log, name, piece)) ENGINE = InnoDB CHARACTER SET ascii COLLATE ascii_bin",
}

_ENGINES = "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = %s AND table_name IN (%s, %s)"

_DUPLICATE_KEY = 1062
_NO_SUCH_TABLE = 1146

_VARIABLES = ("server_uuid", "server_uid", "server_id", "hostname", "port", "read_only", "super_read_only")


class MySQLLogDatabase:
    """The tables of one location."""

    errors: tuple[type[Exception], ...] = (pymysql.MySQLError,)

    def __init__(self, url: ServerUrl, options: LogOptions) -> None:
        """Connect to nothing."""
        self.deadline = options.timeout.total_seconds()
        self._url = url
        self._options = options
        self._tables = dict(zip(("entries", "blobs"), options.tables(), strict=True))
        self._server = MySQLServer(url, self.deadline)

    def key(self) -> str:
        return f"{self._url} {self._options.prefix}"

    def name(self) -> str:
        return self._server.name()

    @contextmanager
    def transaction(self, *, snapshot: bool) -> Iterator[LogSession]:
        with self._server.connection() as connection:
            session = _MySQLSession(connection, self._names())
            session.run(f"SET TRANSACTION ISOLATION LEVEL {'REPEATABLE READ' if snapshot else 'READ COMMITTED'}")
            session.run("START TRANSACTION WITH CONSISTENT SNAPSHOT" if snapshot else "START TRANSACTION")
            yield session
            session.run("COMMIT")

    def server(self, session: LogSession) -> str:
        found = _variables(session)
        if "ON" in (found.get("read_only"), found.get("super_read_only")):
            raise pymysql.OperationalError(1836, "the server is read-only, as a replica is")
        # MariaDB has no UUID, and before 10.6.19 no `server_uid`.
        unique = found.get("server_uuid") or found.get("server_uid") or f"{found['hostname']}:{found['port']}"
        ((database,),) = session.run("SELECT database()")
        return f"server {unique} id {found['server_id']} database {database}"

    def prepare(self) -> None:
        with self.transaction(snapshot=False) as session:
            flushed = _setting(session, "innodb_flush_log_at_trx_commit")
            engines = self._engines(session)
        # MariaDB's 3 flushes as 1 does.
        if flushed not in ("1", "3"):
            self._unsafe(f"its setting innodb_flush_log_at_trx_commit is {flushed}")
        if len(engines) < len(self._tables):
            # Each CREATE commits, so they are outside of any transaction that needs them.
            with self._server.connection() as connection:
                session = _MySQLSession(connection, self._names())
                for name, statement in _CREATE.items():
                    if self._tables[name] not in engines:
                        session.run(statement)
                engines = self._engines(session)
        for name, engine in engines.items():
            if engine != "InnoDB":
                raise ConfigurationError(
                    f"the table {name} of the recovery log in {self.name()} has the engine {engine}",
                    why="it has no transactions, so an entry could be stored partially",
                    do=f"run ALTER TABLE {name} ENGINE = InnoDB",
                )

    def passes(self, error: BaseException) -> bool:
        return is_transient(error)

    def is_taken(self, error: Exception) -> bool:
        return code_of(error) == _DUPLICATE_KEY

    def is_absent(self, error: Exception) -> bool:
        return code_of(error) == _NO_SUCH_TABLE

    def reason(self, error: BaseException) -> str:
        return describe(error)

    def translated(self, error: Exception, doing: str, step_id: str | None) -> OutfallError:
        kind, do = self._meaning(error)
        return kind(f"{doing} in {self.name()} failed", step=step_id, why=describe(error), do=do)

    def _meaning(self, error: Exception) -> tuple[type[OutfallError], str]:
        code = code_of(error)
        if is_refused(error):
            return ConfigurationError, (
                "correct user and database in the recovery location, give the password (?password=env:NAME, MYSQL_PWD"
                " or ~/.my.cnf), create the database, or give the user access; for a certificate of a private authority"
                " set ?tls_ca=FILE, and for a self-signed one, as MariaDB creates from 11.4, ?tls=prefer"
            )
        if code in READ_ONLY:
            return TransientError, "connect to the primary; the next run continues from the recorded state"
        if is_transient(error):
            advice = "; the server's certificate is verified: set tls_ca for a private authority, or tls=prefer for a"
            do = "check why the server does not respond" + (
                f"{advice} server without TLS" if self._server.verifies() else ""
            )
            return TransientError, f"{do}; the next run continues from the recorded state"
        if code in (ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR):
            tables = " and ".join(self._tables.values())
            return ConfigurationError, (
                f"grant SELECT, INSERT, UPDATE and DELETE on {tables} in {self._server.database()}; without tables also"
                " CREATE"
            )
        if code == 1665:
            return ConfigurationError, "set binlog_format to ROW or MIXED on the server, as its default is"
        return ConfigurationError, "correct the tables, the server, or the recovery location"

    def _engines(self, session: LogSession) -> dict[str, str]:
        names = tuple(self._tables.values())
        return {name: str(engine) for name, engine in session.run(_ENGINES, self._server.database(), *names)}

    def _names(self) -> dict[str, str]:
        # Only letters, digits and underscores, so that they contain no quote.
        return {kind: f"`{name}`" for kind, name in self._tables.items()}

    def _unsafe(self, why: str) -> None:
        if not self._options.allow_unsafe:
            raise ConfigurationError(
                f"the server {self.name()} cannot keep a recovery log",
                why=f"{why}, so it loses acknowledged entries if it or its host fails",
                do="run SET PERSIST innodb_flush_log_at_trx_commit = 1 (MariaDB: SET GLOBAL, and in its configuration),"
                " or add allow_unsafe=true to the location, if a crash may lose acknowledged entries",
            )
        _log.warning(
            "The server %s loses acknowledged entries of the recovery log if it or its host fails: %s. What to do: set"
            " it to 1.",
            self.name(),
            why,
        )


class _MySQLSession:
    """A connection, with or without an open transaction."""

    def __init__(self, connection: Connection[Any], names: dict[str, str]) -> None:
        self._connection = connection
        self._names = names

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.format(**self._names), values or None)
            return list(cursor.fetchall()) if cursor.description else []


def _variables(session: LogSession) -> dict[str, str]:
    names = ", ".join(["%s"] * len(_VARIABLES))
    rows = session.run(f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})", *_VARIABLES)
    return {str(name).lower(): str(value) for name, value in rows}


def _setting(session: LogSession, name: str) -> str:
    ((_, value),) = session.run("SHOW GLOBAL VARIABLES WHERE variable_name = %s", name)
    return str(value)
