"""The tables of a recovery log in a database, and its transactions: retries, missing tables, errors."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.options import parse_duration
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.sql.database import Means, SqlDatabase
from outfall.trace_points import reached

if TYPE_CHECKING:
    from outfall.sql.log_config import SqlRecoveryConfig

T = TypeVar("T")

_log = logging.getLogger(__name__)
_retries = RetryLog(_log)


class LogSession:
    """A connection of the driver, usually in an open transaction."""

    def __init__(self, connection: Any, names: Mapping[str, str]) -> None:
        self.connection = connection
        self._names = names

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows.

        `{entries}` and `{blobs}` in it are the tables, and each `%s` is a value.
        """
        with self.connection.cursor() as cursor:
            cursor.execute(statement.format(**self._names), values or None)
            return list(cursor.fetchall()) if cursor.description else []


class TakenError(Exception):
    """A primary key exists already."""


class OvertakenError(Exception):
    """A row was removed between two statements of a snapshot. The transaction begins again."""


PREPARED: set[str] = set()
"""The keys of databases whose tables this process has created or checked. Checked once per process, because settings of
a server change rarely, and each check is one more request."""


class LogDatabase(ABC):
    """The two tables of one location. What has no body here is what a database adds to its port for its logs."""

    loses: ClassVar[str]
    """When a server with unsafe settings loses entries, for a warning."""
    correct: ClassVar[str]
    """How to correct the settings, for a warning."""
    allow: ClassVar[str]
    """How to correct or to allow them, for an error."""
    access: ClassVar[str]
    """What to correct if the server rejects the connection."""

    def __init__(self, config: SqlRecoveryConfig, database: SqlDatabase) -> None:
        self._config = config
        self._tables = dict(zip(("entries", "blobs"), config.tables(), strict=True))
        self._database = database
        self._answered = False
        """Whether the server has accepted a connection: a rejection may pass only then."""

    def key(self) -> str:
        """Return the identity of server and tables, without secrets."""
        return f"{self._config.server()} {self._quoted(self._tables['entries'])}"

    def name(self) -> str:
        """Return the server and the database for texts, without secrets."""
        return self._database.name()

    def reading(self, doing: str, work: Callable[[LogSession], T], empty: T, step_id: str | None) -> T:
        """Run work that creates nothing, on one moment of the tables; return `empty` without tables.

        Raises the database's error, translated.
        """
        try:
            return self._repeated(doing, work, snapshot=True)
        except self._database.errors as error:
            if self._is_absent(error):
                return empty
            raise self._translated(error, doing, step_id) from error

    def writing(self, doing: str, work: Callable[[LogSession], T], step_id: str | None) -> T:
        """Run work on tables that are created before, if they are missing.

        Raises `TakenError` if a primary key exists already, and otherwise the database's error, translated.
        """
        try:
            self._prepare()
            try:
                return self._repeated(doing, work, snapshot=False)
            except self._database.errors as error:
                if not self._is_absent(error):
                    raise
            # They were dropped in the meantime.
            PREPARED.discard(self.key())
            self._prepare()
            return self._repeated(doing, work, snapshot=False)
        except self._database.errors as error:
            if Means.TAKEN in self._database.means(error):
                raise TakenError from error
            raise self._translated(error, doing, step_id) from error

    def _repeated(self, doing: str, work: Callable[[LogSession], T], *, snapshot: bool) -> T:
        """Run work in a transaction, and repeat it after errors that may pass, until the deadline."""

        def once() -> T:
            with self._transaction(snapshot=snapshot) as session:
                result = work(session)
                reached("log: before commit")
            reached("log: committed")
            return result

        def passes(error: BaseException) -> bool:
            starting = not self._answered
            return isinstance(error, OvertakenError) or self._database.is_transient(error, starting=starting)

        return retried(
            once,
            passes=passes,
            deadline=parse_duration(self._config.timeout).total_seconds(),
            first_wait=0.1,
            longest_wait=5.0,
            log=_retries,
            describe=lambda error: Retry(self.name(), doing, self._database.retry_reason(error)),
        )

    @contextmanager
    def _transaction(self, *, snapshot: bool) -> Iterator[LogSession]:
        """Begin a transaction that is durable when the block has ended, and rolled back if it fails.

        With `snapshot`, all its reads see one moment, except those that lock rows. Otherwise, each statement sees what
        is committed when it begins (READ COMMITTED).
        """
        with self._session() as session:
            self._begin(session, snapshot=snapshot)
            yield session
            session.run("COMMIT")

    def _prepare(self) -> None:
        """Create the tables unless they exist, and check that they and the server keep what is committed.

        Raises `ConfigurationError` if they do not.
        """
        if self.key() in PREPARED:
            return
        with self._transaction(snapshot=False) as session:
            unsafe = self._why_unsafe(session)
            if unsafe and not self._config.allow_unsafe:
                raise ConfigurationError(
                    f"the server {self.name()} cannot keep a recovery log",
                    why=f"{unsafe}, so it loses acknowledged entries if {self.loses}",
                    do=self.allow,
                )
            found = self._found(session)
        if unsafe:
            text = "The server %s loses acknowledged entries of the recovery log if %s: %s. What to do: %s."
            _log.warning(text, self.name(), self.loses, unsafe, self.correct)
        if len(found) < len(self._tables):
            self._create()
        PREPARED.add(self.key())

    def _access(self) -> str:
        """Return what to correct if the server rejects the connection."""
        return self.access

    def _is_absent(self, error: Exception) -> bool:
        """Return whether the tables do not exist, and the database does."""
        means = self._database.means(error)
        return Means.ABSENT in means and Means.REFUSED not in means

    def _translated(self, error: Exception, doing: str, step_id: str | None) -> OutfallError:
        """Return Outfall's error for one of the driver's."""
        kind, do = self._meaning(error)
        why = self._database.said(error, full=False)
        return kind(f"{doing} in {self.name()} failed", step=step_id, why=why, do=do)

    def _meaning(self, error: Exception) -> tuple[type[OutfallError], str]:
        database, means = self._database, self._database.means(error)
        if Means.REFUSED in means:
            return ConfigurationError, self._access()
        if Means.PASSES in means:
            do = database.remedy(error) or f"check why the server does not respond{database.tls_advice()}"
            return TransientError, f"{do}; the next run continues from the recorded state"
        if Means.DENIED in means:
            return ConfigurationError, self._rights()
        do = database.remedy(error) or "correct the tables, the server, or the recovery location"
        return ConfigurationError, do

    @abstractmethod
    def server(self, session: LogSession) -> str:
        """Return the server's identity and timeline. Raises one of `errors` that may pass if it takes no writes."""

    @contextmanager
    def _session(self) -> Iterator[LogSession]:
        """Lend a connection without a transaction."""
        with self._database.connection() as connection:
            self._answered = True
            yield LogSession(connection, {kind: self._quoted(name) for kind, name in self._tables.items()})

    @abstractmethod
    def _quoted(self, table: str) -> str:
        """Return the name of a table in statements."""

    @abstractmethod
    def _begin(self, session: LogSession, *, snapshot: bool) -> None:
        """Begin what `transaction` promises."""

    @abstractmethod
    def _why_unsafe(self, session: LogSession) -> str | None:
        """Return the setting by which the server loses what it has acknowledged; `None` if it does not."""

    @abstractmethod
    def _found(self, session: LogSession) -> Collection[str]:
        """Return which of the tables exist. Raises `ConfigurationError` if one does not keep what is committed."""

    @abstractmethod
    def _create(self) -> None:
        """Create the tables that are missing."""

    @abstractmethod
    def _rights(self) -> str:
        """Return how to grant the privileges that the log needs."""
