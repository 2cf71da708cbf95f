"""The tables of a recovery log in PostgreSQL: transactions, the server's identity, and errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.options import parse_duration
from outfall.postgres.connection.database import PostgresDatabase
from outfall.postgres.connection.dsn import SECRETS
from outfall.postgres.options import PostgresOptions
from outfall.sql.log_database import LogDatabase, LogSession
from outfall.sql.log_location import ServerUrl

if TYPE_CHECKING:
    from outfall.postgres.recovery.config import PostgresRecoveryConfig

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

    loses = "its host fails"
    correct = "correct its configuration"
    allow = (
        "correct its configuration, or add allow_unsafe=true to the location, if a crash of the server may lose entries"
        " that it has acknowledged"
    )
    access = (
        "correct user and database in the recovery location, give the password (PGPASSWORD, PGPASSFILE, or"
        " ?password=env:NAME), or give the user access (pg_hba.conf, CREATE ROLE, CREATE DATABASE)"
    )

    _config: PostgresRecoveryConfig
    _database: PostgresDatabase

    def __init__(self, config: PostgresRecoveryConfig) -> None:
        """Resolve the secrets on this host. Connects to nothing."""
        dsn, timeout = SecretStr(_dsn(config.server())), parse_duration(config.timeout)
        options = PostgresOptions(
            dsn=dsn, table=f'"{config.schema}"."{config.tables()[0]}"', statement_timeout=timeout,
            retry_deadline=timeout,
        )  # fmt: skip
        super().__init__(config, PostgresDatabase(options))

    def server(self, session: LogSession) -> str:
        ((system, standby, timeline, database),) = session.run(_SERVER)
        if standby:
            raise psycopg.errors.ReadOnlySqlTransaction("the server is a standby, which accepts no writes")
        return f"PostgreSQL system {system} timeline {timeline} database {database}"

    def _quoted(self, table: str) -> str:
        return sql.Identifier(self._config.schema, table).as_string(None)

    def _begin(self, session: LogSession, *, snapshot: bool) -> None:
        # In the first statement of the transaction, because the default of a role may be another one.
        session.run(f"BEGIN ISOLATION LEVEL {'REPEATABLE READ' if snapshot else 'READ COMMITTED'}")
        self._database.limit(session.connection)
        session.run(_SYNCHRONOUS)

    def _why_unsafe(self, session: LogSession) -> str | None:
        ((durable,),) = session.run("SELECT current_setting('fsync')")
        return None if durable == "on" else "its setting fsync is off"

    def _found(self, session: LogSession) -> Collection[str]:
        kinds = dict(session.run(_TABLES, self._config.schema, list(self._tables.values())))
        for name, persistence in kinds.items():
            if persistence != "p":
                raise ConfigurationError(
                    f"the table {name} of the recovery log in {self.name()} is not a permanent table",
                    why="a crash of the server empties an unlogged table",
                    do=f"run ALTER TABLE {self._config.schema}.{name} SET LOGGED",
                )
        return kinds

    def _create(self) -> None:
        schema = self._config.schema
        with self._transaction(snapshot=False) as session:
            session.run("SELECT pg_advisory_xact_lock(%s)", _LOCK)
            if not session.run("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
                session.run(f"CREATE SCHEMA {sql.Identifier(schema).as_string(None)}")
            found = self._found(session)
            for kind, name in self._tables.items():
                if name not in found:
                    session.run(_CREATE[kind])

    def _access(self) -> str:
        return f"{self.access}{self._database.tls_advice()}"

    def _rights(self) -> str:
        tables = ", ".join(f"{self._config.schema}.{name}" for name in self._tables.values())
        return (
            f"grant USAGE on the schema {self._config.schema}, and SELECT, INSERT, UPDATE and DELETE on {tables};"
            " without tables also CREATE on the schema, and without schema CREATE on the database"
        )


def _dsn(url: ServerUrl) -> str:
    """Return the conninfo of a URL with its secrets."""
    secrets: dict[str, Any] = {name: url.secret(name) for name in SECRETS if name in url.parameters}
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
