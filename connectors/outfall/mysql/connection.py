"""Connections to MySQL and MariaDB: one idle one per process and server, TLS by default, LOAD DATA, classes of errors.

TLS is verified as in `outfall.postgres`: by default, except for hosts of this machine. PyMySQL alone would encrypt only
if the server offers it, and verify nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pydantic import SecretStr
from pymysql.connections import Connection, MySQLResult
from pymysql.constants import CR, ER, SERVER_STATUS

from outfall.errors import ConfigurationError, printable
from outfall.first_contact import UnexpectedProtocolError
from outfall.idle import Idle
from outfall.redaction import Redaction
from outfall.sql.log_location import ServerUrl
from outfall.tls import verifying_context

PARAMETERS = ("password", "tls", "tls_ca")
"""The parameters of a URL."""

_HERE = ("localhost", "127.0.0.1", "::1")
_CONNECT_SECONDS = 10
STRICT = "STRICT_ALL_TABLES"
_SESSION = (
    f"SET sql_mode = '{STRICT},NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO',"
    " time_zone = '+00:00', unique_checks = 1, foreign_key_checks = 1, sql_safe_updates = 0, sql_big_selects = 1,"
    " sql_select_limit = 18446744073709551615, max_sort_length = 65536, sort_buffer_size = 4194304"
)
"""The server's own `sql_mode` may truncate values in silence, or create a table with another engine; its other settings
may skip checks, limit statements, or sort long keys by their first 1,024 bytes only, so that rows of two keys mix."""

_PASSING = {
    ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.CON_COUNT_ERROR, ER.SERVER_SHUTDOWN, ER.TOO_MANY_USER_CONNECTIONS,
    ER.USER_LIMIT_REACHED, ER.NORMAL_SHUTDOWN, ER.QUERY_INTERRUPTED, ER.DISK_FULL, ER.OPTION_PREVENTS_STATEMENT,
    1020, 1047, 1053, 1180, 1412, 1792, 1836, 1927, 1969, 3024, 3032, 3100, 3101, 3572, *range(3781, 3784),
    *range(3796, 3800), 4031,
}  # fmt: skip
"""Deadlock, lock wait, too many connections, shutdown, killed, disk full, read-only. By number where PyMySQL has no
name: a row that changed since it was read (MariaDB from 11.6), a Galera node that is not ready, a commit that failed, a
table that was altered meanwhile, a read-only transaction or server, a killed connection, statement timeouts of both
servers, a server in offline mode, Group Replication's refusal, rollback, end and waits, a lock that is not available, a
client that was idle for too long."""

_CLIENT = range(2000, 3000)
"""The client's own errors: the connection was lost, or could not be established."""

READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1792, 1836}
"""The server takes no writes: a replica."""

_REFUSED = {ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, 1251, 1698, 1862, 2059, 3118, 3159}


_IN_CLEAR = {b"mysql_clear_password", b"dialog"}
"""Methods of authentication that send the password as it is."""

_RECORDS = re.compile(rb"Records: (\d+)")
_CHUNK = 64 << 10
"""Bytes of a packet of LOAD DATA."""


class LoadConnection(Connection):  # type: ignore[misc]
    """A connection whose LOAD DATA LOCAL sends what this process has, and never a file that the server asks for."""

    sending: bytes | memoryview | None = None
    """The data of the next LOAD DATA."""

    @property
    def records(self) -> int:
        """The number of rows that the last INSERT was given, from the server's message."""
        message = (self._result.message if self._result else None) or b""
        found = _RECORDS.search(message)
        return int(found[1]) if found else 0

    def shut(self) -> None:
        """Close it without COM_QUIT, because the server may not respond."""
        with suppress(pymysql.MySQLError, OSError):
            self._force_close()

    def is_fresh(self) -> bool:
        """Return whether the server still answers, and has the limit that it had when the connection was made."""
        with suppress(pymysql.MySQLError, OSError), self.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.max_allowed_packet = @@GLOBAL.max_allowed_packet")
            return bool(cursor.fetchall() == ((1,),))
        return False

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        if plugin_name in _IN_CLEAR and not self._secure:
            name = printable(plugin_name.decode("latin-1"))
            raise pymysql.OperationalError(
                CR.CR_AUTH_PLUGIN_CANNOT_LOAD, f"the server asks for the password in clear ({name}), without TLS"
            )
        return super()._process_auth(plugin_name, auth_packet, handler)

    def _read_query_result(self, unbuffered: bool = False) -> int:
        self._result: MySQLResult | None = None
        result = _LoadResult(self)
        if unbuffered:
            result.init_unbuffered_query()
        else:
            result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return int(result.affected_rows or 0)


class _LoadResult(MySQLResult):  # type: ignore[misc]
    def _read_load_local_packet(self, first_packet: Any) -> None:
        connection, data = self.connection, self.connection.sending
        connection.sending = None
        for first in range(0, len(data or ()), _CHUNK):
            connection.write_packet(bytes(data[first : first + _CHUNK]))
        # An empty packet ends the data. If the server requests a file without a LOAD DATA, this is the whole reply.
        connection.write_packet(b"")
        self._read_ok_packet(connection._read_packet())
        if data is None:
            raise pymysql.InternalError(0, "the server requested a file that was not offered")


@dataclass(frozen=True)
class MySQLServer:
    """A server and a database on it."""

    url: ServerUrl
    timeout: float | None
    """Seconds after which a statement without a reply fails; `None` to wait forever."""
    secret: SecretStr | None = None
    """A password that is not in the URL."""
    connect_timeout: float = _CONNECT_SECONDS
    what: str = "the recovery location in mysql:"
    """What the URL is, for errors."""

    def name(self) -> str:
        """Return host, port and database."""
        host, port = self.address()
        return f"{host}:{port}/{self.database()}"

    def database(self) -> str:
        """Return the name of the database."""
        return unquote(urlsplit(str(self.url)).path).strip("/")

    def is_here(self) -> bool:
        """Return whether the server is on this machine."""
        return self.address()[0] in _HERE

    def verifies(self) -> bool:
        """Return whether the server's certificate is verified."""
        given = self.url.parameters
        mode = given.get("tls", "prefer" if self.is_here() and "tls_ca" not in given else "verify")
        return mode == "verify"

    @contextmanager
    def connection(self) -> Iterator[LoadConnection]:
        """Lend this process's connection, or a new one. After an error or in a transaction, it is closed.

        Raises `pymysql.MySQLError` if no connection could be established.
        """
        key = f"{self.url} {self.timeout} {self.secret and self.secret.get_secret_value()}"
        connection = _IDLE.take(key, {}, LoadConnection.is_fresh) or self._connect()
        try:
            yield connection
        except BaseException:
            connection.shut()
            raise
        if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            connection.shut()
        else:
            _IDLE.keep(key, {}, connection)

    def _connect(self) -> LoadConnection:
        host, port = self.address()
        password = self._password()
        given: dict[str, Any] = {} if password is None else {"password": password}
        if password is None and os.path.exists(os.path.expanduser("~/.my.cnf")):
            given = {"read_default_file": "~/.my.cnf"}
        try:
            connection = LoadConnection(
                host=host, port=port, user=unquote(urlsplit(str(self.url)).username or "") or None,
                database=self.database(), charset="utf8mb4", connect_timeout=self.connect_timeout,
                read_timeout=self.connect_timeout, write_timeout=self.timeout, autocommit=True, local_infile=True,
                init_command=_SESSION, **self._tls(), **given,
            )  # fmt: skip
            # PyMySQL has no other place for it. Until here, a proxy may accept the connection and never respond.
            connection._read_timeout = self.timeout
            _wait_for_others(connection)
            return connection
        except RuntimeError as error:
            raise ConfigurationError(
                f"the user of {self.what} cannot log in",
                why=str(error),
                do="install that package on each host that connects; or use TLS (tls=verify or tls=prefer, and a server"
                " that has it), over which the methods of MySQL need none",
            ) from error
        except pymysql.InternalError as error:
            raise pymysql.OperationalError(2007, f"the server does not speak MySQL's protocol ({error})") from (
                UnexpectedProtocolError(str(error))
            )
        except pymysql.MySQLError as error:
            # The server has received the password, and its message may repeat it.
            hidden = Redaction([password or ""])
            error.args = tuple(hidden.hide(said) if isinstance(said, str) else said for said in error.args)
            raise

    def address(self) -> tuple[str, int]:
        """Return host and port."""
        split = urlsplit(str(self.url))
        try:
            return split.hostname or "localhost", split.port or 3306
        except ValueError as error:
            raise ConfigurationError(
                f"{self.what} has an invalid port", do="write mysql://user@host:3306/database"
            ) from error

    def _password(self) -> str | None:
        if self.secret is not None:
            return self.secret.get_secret_value()
        given = self.url.secret("password")
        return os.environ.get("MYSQL_PWD") if given is None else given

    def _tls(self) -> dict[str, Any]:
        """Return PyMySQL's arguments for TLS."""
        mode = self.url.parameters.get("tls")
        if mode not in (None, "verify", "prefer", "off"):
            raise ConfigurationError(f"{self.what} has tls={mode}", do="use tls=verify, tls=prefer or tls=off")
        if mode in ("prefer", "off") and "tls_ca" in self.url.parameters:
            raise ConfigurationError(
                f"{self.what} has tls={mode} and tls_ca", why="only tls=verify uses an authority", do="omit one of them"
            )
        if mode == "off":
            return {"ssl_disabled": True}
        if not self.verifies():
            return {}
        authority = self.url.parameters.get("tls_ca")
        try:
            return {"ssl": verifying_context(authority)}
        except OSError as error:
            raise ConfigurationError(
                f"the certificate authority {authority!r} cannot be read",
                why=str(error),
                do="give the path of a PEM file on each host that connects as tls_ca",
            ) from error


_WAITING = {
    ("wsrep_on", "ON"): "wsrep_sync_wait = 1",
    ("group_replication_consistency", "EVENTUAL"): "group_replication_consistency = 'BEFORE'",
    ("group_replication_consistency", "BEFORE_ON_PRIMARY_FAILOVER"): "group_replication_consistency = 'BEFORE'",
    ("group_replication_consistency", "AFTER"): "group_replication_consistency = 'BEFORE_AND_AFTER'",
}
"""Session variables that make a node of a cluster wait for earlier commits, by the variable and its current value."""


def _wait_for_others(connection: Connection[Any]) -> None:
    """Make reads causal: a node of a cluster first applies what the other nodes have committed.

    A proxy may lead each connection to another node, and a new primary may not yet have applied what it has received:
    rows and record of the last epoch would seem to be lost (MariaDB Knowledge Base, "Galera Cluster System Variables",
    wsrep_sync_wait; MySQL Reference Manual, "Transaction Consistency Guarantees").
    """
    names = ", ".join(f"'{name}'" for name in dict.fromkeys(name for name, _ in _WAITING))
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW VARIABLES WHERE variable_name IN ({names})")
        for name, value in cursor.fetchall():
            if (name, value) in _WAITING:
                cursor.execute(f"SET SESSION {_WAITING[name, value]}")


def code_of(error: BaseException) -> int:
    """Return the number of an error; 0 without one."""
    first = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0


def is_refused(error: BaseException) -> bool:
    """Return whether the server rejected the connection: user, password, database or TLS."""
    return code_of(error) in _REFUSED or "CERTIFICATE_VERIFY_FAILED" in str(error) or code_of(error) == 2026


def is_transient(error: BaseException) -> bool:
    """Return whether the same transaction may succeed later: the connection was lost, or the server was busy."""
    if not isinstance(error, pymysql.MySQLError) or is_refused(error):
        return False
    code = code_of(error)
    lost = code in _CLIENT
    # PyMySQL raises InterfaceError (0, "") on a connection that it has closed after an error.
    return lost or code in _PASSING or isinstance(error, pymysql.InterfaceError)


def describe(error: BaseException) -> str:
    """Return the server's message with its number."""
    said = " ".join(str(part) for part in error.args[1:]) or type(error).__name__
    return f"{said} (error {code_of(error)})" if code_of(error) else said


_IDLE: Idle[LoadConnection] = Idle(16)
"""The idle connections of this process, one per server and password."""
