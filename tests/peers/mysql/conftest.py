"""A primary and a replica of both servers, and nodes of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.mysql import Programs
from tests.peers.support.debian import made_once, mysql_programs
from tests.peers.support.galera import Galera, galera
from tests.peers.support.group_replication import Group, group_replication
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
def galera_nodes() -> Iterator[Galera]:
    """Two nodes of Galera that no test stops."""
    with galera() as found:
        yield found


@pytest.fixture(scope="session")
def writing_group(mysql: Programs) -> Iterator[Group]:
    """Two nodes of Group Replication that both take writes, and that no test stops."""
    with group_replication(mysql, 2, all_write=True) as found:
        yield found


@pytest.fixture(params=["galera_nodes", "writing_group"], ids=["galera", "group"])
def cluster(request: pytest.FixtureRequest) -> Galera | Group:
    """Two nodes that both take writes, of each kind."""
    found: Galera | Group = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def own_group(mysql: Programs) -> Iterator[Group]:
    with group_replication(mysql, 3) as found:
        yield found


@pytest.fixture
def group(own_group: Group) -> Iterator[Group]:
    """Three nodes of which one takes writes. A test may stop one; the next test finds all running."""
    yield own_group
    own_group.restore()


@pytest.fixture
def recovery_path(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")
