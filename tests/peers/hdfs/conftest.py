"""HDFS, in front of which the stores of files and of recovery data stand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from outfall.file import FileSink
from outfall.recovery import CheckpointRecoveryConfig
from outfall.testing import LocalDriver
from tests.peers.support.hadoop import Directory, Hdfs
from tests.peers.support.hadoop import hdfs as running


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    """A cluster that is shared: who kills a process of it starts it again."""
    with running() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(cluster.conf))
        yield cluster


@pytest.fixture
def out(hdfs: Hdfs) -> Directory:
    """A directory that is not there yet."""
    return Directory(hdfs, f"out-{uuid.uuid4().hex}")


@pytest.fixture
def driver(hdfs: Hdfs, out: Directory) -> LocalDriver:
    """Sink and log in HDFS."""
    return LocalDriver(FileSink(out.url), CheckpointRecoveryConfig(f"hdfs://{hdfs.address}/chk{out.path}"))
