"""A MariaDB or MySQL for all tests, and one that a test may stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.mariadb import MariaDB, Server, mariadb, own_server


@pytest.fixture(scope="session")
def server() -> Iterator[MariaDB]:
    """A server that no test stops."""
    with mariadb() as found:
        yield found


@pytest.fixture(scope="session")
def own_mariadb() -> Iterator[Server]:
    with own_server() as found:
        yield found


@pytest.fixture
def mortal(own_mariadb: Server) -> Iterator[Server]:
    """A server that a test may stop or kill; the next test finds it running."""
    yield own_mariadb
    if not own_mariadb.server.running:
        own_mariadb.server.start()


@pytest.fixture
def database(server: MariaDB) -> str:
    """An empty database."""
    return server.new_database()


@pytest.fixture
def target(server: MariaDB, database: str) -> Target:
    """A table `t` in it."""
    return Target(server, database)
