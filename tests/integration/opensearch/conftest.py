"""One model for the whole run, without faults at the start of each test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.opensearch.model import Cluster, model_process


@pytest.fixture(scope="session")
def cluster_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("opensearch")
    with model_process(folder) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_the_run: Cluster) -> Cluster:
    cluster_of_the_run.faults()
    return cluster_of_the_run


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"t-{secrets.token_hex(6)}"
