"""Connections to MySQL and MariaDB: settings, causal reads, no password in clear, LOAD DATA without files."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Self

import pymysql
from pymysql.connections import Connection, MySQLResult
from pymysql.constants import CLIENT, CR

from outfall.errors import printable
from outfall.first_contact import UnexpectedProtocolError
from outfall.redaction import Redaction

STRICT = "STRICT_ALL_TABLES"
_SESSION = (
    f"SET sql_mode = '{STRICT},NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO',"
    " time_zone = '+00:00', unique_checks = 1, foreign_key_checks = 1, sql_safe_updates = 0, sql_big_selects = 1,"
    " sql_select_limit = 18446744073709551615, max_sort_length = 65536, sort_buffer_size = 4194304"
)
"""The server's own `sql_mode` may truncate values in silence, or create a table with another engine; its other settings
may skip checks, limit statements, or sort long keys by their first 1,024 bytes only, so that rows of two keys mix."""

_WAITING = {
    ("wsrep_on", "ON"): "wsrep_sync_wait = 1",
    ("group_replication_consistency", "EVENTUAL"): "group_replication_consistency = 'BEFORE'",
    ("group_replication_consistency", "BEFORE_ON_PRIMARY_FAILOVER"): "group_replication_consistency = 'BEFORE'",
    ("group_replication_consistency", "AFTER"): "group_replication_consistency = 'BEFORE_AND_AFTER'",
}
"""Session variables that make a node of a cluster wait for earlier commits, by the variable and its current value."""

_GROUP = "group_replication_group_name"
"""The variable that is not empty on a node of Group Replication."""

_IN_CLEAR = {b"mysql_clear_password", b"dialog"}
"""Methods of authentication that send the password as it is."""

_CHUNK = 64 << 10
"""Bytes of a packet of LOAD DATA."""


class LoadConnection(Connection):  # type: ignore[misc]
    """A connection whose LOAD DATA LOCAL sends what this process has, and never a file that the server asks for."""

    in_group = False
    """Whether the server is a node of Group Replication, when the connection was made."""
    sending: bytes | memoryview | None = None
    """The data of the next LOAD DATA."""

    @classmethod
    def connect_to(cls, *, connect_timeout: float, timeout: float | None, **given: Any) -> Self:
        """Return a new connection, with settings that change no value in silence. `given` is for PyMySQL.

        Fails if the server is silent for `connect_timeout` seconds while connecting, and for `timeout` afterwards; with
        `None` it waits forever. Raises `pymysql.MySQLError` without secrets, or `RuntimeError` if a package is missing.
        """
        try:
            session = cls(
                charset="utf8mb4", connect_timeout=connect_timeout, read_timeout=connect_timeout, write_timeout=timeout,
                autocommit=True, local_infile=True, init_command=_SESSION, client_flag=CLIENT.MULTI_STATEMENTS, **given,
            )  # fmt: skip
            # PyMySQL has no other place for it. Until here, a proxy may accept the connection and never respond.
            session._read_timeout = timeout
            session._wait_for_others()
            return session
        except pymysql.InternalError as error:
            raise pymysql.OperationalError(2007, f"the server does not speak MySQL's protocol ({error})") from (
                UnexpectedProtocolError(str(error))
            )
        except pymysql.MySQLError as error:
            # The server has received the password, and its message may repeat it.
            Redaction([given.get("password") or ""]).clean(error)
            raise

    def answers(self) -> bool:
        """Return whether the server still answers, and has the limit that it had when the connection was made."""
        with suppress(pymysql.MySQLError, OSError), self.cursor() as cursor:
            cursor.execute("SELECT @@SESSION.max_allowed_packet = @@GLOBAL.max_allowed_packet")
            return bool(cursor.fetchall() == ((1,),))
        return False

    def shut(self) -> None:
        """Close it without COM_QUIT, because the server may not respond."""
        with suppress(pymysql.MySQLError, OSError):
            self._force_close()

    def _wait_for_others(self) -> None:
        """Make reads causal: a node of a cluster first applies what the other nodes have committed.

        A proxy may lead each connection to another node, and a new primary may not yet have applied what it has
        received: rows and record of the last epoch would seem to be lost (MariaDB Knowledge Base, "Galera Cluster
        System Variables", wsrep_sync_wait; MySQL Reference Manual, "Transaction Consistency Guarantees").
        """
        names = ", ".join(f"'{name}'" for name in dict.fromkeys([_GROUP, *(name for name, _ in _WAITING)]))
        with self.cursor() as cursor:
            cursor.execute(f"SHOW VARIABLES WHERE variable_name IN ({names})")
            for name, value in cursor.fetchall():
                self.in_group = self.in_group or (name == _GROUP and value != "")
                if (name, value) in _WAITING:
                    cursor.execute(f"SET SESSION {_WAITING[name, value]}")

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
