"""A standalone cluster over three hosts, and servers on a fourth one; for all tests, since they take long to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.support.cluster_targets import Targets
from tests.peers.support.spark_cluster import Cluster, standalone


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Who cuts a host off heals it again."""
    with standalone() as running:
        yield running


@pytest.fixture(scope="session")
def targets(cluster: Cluster) -> Iterator[Targets]:
    """PostgreSQL, S3 and Kafka on the host of servers."""
    running = Targets(cluster)
    try:
        yield running
    finally:
        running.close()
