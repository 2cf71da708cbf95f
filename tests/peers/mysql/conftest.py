"""A primary and a replica, of both servers, and two nodes of Galera that both take writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.mariadb import Programs
from tests.peers.support.debian import made_once, mysql_programs
from tests.peers.support.galera import Galera, galera
from tests.peers.support.replica_pair import MARIADB, MYSQL, Pair, replica_pair


@pytest.fixture(scope="session")
def mysql() -> Iterator[Programs]:
    """The programs of MySQL 9.7."""
    with mysql_programs() as programs, made_once(programs) as found:
        yield found


@pytest.fixture(params=["mariadb", "mysql"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and a replica that a test may kill: what it has promoted follows nobody any more."""
    ours = request.param == "mariadb"
    with replica_pair(MARIADB) if ours else replica_pair(MYSQL, request.getfixturevalue("mysql")) as found:
        yield found


@pytest.fixture(scope="session")
def cluster() -> Iterator[Galera]:
    """Two nodes that no test stops."""
    with galera() as found:
        yield found


@pytest.fixture
def recovery_path(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")
