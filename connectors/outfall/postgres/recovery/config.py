"""Recovery data in PostgreSQL: its location, as arguments and as a URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.sql.log import SqlLog, log_of, steps_in
from outfall.sql.log_location import LogOptions, ServerUrl, log_options, server_url, split_options

if TYPE_CHECKING:
    from outfall.postgres.recovery.database import PostgresLogDatabase

_SCHEME = "postgresql"
_DEFAULT = LogOptions(schema="outfall")
_OWN = ("log", "schema", "prefix", "timeout", "allow_unsafe")
_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True)
class PostgresRecoveryConfig(RecoveryConfig):
    """Two tables, `<schema>.<prefix>_entries` and `<schema>.<prefix>_blobs`, created on the first append.

    The database may be that of the sink, or any other. Needs `pip install 'outfall[postgres]'`.

    Args:
        dsn: A URL, `postgresql://user@host:5432/database`, with libpq's parameters as its query. Without `sslmode`, the
            server's certificate is verified, except for local hosts and service files. It contains no password: libpq
            reads `PGPASSWORD`, `PGPASSFILE` and `~/.pgpass`, and `password=env:NAME` and `password=file:PATH` are
            resolved on the host that connects.
        log: A name for the logs of one query. Queries whose steps have the same id, such as the default `sink`, need
            one each.
        schema: The schema of the tables. It is created if it is missing.
        prefix: The prefix of the tables' names.
        timeout: How long a call is retried after errors that may pass; at most 10 minutes.
        allow_unsafe: Whether to use a server with `fsync=off`, which loses acknowledged entries if its host fails.

    Raises:
        ConfigurationError: An argument is invalid. The text contains no secret.
    """

    dsn: str
    log: str = ""
    schema: str = _DEFAULT.schema
    prefix: str = _DEFAULT.prefix
    timeout: timedelta | float | str = _DEFAULT.timeout
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _OWN}
        options = log_options(_DEFAULT, given)
        for name in _OWN:
            object.__setattr__(self, name, getattr(options, name))
        url = server_url(self.dsn, _SCHEME, _SECRETS)
        object.__setattr__(self, "dsn", str(url))

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step. Connects with the first call of it.

        Raises:
            ConfigurationError: The step id is not valid.
        """
        return SqlLog(self._database(), log_of(self.log, step_id), step_id)

    def open_read_only(self, step_id: str) -> RecoveryLog:
        return SqlLog(self._database(), log_of(self.log, step_id), step_id, read_only=True)

    def steps(self) -> Sequence[str]:
        return steps_in(self._database(), self.log)

    def url(self) -> str:
        server = server_url(self.dsn, _SCHEME, _SECRETS)
        return str(ServerUrl(server.scheme, server.place, {**server.parameters, **self._options().query(_DEFAULT)}))

    def _options(self) -> LogOptions:
        return log_options(_DEFAULT, {name: getattr(self, name) for name in _OWN})

    def _database(self) -> PostgresLogDatabase:
        from outfall.postgres.recovery.database import PostgresLogDatabase

        return PostgresLogDatabase(server_url(self.dsn, _SCHEME, _SECRETS), self._options())


def recovery_from_url(url: str) -> PostgresRecoveryConfig:
    """Create the configuration from a URL, `postgresql://user@host/database`, with the options of the log in its query.

    Raises `ConfigurationError` if the URL is invalid. Its text shows nothing of it.
    """
    scheme, _, rest = url.partition("://")
    full = f"{_SCHEME}://{rest}" if scheme == "postgres" else url
    server, own = split_options(server_url(full, _SCHEME, _SECRETS), _OWN)
    options = log_options(_DEFAULT, own)
    return PostgresRecoveryConfig(str(server), **{name: getattr(options, name) for name in _OWN})
