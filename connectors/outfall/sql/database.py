"""The port to a database: where it is, connections, what errors mean; and transactions with retries made of that."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, ClassVar, Protocol, TypeVar

from outfall.errors import OutfallError, TargetError, TransientError, ValueRefusedError
from outfall.first_contact import fails_at_once, patience
from outfall.idle import Idle
from outfall.retry_log import Retry, RetryLog
from outfall.retry_loop import retried
from outfall.sql.log_location import ServerUrl, is_here
from outfall.sql.options import SqlOptions
from outfall.sql.session import Statement
from outfall.trace_points import reached

T = TypeVar("T")

_retries = RetryLog(logging.getLogger(__name__))

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 15.0

NO_ROWS_LOST = "if the query has failed, start it again: no rows are lost"


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

    def each(self, statements: Sequence[Statement], /) -> Sequence[Result]:
        """Execute statements in one round trip, and return their results."""

    def stream(self, query: str, /) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, without holding all of them."""

    def later(self, statement: str, given: Any = (), /) -> None:
        """Execute a statement before the next one, or before COMMIT, which then raise its error."""

    def look(self, query: str, given: Any, table: Hashable, /) -> list[tuple[Any, ...]]:
        """Return the rows of a query of the catalogue about a table, which the connection may know already."""

    def look_ahead(
        self,
        query: str,
        given: Callable[[Sequence[Any]], Any],
        tables: Sequence[Hashable],
        /,
        several: Callable[[Sequence[Any]], Statement] | None = None,
    ) -> None:
        """Ask a query of the catalogue about several tables at once: see `BatchingSession.look_ahead`."""

    def look_each(self, queries: Sequence[Statement], tables: Sequence[Hashable], /) -> None:
        """Ask queries of the catalogue, one about each table: see `BatchingSession.look_each`."""

    def hold(self, statements: Sequence[Statement], /) -> None:
        """Execute statements that lock tables, and then find out whether the catalogue is still the same."""

    def forget(self) -> None:
        """Forget the catalogue, because this session changes it."""

    def savepoint(self, *, undo: bool = False) -> AbstractContextManager[object]:
        """Return a block whose changes are undone if it raises; with `undo` in any case."""


@dataclass(frozen=True)
class ExpectedTables:
    """Objects that are created together if one of them is missing."""

    names: tuple[str, ...]
    """Their names for locks: tables without schemas, because not every query names the schema."""
    missing: Callable[[Any], Sequence[str]]
    """Returns the statements that create the missing objects."""


class Means(Flag):
    """What an error of a driver means for what was tried. Several may apply, or none."""

    PASSES = auto()
    """The same transaction may succeed later."""
    REFUSED = auto()
    """A running server has rejected the connection."""
    ROW = auto()
    """A value, a constraint or a trigger rejects a row."""
    QUOTES = auto()
    """The message, its detail or its context may quote a row."""
    TAKEN = auto()
    """The key exists already."""
    MISMATCH = auto()
    """The table may be missing, or have other columns than those of the statement."""
    ABSENT = auto()
    """A table, its schema or its database is missing."""
    DENIED = auto()
    """A privilege is missing."""
    LOCKED = auto()
    """Another session has held a lock for too long."""


class CanBeLent(Protocol):
    """A connection that is kept for the next use."""

    def is_busy(self) -> bool:
        """Return whether it is closed, or in a transaction."""

    def shut(self) -> None:
        """Close it, whether or not the server responds. Raises nothing."""


C = TypeVar("C", bound=CanBeLent)


@contextmanager
def lent(idle: Idle[C], key: str, usable: Callable[[C], bool], connect: Callable[[], C]) -> Iterator[C]:
    """Lend an idle connection of this process, or a new one. After an error, or in a transaction, it is closed.

    `key` contains all that the connection depends on, and may contain a secret. Raises what `connect` does.
    """
    connection = idle.take(key, {}, usable) or connect()
    try:
        yield connection
    except BaseException:
        connection.shut()
        raise
    if connection.is_busy():
        connection.shut()
    else:
        idle.keep(key, {}, connection)


class SqlDatabase(ABC):
    """The port to a database, for the rows of a sink and for a recovery log. Picklable, and has no connection itself.

    What has no body here is what a database provides: where it is, connections and transactions, and what the errors of
    its driver mean. Retries, and the errors of Outfall, are made of that.
    """

    errors: ClassVar[type[Exception]]
    """The base of the driver's errors."""
    locks: ClassVar[str]
    """Where the server shows its sessions and their locks, for advice."""
    sink: ClassVar[str]
    """The name of the sink, for advice."""
    options: SqlOptions

    # --- where it is

    @abstractmethod
    def address(self) -> tuple[str, str]:
        """Return host and port. The host is empty for one of this machine that has no name."""

    @abstractmethod
    def database_name(self) -> str:
        """Return the name of the database, without the server."""

    def log_url(self) -> ServerUrl | None:
        """Return the location of a recovery log in this database, without secrets; `None` if there is none."""
        return None

    def name(self) -> str:
        """Return host, port and database, without secrets."""
        host, port = self.address()
        return f"{host or 'localhost'}:{port}/{self.database_name()}"

    def server(self) -> str:
        """Return the name of the server, without secrets. All addresses of this machine have the same name."""
        host, port = self.address()
        return f"{'localhost' if is_here(host) else host.lower()}:{port}"

    # --- connections

    @abstractmethod
    def connection(self) -> AbstractContextManager[Any]:
        """Lend a connection of the driver without a transaction: see `lent`. Raises the driver's error."""

    @abstractmethod
    def transaction(
        self, *, undo: bool = False, foreseen: Sequence[Statement] = (), looks: bool = False
    ) -> AbstractContextManager[Any]:
        """Return a block with a session in a transaction, which is committed at its end; with `undo` rolled back.

        A locked row that is read in it must be the newest, as with READ COMMITTED. `foreseen` and `looks` are as in
        `BatchingSession.begin`. A kept connection whose server no longer answers to that is replaced.
        """

    def task(self, foreseen: Sequence[Statement] = ()) -> AbstractContextManager[Any]:
        """Lend a session in a transaction that lasts as long as its task has rows. Without a COMMIT it leaves nothing.

        Only a wait for a lock is limited: a stopped attempt may hold the lock. `foreseen` is as in `transaction`.
        Needed for delivery by parts and for `table_column` only.
        """
        raise NotImplementedError

    def limit(self, session: Any) -> None:
        """Give the transaction of `task` the limits of `transaction`, before it locks rows for which others wait."""

    @abstractmethod
    def making(self, session: Any, names: Sequence[str]) -> AbstractContextManager[object]:
        """Return a block in which no other session creates these objects. Waits only briefly for other locks."""

    # --- errors

    @abstractmethod
    def means(self, error: BaseException) -> Means:
        """Return what an error means; nothing if it is not the driver's."""

    @abstractmethod
    def said(self, error: Any, *, full: bool) -> str:
        """Return what the server or the driver said with the error's code; no value of a row unless `full`."""

    def remedy(self, error: Any) -> str | None:
        """Return what to do about an error of the server's resources, limits or settings; `None` if nothing special."""
        return None

    @abstractmethod
    def unavailable(self) -> str:
        """Return what to check if the server does not respond, or has no connection left."""

    @abstractmethod
    def access(self, error: Any) -> str:
        """Return what to do if the server rejects the connection."""

    def tls_advice(self) -> str:
        """Return advice about TLS, after other advice, if the certificate is verified; otherwise an empty string."""
        return ""

    def again(self, error: Any) -> str:
        """Return what to do about an error that may pass, of a query that has failed."""
        return f"{self.remedy(error) or self.unavailable()}; {NO_ROWS_LOST}"

    def is_transient(self, error: BaseException, *, starting: bool = False) -> bool:
        """Return whether the same transaction may succeed later.

        With `starting` it may not if a running server has rejected the connection.
        """
        means = self.means(error)
        return Means.PASSES in means and not (starting and Means.REFUSED in means)

    def retry_reason(self, error: BaseException) -> str:
        """Return the reason for a warning about a retry, without secrets."""
        if isinstance(error, self.errors):
            return self.said(error, full=self._full)
        return str(error) or type(error).__name__

    def translated(self, doing: str, error: Any, step: str | None = None) -> OutfallError:
        """Return Outfall's error for one of the driver's.

        It is `TransientError` if a retry may succeed, `ValueRefusedError` for a value or a constraint, and
        `TargetError` otherwise, such as for a missing privilege.
        """
        kind, do = self._meaning(error)
        why = self.said(error, full=self._full)
        if self._hides(error):
            # A traceback shows the text of the cause too.
            error.args = (*error.args[:-1], why)
        return kind(f"{doing} in {self.name()} failed", step=step, why=why, do=do)

    def _meaning(self, error: Any) -> tuple[type[OutfallError], str]:
        means = self.means(error)
        if Means.PASSES in means:
            return TransientError, self.again(error)
        if Means.ROW in means:
            return ValueRefusedError, "correct or leave out the row, or change the table"
        if Means.DENIED in means:
            by_dba = f"{self.sink}.ddl() prints SQL that a DBA can run beforehand"
            return TargetError, f"grant the privilege to the sink's user; {by_dba}"
        if Means.REFUSED in means:
            return TargetError, self.access(error)
        return TargetError, self.remedy(error) or "correct the table, the options or the server"

    @property
    def _full(self) -> bool:
        return self.options.log_rows == "full"

    def _hides(self, error: Any) -> bool:
        """Return whether an error of the driver may not be shown as a cause, because it may quote a row."""
        return Means.QUOTES in self.means(error) and not self._full

    @contextmanager
    def translated_errors(self, doing: str, step: str | None = None) -> Iterator[None]:
        """Translate the driver's errors in a block."""
        try:
            yield
        except self.errors as error:
            raise self.translated(doing, error, step) from None if self._hides(error) else error

    # --- transactions with retries

    @property
    def table(self) -> str:
        """The table as in the options, for messages."""
        return self.options.described

    def run_raw(
        self,
        doing: str,
        work: Callable[[Any], T],
        *,
        starting: bool = False,
        foreseen: Sequence[Statement] = (),
        looks: bool = False,
    ) -> T:
        """Run a transaction, with retries after transient errors, until it has committed.

        `work` must first check what an earlier attempt has done, because the acknowledgment of a COMMIT may be lost.
        `foreseen` and `looks` are as in `transaction`, and the rest as in `repeated`.
        """
        return self.repeated(doing, lambda: self.run_once(work, foreseen, looks=looks), starting=starting)

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
                why=self.said(error, full=self._full),
                do=f"{self.remedy(error) or self.unavailable()}; the next run of the query finishes recorded epochs",
            ) from error

    def run(
        self,
        doing: str,
        work: Callable[[Any], T],
        *,
        step: str | None = None,
        starting: bool = False,
        foreseen: Sequence[Statement] = (),
        looks: bool = False,
    ) -> T:
        """Run a transaction like `run_raw`, and translate a permanent error."""
        with self.translated_errors(f"{doing} {self.table}", step):
            return self.run_raw(doing, work, starting=starting, foreseen=foreseen, looks=looks)

    def run_once(self, work: Callable[[Any], T], foreseen: Sequence[Statement] = (), *, looks: bool = False) -> T:
        """Run a transaction without retries. Raises the driver's error."""
        with self.transaction(foreseen=foreseen, looks=looks) as session:
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
            if error.__cause__ is None or Means.LOCKED not in self.means(error.__cause__):
                raise
            raise TransientError(
                f"{doing} {self.table} in {self.name()} timed out waiting for a lock",
                why=f"another session has locked {' or '.join(expected.names)}",
                do=f"find that session in {self.locks}; nothing was changed, and the next run of the query continues;"
                " for longer waits, raise the option retry_deadline",
            ) from error

    def _create(self, session: Any, expected: ExpectedTables) -> None:
        with self.making(session, expected.names):
            session.forget()
            for statement in expected.missing(session):
                reached("sql: making")
                session.execute(statement)
            session.forget()
