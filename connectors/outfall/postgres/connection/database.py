"""Connections: one per process and target, kept between epochs; and transactions that are tried again."""

from __future__ import annotations

import logging
import os
import re
import select
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PollingStatus
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from outfall.errors import ConfigurationError, TransientError
from outfall.options import resolve_secret
from outfall.postgres.connection.errors import (
    ConnectionRefusedByServerError,
    describe,
    explained,
    may_pass,
)
from outfall.postgres.options import PostgresOptions
from outfall.redaction import Redaction
from outfall.retry_log import RetryLog
from outfall.trace_points import reached

T = TypeVar("T")


_log = logging.getLogger(__name__)
_retries = RetryLog(_log)

_LONGEST_PAUSE = 15.0
_LONGEST_SILENCE = 60.0
_SLACK = 60.0
"""How much later than the server's own bound the client takes it for lost."""

_KEEPALIVES = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 90_000}
"""By these a host that vanished is noticed after a minute and a half, where else that takes hours (manual, 32.1.2)."""

_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class PostgresDatabase:
    """How a sink reaches its database. Holds no connection of its own; picklable."""

    options: PostgresOptions
    allowed: int | None = None
    """The server's `max_connections`, where it is known."""
    tasks: int = 0
    """How many tasks an epoch has, where it is known."""

    def connections_wanted(self) -> str:
        """Say how many connections the sink asks for, and how many the server has."""
        tasks = f"running task (the epoch has {self.tasks})" if self.tasks else "running task"
        has = f"; the server's max_connections is {self.allowed}" if self.allowed else ""
        return f"one connection per {tasks} and one for the driver{has}"

    def name(self) -> str:
        """Return where it is, free of secrets."""
        given = self._parameters()
        host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
        port = given.get("port") or os.environ.get("PGPORT") or 5432
        return f"{host}:{port}/{_database_of(given)}"

    def database_name(self) -> str:
        """Return the database's own name, wherever its server is."""
        return _database_of(self._parameters())

    def server(self) -> str:
        """Return which server it is, free of secrets; this machine has one name, however it is reached."""
        given = self._parameters()
        service = given.get("service") or os.environ.get("PGSERVICE") or ""
        host = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "")
        port = given.get("port") or os.environ.get("PGPORT") or 5432
        return f"{service} {'localhost' if _is_here(host) else host.lower()}:{port}"

    def tls_advice(self) -> str:
        """Say what verifies the server's certificate where the dsn does not ask for it; nothing where it does."""
        if not self._verified():
            return ""
        return (
            "; since the dsn names no sslmode, the server must have a certificate that is verified"
            " (sslmode=verify-full): give sslrootcert=FILE for an authority of your own, and for a server without TLS"
            " sslmode=prefer"
        )

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """Lend this process's connection, or a new one while that is lent. After an error it is closed.

        Raises:
            psycopg.OperationalError: no connection could be made.
        """
        conninfo = self._conninfo()
        key = (os.getpid(), conninfo)
        connection = _idle.take(key, self.options.connect_timeout.total_seconds()) or self._connect(conninfo)
        connection.patience = None
        try:
            yield connection
        except BaseException:
            with suppress(psycopg.Error):
                connection.close()
            raise
        if connection.closed or connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.close()
        else:
            _idle.give_back(key, connection)

    def run(
        self, doing: str, work: Callable[[PostgresConnection], T], *, step: str | None = None, starting: bool = False
    ) -> T:
        """Run a transaction, and again after errors that may pass, until it has committed.

        `work` must look first at what an earlier try has done: the reply to a COMMIT may have been lost.

        Args:
            doing: for texts, as `"publishing to"`.
            work: is given a connection with an open transaction.
            step: the step, for texts.
            starting: see `run_raw`.

        Raises:
            TransientError: the deadline has passed.
            OutfallError: an error that will not pass, explained.
        """
        with explained(self, f"{doing} {self.options.table}", step):
            return self.run_raw(doing, work, starting=starting)

    def run_raw(self, doing: str, work: Callable[[PostgresConnection], T], *, starting: bool = False) -> T:
        """As `run`, with the driver's own errors, for a caller who tells them apart.

        Args:
            doing: see `run`.
            work: see `run`.
            starting: whether a server that answers, and refuses the connection, is not waited for: at the start of a
                query that is a wrong dsn, more often than a lack of connections.

        Raises:
            TransientError: the deadline has passed.
            psycopg.Error: an error that will not pass.
        """
        seconds = self.options.retry_deadline.total_seconds()
        retrying = Retrying(
            retry=retry_if_exception(lambda error: _try_again(error, starting=starting)),
            stop=stop_after_delay(seconds),
            wait=wait_random_exponential(multiplier=0.2, max=_LONGEST_PAUSE),
            before_sleep=lambda state: self._warn(doing, state),
            reraise=True,
        )
        try:
            result: T = retrying(self.run_once, work)
        except psycopg.Error as error:
            if not _try_again(error, starting=starting):
                raise
            raise TransientError(
                f"{doing} {self.options.table} in {self.name()} failed for {seconds:g} s",
                why=describe(error),
                do="see why the server does not answer, or has no connection left: the sink asks for"
                f" {self.connections_wanted()}{self.tls_advice()}; what is recorded is finished by the next run of the"
                " query",
            ) from error
        return result

    def run_once(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run a transaction, and not again.

        Raises:
            psycopg.Error: it failed, or whether it has committed is unknown.
        """
        with self.connection() as connection:
            self._watch(connection)
            with connection.transaction():
                self.limit(connection)
                result = work(connection)
                reached("postgres: before COMMIT")
            reached("postgres: after COMMIT")
            return result

    def limit(self, connection: PostgresConnection) -> None:
        """Bound the time of this transaction's statements; not of the session's, which a pooler shares.

        And of the pauses between them: a driver that is stopped in the middle would keep the ledger's row to itself. A
        server that keeps none of these bounds has fallen silent, and the connection is closed.
        """
        self._watch(connection)
        statement = self.options.statement_milliseconds
        silence = int(_LONGEST_SILENCE * 1000)
        for name, milliseconds in (
            ("statement_timeout", statement),
            ("idle_in_transaction_session_timeout", min(statement, silence) if statement else silence),
        ):
            connection.execute("SELECT set_config(%s, %s, true)", (name, f"{milliseconds}ms"))

    def _watch(self, connection: PostgresConnection) -> None:
        bound = self.options.statement_milliseconds
        connection.patience = bound / 1000 + _SLACK if bound else None

    def _warn(self, doing: str, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        why = describe(error) if isinstance(error, psycopg.Error) else str(error)
        # A server without TLS is told from one that is away by the client's words only.
        advice = self.tls_advice() if isinstance(error, psycopg.Error) and error.sqlstate is None else ""
        _retries.retry(
            self.name(),
            f"{doing} {self.options.table}",
            attempt=state.attempt_number,
            reason=f"{why}{advice}",
            left=self.options.retry_deadline.total_seconds() - (state.seconds_since_start or 0.0),
        )

    def _connect(self, conninfo: str) -> PostgresConnection:
        try:
            # Prepared statements live in a session, and a pooler gives each transaction another one.
            return PostgresConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            # Whoever answers there has been told the password, and may say it back.
            given = conninfo_to_dict(conninfo)
            hidden = Redaction(str(given.get(name) or "") for name in ("password", "sslpassword"))
            error.args = tuple(hidden.hide(str(said)) for said in error.args)
            # The client gives no code for what it is told while connecting; a ping tells who is there (manual, PQping).
            if psycopg.pq.PGconn.ping(conninfo.encode()) == psycopg.pq.Ping.OK:
                refused = ConnectionRefusedByServerError(*error.args)
                refused.sqlstate = _refusal(conninfo, self.options.connect_timeout.total_seconds())
                raise refused from error
            raise

    def _parameters(self) -> dict[str, Any]:
        dsn = resolve_secret(self.options.dsn)
        try:
            given = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            given = None
        if given is None or _is_misread(dsn, given):
            # Nothing is quoted, nor a cause kept, since what could not be read may be a password.
            raise ConfigurationError(
                "the dsn cannot be read",
                do="write postgresql://user@host:5432/database, with user and password percent-encoded (@ as %40, / as"
                " %2F, % as %25), or key=value pairs",
            )
        return given

    def _conninfo(self) -> str:
        given = self._parameters()
        fixed: dict[str, Any] = {
            "connect_timeout": max(1, int(self.options.connect_timeout.total_seconds())),
            "application_name": given.get("application_name") or "outfall",
            "client_encoding": "UTF8",  # what COPY is given
        }
        if self._verified():
            rooted = "sslrootcert" in given or os.environ.get("PGSSLROOTCERT")
            fixed |= {"sslmode": "verify-full"} | ({} if rooted else {"sslrootcert": "system"})
        # What a service file says would have to give way to what is said here.
        named = "service" in given or os.environ.get("PGSERVICE")
        return make_conninfo(**(({} if named else _KEEPALIVES) | given | fixed))

    def _verified(self) -> bool:
        """Whether the certificate is verified without being asked for."""
        given = self._parameters()
        hosts = (given.get(name) or os.environ.get(f"PG{name.upper()}") for name in ("host", "hostaddr"))
        host = next((str(found) for found in hosts if found), "")
        said = "sslmode" in given or os.environ.get("PGSSLMODE")
        return bool(host) and not said and not all(map(_is_here, host.split(",")))


class TaskTransaction:
    """A transaction that lasts as long as its task has rows. Nothing outlives its connection unless it commits.

    It takes a connection with the first row, so that tasks without rows cost the server nothing.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self.connection: PostgresConnection | None = None
        """The connection, once `connect` was called."""
        self._database = database
        self._lent = ExitStack()

    def connect(self) -> PostgresConnection:
        """Return the connection, taken when first asked for."""
        if self.connection is None:
            self.connection = self._lent.enter_context(self._database.connection())
        return self.connection

    def begin(self) -> PostgresConnection:
        """Begin on the connection, and return it."""
        connection = self.connect()
        connection.execute("BEGIN")
        # A COPY lasts as long as its task has rows, whatever the server allows other statements.
        connection.execute("SET LOCAL statement_timeout = 0")
        return connection

    def close(self) -> None:
        """Give the connection back, or close it in the middle of its transaction: then nothing of it stays."""
        connection, self.connection = self.connection, None
        if connection is not None and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.close()
        self._lent.close()


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """Closes itself when the server has said nothing for longer than `patience` while it was waited for.

    A host that vanishes sends no reset, and a proxy may swallow what it should pass: then a reply never comes, and
    nobody keeps the bounds that are the server's.
    """

    patience: float | None = None
    """In seconds; `None` to wait for ever."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """The clock."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait for the server, as psycopg does in slices of a tenth of a second.

        Raises:
            psycopg.OperationalError: the server said nothing; whether it has done its work is unknown.
        """
        if self.patience is not None:
            gen = watched(gen, self.patience, self.close, self.now)
        return super().wait(gen, *args, **options)


def watched(
    waiting: Generator[Any, Any, T],
    patience: float,
    give_up: Callable[[], None],
    now: Callable[[], float],
) -> Generator[Any, Any, T]:
    """Pass one of psycopg's waits on, unless nothing is ready for longer than `patience`.

    Args:
        waiting: yields what it waits for, and is sent what is ready: 0 for nothing yet.
        patience: in seconds.
        give_up: called before the error is raised.
        now: the clock.
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
                raise psycopg.OperationalError(f"the server has said nothing for {patience:g} s")
            wanted = waiting.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


MOST_IDLE = 4
"""How many targets a process keeps a connection to while it does not use it: those that it used last."""


class _Idle:
    """At most one idle connection per process and target, and not to many targets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[tuple[int, str], PostgresConnection] = {}

    def take(self, key: tuple[int, str], patience: float) -> PostgresConnection | None:
        with self._lock:
            connection = self._connections.pop(key, None)
        if connection is None or connection.closed:
            return None
        try:
            # The server may have gone since the last epoch; better seen here than in the middle of a task.
            connection.patience = patience
            connection.execute("SELECT 1")
        except psycopg.Error:
            connection.close()
            return None
        return connection

    def give_back(self, key: tuple[int, str], connection: PostgresConnection) -> None:
        with self._lock:
            spare = [connection] if key in self._connections else []
            if not spare:
                self._connections[key] = connection
                # A dict keeps the order of what came in, and `take` takes out.
                oldest = list(self._connections)[:-MOST_IDLE]
                spare = [self._connections.pop(other) for other in oldest]
        for each in spare:
            each.close()


_idle = _Idle()


def _refusal(conninfo: str, seconds: float) -> str | None:
    """Return the SQLSTATE with which a server refuses a connection; `None` if it does not, or that cannot be seen.

    libpq does not give the code, and its words are the server's, in a language of the server's. What it writes down of
    the protocol has both (manual, PQtrace). That may hold a password, so it never leaves the memory.
    """
    if not hasattr(os, "memfd_create"):
        return None
    with open(os.memfd_create("outfall"), "r+b") as written, suppress(psycopg.Error, OSError):
        client = psycopg.pq.PGconn.connect_start(conninfo.encode())
        try:
            client.trace(written.fileno())
            _connect_until(client, time.monotonic() + seconds)
            if client.needs_password:
                return psycopg.errors.InvalidPassword.sqlstate
        finally:
            client.untrace()
            client.finish()
        written.seek(0)
        found = re.search(rb'ErrorResponse\t.*? C "(\w{5})"', written.read())
        return found[1].decode() if found else None
    return None


def _connect_until(client: psycopg.pq.abc.PGconn, deadline: float) -> None:
    """Go on until a connection is made, is refused or takes too long."""
    events = {PollingStatus.READING: select.POLLIN, PollingStatus.WRITING: select.POLLOUT}
    while (left := deadline - time.monotonic()) > 0 and (event := events.get(PollingStatus(client.connect_poll()))):
        waiting = select.poll()
        waiting.register(client.socket, event)
        waiting.poll(left * 1000)


def max_connections(connection: PostgresConnection) -> int:
    """Return how many connections the server has."""
    found = connection.execute("SELECT current_setting('max_connections')::int").fetchone()
    return int(found[0]) if found else 0


def _try_again(error: BaseException, *, starting: bool) -> bool:
    refused = starting and isinstance(error, ConnectionRefusedByServerError)
    return isinstance(error, psycopg.Error) and may_pass(error) and not refused


def _database_of(given: dict[str, Any]) -> str:
    """Find the database's name as libpq does (manual, 32.1.2 and 32.15), but for what a service file says."""
    environment = os.environ.get("PGDATABASE")
    if "service" in given or os.environ.get("PGSERVICE"):
        return str(given.get("dbname") or given.get("user") or environment or "")
    return str(given.get("dbname") or environment or given.get("user") or _default_user())


def _default_user() -> str:
    """Whom libpq connects as when nobody says it: as PGUSER, or as the operating system's user."""
    defaults = {option.keyword: option.val for option in psycopg.pq.Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def _is_misread(dsn: str, given: dict[str, Any]) -> bool:
    """Whether a password with @ or / in it was taken for a host, a port or a database: these are printed.

    Blanks are refused as libpq 17 does; older ones take them as they are.
    """
    scheme, found, rest = dsn.partition("://")
    if found and scheme in ("postgresql", "postgres"):
        authority, _, path = rest.partition("/")
        if authority.count("@") > 1 or "@" in path.partition("?")[0] or re.search(r"\s", dsn.strip()):
            return True
    ports = str(given.get("port") or "").split(",")
    return "://" in str(given.get("dbname") or "") or any(port and not port.isdecimal() for port in ports)


def _is_here(host: str) -> bool:
    return not host or host.startswith(("/", "@")) or host in _HERE
