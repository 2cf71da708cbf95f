"""The tables of a recovery log in PostgreSQL: transactions, the server's identity, and errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.postgres.connection.database import PostgresDatabase
from outfall.postgres.connection.errors import (
    ConnectionRefusedByServerError,
    describe,
    is_transient,
    lacks_right,
    remedy,
)
from outfall.postgres.options import PostgresOptions
from outfall.sql.log_database import LogDatabase, LogSession
from outfall.sql.log_location import LogOptions, ServerUrl

_SYNCHRONOUS = """
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
"""
"""A role or database may disable it; the server then acknowledges transactions that a crash loses."""

_SERVER = """
SELECT system_identifier, pg_is_in_recovery(),
    CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
    (SELECT oid FROM pg_database WHERE datname = current_database())
FROM pg_control_system()
"""
"""The timeline is that of the write-ahead log: that of the control file is older for a while after a promotion."""

_TABLES = """
SELECT c.relname, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY(%s)
"""

_CREATE = {
    "entries": "CREATE TABLE {entries} (log text NOT NULL, number bigint NOT NULL, server text NOT NULL,"
    " writer text NOT NULL, pieces integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (log, number))",
    "blobs": "CREATE TABLE {blobs} (log text NOT NULL, name text NOT NULL, piece integer NOT NULL, generation bigint,"
    " data bytea NOT NULL, PRIMARY KEY (log, name, piece))",
}

_LOCK = 0x4F757466_4C6F67
"""The advisory lock under which tables are created: two CREATE … IF NOT EXISTS at once may fail."""


class PostgresLogDatabase(LogDatabase):
    """The tables of one location."""

    errors = psycopg.Error
    loses = "its host fails"
    correct = "correct its configuration"
    allow = (
        "correct its configuration, or add allow_unsafe=true to the location, if a crash of the server may lose entries"
        " that it has acknowledged"
    )

    _server: PostgresDatabase

    def __init__(self, url: ServerUrl, options: LogOptions) -> None:
        """Resolve the secrets on this host. Connects to nothing."""
        database = PostgresOptions(
            dsn=SecretStr(_dsn(url)),
            table=f'"{options.schema}"."{options.tables()[0]}"',
            statement_timeout=options.timeout,
            retry_deadline=options.timeout,
        )
        super().__init__(url, options, PostgresDatabase(database))
        self._answered = False
        """Whether the server has accepted a connection: a rejection may pass only then."""

    def server(self, session: LogSession) -> str:
        ((system, standby, timeline, database),) = session.run(_SERVER)
        if standby:
            raise psycopg.errors.ReadOnlySqlTransaction("the server is a standby, which accepts no writes")
        return f"PostgreSQL system {system} timeline {timeline} database {database}"

    def passes(self, error: BaseException) -> bool:
        refused = isinstance(error, ConnectionRefusedByServerError) and not self._answered
        return isinstance(error, psycopg.Error) and is_transient(error) and not refused

    def is_taken(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UniqueViolation)

    def is_absent(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName)

    def reason(self, error: BaseException) -> str:
        said = describe(error) if isinstance(error, psycopg.Error) else type(error).__name__
        unanswered = isinstance(error, psycopg.Error) and error.sqlstate is None
        return said + (self._server.tls_advice() if unanswered else "")

    def _quoted(self, table: str) -> str:
        return sql.Identifier(self._options.schema, table).as_string(None)

    def _begin(self, session: LogSession, *, snapshot: bool) -> None:
        self._answered = True
        # In the first statement of the transaction, because the default of a role may be another one.
        session.run(f"BEGIN ISOLATION LEVEL {'REPEATABLE READ' if snapshot else 'READ COMMITTED'}")
        self._server.limit(session.connection)
        session.run(_SYNCHRONOUS)

    def _why_unsafe(self, session: LogSession) -> str | None:
        ((durable,),) = session.run("SELECT current_setting('fsync')")
        return None if durable == "on" else "its setting fsync is off"

    def _found(self, session: LogSession) -> Collection[str]:
        kinds = dict(session.run(_TABLES, self._options.schema, list(self._tables.values())))
        for name, persistence in kinds.items():
            if persistence != "p":
                raise ConfigurationError(
                    f"the table {name} of the recovery log in {self.name()} is not a permanent table",
                    why="a crash of the server empties an unlogged table",
                    do=f"run ALTER TABLE {self._options.schema}.{name} SET LOGGED",
                )
        return kinds

    def _create(self) -> None:
        schema = self._options.schema
        with self.transaction(snapshot=False) as session:
            session.run("SELECT pg_advisory_xact_lock(%s)", _LOCK)
            if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
                session.run(f"CREATE SCHEMA {sql.Identifier(schema).as_string(None)}")
            found = self._found(session)
            for kind, name in self._tables.items():
                if name not in found:
                    session.run(_CREATE[kind])

    def _said(self, error: psycopg.Error) -> str:
        return describe(error)

    def _meaning(self, error: psycopg.Error) -> tuple[type[OutfallError], str]:
        if isinstance(error, ConnectionRefusedByServerError):
            return ConfigurationError, (
                "correct user and database in the recovery location, give the password (PGPASSWORD, PGPASSFILE, or"
                " ?password=env:NAME), or give the user access (pg_hba.conf, CREATE ROLE, CREATE DATABASE)"
                f"{self._server.tls_advice()}"
            )
        if is_transient(error):
            return TransientError, remedy(error) or f"check why the server does not respond{self._server.tls_advice()}"
        if lacks_right(error):
            tables = ", ".join(f"{self._options.schema}.{name}" for name in self._tables.values())
            return ConfigurationError, (
                f"grant USAGE on the schema {self._options.schema}, and SELECT, INSERT, UPDATE and DELETE on {tables};"
                " without tables also CREATE on the schema, and without schema CREATE on the database"
            )
        return ConfigurationError, remedy(error) or "correct the tables, the server, or the recovery location"


def _dsn(url: ServerUrl) -> str:
    """Return the conninfo of a URL with its secrets."""
    secrets: dict[str, Any] = {name: url.secret(name) for name in ("password", "sslpassword") if name in url.parameters}
    try:
        given = conninfo_to_dict(str(url))
    except psycopg.ProgrammingError as error:
        # The URL contains no secret, but libpq's message is not needed to find the mistake.
        raise ConfigurationError(
            f"the recovery location {url} cannot be parsed",
            why=" ".join(str(error).split()),
            do="write postgresql://user@host:5432/database?sslmode=…, with parameters of libpq",
        ) from error
    return make_conninfo("", **{**given, **secrets})
