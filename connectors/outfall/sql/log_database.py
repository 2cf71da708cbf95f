"""The tables of a recovery log in a database, and the transactions of a log: retries, missing tables, errors."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from outfall.errors import ConfigurationError, OutfallError, TransientError
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.sql.log_location import LogOptions, ServerUrl
from outfall.trace_points import reached

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


class _Server(Protocol):
    def name(self) -> str: ...

    def connection(self) -> AbstractContextManager[Any]: ...


class LogDatabase(ABC):
    """The two tables of one location. What has no body here is what a database provides for its logs."""

    errors: ClassVar[type[Exception]]
    """The base of the driver's errors."""
    loses: ClassVar[str]
    """When a server with unsafe settings loses entries, for a warning."""
    correct: ClassVar[str]
    """How to correct the settings, for a warning."""
    allow: ClassVar[str]
    """How to correct or to allow them, for an error."""

    def __init__(self, url: ServerUrl, options: LogOptions, server: _Server) -> None:
        self.deadline = options.timeout.total_seconds()
        """Seconds for which a transaction is retried."""
        self._url = url
        self._options = options
        self._tables = dict(zip(("entries", "blobs"), options.tables(), strict=True))
        self._server = server

    def key(self) -> str:
        """Return the identity of server and tables, without secrets."""
        return f"{self._url} {self._options.schema} {self._options.prefix}"

    def name(self) -> str:
        """Return the server and the database for texts, without secrets."""
        return self._server.name()

    @contextmanager
    def transaction(self, *, snapshot: bool) -> Iterator[LogSession]:
        """Begin a transaction that is durable when the block has ended, and rolled back if it fails.

        With `snapshot`, all its reads see one moment, except those that lock rows. Otherwise, each statement sees what
        is committed when it begins (READ COMMITTED).
        """
        with self._session() as session:
            self._begin(session, snapshot=snapshot)
            yield session
            session.run("COMMIT")

    def prepare(self) -> None:
        """Create the tables unless they exist, and check that they and the server keep what is committed.

        Raises `ConfigurationError` if they do not.
        """
        with self.transaction(snapshot=False) as session:
            unsafe = self._why_unsafe(session)
            if unsafe and not self._options.allow_unsafe:
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

    def translated(self, error: Exception, doing: str, step_id: str | None) -> OutfallError:
        """Return Outfall's error for one of the driver's."""
        kind, do = self._meaning(error)
        do += "; the next run continues from the recorded state" if kind is TransientError else ""
        return kind(f"{doing} in {self.name()} failed", step=step_id, why=self._said(error), do=do)

    def reason(self, error: BaseException) -> str:
        """Return the reason for a warning about a retry, without secrets."""
        return self._said(error)

    @abstractmethod
    def server(self, session: LogSession) -> str:
        """Return the server's identity and timeline. Raises one of `errors` that may pass if it takes no writes."""

    @abstractmethod
    def passes(self, error: BaseException) -> bool:
        """Return whether the same transaction may succeed later."""

    @abstractmethod
    def is_taken(self, error: Exception) -> bool:
        """Return whether a primary key exists already."""

    @abstractmethod
    def is_absent(self, error: Exception) -> bool:
        """Return whether a table, its schema or its database does not exist."""

    @contextmanager
    def _session(self) -> Iterator[LogSession]:
        """Lend a connection without a transaction."""
        with self._server.connection() as connection:
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
    def _said(self, error: Any) -> str:
        """Return what the server said, without secrets."""

    @abstractmethod
    def _meaning(self, error: Any) -> tuple[type[OutfallError], str]:
        """Return the class and the remedy of one of the driver's errors."""


class TakenError(Exception):
    """A primary key exists already."""


class OvertakenError(Exception):
    """A row was removed between two statements of a snapshot. The transaction begins again."""


class LogTransactions:
    """The transactions of one log. Each is repeated after errors that may pass, until the deadline of the database."""

    def __init__(self, database: LogDatabase, step_id: str | None) -> None:
        self._database = database
        self._step_id = step_id

    def reading(self, doing: str, work: Callable[[LogSession], T], empty: T) -> T:
        """Run work that creates nothing, on one moment of the tables; return `empty` without tables.

        Raises the database's error, translated.
        """
        try:
            return self._run(doing, work, snapshot=True)
        except self._database.errors as error:
            if self._database.is_absent(error):
                return empty
            raise self._database.translated(error, doing, self._step_id) from error

    def writing(self, doing: str, work: Callable[[LogSession], T]) -> T:
        """Run work on tables that are created before, if they are missing.

        Raises `TakenError` if a primary key exists already, and otherwise the database's error, translated.
        """
        try:
            PREPARED.once(self._database)
            try:
                return self._run(doing, work, snapshot=False)
            except self._database.errors as error:
                if not self._database.is_absent(error):
                    raise
            # They were dropped in the meantime.
            PREPARED.forget(self._database)
            PREPARED.once(self._database)
            return self._run(doing, work, snapshot=False)
        except self._database.errors as error:
            if self._database.is_taken(error):
                raise TakenError from error
            raise self._database.translated(error, doing, self._step_id) from error

    def _run(self, doing: str, work: Callable[[LogSession], T], *, snapshot: bool) -> T:
        def once() -> T:
            with self._database.transaction(snapshot=snapshot) as session:
                result = work(session)
                reached("log: before commit")
            reached("log: committed")
            return result

        return retried(
            once,
            passes=lambda error: isinstance(error, OvertakenError) or self._database.passes(error),
            deadline=self._database.deadline,
            first_wait=0.1,
            longest_wait=5.0,
            log=_retries,
            describe=lambda error: Retry(self._database.name(), doing, self._database.reason(error)),
        )


class _Prepared:
    """The databases whose tables this process has created or checked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()

    def once(self, database: LogDatabase) -> None:
        """Prepare a database, unless this process has done so."""
        key = database.key()
        with self._lock:
            if key in self._keys:
                return
        database.prepare()
        with self._lock:
            self._keys.add(key)

    def forget(self, database: LogDatabase) -> None:
        """Prepare a database again at the next write."""
        with self._lock:
            self._keys.discard(database.key())


PREPARED = _Prepared()
"""Checked once per process, because settings of a server change rarely, and each check is one more request."""
