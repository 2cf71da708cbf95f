"""Apache Kafka and the databases, for all tests of an area whose worker, database and driver are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.support import mysql, postgres
from tests.integration.support.redis_server import RedisServer, redis_server
from tests.peers.support.apache_kafka import own_cluster
from tests.peers.support.changed_tables import ORDERS, MySQLTables, PostgresTables, Table, Tables
from tests.peers.support.debian import mysql_programs
from tests.peers.support.opensearch import OpenSearch, opensearch
from tests.peers.support.order_copies import Copy, DeltaCopy, IcebergCopy, OpenSearchCopy, RedisCopy


@pytest.fixture(scope="session")
def brokers() -> Iterator[str]:
    """The address of one broker."""
    with own_cluster() as cluster:
        yield cluster.address


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A server whose changes can be read, for tables and for copies."""
    settings = {"wal_level": "logical", "max_replication_slots": "50", "max_wal_senders": "50"}
    with postgres.own_server(settings) as running:
        yield running


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[mysql.Server]:
    """MySQL, since Debezium's connector for it does not read MariaDB; its changes can be read by default."""
    with mysql_programs() as programs, mysql.own_server(programs) as running:
        yield running


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A server that keeps what it acknowledges."""
    with redis_server() as running:
        yield running


@pytest.fixture(scope="session")
def search_cluster() -> Iterator[OpenSearch]:
    """One node of OpenSearch."""
    with opensearch() as cluster:
        yield cluster


@pytest.fixture
def tables(request: pytest.FixtureRequest) -> Callable[[str, Sequence[Table]], Tables]:
    """Makes room for tables or their copies in `postgres` or `mysql`."""

    def made(kind: str, tables: Sequence[Table]) -> Tables:
        if kind == "mysql":
            return MySQLTables(request.getfixturevalue("mysql_server").client, tables)
        return PostgresTables(request.getfixturevalue("postgres_server"), tables)

    return made


@pytest.fixture
def orders(tables: Callable[[str, Sequence[Table]], Tables]) -> Callable[[str], Tables]:
    """Makes room for the table `orders`, or its copy."""
    return lambda kind: tables(kind, [ORDERS])


@pytest.fixture
def copy(request: pytest.FixtureRequest, orders: Callable[[str], Tables], tmp_path: Path) -> Callable[[str], Copy]:
    """Makes room for a copy of the table, in a database, a lake or a store whose writes compare sequences."""

    def made(kind: str) -> Copy:
        if kind == "redis":
            return RedisCopy(request.getfixturevalue("redis"))
        if kind == "opensearch":
            return OpenSearchCopy(request.getfixturevalue("search_cluster"))
        lakes = {"delta": DeltaCopy, "iceberg": IcebergCopy}
        return lakes[kind](tmp_path) if kind in lakes else orders(kind)

    return made
