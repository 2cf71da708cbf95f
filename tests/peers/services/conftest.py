"""Servers that sinks are built for next: their facts, on which those sinks will stand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.support.mysql import MySQLServer, mysql_server
from tests.peers.support import opensearch as of_opensearch
from tests.peers.support.opensearch import OLDER, PRODUCTS


@pytest.fixture(scope="session", params=[*PRODUCTS, *(pytest.param(name, marks=pytest.mark.long) for name in OLDER)])
def product(request: pytest.FixtureRequest) -> str:
    """The product whose node the test gets."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def opensearch(product: str) -> Iterator[of_opensearch.OpenSearch]:
    """A node that is shared: nobody stops it."""
    with of_opensearch.opensearch(product) as node:
        yield node


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MySQLServer]:
    """A server that is shared: nobody stops it."""
    with mysql_server() as server:
        yield server
