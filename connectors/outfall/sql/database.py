"""What the database of a sink provides: a connection in a transaction, and transactions with retries."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from outfall.errors import OutfallError, TransientError
from outfall.first_contact import fails_at_once, patience
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.sql.log_location import ServerUrl
from outfall.sql.options import SqlOptions
from outfall.trace_points import reached

T = TypeVar("T")

_retries = RetryLog(logging.getLogger(__name__))

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 15.0


class Result(Protocol):
    """The result of a statement, as in the DB-API."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Session(Protocol):
    """A connection in a transaction."""

    @property
    def any_text(self) -> bool:
        """Whether the server stores every character."""

    def execute(self, statement: str, given: Any = (), /) -> Result:
        """Execute a statement with parameters: a sequence for `%s`, or a mapping for `%(name)s`."""

    def stream(self, query: str, /) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, without holding all of them."""

    def savepoint(self, *, undo: bool = False) -> AbstractContextManager[object]:
        """Return a block whose changes are undone if it raises; with `undo` in any case."""


@dataclass(frozen=True)
class ExpectedTables:
    """Objects that are created together if one of them is missing."""

    names: tuple[str, ...]
    """Their names for locks: tables without schemas, because not every query names the schema."""
    missing: Callable[[Any], Sequence[str]]
    """Returns the statements that create the missing objects."""


class SqlDatabase(ABC):
    """The database of a sink: connections, transactions with retries, translated errors. Picklable."""

    errors: ClassVar[type[Exception]]
    """The base of the driver's errors."""
    locks: ClassVar[str]
    """Where the server shows its sessions and their locks, for advice."""
    options: SqlOptions

    @abstractmethod
    def name(self) -> str:
        """Return host, port and database, without secrets."""

    @abstractmethod
    def server(self) -> str:
        """Return the name of the server, without secrets. All addresses of this machine have the same name."""

    @abstractmethod
    def database_name(self) -> str:
        """Return the name of the database, without the server."""

    @abstractmethod
    def log_url(self) -> ServerUrl | None:
        """Return the location of a recovery log in this database, without secrets; `None` if a URL cannot name it."""

    @abstractmethod
    def transaction(self, *, undo: bool = False) -> AbstractContextManager[Any]:
        """Return a block with a session in a transaction, which is committed at its end; with `undo` rolled back.

        A locked row that is read in it must be the newest, as with READ COMMITTED.
        """

    @abstractmethod
    def making(self, session: Any, names: Sequence[str]) -> AbstractContextManager[object]:
        """Return a block in which no other session creates these objects. Waits only briefly for other locks."""

    @abstractmethod
    def is_transient(self, error: BaseException, *, starting: bool = False) -> bool:
        """Return whether the same transaction may succeed later.

        With `starting` it may not if a running server has rejected the connection.
        """

    @abstractmethod
    def waited_for_lock(self, error: BaseException | None) -> bool:
        """Return whether an error says that another session has held a lock for too long."""

    @abstractmethod
    def reason(self, error: Any) -> str:
        """Return the text of one of the driver's errors, as `log_rows` permits."""

    @abstractmethod
    def remedy(self, error: Any) -> str:
        """Return the advice for an error that persists."""

    @abstractmethod
    def translated(self, doing: str, error: Any, step: str | None = None) -> OutfallError:
        """Return Outfall's error for one of the driver's.

        It is `TransientError` if a retry may succeed, `ValueRefusedError` for a value or a constraint, and
        `TargetError` otherwise, such as for a missing privilege.
        """

    def hides(self, error: Any) -> bool:
        """Return whether an error of the driver may not be shown as a cause, because it may quote a row."""
        return False

    @contextmanager
    def translated_errors(self, doing: str, step: str | None = None) -> Iterator[None]:
        """Translate the driver's errors in a block."""
        try:
            yield
        except self.errors as error:
            raise self.translated(doing, error, step) from None if self.hides(error) else error

    @property
    def table(self) -> str:
        """The table as in the options, for messages."""
        return self.options.table

    def run_raw(self, doing: str, work: Callable[[Any], T], *, starting: bool = False) -> T:
        """Run a transaction, with retries after transient errors, until it has committed.

        `work` must first check what an earlier attempt has done, because the acknowledgment of a COMMIT may be lost.
        The rest is as in `repeated`.
        """
        return self.repeated(doing, lambda: self.run_once(work), starting=starting)

    def repeated(self, doing: str, call: Callable[[], T], *, starting: bool = False) -> T:
        """Repeat a call after transient errors, until it succeeds.

        `doing` is the operation for messages, for example `"publishing to"`. With `starting` it fails at once if a
        running server rejects the connection. Raises `TransientError` if `retry_deadline` has passed, and the driver's
        own error if it is permanent.
        """
        seconds = patience(self.options.retry_deadline.total_seconds())
        try:
            return retried(
                call,
                passes=lambda error: self.is_transient(error, starting=starting),
                deadline=seconds,
                first_wait=_FIRST_PAUSE,
                longest_wait=_LONGEST_PAUSE,
                log=_retries,
                describe=lambda error: Retry(self.name(), f"{doing} {self.table}", self.retry_reason(error)),
            )
        except self.errors as error:
            if not self.is_transient(error, starting=starting):
                raise
            raise TransientError(
                f"{doing} {self.table} in {self.name()} failed{'' if fails_at_once(error) else f' for {seconds:g} s'}",
                why=self.reason(error),
                do=f"{self.remedy(error)}; the next run of the query finishes recorded epochs",
            ) from error

    def retry_reason(self, error: BaseException) -> str:
        """Return the reason for a warning about a retry, without secrets."""
        return self.reason(error) if isinstance(error, self.errors) else str(error)

    def run(self, doing: str, work: Callable[[Any], T], *, step: str | None = None, starting: bool = False) -> T:
        """Run a transaction like `run_raw`, and translate a permanent error."""
        with self.translated_errors(f"{doing} {self.table}", step):
            return self.run_raw(doing, work, starting=starting)

    def run_once(self, work: Callable[[Any], T]) -> T:
        """Run a transaction without retries. Raises the driver's error."""
        with self.transaction() as session:
            result = work(session)
            reached("sql: before COMMIT")
        reached("sql: after COMMIT")
        return result

    def trial(self, work: Callable[[Any], T]) -> T:
        """Run a transaction without retries, and roll it back. Raises the driver's error."""
        with self.transaction(undo=True) as session:
            return work(session)

    def make(self, expected: ExpectedTables, step: str) -> None:
        """Create missing objects, durably. If nothing is missing, nothing is locked.

        Drivers of several queries may call this at once, so `missing` is asked again under a lock. If another session
        holds a lock on them, this waits in short attempts until `retry_deadline`, so that it blocks no other session.
        Raises `TransientError` if the deadline has passed; a permanent error is another `OutfallError`.
        """
        if not self.run("checking", expected.missing, step=step):
            return
        doing = "creating missing tables for"
        try:
            self.run(doing, lambda session: self._create(session, expected), step=step)
        except TransientError as error:
            if not self.waited_for_lock(error.__cause__):
                raise
            raise TransientError(
                f"{doing} {self.table} in {self.name()} timed out waiting for a lock",
                why=f"another session has locked {' or '.join(expected.names)}",
                do=f"find that session in {self.locks}; nothing was changed, and the next run of the query continues;"
                " for longer waits, raise the option retry_deadline",
            ) from error

    def _create(self, session: Any, expected: ExpectedTables) -> None:
        with self.making(session, expected.names):
            for statement in expected.missing(session):
                reached("sql: making")
                session.execute(statement)
