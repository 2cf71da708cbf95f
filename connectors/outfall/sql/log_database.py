"""What a database provides for a recovery log, and the transactions of a log: retries, missing tables, errors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from outfall.errors import OutfallError
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.trace_points import reached

T = TypeVar("T")

_retries = RetryLog(logging.getLogger(__name__))


class LogSession(Protocol):
    """An open transaction."""

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows.

        `{entries}` and `{blobs}` in it are the tables, and each `%s` is a value.
        """


class LogDatabase(Protocol):
    """What a database provides for its logs."""

    deadline: float
    """Seconds for which a transaction is retried."""
    errors: tuple[type[Exception], ...]
    """The errors of the driver."""

    def key(self) -> str:
        """Return the identity of server and tables, without secrets."""

    def name(self) -> str:
        """Return the server and the database for texts, without secrets."""

    def transaction(self, *, snapshot: bool) -> AbstractContextManager[LogSession]:
        """Begin a transaction that is durable when the block has ended, and rolled back if it fails.

        With `snapshot`, all its reads see one moment, except those that lock rows. Otherwise, each statement sees what
        is committed when it begins (READ COMMITTED).
        """

    def server(self, session: LogSession) -> str:
        """Return the server's identity and timeline. Raises one of `errors` that may pass if it takes no writes."""

    def prepare(self) -> None:
        """Create the tables unless they exist, and check that they and the server keep what is committed.

        Raises `ConfigurationError` if they do not.
        """

    def passes(self, error: BaseException) -> bool:
        """Return whether the same transaction may succeed later."""

    def is_taken(self, error: Exception) -> bool:
        """Return whether a primary key exists already."""

    def is_absent(self, error: Exception) -> bool:
        """Return whether a table, its schema or its database does not exist."""

    def translated(self, error: Exception, doing: str, step_id: str | None) -> OutfallError:
        """Return Outfall's error for one of the driver's."""

    def reason(self, error: BaseException) -> str:
        """Return the reason for a warning about a retry, without secrets."""


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
