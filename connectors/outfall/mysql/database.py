"""The port to MySQL and MariaDB: the URL, TLS, sessions in transactions.

TLS is verified as in `outfall.postgres`: by default, except for hosts of this machine. PyMySQL alone would encrypt only
if the server offers it, and verify nothing.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pydantic import SecretStr
from pymysql.constants import ER, SERVER_STATUS
from pymysql.cursors import SSCursor

from outfall.errors import ConfigurationError, TargetError
from outfall.idle import Idle
from outfall.mysql.connection import STRICT, LoadConnection
from outfall.mysql.errors import CLIENT, MySQLRefusal, code_of, describe, means, remedy
from outfall.mysql.names import quote
from outfall.mysql.options import PARAMETERS, MySQLOptions
from outfall.options import nearest_name, resolve_secret
from outfall.sql.database import Means, SqlDatabase, lent
from outfall.sql.log_location import REFERENCES, ServerUrl, is_here
from outfall.sql.session import BatchingSession, Fetched, Statement
from outfall.tls import verifying_context
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
_PASSWORD = "env:MYSQL_PWD"  # noqa: S105 - a variable, as of the server's own client
_RECORDS = re.compile(rb"\d+")
"""The first number of "Records: 3  Duplicates: 0  Warnings: 0", which is in the language of the server."""
_STATE = (
    "SELECT @@GLOBAL.read_only, @@SESSION.sql_mode, @@SESSION.time_zone, @@local_infile, @@max_allowed_packet,"
    " @@SESSION.max_allowed_packet = @@GLOBAL.max_allowed_packet"
)
_ACCOUNT = re.compile(r"'[^']*'@'[^']*'")


@dataclass
class Answered(Fetched):
    """The result of a statement."""

    records: int = 0
    """The number of rows that an INSERT was given, whether it inserted or updated them."""


def records_of(message: bytes | None) -> int:
    """Return the number of rows that an INSERT was given, from the message of the server."""
    found = _RECORDS.search(message or b"")
    return int(found[0]) if found else 0


class MySQLSession(BatchingSession, LoadConnection):
    """A connection in a transaction."""

    errors = pymysql.MySQLError

    any_text = True
    loads = False
    """Whether the server allows LOAD DATA LOCAL, when the transaction began."""
    packet = 0
    """`max_allowed_packet` of the session."""

    def together(self, statements: Sequence[Statement]) -> list[Fetched]:
        results: list[Fetched] = []
        with self.cursor() as cursor:
            cursor.execute("; ".join(cursor.mogrify(statement, given) for statement, given in statements))
            results.append(self._fetched(cursor))
            while cursor.nextset():
                results.append(self._fetched(cursor))
        return results

    def _fetched(self, cursor: Any) -> Answered:
        result = Answered.of(cursor)
        result.records = records_of(self._result.message if self._result else None)
        return result

    def cursor(self, *given: Any) -> Any:
        """Return a cursor, whose statements are executed after those of `later`."""
        self.flush()
        return super().cursor(*given)

    def stream(self, query: str, /) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query, without holding all of them. Its % are doubled."""
        with self.cursor(SSCursor) as cursor:
            cursor.execute(query, ())
            yield from iter(cursor.fetchone, None)

    def send(self, statement: bytes, data: bytes | memoryview | None = None) -> tuple[int, int]:
        """Execute an INSERT as it is, or a LOAD DATA LOCAL with data; return the numbers of rows and of warnings."""
        queued = self._taken()
        self.sending = data
        with self.cursor() as cursor:
            before = [cursor.mogrify(each, given).encode() for each, given in queued]
            cursor.execute(b"; ".join([*before, statement]))
            while cursor.nextset():
                pass
            return cursor.rowcount, cursor.warning_count

    def first_warning(self) -> MySQLRefusal:
        """Return the first warning of the last statement as the reason why a row is rejected."""
        found = self.execute("SHOW WARNINGS LIMIT 1").fetchone()
        return MySQLRefusal(
            "the server would change a value" if found is None else str(found[2]), found and str(found[1])
        )

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return "MariaDB" in self.get_server_info()

    def is_busy(self) -> bool:
        """Return whether it is in a transaction."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def _alive(self) -> bool:
        return bool(self.open)


@dataclass(frozen=True)
class MySQLDatabase(SqlDatabase):
    """The database of a sink. Has no connection of its own; picklable."""

    errors = pymysql.MySQLError
    locks = "performance_schema.metadata_locks, information_schema.innodb_trx and the process list"

    sink = "MySQLSink"

    options: MySQLOptions
    location: ServerUrl | None = None
    """That of a recovery log, which is then used instead of the dsn."""

    def address(self) -> tuple[str, str]:
        split = urlsplit(str(self._url()[0]))
        try:
            return split.hostname or "localhost", str(split.port or 3306)
        except ValueError as error:
            raise ConfigurationError(
                f"{self._what} has an invalid port", do="write mysql://user@host:3306/database"
            ) from error

    def database_name(self) -> str:
        return unquote(urlsplit(str(self._url()[0])).path).strip("/")

    def log_url(self) -> ServerUrl:
        url, secret = self._url()
        given = url.parameters.get("password", "" if secret is None else _PASSWORD)
        named = given if given.startswith(REFERENCES) else _PASSWORD
        rest = {name: value for name, value in url.parameters.items() if name != "password"}
        return replace(url, parameters=rest | ({"password": named} if given else {}))

    def means(self, error: BaseException) -> Means:
        return means(error)

    def said(self, error: BaseException, *, full: bool) -> str:
        return describe(error, full=full)

    def remedy(self, error: BaseException) -> str | None:
        return remedy(error)

    def unavailable(self) -> str:
        return (
            "check why the server does not respond or has no connection left: the sink needs one connection per running"
            " task and one for the driver, and a node of a cluster commits only while it reaches most of the others"
            f"{self.tls_advice()}"
        )

    def access(self, error: BaseException) -> str:
        own = self.options.metadata_schema
        if code_of(error) != ER.DBACCESS_DENIED_ERROR or f"'{own}'" not in str(error.args[1]):
            return f"correct user, password and database in the dsn, or give the user access{self.tls_advice()}"
        found = _ACCOUNT.search(str(error.args[1]))
        account = found[0] if found else "the user of the dsn"
        return (
            f"GRANT CREATE, DROP, SELECT, INSERT, UPDATE, DELETE ON {quote(own)}.* TO {account}; or set metadata_schema"
            " to a database in which the user may create tables, such as that of the table"
        )

    def tls_advice(self) -> str:
        if self._tls_mode() != "verify":
            return ""
        return (
            "; the server's certificate is verified (tls=verify): set tls_ca=FILE in the dsn for a private authority,"
            " or tls=prefer for a server without TLS, or with a self-signed certificate, as MariaDB"
            " creates from 11.4"
        )

    def connection(self) -> AbstractContextManager[MySQLSession]:
        return lent(_IDLE, self._key(), MySQLSession.answers, self._connect)

    def _key(self) -> str:
        url, secret = self._url()
        return f"{url} {self._timeout} {secret and secret.get_secret_value()}"

    @contextmanager
    def transaction(
        self, *, undo: bool = False, foreseen: Sequence[Statement] = (), looks: bool = False
    ) -> Iterator[MySQLSession]:
        with self._begun(*self._limits(), foreseen, looks=looks) as session:
            try:
                yield session
            except Exception as error:
                if code_of(error) not in CLIENT:
                    with suppress(pymysql.MySQLError):
                        session.finish("ROLLBACK")
                raise
            session.finish("ROLLBACK" if undo else "COMMIT")

    def task(self, foreseen: Sequence[Statement] = ()) -> AbstractContextManager[MySQLSession]:
        return self._begun(_LONGEST_TASK, 0, foreseen, looks=True)

    def limit(self, session: MySQLSession) -> None:
        silence, statement = self._limits()
        session.later(f"SET wait_timeout = {silence}, {self._statement_limit(session, statement)}")

    def _limits(self) -> tuple[int, int]:
        """Return the seconds of silence and of one statement after which the server ends a transaction."""
        statement = math.ceil(self.options.statement_milliseconds / 1000)
        return min(statement, _LONGEST_SILENCE) if statement else _LONGEST_SILENCE, statement

    def _statement_limit(self, session: MySQLSession, seconds: int) -> str:
        # MySQL limits statements that only read, in milliseconds.
        return f"max_statement_time = {seconds}" if session.is_mariadb else f"max_execution_time = {seconds * 1000}"

    def _begun(
        self, silence: int, statement: int, foreseen: Sequence[Statement] = (), *, looks: bool = False
    ) -> AbstractContextManager[MySQLSession]:
        """Lend a session in a transaction, with timeouts in seconds: see `BatchingSession.begin`."""

        def is_usable(kept: MySQLSession) -> bool:
            # It may have ended since the last epoch, or its server: nothing that was sent outlives the connection.
            with suppress(pymysql.MySQLError, OSError, TargetError):
                return self._begin(kept, silence, statement, foreseen, looks=looks)
            return False

        def connect() -> MySQLSession:
            session = self._connect()
            try:
                self._begin(session, silence, statement, foreseen, looks=looks)
            except BaseException:
                session.shut()
                raise
            return session

        return lent(_IDLE, self._key(), is_usable, connect)

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

    def _begin(
        self, session: MySQLSession, silence: int, statement: int, foreseen: Sequence[Statement], *, looks: bool
    ) -> bool:
        """Begin a transaction, READ COMMITTED, with the timeouts of this sink, instead of those of the user.

        Returns whether the session has the limit of packets that it had when it was made. Raises `TargetError` if a
        proxy has not applied its settings, or has reset them: values would be truncated in silence.
        """
        waits = math.ceil(self.options.statement_milliseconds / 1000) or _NO_LIMIT
        limit = self._statement_limit(session, statement)
        given = f"wait_timeout = {silence}, innodb_lock_wait_timeout = {waits}, lock_wait_timeout = {waits}, {limit}"
        first = (f"SET {given}", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION", _STATE)
        *_, state = session.begin([(each, ()) for each in first], foreseen, looks=looks)
        read_only, mode, zone, session.loads, session.packet, fits = state.fetchone() or ()
        # Also for reads: a replica may lag, and a node that has left its cluster receives no changes.
        if str(read_only).upper() not in ("0", "OFF"):
            raise pymysql.OperationalError(1836, "the server is read-only, as a replica is")
        if STRICT not in str(mode).split(",") or zone != "+00:00":
            raise TargetError(
                f"the session in {self.name()} has sql_mode {mode!r} and time_zone {zone!r}",
                why="the sink set other values, without which the server would change data silently",
                do="let the proxy between Spark and the server keep the settings of a session, or connect directly",
            )
        return bool(fits)

    def _connect(self) -> MySQLSession:
        host, port = self.address()
        user, password = urlsplit(str(self._url()[0])).username, self._password()
        given: dict[str, Any] = {} if password is None else {"password": password}
        if password is None and os.path.exists(os.path.expanduser("~/.my.cnf")):
            given = {"read_default_file": "~/.my.cnf"}
        patience = max(1, int(self.options.connect_timeout.total_seconds()))
        try:
            return MySQLSession.connect_to(
                host=host, port=int(port), user=unquote(user or "") or None, database=self.database_name(),
                connect_timeout=patience, timeout=self._timeout, **self._tls(), **given,
            )  # fmt: skip
        except RuntimeError as error:
            raise ConfigurationError(
                f"the user of {self._what} cannot log in",
                why=str(error),
                do="install that package on each host that connects; or use TLS (tls=verify or tls=prefer, and a server"
                " that has it), over which the methods of MySQL need none",
            ) from error

    @property
    def _what(self) -> str:
        """What the URL is, for errors."""
        return "the dsn" if self.location is None else "the recovery location in mysql:"

    @property
    def _timeout(self) -> float | None:
        """Seconds after which a statement without a reply fails; `None` to wait forever."""
        bound = self.options.statement_milliseconds / 1000
        # For the statements of a log, the server has no limit of its own.
        return (bound if self.location else bound + _SLACK) if bound else None

    def _url(self) -> tuple[ServerUrl, SecretStr | None]:
        """Return the URL without its password, and the password."""
        return parse_dsn(resolve_secret(self.options.dsn)) if self.location is None else (self.location, None)

    def _password(self) -> str | None:
        url, secret = self._url()
        if secret is not None:
            return secret.get_secret_value()
        given = url.secret("password")
        return os.environ.get("MYSQL_PWD") if given is None else given

    def _tls_mode(self) -> str:
        """Return whether the server's certificate is verified (`verify`), as by default for other hosts."""
        given = self._url()[0].parameters
        default = "prefer" if is_here(self.address()[0]) and "tls_ca" not in given else "verify"
        return given.get("tls", default)

    def _tls(self) -> dict[str, Any]:
        """Return PyMySQL's arguments for TLS. Without them, it encrypts only if the server offers it."""
        mode, authority = self._tls_mode(), self._url()[0].parameters.get("tls_ca")
        if mode not in ("verify", "prefer", "off"):
            raise ConfigurationError(f"{self._what} has tls={mode}", do="use tls=verify, tls=prefer or tls=off")
        if mode != "verify":
            if authority is not None:
                raise ConfigurationError(
                    f"{self._what} has tls={mode} and tls_ca",
                    why="only tls=verify uses an authority",
                    do="omit one of them",
                )
            return {"ssl_disabled": True} if mode == "off" else {}
        try:
            return {"ssl": verifying_context(authority)}
        except OSError as error:
            raise ConfigurationError(
                f"the certificate authority {authority!r} cannot be read",
                why=str(error),
                do="give the path of a PEM file on each host that connects as tls_ca",
            ) from error


_IDLE: Idle[MySQLSession] = Idle(16)
"""The idle connections of this process, one per server and password."""


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
