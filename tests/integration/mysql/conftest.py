"""An empty database for each test that asks, and a server that a test may stop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, Server


@pytest.fixture
def server(mysql: MySQLServer) -> MySQLServer:
    """A server that no test stops."""
    return mysql


@pytest.fixture
def mortal(own_mysql: Server) -> Iterator[Server]:
    """A server that a test may stop or kill; the next test finds it running."""
    yield own_mysql
    if not own_mysql.running:
        own_mysql.start()


@pytest.fixture
def database(server: MySQLServer) -> str:
    """An empty database."""
    return server.new_database()


@pytest.fixture
def target(server: MySQLServer, database: str) -> Target:
    """A table `t` in it."""
    return Target(server, database)
