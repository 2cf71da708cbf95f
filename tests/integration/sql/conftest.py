"""Each test of this folder runs on each database: its id names the connector, so that `-k mysql` selects one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mysql.support import Target as MySQLTable
from tests.integration.postgres.support import Target as PostgresTable
from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.postgres import Databases
from tests.integration.support.sql import TABLE, THOROUGH, Make, MortalServer, Table


@dataclass(frozen=True)
class Database:
    """A kind of database."""

    shared: str
    """The fixture of a server that no test stops."""
    own: str
    """The fixture of a server that tests stop, kill and configure."""
    make: Callable[[Any, str], Table]
    """Makes a table on either server, in an empty database."""
    apart: Callable[[Any, str], Table]
    """The same, in a database that stays for the whole run."""


def _postgres(server: Databases, ddl: str) -> Table:
    return PostgresTable(server.emptied(), ddl)


def _postgres_apart(server: Databases, ddl: str) -> Table:
    return PostgresTable(server.new_database(), ddl)


def _mysql(server: MySQLServer | Server, ddl: str) -> Table:
    return MySQLTable(server.client, server.client.new_database(), ddl)


DATABASES = {
    "postgres": Database("postgres", "own_postgres", _postgres, _postgres_apart),
    "mysql": Database("mysql", "own_mysql", _mysql, _mysql),
}
"""By connector. The programs of one that are not installed are named when its tests are skipped."""

DEFAULT, *OTHERS = DATABASES
"""What is the work of their base is tried on one database by default, and on each with `thorough`."""


@pytest.fixture(scope="session", params=[DEFAULT, *(pytest.param(name, marks=THOROUGH) for name in OTHERS)])
def kind(request: pytest.FixtureRequest) -> Database:
    """Each database in turn; a module with `ON_EACH` runs on all of them by default."""
    return DATABASES[request.param]


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, kind: Database) -> Any:
    """A server that no test stops."""
    return request.getfixturevalue(kind.shared)


@pytest.fixture
def make(server: Any, kind: Database) -> Make:
    """A function that makes the table `t` with a statement, in an empty database."""
    return lambda ddl: kind.make(server, ddl)


@pytest.fixture
def target(make: Make) -> Table:
    """A table `t` in an empty database."""
    return make(TABLE)


@pytest.fixture
def mortal(request: pytest.FixtureRequest, kind: Database) -> Iterator[MortalServer]:
    """A server that a test may stop or kill; the next test finds it running."""
    found = request.getfixturevalue(kind.own)
    yield found
    if not found.running:
        found.start()


@pytest.fixture
def mortal_target(mortal: MortalServer, kind: Database) -> Table:
    """A table `t` in an empty database of it."""
    return kind.make(mortal, TABLE)


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")


@pytest.fixture(scope="session")
def home(server: Any, kind: Database) -> Table:
    """A database for all targets of the conformance suite."""
    return kind.apart(server, "CREATE TABLE t (id int)")
