"""What a DSN says: host, database and TLS, with libpq's environment; and what is added for a connection."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.errors import ConfigurationError
from outfall.sql.log_location import ServerUrl, is_here
from outfall.tls import system_authorities

SECRETS = ("password", "sslpassword")
"""The parameters that are secrets."""

_KEEPALIVES = {"keepalives_idle": 60, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 90_000}
"""These detect a vanished host after a minute and a half, which otherwise takes hours (manual, 32.1.2)."""

_HOST = re.compile(r"[A-Za-z0-9.-]+")
_VARIABLES = {"password": "PGPASSWORD", "sslpassword": "PGSSLPASSWORD"}
"""Variables for the secrets of a recovery location."""


@dataclass(frozen=True)
class Dsn:
    """The parameters of a DSN."""

    given: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Dsn:
        """Parse a DSN. Raises `ConfigurationError` if that is not possible, or if it would show a password."""
        try:
            given = conninfo_to_dict(text)
        except psycopg.ProgrammingError:
            given = None
        if given is None or _is_misread(text, given):
            # Without a quote and without a cause, because the unreadable text may be a password.
            raise ConfigurationError(
                "the dsn is a URL of JDBC" if text.strip().startswith("jdbc:") else "the dsn cannot be parsed",
                do="write postgresql://user@host:5432/database, with user and password percent-encoded (@ as %40, / as"
                " %2F, % as %25), or key=value pairs",
            )
        return cls(given)

    def address(self) -> tuple[str, str]:
        """Return host and port. The host is empty for the local socket."""
        given, environment = self.given, os.environ
        host = given.get("host") or given.get("hostaddr") or environment.get("PGHOST") or ""
        return str(host), str(given.get("port") or environment.get("PGPORT") or 5432)

    def service(self) -> str:
        """Return the name of the service, whose file libpq reads; otherwise an empty string."""
        return str(self.given.get("service") or os.environ.get("PGSERVICE") or "")

    def database(self) -> str:
        """Return the database's name like libpq (manual, 32.1.2 and 32.15), but without reading a service file."""
        given, environment = self.given, os.environ.get("PGDATABASE")
        if self.service():
            return str(given.get("dbname") or given.get("user") or environment or "")
        return str(given.get("dbname") or environment or given.get("user") or _default_user())

    def is_verified(self) -> bool:
        """Return whether the certificate is verified by default."""
        given, environment = self.given, os.environ
        said = "sslmode" in given or environment.get("PGSSLMODE")
        # libpq connects to hostaddr, whatever name host has.
        hosts = [str(given.get(name) or environment.get(f"PG{name.upper()}") or "") for name in ("host", "hostaddr")]
        return not said and not all(is_here(host) for found in hosts for host in found.split(","))

    def conninfo(self, connect_timeout: timedelta) -> str:
        """Return the parameters for libpq, with the secrets."""
        given = self.given
        fixed: dict[str, Any] = {
            "connect_timeout": max(1, int(connect_timeout.total_seconds())),
            "application_name": given.get("application_name") or "outfall",
            "client_encoding": "UTF8",  # the encoding of COPY data
        }
        if self.is_verified():
            rooted = "sslrootcert" in given or os.environ.get("PGSSLROOTCERT")
            fixed |= {"sslmode": "verify-full"} | ({} if rooted else {"sslrootcert": system_authorities() or "system"})
        # Parameters here would take precedence over those of a service file.
        return make_conninfo(**(({} if self.service() else _KEEPALIVES) | dict(given) | fixed))

    def log_url(self) -> ServerUrl | None:
        """Return the location of a recovery log in this database, without secrets; `None` with a service file."""
        if self.service():
            return None
        given = {name: str(value) for name, value in self.given.items()}
        user = given.pop("user", "")
        given.pop("dbname", None)
        given |= {name: f"env:{_VARIABLES[name]}" for name in _VARIABLES if name in given}
        place = f"{quote(user, safe='')}@" if user else ""
        host, port = given.get("host", ""), given.get("port", "")
        if _HOST.fullmatch(host):
            place += host + (f":{port}" if port else "")
            given = {name: value for name, value in given.items() if name not in ("host", "port")}
        return ServerUrl("postgresql", f"{place}/{quote(self.database(), safe='')}", given)


def _default_user() -> str:
    """Return libpq's default user: PGUSER, or the user of the operating system."""
    defaults = {option.keyword: option.val for option in psycopg.pq.Conninfo.get_defaults()}
    return (defaults.get(b"user") or b"").decode()


def _is_misread(dsn: str, given: Mapping[str, Any]) -> bool:
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
