"""HDFS, in front of which the stores of files and of recovery data stand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.support.hadoop import Hdfs
from tests.peers.support.hadoop import hdfs as running


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    """A cluster that is shared: who kills a process of it starts it again."""
    with running() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        yield cluster
