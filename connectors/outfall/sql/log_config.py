"""A location of recovery logs in a database: what the locations of all databases share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from outfall.recovery.log import RecoveryConfig, RecoveryLog
from outfall.sql.log import SqlLog, log_of, steps_in
from outfall.sql.log_database import LogDatabase
from outfall.sql.log_location import LogOptions, ServerUrl, log_options, server_url, split_options


@dataclass(frozen=True)
class SqlRecoveryConfig(RecoveryConfig):
    """Base of the locations in databases. The other fields of a subclass are options of the log.

    Raises `ConfigurationError` if an argument is invalid. Its text contains no secret.
    """

    dsn: str
    log: str = ""

    _scheme: ClassVar[str]
    _default: ClassVar[LogOptions]
    _secrets: ClassVar[tuple[str, ...]]
    """Parameters of the client that must be references."""
    _parameters: ClassVar[tuple[str, ...]] = ()
    """All parameters that the client has; empty if it checks them itself."""

    def __post_init__(self) -> None:
        options = self._options()
        for name in self._own():
            object.__setattr__(self, name, getattr(options, name))
        url, _ = split_options(self._server(), (), self._parameters)
        object.__setattr__(self, "dsn", str(url))

    def open(self, step_id: str) -> RecoveryLog:
        """Open the log of one step. Connects with the first call of it.

        Raises:
            ConfigurationError: The step id is not valid.
        """
        return SqlLog(self._database(self._server(), self._options()), log_of(self.log, step_id), step_id)

    def open_read_only(self, step_id: str) -> RecoveryLog:
        database = self._database(self._server(), self._options())
        return SqlLog(database, log_of(self.log, step_id), step_id, read_only=True)

    def steps(self) -> Sequence[str]:
        return steps_in(self._database(self._server(), self._options()), self.log)

    def url(self) -> str:
        server = self._server()
        return str(
            ServerUrl(server.scheme, server.place, {**server.parameters, **self._options().query(self._default)})
        )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Create the configuration from a URL with the options of the log in its query.

        Raises `ConfigurationError` if the URL is invalid. Its text shows nothing of it.
        """
        server, own = split_options(server_url(url, cls._scheme, cls._secrets), cls._own(), cls._parameters)
        options = log_options(cls._default, own)
        given: dict[str, Any] = {name: getattr(options, name) for name in cls._own()}
        return cls(str(server), **given)

    @abstractmethod
    def _database(self, server: ServerUrl, options: LogOptions) -> LogDatabase:
        """Return the tables. A process that only resolves a location needs no client, so it is imported here."""

    @classmethod
    def _own(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls) if field.name != "dsn")

    def _server(self) -> ServerUrl:
        return server_url(self.dsn, self._scheme, self._secrets)

    def _options(self) -> LogOptions:
        return log_options(self._default, {name: getattr(self, name) for name in self._own()})
