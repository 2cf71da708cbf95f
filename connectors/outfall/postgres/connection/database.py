"""Connections, one per process and target, kept between epochs; and transactions with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from outfall.idle import Idle
from outfall.options import resolve_secret
from outfall.postgres.connection.dsn import Dsn
from outfall.postgres.connection.errors import describe, means, remedy
from outfall.postgres.connection.refusal import refusal
from outfall.postgres.connection.versions import versions_of
from outfall.postgres.options import PostgresOptions
from outfall.sql.database import NO_ROWS_LOST, Means, SqlDatabase, lent
from outfall.sql.log_location import ServerUrl
from outfall.sql.session import BatchingSession, Fetched, Statement

T = TypeVar("T")


_LONGEST_SILENCE = 60.0
_SLACK = 60.0
"""Seconds after the server's own timeout at which the client gives up."""

_TIMEOUTS = {
    "statement_timeout": 0,
    "idle_in_transaction_session_timeout": 90600,
    "lock_timeout": 0,
    "transaction_timeout": 170000,
}
"""The timeouts of a transaction, and the first version of the server that has them (manual, 19.11.1). A connection that
`idle_session_timeout` ended between two transactions is replaced when it is taken."""

_SERVERS_KEEPALIVES = {
    "keepalives_idle": "tcp_keepalives_idle",
    "keepalives_interval": "tcp_keepalives_interval",
    "keepalives_count": "tcp_keepalives_count",
    "tcp_user_timeout": "tcp_user_timeout",
}
"""By libpq's parameter: the setting by which the server notices that the client's host vanished. By default it
takes two hours, in which the session keeps its locks: a COPY that waits for rows has no other timeout."""

BEGIN: Statement = ("BEGIN ISOLATION LEVEL READ COMMITTED", ())
"""Begins a transaction, whatever isolation the user has by default. Who has waited for a lock must see what its holder
has committed: a tombstone that is not seen brings a deleted row back."""

_MAKING = "outfall: making"
"""The name of advisory locks."""

_LONGEST_WAIT = 2.0
"""Seconds for one lock. A waiting lock request blocks all later ones, including those of readers."""

_AT_ONCE = 5000
"""Rows of one fetch."""


@dataclass(frozen=True)
class PostgresDatabase(SqlDatabase):
    """The database of a sink. Has no connection of its own; picklable."""

    errors = psycopg.Error
    locks = "pg_locks and pg_stat_activity"
    sink = "PostgresSink"

    options: PostgresOptions
    allowed: int | None = None
    """The server's `max_connections`, if it is known."""
    tasks: int = 0
    """The number of tasks of an epoch; 0 if it is not known."""

    def connections_wanted(self) -> str:
        """Describe how many connections the sink needs, and how many the server has."""
        tasks = f"running task (the epoch has {self.tasks})" if self.tasks else "running task"
        has = f"; the server's max_connections is {self.allowed}" if self.allowed else ""
        return f"one connection per {tasks} and one for the driver{has}"

    def address(self) -> tuple[str, str]:
        return self._dsn().address()

    def database_name(self) -> str:
        return self._dsn().database()

    def server(self) -> str:
        return f"{self._dsn().service()} {super().server()}"

    def log_url(self) -> ServerUrl | None:
        return self._dsn().log_url()

    def tls_advice(self) -> str:
        if not self._dsn().is_verified():
            return ""
        return (
            "; the dsn has no sslmode, so the server's certificate is verified (sslmode=verify-full): set"
            " sslrootcert=FILE for a private authority, or sslmode=prefer for a server without TLS"
        )

    def connection(self) -> AbstractContextManager[PostgresConnection]:
        conninfo, patience = self._conninfo(), self.options.connect_timeout.total_seconds()
        return lent(_IDLE, conninfo, lambda kept: kept.answers(patience), lambda: self._connect(conninfo))

    def begun(
        self, milliseconds: Mapping[str, int], foreseen: Sequence[Statement] = (), *, looks: bool = False
    ) -> AbstractContextManager[PostgresConnection]:
        """Lend a connection in a transaction with timeouts: see `timeouts` and `BatchingSession.begin`."""
        conninfo = self._conninfo()

        def begin(connection: PostgresConnection) -> None:
            connection.begin([BEGIN, timeouts(connection, milliseconds)], foreseen, looks=looks)
            self._watch(connection)

        def is_usable(kept: PostgresConnection) -> bool:
            # It may have stopped, or restarted, since the last epoch. Nothing that was sent outlives the connection.
            kept.patience = self.options.connect_timeout.total_seconds()
            with suppress(psycopg.Error):
                begin(kept)
                return True
            return False

        def connect() -> PostgresConnection:
            connection = self._connect(conninfo)
            self._watch(connection)
            try:
                begin(connection)
            except BaseException:
                connection.shut()
                raise
            return connection

        return lent(_IDLE, conninfo, is_usable, connect)

    def means(self, error: BaseException) -> Means:
        return means(error)

    def said(self, error: psycopg.Error, *, full: bool) -> str:
        return describe(error, full=full)

    def remedy(self, error: psycopg.Error) -> str | None:
        return remedy(error)

    def unavailable(self) -> str:
        return (
            "check why the server does not respond or has no connection left: the sink needs"
            f" {self.connections_wanted()}{self.tls_advice()}"
        )

    def access(self, error: psycopg.Error) -> str:
        return (
            "correct user, password and database in the dsn, or give the user access (pg_hba.conf, CREATE ROLE, CREATE"
            " DATABASE)"
        )

    def again(self, error: psycopg.Error) -> str:
        named = remedy(error)
        do = f"{named}; {NO_ROWS_LOST}" if named else NO_ROWS_LOST
        if error.sqlstate is None or Means.REFUSED in means(error):
            # For a wrong DSN, poolers return codes of a broken connection, and hosts without a server return none.
            do += (
                "; otherwise correct the dsn, or raise max_connections of the server to what the sink needs:"
                f" {self.connections_wanted()}{self.tls_advice()}"
            )
        return do

    def retry_reason(self, error: BaseException) -> str:
        # Only the client's message distinguishes a server without TLS from an unavailable one.
        advice = self.tls_advice() if isinstance(error, psycopg.Error) and error.sqlstate is None else ""
        return f"{super().retry_reason(error)}{advice}"

    @contextmanager
    def transaction(
        self, *, undo: bool = False, foreseen: Sequence[Statement] = (), looks: bool = False
    ) -> Iterator[PostgresConnection]:
        with self.begun(self._limits(), foreseen, looks=looks) as connection:
            try:
                yield connection
            except BaseException:
                with suppress(psycopg.Error):
                    connection.finish("ROLLBACK")
                raise
            connection.finish("ROLLBACK" if undo else "COMMIT")

    @contextmanager
    def task(self, foreseen: Sequence[Statement] = ()) -> Iterator[PostgresConnection]:
        limits = {"lock_timeout": self.options.statement_milliseconds}
        with self.begun(limits, foreseen, looks=True) as connection:
            connection.patience = None
            yield connection

    @contextmanager
    def making(self, session: PostgresConnection, names: Sequence[str]) -> Iterator[None]:
        session.execute("SELECT set_config('lock_timeout', %s, true)", (f"{int(_LONGEST_WAIT * 1000)}ms",))
        # IF NOT EXISTS does not lock: if two sessions create the same table at once, one fails.
        for name in sorted(names):
            session.execute("SELECT pg_advisory_xact_lock(hashtext(%s), hashtext(%s))", (_MAKING, name))
        yield

    def limit(self, connection: PostgresConnection) -> None:
        """Set the timeouts of this transaction, not those of the session, which a pooler shares.

        The timeout between statements releases the ledger's row if the driver is stopped. If the server does not
        enforce the timeouts, the client closes the connection.
        """
        self._watch(connection)
        connection.later(*timeouts(connection, self._limits()))

    def _limits(self) -> dict[str, int]:
        statement, silence = self.options.statement_milliseconds, int(_LONGEST_SILENCE * 1000)
        idle = min(statement, silence) if statement else silence
        return {"statement_timeout": statement, "idle_in_transaction_session_timeout": idle}

    def _watch(self, connection: PostgresConnection) -> None:
        bound = self.options.statement_milliseconds
        connection.patience = bound / 1000 + _SLACK if bound else None

    def _connect(self, conninfo: str) -> PostgresConnection:
        try:
            # Prepared statements belong to a session, and a pooler may use another one for each transaction.
            connection = PostgresConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            seconds = self.options.connect_timeout.total_seconds()
            refused = refusal(error, conninfo, verified=self._dsn().is_verified(), seconds=seconds)
            if refused is None:
                raise
            raise refused from error
        connection.add_notice_handler(connection.note)
        return connection

    def _dsn(self) -> Dsn:
        return Dsn.parse(resolve_secret(self.options.dsn))

    def _conninfo(self) -> str:
        return self._dsn().conninfo(self.options.connect_timeout)


def timeouts(connection: PostgresConnection, milliseconds: Mapping[str, int]) -> Statement:
    """Return the statement that sets all timeouts of the open transaction, instead of those of its role or database.

    The server notices as soon as the client would that the other host vanished. Nothing is set for the session, which a
    pooler shares, nor as startup options, which pgbouncer rejects. Timeouts that are not given are 0: no limit.
    """
    version = connection.info.server_version
    settings = [(name, f"{milliseconds.get(name, 0)}ms") for name, since in _TIMEOUTS.items() if version >= since]
    given = connection.info.get_parameters()
    settings += [(name, given[ours]) for ours, name in _SERVERS_KEEPALIVES.items() if given.get(ours)]
    calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
    return f"SELECT {calls}", [part for setting in settings for part in setting]


class PostgresConnection(BatchingSession, psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself if the server sends nothing for longer than `patience`.

    A vanished host sends no reset, and a proxy may drop messages. Then no response arrives, and no server enforces the
    timeouts.

    It also closes itself after a COMMIT that the server confirms without its synchronous standby, because the
    wait was canceled: a failover may lose the transaction. Whoever reads the ledger then waits for the standby again,
    because the lock of its row is a change too.
    """

    errors = psycopg.Error
    has_versions = True

    patience: float | None = None
    """Seconds; `None` to wait forever."""

    _unconfirmed = False
    """Whether the server has committed without its synchronous standby."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """The clock."""

    def __init__(self, *given: Any, **more: Any) -> None:
        """Pass everything to psycopg."""
        self._versions: dict[Hashable, str] = {}
        """The version of each table that the catalogue was asked about: see `versions_of`."""
        super().__init__(*given, **more)

    @property
    def any_text(self) -> bool:
        """Whether the server stores every character."""
        return self.info.parameter_status("server_encoding") == "UTF8"

    def answers(self, patience: float) -> bool:
        """Return whether the server answers within `patience`: it may have stopped since the last epoch."""
        self.patience = patience
        self.forget()
        with suppress(psycopg.Error):
            self.execute("SELECT 1")
            self.patience = None
            return True
        return False

    def is_busy(self) -> bool:
        """Return whether it is closed, or in a transaction."""
        return self.closed or self.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def shut(self) -> None:
        """Close it, whether or not the server responds."""
        with suppress(psycopg.Error):
            self.close()

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False) -> Any:
        """Execute a statement, after those of `later`. A text always has parameters, and its % are doubled."""
        given = () if params is None and isinstance(query, str) else params
        if (known := self.known(query, given)) is not None:
            return known
        if queued := self._taken():
            return self.together([*queued, (query, given)])[-1]
        return psycopg.Connection.execute(self, query, given, prepare=prepare, binary=binary)

    def together(self, statements: Sequence[Statement]) -> list[Fetched]:
        # The simple protocol: pipelines need a newer libpq, and exclude COPY.
        cursor = psycopg.ClientCursor(self)
        cursor.execute("; ".join(cursor.mogrify(query, given) for query, given in statements).encode())
        results = [Fetched.of(cursor)]
        while cursor.nextset():
            results.append(Fetched.of(cursor))
        return results

    def cursor(self, *given: Any, **more: Any) -> Any:
        """Return a cursor, whose statements are executed after those of `later`."""
        self.flush()
        return super().cursor(*given, **more)

    def stream(self, query: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, without holding all of them. Its % are doubled."""
        with self.cursor("outfall") as cursor:
            cursor.itersize = _AT_ONCE
            cursor.execute(query, ())
            yield from cursor

    def transaction(self, *given: Any, **more: Any) -> Any:
        """Return a transaction or a savepoint, after the statements of `later`."""
        self.flush()
        return super().transaction(*given, **more)

    def forget(self) -> None:
        super().forget()
        self._versions.clear()

    def _alive(self) -> bool:
        return not self.closed

    def _keep_used(self) -> None:
        super()._keep_used()
        known = {looked.table for looked in self._looked.values()}
        self._versions = {table: version for table, version in self._versions.items() if table in known}

    def _look(self, queries: Sequence[Statement], tables: Sequence[Hashable]) -> list[Fetched]:
        new = [table for table in dict.fromkeys(tables) if table not in self._versions]
        if not new:
            return super()._look(queries, tables)
        # Before the queries: what changes in between is seen the next time.
        versions, *found = super()._look([versions_of(new), *queries], tables)
        self._versions.update(versions.fetchall())
        return found

    def _again(self) -> list[Statement]:
        return [versions_of(list(self._versions))] if self._versions else []

    def _compare(self, results: Sequence[Fetched]) -> None:
        if results and dict(results[0].fetchall()) != self._versions:
            self.forget()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server, like psycopg in intervals of a tenth of a second.

        Raises `psycopg.OperationalError` if the server sent nothing, or did not wait for its synchronous standby; it is
        then unknown whether it has executed the statement, or keeps what it has committed.
        """
        if self.patience is not None:
            gen = watched(gen, self.patience, self.close, self.now)
        result = super().wait(gen, *args, **options)
        if self._unconfirmed:
            self.close()
            raise psycopg.OperationalError(
                "the server has committed, but has stopped waiting for its synchronous standby (pg_stat_replication),"
                " so a failover may lose the transaction"
            )
        return result

    def note(self, notice: psycopg.errors.Diagnostic) -> None:
        """Note a message of the server that accompanies a reply."""
        # The message itself is in the server's language.
        self._unconfirmed = self._unconfirmed or notice.source_function == "SyncRepWaitForLSN"


def watched(
    waiting: Generator[Any, Any, T],
    patience: float,
    give_up: Callable[[], None],
    now: Callable[[], float],
) -> Generator[Any, Any, T]:
    """Forward one of psycopg's waits, unless nothing is ready for longer than `patience` seconds.

    `waiting` yields the events to wait for and receives those that are ready (0 for none). `give_up` is called before
    the error is raised.
    """
    heard = now()
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                heard = now()
            elif now() - heard > patience:
                give_up()
                raise psycopg.OperationalError(f"the server has sent nothing for {patience:g} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


_IDLE: Idle[PostgresConnection] = Idle(4)
"""The idle connections of this process, one per target, for the targets that it used last."""


def max_connections(connection: PostgresConnection) -> int:
    """Return the server's `max_connections`."""
    found = connection.execute("SELECT current_setting('max_connections')::int").fetchone()
    return int(found[0]) if found else 0
