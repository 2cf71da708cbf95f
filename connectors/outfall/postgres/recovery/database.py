"""The tables of a recovery log in PostgreSQL: transactions, the server's identity, and errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.postgres.connection.database import PostgresConnection, PostgresDatabase
from outfall.postgres.connection.errors import (
    ConnectionRefusedByServerError,
    describe,
    is_transient,
    lacks_right,
    remedy,
)
from outfall.postgres.options import PostgresOptions
from outfall.sql.log_database import LogSession
from outfall.sql.log_location import LogOptions, ServerUrl

_log = logging.getLogger(__name__)

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

ALLOW = "add allow_unsafe=true to the location, if a crash of the server may lose entries that it has acknowledged"


class PostgresLogDatabase:
    """The tables of one location."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, url: ServerUrl, options: LogOptions) -> None:
        """Resolve the secrets on this host. Connects to nothing."""
        self.deadline = options.timeout.total_seconds()
        self._url = url
        self._options = options
        self._tables = dict(zip(("entries", "blobs"), options.tables(), strict=True))
        self._database = PostgresDatabase(
            PostgresOptions(
                dsn=SecretStr(_dsn(url)),
                table=f'"{options.schema}"."{options.tables()[0]}"',
                statement_timeout=options.timeout,
                retry_deadline=options.timeout,
            )
        )
        self._answered = False
        """Whether the server has accepted a connection: a rejection may pass only then."""

    def key(self) -> str:
        return f"{self._url} {self._options.schema} {self._options.prefix}"

    def name(self) -> str:
        return self._database.name()

    @contextmanager
    def transaction(self, *, snapshot: bool) -> Iterator[LogSession]:
        with self._database.connection() as connection:
            self._answered = True
            level = sql.SQL("REPEATABLE READ" if snapshot else "READ COMMITTED")
            # In the first statement of the transaction, because the default of a role may be another one.
            connection.execute(sql.SQL("BEGIN ISOLATION LEVEL {}").format(level))
            self._database.limit(connection)
            connection.execute(_SYNCHRONOUS)
            yield _PostgresSession(connection, self._names())
            connection.execute("COMMIT")

    def server(self, session: LogSession) -> str:
        ((system, standby, timeline, database),) = session.run(_SERVER)
        if standby:
            raise psycopg.errors.ReadOnlySqlTransaction("the server is a standby, which accepts no writes")
        return f"PostgreSQL system {system} timeline {timeline} database {database}"

    def prepare(self) -> None:
        with self.transaction(snapshot=False) as session:
            found = self._found(session)
            ((durable,),) = session.run("SELECT current_setting('fsync')")
        if durable != "on":
            self._unsafe("its setting fsync is off")
        for name, persistence in found.items():
            if persistence != "p":
                raise ConfigurationError(
                    f"the table {name} of the recovery log in {self.name()} is not a permanent table",
                    why="a crash of the server empties an unlogged table",
                    do=f"run ALTER TABLE {self._options.schema}.{name} SET LOGGED",
                )
        if len(found) < len(self._tables):
            with self.transaction(snapshot=False) as session:
                self._create(session)

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
        return said + (self._database.tls_advice() if unanswered else "")

    def translated(self, error: Exception, doing: str, step_id: str | None) -> OutfallError:
        assert isinstance(error, psycopg.Error)  # noqa: S101
        kind, do = self._meaning(error)
        return kind(f"{doing} in {self.name()} failed", step=step_id, why=describe(error), do=do)

    def _meaning(self, error: psycopg.Error) -> tuple[type[OutfallError], str]:
        if isinstance(error, ConnectionRefusedByServerError):
            return ConfigurationError, (
                "correct user and database in the recovery location, give the password (PGPASSWORD, PGPASSFILE, or"
                " ?password=env:NAME), or give the user access (pg_hba.conf, CREATE ROLE, CREATE DATABASE)"
                f"{self._database.tls_advice()}"
            )
        if is_transient(error):
            do = remedy(error) or f"check why the server does not respond{self._database.tls_advice()}"
            return TransientError, f"{do}; the next run continues from the recorded state"
        if lacks_right(error):
            tables = ", ".join(f"{self._options.schema}.{name}" for name in self._tables.values())
            return ConfigurationError, (
                f"grant USAGE on the schema {self._options.schema}, and SELECT, INSERT, UPDATE and DELETE on {tables};"
                " without tables also CREATE on the schema, and without schema CREATE on the database"
            )
        return ConfigurationError, remedy(error) or "correct the tables, the server, or the recovery location"

    def _found(self, session: LogSession) -> dict[str, str]:
        names = list(self._tables.values())
        return dict(session.run(_TABLES, self._options.schema, names))

    def _create(self, session: LogSession) -> None:
        session.run("SELECT pg_advisory_xact_lock(%s)", _LOCK)
        schema = session.run("SELECT 1 FROM pg_namespace WHERE nspname = %s", self._options.schema)
        if not schema:
            session.run("CREATE SCHEMA {schema}")
        found = self._found(session)
        for kind, name in self._tables.items():
            if name not in found:
                session.run(_CREATE[kind])

    def _names(self) -> dict[str, sql.Identifier]:
        schema = self._options.schema
        names = {kind: sql.Identifier(schema, name) for kind, name in self._tables.items()}
        return {**names, "schema": sql.Identifier(schema)}

    def _unsafe(self, why: str) -> None:
        if not self._options.allow_unsafe:
            raise ConfigurationError(
                f"the server {self.name()} cannot keep a recovery log",
                why=f"{why}, so it loses acknowledged entries if its host fails",
                do=f"correct its configuration, or {ALLOW}",
            )
        _log.warning(
            "The server %s loses acknowledged entries of the recovery log if its host fails: %s. What to do: correct"
            " its configuration.",
            self.name(),
            why,
        )


class _PostgresSession:
    """An open transaction."""

    def __init__(self, connection: PostgresConnection, names: dict[str, sql.Identifier]) -> None:
        self._connection = connection
        self._names = names

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        composed = sql.SQL(statement).format(**self._names)
        cursor = self._connection.execute(composed, values or None)
        return cursor.fetchall() if cursor.description is not None else []


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
