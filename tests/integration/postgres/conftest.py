"""An empty database for each test that asks, and a server that a test may stop."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Databases, Server, own_server
from tests.programs import program


@pytest.fixture
def mortal_postgres(own_postgres: Server) -> Iterator[Server]:
    """A server that a test may stop or kill; the next test finds it running."""
    yield own_postgres
    if not own_postgres.running:
        own_postgres.start()


@pytest.fixture(scope="session")
def icu_server() -> Iterator[Server]:
    """A server with ICU, whose collations can ignore case."""
    with own_server(programs=Path(program("postgres")).parent) as server:
        yield server


@pytest.fixture
def icu_dsn(icu_server: Server) -> str:
    """An empty database with a collation `ci` that ignores case."""
    dsn = icu_server.new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    return dsn


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """An empty database, with nobody in it."""
    return postgres.emptied()


@pytest.fixture
def target(dsn: str) -> Target:
    """A table `t` in it."""
    return Target(dsn)


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A user of the server who has no rights yet; roles are the server's, so that no name is given twice."""
    name = f"outfall_{secrets.token_hex(6)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        try:
            yield name
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def home(postgres: Databases) -> Target:
    """A database for all targets of the conformance suite."""
    return Target(postgres.new_database(), "SELECT 1")
