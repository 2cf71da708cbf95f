"""One PostgreSQL server for the whole run, and an empty database for each test that asks."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.integration.support.postgres import Databases, Server, own_server, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    """A server that is shared: nobody stops it."""
    with postgres_server() as databases:
        yield databases


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[Server]:
    with own_server() as server:
        yield server


@pytest.fixture
def mortal_postgres(own_postgres: Server) -> Iterator[Server]:
    """A server that a test may stop or kill; the next test finds it running."""
    yield own_postgres
    if not own_postgres.running:
        own_postgres.start()


@pytest.fixture
def dsn(postgres: Databases) -> str:
    """An empty database."""
    return postgres.new_database()


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
def conformance_dsn(postgres: Databases) -> str:
    """One database for all targets of the suite."""
    return postgres.new_database()
