"""Recovery data in PostgreSQL: its location, as arguments and as a URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outfall.sql.log_config import SqlRecoveryConfig
from outfall.sql.log_database import LogDatabase


@dataclass(frozen=True)
class PostgresRecoveryConfig(SqlRecoveryConfig):
    """Two tables, `<schema>.<prefix>_entries` and `<schema>.<prefix>_blobs`, created on the first append.

    The database may be that of the sink, or any other. Needs `pip install 'outfall[postgres]'`.

    Args:
        dsn: A URL, `postgresql://user@host:5432/database`, with libpq's parameters as its query. Without `sslmode`, the
            server's certificate is verified, except for local hosts and service files. It contains no password: libpq
            reads `PGPASSWORD`, `PGPASSFILE` and `~/.pgpass`, and `password=env:NAME` and `password=file:PATH` are
            resolved on the host that connects.
        log: A name for the logs of one query. Queries whose steps have the same id, such as the default `sink`, need
            one each.
        prefix: The prefix of the tables' names.
        timeout: How long a call is retried after errors that may pass; at most 10 minutes.
        allow_unsafe: Whether to use a server with `fsync=off`, which loses acknowledged entries if its host fails.
        schema: The schema of the tables. It is created if it is missing.

    Raises:
        ConfigurationError: An argument is invalid. The text contains no secret.
    """

    schema: str = "outfall"

    _scheme: ClassVar[str] = "postgresql"
    _secrets: ClassVar[tuple[str, ...]] = ("password", "sslpassword")
    _names: ClassVar[tuple[str, ...]] = ("schema", "prefix")

    def _database(self) -> LogDatabase:
        from outfall.postgres.recovery.database import PostgresLogDatabase

        return PostgresLogDatabase(self)


def recovery_from_url(url: str) -> PostgresRecoveryConfig:
    """Create the configuration from a URL, `postgresql://user@host/database`, with the options of the log in its query.

    Raises `ConfigurationError` if the URL is invalid. Its text shows nothing of it.
    """
    scheme, _, rest = url.partition("://")
    return PostgresRecoveryConfig.from_url(f"postgresql://{rest}" if scheme == "postgres" else url)
