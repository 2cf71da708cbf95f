"""A location of recovery logs in a database: the server and the options of the log, as arguments and as a URL."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, Self

from outfall.errors import ConfigurationError
from outfall.options import parse_duration
from outfall.recovery.log import RecoveryConfig, RecoveryLog, check_step_id
from outfall.sql.log import SqlLog, log_of, steps_in
from outfall.sql.log_database import LogDatabase
from outfall.sql.log_location import ServerUrl, server_url, split_options

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
_LONGEST_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class SqlRecoveryConfig(RecoveryConfig):
    """Base of the locations in databases. All fields but `dsn` are options of the log.

    Raises `ConfigurationError` if an argument is invalid. Its text contains no secret.
    """

    dsn: str
    log: str = ""
    _: KW_ONLY
    prefix: str = "recovery"
    timeout: timedelta | float | str = timedelta(seconds=60)
    allow_unsafe: bool = False

    _scheme: ClassVar[str]
    _secrets: ClassVar[tuple[str, ...]]
    """Parameters of the client that must be references."""
    _parameters: ClassVar[tuple[str, ...]] = ()
    """All parameters that the client has; empty if it checks them itself."""
    _names: ClassVar[tuple[str, ...]] = ("prefix",)
    """The fields that are names in the database."""

    def __post_init__(self) -> None:
        if self.log:
            check_step_id(self.log)
        for name in self._names:
            if not isinstance(value := getattr(self, name), str) or not _IDENTIFIER.fullmatch(value):
                raise ConfigurationError(
                    f"the {name} of the recovery log is {value!r}",
                    do="use up to 40 ASCII letters, digits and '_', not beginning with a digit",
                )
        unsafe = str(self.allow_unsafe).lower()
        if unsafe not in ("true", "false"):
            raise ConfigurationError(
                f"allow_unsafe of the recovery log is {self.allow_unsafe!r}", do="use true or false"
            )
        object.__setattr__(self, "allow_unsafe", unsafe == "true")
        object.__setattr__(self, "timeout", _timeout(self.timeout))
        url, _ = split_options(self.server(), (), self._parameters)
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
        server = self.server()
        return str(ServerUrl(server.scheme, server.place, {**server.parameters, **self._query()}))

    def server(self) -> ServerUrl:
        """Return the server, the database and the parameters of the client."""
        return server_url(self.dsn, self._scheme, self._secrets)

    def tables(self) -> tuple[str, str]:
        """Return the names of the tables of entries and blobs."""
        return f"{self.prefix}_entries", f"{self.prefix}_blobs"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Create the configuration from a URL with the options of the log in its query.

        Raises `ConfigurationError` if the URL is invalid. Its text shows nothing of it.
        """
        names = tuple(field.name for field in fields(cls) if field.name != "dsn")
        server, own = split_options(server_url(url, cls._scheme, cls._secrets), names, cls._parameters)
        given: dict[str, Any] = own
        return cls(str(server), **given)

    @abstractmethod
    def _database(self) -> LogDatabase:
        """Return the tables. A process that only resolves a location needs no client, so it is imported here."""

    def _query(self) -> dict[str, str]:
        """Return the options that differ from the default, as parameters of a URL."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "dsn" and value != field.default:
                seconds = f"{value.total_seconds():g}" if isinstance(value, timedelta) else ""
                found[field.name] = seconds or (str(value).lower() if isinstance(value, bool) else value)
        return found


def _timeout(value: object) -> timedelta:
    try:
        timeout = parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(
            "the timeout of the recovery log is invalid", why=str(error), do="use for example '60 seconds'"
        ) from None
    if timeout > _LONGEST_TIMEOUT:
        raise ConfigurationError(f"the timeout of the recovery log is {timeout}", do="use at most 10 minutes")
    return timeout
