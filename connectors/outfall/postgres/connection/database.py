"""Connections, one per process and target, kept between epochs; and transactions with retries."""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PollingStatus

from outfall.errors import ConfigurationError, OutfallError
from outfall.first_contact import UnexpectedProtocolError
from outfall.idle import Idle
from outfall.options import resolve_secret
from outfall.postgres.connection.errors import (
    ConnectionRefusedByServerError,
    describe,
    is_transient,
    quotes_rows,
    remedy,
    translated,
)
from outfall.postgres.options import PostgresOptions
from outfall.redaction import Redaction
from outfall.sql.database import SqlDatabase
from outfall.sql.log_location import ServerUrl
from outfall.tls import system_authorities

T = TypeVar("T")


_LONGEST_SILENCE = 60.0
_SLACK = 60.0
"""Seconds after the server's own timeout at which the client gives up."""

_KEEPALIVES = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 90_000}
"""These detect a vanished host after a minute and a half, which otherwise takes hours (manual, 32.1.2)."""

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
"""By parameter of `_KEEPALIVES`: the setting by which the server notices that the client's host vanished. By default it
takes two hours, in which the session keeps its locks: a COPY that waits for rows has no other timeout."""

_MAKING = "outfall: making"
"""The name of advisory locks."""

_LONGEST_WAIT = 2.0
"""Seconds for one lock. A waiting lock request blocks all later ones, including those of readers."""

_HERE = ("localhost", "127.0.0.1", "::1")

_HOST = re.compile(r"[A-Za-z0-9.-]+")
_VARIABLES = {"password": "PGPASSWORD", "sslpassword": "PGSSLPASSWORD"}
"""Variables for the secrets of a recovery location."""

_AT_ONCE = 5000
"""Rows of one fetch."""


@dataclass(frozen=True)
class PostgresDatabase(SqlDatabase):
    """The database of a sink. Has no connection of its own; picklable."""

    errors = psycopg.Error
    locks = "pg_locks and pg_stat_activity"

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

    def name(self) -> str:
        """Return host, port and database, without secrets."""
        given = self._parameters()
        host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
        port = given.get("port") or os.environ.get("PGPORT") or 5432
        return f"{host}:{port}/{_database_of(given)}"

    def database_name(self) -> str:
        """Return the name of the database, without the server."""
        return _database_of(self._parameters())

    def server(self) -> str:
        """Return the name of the server, without secrets. All addresses of this machine have the same name."""
        given = self._parameters()
        service = given.get("service") or os.environ.get("PGSERVICE") or ""
        host = str(given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "")
        port = given.get("port") or os.environ.get("PGPORT") or 5432
        return f"{service} {'localhost' if _is_here(host) else host.lower()}:{port}"

    def log_url(self) -> ServerUrl | None:
        """Return the location of a recovery log in this database, without secrets; `None` with a service file."""
        given = {name: str(value) for name, value in self._parameters().items()}
        if "service" in given or os.environ.get("PGSERVICE"):
            return None
        user, database = given.pop("user", ""), _database_of(given)
        given.pop("dbname", None)
        given |= {name: f"env:{_VARIABLES[name]}" for name in _VARIABLES if name in given}
        place = f"{quote(user, safe='')}@" if user else ""
        host, port = given.get("host", ""), given.get("port", "")
        if _HOST.fullmatch(host):
            place += host + (f":{port}" if port else "")
            given = {name: value for name, value in given.items() if name not in ("host", "port")}
        return ServerUrl("postgresql", f"{place}/{quote(database, safe='')}", given)

    def tls_advice(self) -> str:
        """Return advice about TLS if the certificate is verified by default; otherwise an empty string."""
        if not self._verified():
            return ""
        return (
            "; the dsn has no sslmode, so the server's certificate is verified (sslmode=verify-full): set"
            " sslrootcert=FILE for a private authority, or sslmode=prefer for a server without TLS"
        )

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        """Lend this process's connection, or a new one if that is in use. After an error, it is closed.

        Raises `psycopg.OperationalError` if no connection could be established.
        """
        conninfo = self._conninfo()
        patience = self.options.connect_timeout.total_seconds()
        connection = _IDLE.take(conninfo, {}, lambda kept: kept.answers(patience)) or self._connect(conninfo)
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
            _IDLE.keep(conninfo, {}, connection)

    def translated(self, doing: str, error: Any, step: str | None = None) -> OutfallError:
        return translated(self, doing, error, step)

    def hides(self, error: Any) -> bool:
        return quotes_rows(error) and self.options.log_rows != "full"

    def reason(self, error: Any) -> str:
        return describe(error)

    def remedy(self, error: Any) -> str:
        return remedy(error) or (
            "check why the server does not respond or has no connection left: the sink needs"
            f" {self.connections_wanted()}{self.tls_advice()}"
        )

    def retry_reason(self, error: BaseException) -> str:
        # Only the client's message distinguishes a server without TLS from an unavailable one.
        advice = self.tls_advice() if isinstance(error, psycopg.Error) and error.sqlstate is None else ""
        return f"{super().retry_reason(error)}{advice}"

    def is_transient(self, error: BaseException, *, starting: bool = False) -> bool:
        refused = starting and isinstance(error, ConnectionRefusedByServerError)
        return isinstance(error, psycopg.Error) and is_transient(error) and not refused

    def waited_for_lock(self, error: BaseException | None) -> bool:
        return isinstance(error, psycopg.errors.LockNotAvailable)

    @contextmanager
    def transaction(self, *, undo: bool = False) -> Iterator[PostgresConnection]:
        with self.connection() as connection:
            self._watch(connection)
            with connection.transaction(force_rollback=undo):
                self.limit(connection)
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
        statement = self.options.statement_milliseconds
        silence = int(_LONGEST_SILENCE * 1000)
        set_timeouts(
            connection,
            statement_timeout=statement,
            idle_in_transaction_session_timeout=min(statement, silence) if statement else silence,
        )

    def _watch(self, connection: PostgresConnection) -> None:
        bound = self.options.statement_milliseconds
        connection.patience = bound / 1000 + _SLACK if bound else None

    def _connect(self, conninfo: str) -> PostgresConnection:
        try:
            # Prepared statements belong to a session, and a pooler may use another one for each transaction.
            connection = PostgresConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
            connection.add_notice_handler(connection.note)
            return connection
        except psycopg.OperationalError as error:
            # The server has received the password, and its message may repeat it.
            given = conninfo_to_dict(conninfo)
            hidden = Redaction(str(given.get(name) or "") for name in ("password", "sslpassword"))
            error.args = tuple(hidden.hide(str(said)) for said in error.args)
            error.__cause__ = _cause(str(error))
            # libpq reports no code for errors while connecting. A ping shows whether a server runs (manual, PQping).
            wrong = error.__cause__ is not None
            if not wrong and (_answers(conninfo) or (self._verified() and _answers(_without_tls(given)))):
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
            # Without a quote and without a cause, because the unreadable text may be a password.
            raise ConfigurationError(
                "the dsn is a URL of JDBC" if dsn.strip().startswith("jdbc:") else "the dsn cannot be parsed",
                do="write postgresql://user@host:5432/database, with user and password percent-encoded (@ as %40, / as"
                " %2F, % as %25), or key=value pairs",
            )
        return given

    def _conninfo(self) -> str:
        given = self._parameters()
        fixed: dict[str, Any] = {
            "connect_timeout": max(1, int(self.options.connect_timeout.total_seconds())),
            "application_name": given.get("application_name") or "outfall",
            "client_encoding": "UTF8",  # the encoding of COPY data
        }
        if self._verified():
            rooted = "sslrootcert" in given or os.environ.get("PGSSLROOTCERT")
            fixed |= {"sslmode": "verify-full"} | ({} if rooted else {"sslrootcert": system_authorities() or "system"})
        # Parameters here would take precedence over those of a service file.
        named = "service" in given or os.environ.get("PGSERVICE")
        return make_conninfo(**(({} if named else _KEEPALIVES) | given | fixed))

    def _verified(self) -> bool:
        """Return whether the certificate is verified by default."""
        given = self._parameters()
        hosts = (given.get(name) or os.environ.get(f"PG{name.upper()}") for name in ("host", "hostaddr"))
        host = next((str(found) for found in hosts if found), "")
        said = "sslmode" in given or os.environ.get("PGSSLMODE")
        return bool(host) and not said and not all(map(_is_here, host.split(",")))


def set_timeouts(connection: PostgresConnection, **milliseconds: int) -> None:
    """Set all timeouts of the open transaction, instead of those of its role or database.

    The server notices as soon as the client would that the other host vanished. Nothing is set for the session, which a
    pooler shares, nor as startup options, which pgbouncer rejects. Timeouts that are not given are 0: no limit.
    """
    version = connection.info.server_version
    settings = [(name, f"{milliseconds.get(name, 0)}ms") for name, since in _TIMEOUTS.items() if version >= since]
    given = connection.info.get_parameters()
    settings += [(name, given[ours]) for ours, name in _SERVERS_KEEPALIVES.items() if given.get(ours)]
    calls = sql.SQL(", ").join([sql.SQL("set_config(%s, %s, true)")] * len(settings))
    connection.execute(sql.SQL("SELECT {}").format(calls), [part for setting in settings for part in setting])


class TaskTransaction:
    """A transaction that lasts as long as its task has rows. Without a commit, nothing outlives its connection.

    It connects with the first row, so a task without rows needs no connection.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self.connection: PostgresConnection | None = None
        """The connection, after `connect` was called."""
        self._database = database
        self._lent = ExitStack()

    def connect(self) -> PostgresConnection:
        """Return the connection; the first call establishes it."""
        if self.connection is None:
            self.connection = self._lent.enter_context(self._database.connection())
        return self.connection

    def begin(self) -> PostgresConnection:
        """Begin the transaction, and return the connection."""
        connection = self.connect()
        connection.execute("BEGIN")
        self.extend(connection)
        return connection

    def extend(self, connection: PostgresConnection) -> None:
        """Let an open transaction last as long as its task has rows, whatever timeouts its role has.

        Only a wait for a lock is limited: a stopped attempt may hold the lock.
        """
        set_timeouts(connection, lock_timeout=self._database.options.statement_milliseconds)

    def close(self) -> None:
        """Return the connection, or close it if its transaction is open, which rolls back all changes."""
        connection, self.connection = self.connection, None
        if connection is not None and connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.close()
        self._lent.close()


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that closes itself if the server sends nothing for longer than `patience`.

    A vanished host sends no reset, and a proxy may drop messages. Then no response arrives, and no server enforces the
    timeouts.

    It also closes itself after a COMMIT that the server confirms without its synchronous standby, because the
    wait was canceled: a failover may lose the transaction. Whoever reads the ledger then waits for the standby again,
    because the lock of its row is a change too.
    """

    patience: float | None = None
    """Seconds; `None` to wait forever."""

    _unconfirmed = False
    """Whether the server has committed without its synchronous standby."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """The clock."""

    @property
    def any_text(self) -> bool:
        """Whether the server stores every character."""
        return self.info.parameter_status("server_encoding") == "UTF8"

    def answers(self, patience: float) -> bool:
        """Return whether the server answers within `patience`: it may have stopped since the last epoch."""
        self.patience = patience
        with suppress(psycopg.Error):
            self.execute("SELECT 1")
            return True
        return False

    def shut(self) -> None:
        """Close it, between two uses."""
        self.close()

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False) -> Any:
        """Execute a statement. One that is text always has parameters, and its % are doubled."""
        given = () if params is None and isinstance(query, str) else params
        return super().execute(query, given, prepare=prepare, binary=binary)

    def stream(self, query: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, without holding all of them. Its % are doubled."""
        with self.cursor("outfall") as cursor:
            cursor.itersize = _AT_ONCE
            cursor.execute(query, ())
            yield from cursor

    def savepoint(self, *, undo: bool = False) -> AbstractContextManager[psycopg.Transaction]:
        """Return a transaction or a savepoint, which with `undo` is rolled back in any case."""
        return self.transaction(force_rollback=undo)

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


def _refusal(conninfo: str, seconds: float) -> str | None:
    """Return the SQLSTATE with which a server rejects a connection; `None` if it does not, or if it is not available.

    libpq does not report the code, and the server's message may be localized. The protocol trace has the code (manual,
    PQtrace). The trace may contain a password, so it never leaves the memory.
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


def _cause(text: str) -> OSError | None:
    """Return why a server cannot be reached, as the other drivers report it. psycopg and libpq only say it."""
    if unresolved := re.match(r"failed to resolve host .*\[Errno (-?\d+)\]", text):
        return socket.gaierror(int(unresolved[1]), "the name of the host cannot be resolved")
    if "invalid response to SSL negotiation" in text or "expected authentication request from server" in text:
        return UnexpectedProtocolError("the server does not speak PostgreSQL's protocol")
    return None


def _answers(conninfo: str) -> bool:
    return psycopg.pq.PGconn.ping(conninfo.encode()) == psycopg.pq.Ping.OK


def _without_tls(given: dict[str, Any]) -> str:
    """Return the address of a server that may lack TLS, without the user."""
    kept = {name: given[name] for name in ("host", "hostaddr", "port", "connect_timeout") if name in given}
    return make_conninfo(**kept, sslmode="prefer", user="outfall", dbname="outfall")


def _connect_until(client: psycopg.pq.abc.PGconn, deadline: float) -> None:
    """Poll until the connection is established, is rejected or times out."""
    events = {PollingStatus.READING: select.POLLIN, PollingStatus.WRITING: select.POLLOUT}
    while (left := deadline - time.monotonic()) > 0 and (event := events.get(PollingStatus(client.connect_poll()))):
        waiting = select.poll()
        waiting.register(client.socket, event)
        waiting.poll(left * 1000)


def max_connections(connection: PostgresConnection) -> int:
    """Return the server's `max_connections`."""
    found = connection.execute("SELECT current_setting('max_connections')::int").fetchone()
    return int(found[0]) if found else 0


def _database_of(given: dict[str, Any]) -> str:
    """Return the database's name like libpq (manual, 32.1.2 and 32.15), but without reading a service file."""
    environment = os.environ.get("PGDATABASE")
    if "service" in given or os.environ.get("PGSERVICE"):
        return str(given.get("dbname") or given.get("user") or environment or "")
    return str(given.get("dbname") or environment or given.get("user") or _default_user())


def _default_user() -> str:
    """Return libpq's default user: PGUSER, or the user of the operating system."""
    defaults = {option.keyword: option.val for option in psycopg.pq.Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def _is_misread(dsn: str, given: dict[str, Any]) -> bool:
    """Return whether a password with @ or / was parsed as a host, port or database, which would be printed.

    Blanks are rejected as by libpq 17; older versions accept them.
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
