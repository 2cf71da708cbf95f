"""A primary and a replica of each database, and a server that tests kill, each of the versions that are supported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from outfall.mysql.connection import LoadConnection
from outfall.postgres.connection.database import PostgresConnection
from tests.integration.mysql.support import Target as MySQLTable
from tests.integration.postgres.support import Target as PostgresTable
from tests.integration.support.mysql import Programs
from tests.integration.support.mysql import own_server as own_mysql
from tests.integration.support.postgres import own_server as own_postgres
from tests.integration.support.sql import Make, MortalServer
from tests.peers.support.debian import made_once, mysql_programs
from tests.peers.support.each_statement import Client
from tests.peers.support.failovers import Pair
from tests.peers.support.postgres_binaries import postgres_programs
from tests.peers.support.postgres_pair import postgres_pair
from tests.peers.support.replica_pair import MARIADB, MYSQL, replica_pair


@dataclass(frozen=True)
class Peer:
    """A database of one version."""

    programs: Callable[[], AbstractContextManager[Any]]
    """Its programs, for the two others."""
    pair: Callable[[Any], AbstractContextManager[Pair]]
    server: Callable[[Any], AbstractContextManager[tuple[MortalServer, Make]]]
    """Runs a server; yields it, and what makes a table in a database of its own."""
    client: Client


@contextmanager
def _postgres_server(programs: Path) -> Iterator[tuple[MortalServer, Make]]:
    with own_postgres(programs=programs) as server:
        yield server, lambda ddl: PostgresTable(server.new_database(), ddl)


def _postgres(version: str) -> Peer:
    # Each wait for the server counts, such as the end of a COPY or a COMMIT.
    client = Client(PostgresConnection, "wait", lambda: psycopg.OperationalError("the reply is lost"))
    return Peer(lambda: postgres_programs(version), postgres_pair, _postgres_server, client)


@contextmanager
def _mysql_server(programs: Programs | None) -> Iterator[tuple[MortalServer, Make]]:
    with own_mysql(programs) as server:
        yield server, lambda ddl: MySQLTable(server.client, server.client.new_database(), ddl)


@contextmanager
def _mysql_programs() -> Iterator[Programs]:
    with mysql_programs() as programs, made_once(programs) as found:
        yield found


_MYSQL_CLIENT = Client(LoadConnection, "query", lambda: pymysql.OperationalError(2013, "the reply is lost"))
PEERS = {
    "postgres-14": _postgres("14"),
    "postgres-18": _postgres("18"),
    "mariadb": Peer(ExitStack, lambda _: replica_pair(MARIADB), lambda _: _mysql_server(None), _MYSQL_CLIENT),
    "mysql-9.7": Peer(_mysql_programs, lambda given: replica_pair(MYSQL, given), _mysql_server, _MYSQL_CLIENT),
}


@pytest.fixture(scope="session", params=PEERS)
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each of them in turn."""
    return PEERS[request.param]


@pytest.fixture(scope="session")
def programs(peer: Peer) -> Iterator[Any]:
    with peer.programs() as found:
        yield found


@pytest.fixture
def pair(peer: Peer, programs: Any) -> Iterator[Pair]:
    """A primary and a replica that a test may kill: what it has promoted follows nobody any more."""
    with peer.pair(programs) as found:
        yield found


@pytest.fixture(scope="module")
def mortal(peer: Peer, programs: Any) -> Iterator[tuple[MortalServer, Make]]:
    """A server that a test may kill, and what makes a table in a database of its own."""
    with peer.server(programs) as found:
        yield found


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    """Where a query's log is."""
    return str(tmp_path / "recovery")
