"""The database of a sink in MySQL or MariaDB: its connection, sessions and transactions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote

import pymysql
from pydantic import SecretStr
from pymysql.cursors import SSCursor

from outfall.errors import ConfigurationError, OutfallError, TargetError
from outfall.mysql.connection import PARAMETERS, STRICT, LoadConnection, MySQLServer, code_of, describe, is_refused
from outfall.mysql.connection import is_transient as error_is_transient
from outfall.mysql.errors import MySQLRefusal, masked, quotes_rows, remedy, translated
from outfall.mysql.options import MySQLOptions
from outfall.options import nearest_name, resolve_secret
from outfall.sql.database import Result, SqlDatabase
from outfall.sql.log_location import REFERENCES, ServerUrl
from outfall.urls import split_url

_LONGEST_SILENCE = 60
"""Seconds for which a transaction of the driver may do nothing. Then the server ends it, so that a stopped driver does
not hold the ledger's row."""
_LONGEST_TASK = 31_536_000 // 4
"""Seconds for which a task may wait for rows."""
_NO_LIMIT = 31_536_000 // 4
_SLACK = 60.0
"""Seconds after the server's own timeout at which the client gives up."""
_LONGEST_WAIT = 2
"""Seconds for one lock of a table. A waiting lock request blocks all later ones, including those of readers."""
_CLIENT = range(2000, 3000)
_PASSWORD = "env:MYSQL_PWD"  # noqa: S105 - a variable, as of the server's own client


class MySQLSession:
    """A connection in a transaction."""

    any_text = True

    def __init__(self, connection: LoadConnection) -> None:
        self._connection = connection
        self._points = 0

    def execute(self, statement: str, given: Any = (), /) -> Result:
        """Execute a statement with parameters; its other % are doubled."""
        cursor: Any = self._connection.cursor()
        cursor.execute(statement, given)
        found: Result = cursor
        return found

    def stream(self, query: str, /) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, without holding all of them. Its % are doubled."""
        with self._connection.cursor(SSCursor) as cursor:
            cursor.execute(query, ())
            yield from iter(cursor.fetchone, None)

    def send(self, statement: bytes, data: bytes | memoryview | None = None) -> tuple[int, int]:
        """Execute an INSERT as it is, or a LOAD DATA LOCAL with data; return the numbers of rows and of warnings."""
        self._connection.sending = data
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.rowcount, cursor.warning_count

    def first_warning(self) -> MySQLRefusal:
        """Return the first warning of the last statement as the reason why a row is rejected."""
        found = self.execute("SHOW WARNINGS LIMIT 1").fetchone()
        return MySQLRefusal(
            "the server would change a value" if found is None else str(found[2]), found and str(found[1])
        )

    @property
    def records(self) -> int:
        """The number of rows that the last INSERT was given, whether it inserted or updated them."""
        return self._connection.records

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return "MariaDB" in self._connection.get_server_info()

    @contextmanager
    def savepoint(self, *, undo: bool = False) -> Iterator[None]:
        """Undo the changes of a block if it raises; with `undo` in any case."""
        self._points += 1
        name = f"outfall_{self._points}"
        self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except Exception:
            # A deadlock has rolled back the transaction, with the savepoint; the error itself says so.
            with suppress(pymysql.MySQLError):
                self.execute(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        if undo:
            self.execute(f"ROLLBACK TO SAVEPOINT {name}")
        self.execute(f"RELEASE SAVEPOINT {name}")


@dataclass(frozen=True)
class MySQLDatabase(SqlDatabase):
    """The database of a sink. Has no connection of its own; picklable."""

    errors = pymysql.MySQLError
    locks = "performance_schema.metadata_locks, information_schema.innodb_trx and the process list"

    options: MySQLOptions

    def name(self) -> str:
        return self._server().name()

    def server(self) -> str:
        server = self._server()
        host, port = server.address()
        return f"{'localhost' if server.is_here() else host.lower()}:{port}"

    def database_name(self) -> str:
        return self._server().database()

    def log_url(self) -> ServerUrl:
        url = self._server().url
        given = url.parameters.get("password", "" if self._server().secret is None else _PASSWORD)
        named = given if given.startswith(REFERENCES) else _PASSWORD
        rest = {name: value for name, value in url.parameters.items() if name != "password"}
        return replace(url, parameters=rest | ({"password": named} if given else {}))

    def translated(self, doing: str, error: Any, step: str | None = None) -> OutfallError:
        return translated(self, doing, error, step)

    def hides(self, error: Any) -> bool:
        return quotes_rows(error) and self.options.log_rows != "full"

    def reason(self, error: Any) -> str:
        return describe(error) if self.options.log_rows == "full" else masked(error)

    def remedy(self, error: Any) -> str:
        return remedy(error) or self.unavailable()

    def unavailable(self) -> str:
        """Return what to check if the server does not respond."""
        return (
            "check why the server does not respond or has no connection left: the sink needs one connection per running"
            " task and one for the driver, and a node of a cluster commits only while it reaches most of the others"
            f"{self.tls_advice()}"
        )

    def tls_advice(self) -> str:
        """Return advice about TLS if the certificate is verified; otherwise an empty string."""
        if not self._server().verifies():
            return ""
        return (
            "; the server's certificate is verified (tls=verify): set tls_ca=FILE in the dsn for a private authority,"
            " or tls=prefer for a server without TLS, or with a self-signed certificate, as MariaDB"
            " creates from 11.4"
        )

    def is_transient(self, error: BaseException, *, starting: bool = False) -> bool:
        return error_is_transient(error) and not (starting and is_refused(error))

    def waited_for_lock(self, error: BaseException | None) -> bool:
        return error is not None and code_of(error) in (1205, 3572)

    @contextmanager
    def transaction(self, *, undo: bool = False) -> Iterator[MySQLSession]:
        with self._server().connection() as connection:
            session = MySQLSession(connection)
            statement = math.ceil(self.options.statement_milliseconds / 1000)
            silence = min(statement, _LONGEST_SILENCE) if statement else _LONGEST_SILENCE
            self._begin(session, silence=silence, statement=statement)
            try:
                yield session
            except Exception as error:
                if code_of(error) not in _CLIENT:
                    with suppress(pymysql.MySQLError):
                        session.execute("ROLLBACK")
                raise
            session.execute("ROLLBACK" if undo else "COMMIT")

    @contextmanager
    def task(self) -> Iterator[MySQLSession]:
        """Lend a session in a transaction that lasts as long as its task has rows. Without a COMMIT it leaves nothing.

        Only a wait for a lock is limited: a stopped attempt may hold the lock.
        """
        with self._server().connection() as connection:
            session = MySQLSession(connection)
            self._begin(session, silence=_LONGEST_TASK, statement=0)
            self.check_strict(session)
            yield session

    def check_strict(self, session: MySQLSession) -> None:
        """Reject a session whose settings a proxy has not applied, or has reset.

        Raises `TargetError`: values would be truncated in silence.
        """
        mode, zone = session.execute("SELECT @@SESSION.sql_mode, @@SESSION.time_zone").fetchone()
        if STRICT not in str(mode).split(",") or zone != "+00:00":
            raise TargetError(
                f"the session in {self.name()} has sql_mode {mode!r} and time_zone {zone!r}",
                why="the sink set other values, without which the server would change data silently",
                do="let the proxy between Spark and the server keep the settings of a session, or connect directly",
            )

    @contextmanager
    def making(self, session: MySQLSession, names: Sequence[str]) -> Iterator[None]:
        session.execute("SET lock_wait_timeout = %s", (_LONGEST_WAIT,))
        locks = ["outfall " + hashlib.sha256(name.encode()).hexdigest()[:40] for name in sorted(names)]
        try:
            for lock in locks:
                if session.execute("SELECT GET_LOCK(%s, %s)", (lock, _LONGEST_WAIT)).fetchone()[0] != 1:
                    raise pymysql.OperationalError(1205, "another session is creating the same tables")
            yield
        finally:
            # Locks of a name outlive transactions, and each statement that creates a table commits.
            with suppress(pymysql.MySQLError):
                for lock in locks:
                    session.execute("DO RELEASE_LOCK(%s)", (lock,))

    def _begin(self, session: MySQLSession, *, silence: int, statement: int) -> None:
        """Begin a transaction with the timeouts of this sink, instead of those of the user."""
        waits = math.ceil(self.options.statement_milliseconds / 1000) or _NO_LIMIT
        # MySQL limits statements that only read, in milliseconds.
        limit = (
            f"max_statement_time = {statement}" if session.is_mariadb else f"max_execution_time = {statement * 1000}"
        )
        session.execute(
            f"SET wait_timeout = {silence}, innodb_lock_wait_timeout = {waits}, lock_wait_timeout = {waits}, {limit}"
        )
        session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        session.execute("START TRANSACTION")
        # Also for reads: a replica may lag, and a node that has left its cluster receives no changes.
        if str(session.execute("SELECT @@GLOBAL.read_only").fetchone()[0]).upper() not in ("0", "OFF"):
            raise pymysql.OperationalError(1836, "the server is read-only, as a replica is")

    def _server(self) -> MySQLServer:
        url, secret = parse_dsn(resolve_secret(self.options.dsn))
        bound = self.options.statement_milliseconds
        return MySQLServer(
            url,
            bound / 1000 + _SLACK if bound else None,
            secret,
            max(1, int(self.options.connect_timeout.total_seconds())),
            "the dsn",
        )


def parse_dsn(dsn: str) -> tuple[ServerUrl, SecretStr | None]:
    """Return the URL without its password, and the password.

    Raises `ConfigurationError` without a quote, because text that cannot be parsed may be a password.
    """
    scheme, found, _ = dsn.partition("://")
    do = "write mysql://user@host:3306/database, with user and password percent-encoded (@ as %40, / as %2F, % as %25)"
    try:
        split = split_url(dsn.strip())
    except ValueError:
        raise ConfigurationError("the dsn cannot be parsed", do=do) from None
    user, _, host = split.netloc.rpartition("@")
    user, colon, password = user.partition(":")
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    path = unquote(split.path).strip("/")
    fits = found and scheme in ("mysql", "mariadb") and host and path and "/" not in path
    if not fits or "@" in user + password + path + split.fragment or split.fragment:
        raise ConfigurationError(
            "the dsn is a URL of JDBC" if dsn.strip().startswith("jdbc:") else "the dsn cannot be parsed",
            do=do,
        )
    for name in given:
        if name not in PARAMETERS:
            near = nearest_name(name, PARAMETERS)
            raise ConfigurationError(
                f"the dsn has an unknown parameter {name!r}",
                do=f"did you mean {near!r}?" if near else f"use only {', '.join(PARAMETERS)}",
            )
    place = f"{user}@{host}/{split.path.strip('/')}" if user else f"{host}/{split.path.strip('/')}"
    return ServerUrl("mysql", place, given), SecretStr(unquote(password)) if colon else None
