"""`PostgresSink` over TLS: whom it trusts. The server is pgbouncer, which speaks for one that may have no TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from outfall.errors import OutfallError, TransientError
from tests.integration.postgres.support import Target
from tests.integration.support.certificates import self_signed
from tests.integration.support.postgres import pgbouncer
from tests.integration.support.sql import rows, run

ELSEWHERE = "127.0.0.2"
"""An address that is this host, and not one that is taken for it."""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "server.pem"
    path.write_bytes(self_signed(ELSEWHERE))
    return path


def test_a_server_with_a_certificate_that_is_trusted_is_written_to(dsn: str, tmp_path: Path, certificate: Path) -> None:
    target = Target(dsn)
    with pgbouncer(dsn, ELSEWHERE, certificate.read_bytes()) as through:
        sink = target.sink(dsn=make_conninfo(through, sslrootcert=str(certificate)))
        run(sink, str(tmp_path / "trusting"), 0, rows(1))
        run(target.sink(dsn=make_conninfo(through, sslmode="require")), str(tmp_path / "trusting"), 1, rows(2))
        with sink.delegate.database.connection() as connection:
            assert connection.pgconn.ssl_in_use
    assert target.ids() == [1, 2]


@pytest.mark.parametrize("root", [pytest.param("system", marks=pytest.mark.thorough), "another's"])
def test_a_server_with_another_certificate_is_not(dsn: str, tmp_path: Path, certificate: Path, root: str) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(self_signed(ELSEWHERE))
    target = Target(dsn)
    with pgbouncer(dsn, ELSEWHERE, certificate.read_bytes()) as through:
        given = through if root == "system" else make_conninfo(through, sslrootcert=str(other))
        with pytest.raises(OutfallError, match=r"(?s)certificate verify failed.*sslrootcert=FILE"):
            run(target.sink(dsn=given, retry_deadline="0.5 seconds"), str(tmp_path / "recovery"), 0, rows(1))
    assert target.ids() == []


@pytest.mark.thorough
def test_an_authority_of_the_system_is_trusted_without_a_variable(
    dsn: str, tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OpenSSL inside psycopg has another store, which Debian does not."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    paths = ssl.get_default_verify_paths()._replace(cafile=str(certificate))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    target = Target(dsn)
    with pgbouncer(dsn, ELSEWHERE, certificate.read_bytes()) as through:
        run(target.sink(dsn=through, retry_deadline="0.5 seconds"), str(tmp_path / "recovery"), 0, rows(1))
    assert target.ids() == [1]


def test_a_server_without_tls_is_told_with_the_way_out(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn)
    with pgbouncer(dsn, ELSEWHERE) as through:
        sink = target.sink(dsn=through, retry_deadline="0.5 seconds")
        with pytest.raises(TransientError, match=r"(?s)does not support SSL.*has no sslmode.*sslmode=prefer"):
            run(sink, str(tmp_path / "recovery"), 0, rows(1))
        run(target.sink(dsn=make_conninfo(through, sslmode="prefer")), str(tmp_path / "recovery"), 0, rows(1))
    assert target.ids() == [1]
