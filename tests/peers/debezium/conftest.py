"""Apache Kafka for all tests of an area whose worker, database and driver are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.support.apache_kafka import own_cluster


@pytest.fixture(scope="session")
def brokers() -> Iterator[str]:
    """The address of one broker."""
    with own_cluster() as cluster:
        yield cluster.address
