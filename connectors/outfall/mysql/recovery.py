"""Recovery data in MySQL or MariaDB: its location, as arguments and as a URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from outfall.mysql.options import PARAMETERS
from outfall.sql.log_config import SqlRecoveryConfig
from outfall.sql.log_database import LogDatabase


@dataclass(frozen=True)
class MySQLRecoveryConfig(SqlRecoveryConfig):
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

    _scheme: ClassVar[str] = "mysql"
    _secrets: ClassVar[tuple[str, ...]] = ("password",)
    _parameters: ClassVar[tuple[str, ...]] = PARAMETERS

    def _database(self) -> LogDatabase:
        from outfall.mysql.log_database import MySQLLogDatabase

        return MySQLLogDatabase(self)


def recovery_from_url(url: str) -> MySQLRecoveryConfig:
    """Create the configuration from a URL, `mysql://user@host/database`, with the options of the log in its query.

    Raises `ConfigurationError` if the URL is invalid. Its text shows nothing of it.
    """
    return MySQLRecoveryConfig.from_url(url)
