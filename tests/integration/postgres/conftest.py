"""One PostgreSQL server for the whole run, and an empty database for each test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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


@pytest.fixture(scope="session")
def conformance_dsn(postgres: Databases) -> str:
    """One database for all targets of the suite."""
    return postgres.new_database()
