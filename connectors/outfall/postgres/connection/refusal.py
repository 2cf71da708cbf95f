"""Why a connection could not be established. libpq only says it, in a language that it does not name."""

from __future__ import annotations

import os
import re
import select
import socket
import time
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PollingStatus

from outfall.first_contact import UnexpectedProtocolError
from outfall.postgres.connection.dsn import SECRETS
from outfall.postgres.connection.errors import ConnectionRefusedByServerError
from outfall.redaction import Redaction


def refusal(
    error: psycopg.OperationalError, conninfo: str, *, verified: bool, seconds: float
) -> ConnectionRefusedByServerError | None:
    """Return the error for a failed connection that a running server has rejected; `None` if no server has.

    Removes secrets from the error, and adds a wrong address as its cause. `verified` says that the certificate is
    verified by default. The server is asked again, for `seconds` at most.
    """
    # The server has received the password, and its message may repeat it.
    given: dict[str, Any] = dict(conninfo_to_dict(conninfo))
    Redaction(str(given.get(name) or "") for name in SECRETS).clean(error)
    error.__cause__ = _cause(str(error))
    # libpq reports no code for errors while connecting. A ping shows whether a server runs (manual, PQping).
    if error.__cause__ is not None or not (_answers(conninfo) or (verified and _answers(_without_tls(given)))):
        return None
    refused = ConnectionRefusedByServerError(*error.args)
    refused.sqlstate = _code_of_refusal(conninfo, seconds)
    return refused


def _code_of_refusal(conninfo: str, seconds: float) -> str | None:
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
