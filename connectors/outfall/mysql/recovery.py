"""Recovery data in MySQL or MariaDB: its location, as arguments and as a URL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from outfall.mysql.connection import PARAMETERS
from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.sql.log import SqlLog, log_of, steps_in
from outfall.sql.log_location import LogOptions, ServerUrl, log_options, server_url, split_options

if TYPE_CHECKING:
    from outfall.mysql.database import MySQLLogDatabase

_SCHEME = "mysql"
_DEFAULT = LogOptions()
_OWN = ("log", "prefix", "timeout", "allow_unsafe")
_SECRETS = ("password",)


@dataclass(frozen=True)
class MySQLRecoveryConfig(RecoveryConfig):
    """Two tables, `<prefix>_entries` and `<prefix>_blobs`, created on the first append. For MySQL 8 and MariaDB 10.6.

    The database exists; it may be that of a sink. Needs `pip install 'outfall[mysql]'`.

    Args:
        dsn: A URL, `mysql://user@host:3306/database`, with the parameters `tls`, `tls_ca` and `password` as its query.
            Without `tls`, the server's certificate is verified, except for local hosts. The URL contains no password:
            `password=env:NAME` and `password=file:PATH` are resolved on the host that connects, which otherwise reads
            `MYSQL_PWD`, and then `~/.my.cnf`.
        log: A name for the logs of one query. Queries whose steps have the same id, such as the default `sink`, need
            one each.
        prefix: The prefix of the tables' names.
        timeout: How long a call is retried after errors that may pass; at most 10 minutes.
        allow_unsafe: Whether to use a server with `innodb_flush_log_at_trx_commit` other than 1, which loses
            acknowledged entries if it or its host fails.

    Raises:
        ConfigurationError: An argument is invalid. The text contains no secret.
    """

    dsn: str
    log: str = ""
    prefix: str = _DEFAULT.prefix
    timeout: timedelta | float | str = _DEFAULT.timeout
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        options = log_options(_DEFAULT, {name: getattr(self, name) for name in _OWN})
        for name in _OWN:
            object.__setattr__(self, name, getattr(options, name))
        url, _ = split_options(server_url(self.dsn, _SCHEME, _SECRETS), (), PARAMETERS)
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

    def _database(self) -> MySQLLogDatabase:
        # Imported here: a process that only resolves a location needs no client.
        from outfall.mysql.database import MySQLLogDatabase

        return MySQLLogDatabase(server_url(self.dsn, _SCHEME, _SECRETS), self._options())


def recovery_from_url(url: str) -> MySQLRecoveryConfig:
    """Create the configuration from a URL, `mysql://user@host/database`, with the options of the log in its query.

    Raises `ConfigurationError` if the URL is invalid. Its text shows nothing of it.
    """
    server, own = split_options(server_url(url, _SCHEME, _SECRETS), _OWN, PARAMETERS)
    options = log_options(_DEFAULT, own)
    return MySQLRecoveryConfig(str(server), **{name: getattr(options, name) for name in _OWN})
