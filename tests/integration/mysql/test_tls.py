"""A recovery location in MariaDB over TLS: whom it trusts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outfall.errors import ConfigurationError
from outfall.recovery import recovery_config
from tests.integration.support.certificates import self_signed
from tests.integration.support.mysql import Server, own_server
from tests.integration.support.servers import open_folder
from tests.integration.support.sql import first
from tests.integration.support.sql_logs import contents, filled

ELSEWHERE = "127.0.0.2"
"""An address that is this host, and not one that is taken for it."""


@pytest.fixture(scope="module")
def certificate() -> Iterator[Path]:
    with open_folder() as folder:
        path = folder / "server.pem"
        path.write_bytes(self_signed(ELSEWHERE))
        path.chmod(0o644)
        yield path


@pytest.fixture(scope="module")
def secured(certificate: Path) -> Iterator[Server]:
    """A server at both addresses, with a user who may only come over TLS."""
    files = {"ssl_cert": str(certificate), "ssl_key": str(certificate)}
    with own_server(bind_address=f"127.0.0.1,{ELSEWHERE}", **files) as server:
        server.client.run("CREATE USER tls@'%' REQUIRE SSL; GRANT ALL ON *.* TO tls@'%'")
        yield server


def url(server: Server, **parameters: str) -> str:
    given = "&".join(f"{name}={value}" for name, value in {"timeout": "5", **parameters}.items())
    return f"mysql://tls@{ELSEWHERE}:{server.client.port}/{server.client.new_database()}?{given}"


def test_a_server_with_a_certificate_that_is_trusted_is_written_to(secured: Server, certificate: Path) -> None:
    recovery = recovery_config(url(secured, tls_ca=str(certificate)))
    filled(recovery, 2)
    assert contents(recovery) == [b"1", b"2"]


@pytest.mark.parametrize("others", first(1, [False, True]), ids=["the host's authorities", "another authority"])
def test_a_server_with_another_certificate_is_not(secured: Server, tmp_path: Path, others: bool) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(self_signed(ELSEWHERE))
    with pytest.raises(ConfigurationError, match=r"(?s)certificate verify failed.*set \?tls_ca=FILE"):
        filled(recovery_config(url(secured, **({"tls_ca": str(other)} if others else {}))), 1)


def test_without_verification_the_connection_is_encrypted_if_the_server_can(secured: Server) -> None:
    filled(recovery_config(url(secured, tls="prefer")), 1)
    with pytest.raises(ConfigurationError, match="Access denied"):
        filled(recovery_config(url(secured, tls="off")), 1)
