"""The authorities that TLS trusts by default."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from outfall.http.connecting import trusted
from outfall.http.options import HttpOptions
from outfall.postgres import PostgresSink
from outfall.tls import system_authorities


@pytest.mark.parametrize("as_file", [True, False])
def test_the_authorities_of_the_system_are_named_without_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_file: bool
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "PGSSLROOTCERT", "PGSSLMODE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    bundle = tmp_path / "ca-certificates.crt"
    bundle.touch()
    given: Any = {"cafile": str(bundle) if as_file else None, "capath": str(tmp_path)}
    paths = ssl.get_default_verify_paths()._replace(**given)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    assert system_authorities() == str(bundle)
    database: Any = PostgresSink("postgresql://u@example.com/d", "t").delegate.database
    assert conninfo_to_dict(database._conninfo())["sslrootcert"] == str(bundle)
    assert trusted(HttpOptions(url="https://example.com/")) == str(bundle)
    bundle.unlink()
    assert system_authorities() is None
    assert conninfo_to_dict(database._conninfo())["sslrootcert"] == "system"
