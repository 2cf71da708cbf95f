"""What a server may have of the password: nothing that it can read, unless the connection is encrypted."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import SecretStr

from outfall.errors import ConfigurationError
from outfall.mysql.database import MySQLDatabase
from outfall.mysql.options import MySQLOptions
from outfall.sql.log_location import ServerUrl

LONG_PASSWORD, PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH = 1, 1 << 9, 1 << 15, 1 << 19
CAPABILITIES = LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH
GREETING = (
    b"\x0a8.0.0\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<HBHHB", CAPABILITIES & 0xFFFF, 45, 2,
    CAPABILITIES >> 16, 21) + b"\0" * 10 + b"123456789012\0" + b"mysql_native_password\0"
)  # fmt: skip
"""As in MySQL's manual, Protocol::HandshakeV10. It offers no TLS."""


def asking_for(plugin: bytes, received: list[bytes]) -> tuple[int, Callable[[], None]]:
    """Start a server that asks for another method of authentication; return its port, and what waits for its end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as client:
            client.settimeout(10)
            client.sendall(packet(0, GREETING))
            received.append(client.recv(65536))
            client.sendall(packet(2, b"\xfe" + plugin + b"\0" + b"1" * 20 + b"\0"))
            received.append(client.recv(65536))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener.getsockname()[1], lambda: thread.join(10)


def database(place: str, tls: dict[str, str]) -> MySQLDatabase:
    return MySQLDatabase(MySQLOptions(dsn=SecretStr(str(ServerUrl("mysql", place, tls))), table="t"))


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog"])
@pytest.mark.parametrize("tls", [{}, {"tls": "off"}], ids=str)
def test_a_password_is_not_sent_in_clear(plugin: bytes, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", "tulip")
    received: list[bytes] = []
    port, ended = asking_for(plugin, received)
    server = database(f"app@127.0.0.1:{port}/db", tls)
    with pytest.raises(Exception, match=r"asks for the password in clear \(\w+\), without TLS"), server.connection():
        pass
    ended()
    assert b"tulip" not in b"".join(received)


@pytest.mark.parametrize(
    ("tls", "problem"),
    [({}, "cannot be read"), ({"tls": "prefer"}, "tls=prefer and tls_ca"), ({"tls": "off"}, "tls=off")],
)
def test_an_authority_is_used_or_refused_and_never_ignored(tls: dict[str, str], problem: str, tmp_path: Path) -> None:
    server = database("app@127.0.0.1:1/db", {**tls, "tls_ca": str(tmp_path / "ca.pem")})
    with pytest.raises(ConfigurationError, match=problem), server.connection():
        pass
