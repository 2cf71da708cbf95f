"""YARN beside HDFS, whose node managers are killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.support.hadoop import Hdfs
from tests.peers.support.hadoop import hdfs as running_hdfs
from tests.peers.support.yarn import Yarn
from tests.peers.support.yarn import yarn as running_yarn
from tests.peers.support.yarn_job import YarnJob


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    """The default filesystem of the cluster."""
    with running_hdfs() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _yarn(hdfs: Hdfs) -> Iterator[Yarn]:
    with running_yarn(hdfs) as cluster:
        yield cluster


@pytest.fixture
def yarn(_yarn: Yarn) -> Iterator[Yarn]:
    """A cluster that is shared: what a test killed of it is started again, and its containers are gone."""
    yield _yarn
    _yarn.clear()


@pytest.fixture
def job(yarn: Yarn, tmp_path: Path) -> YarnJob:
    """Flights into whole files in HDFS."""
    return YarnJob(yarn, tmp_path)
