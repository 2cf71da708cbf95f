"""Apache Kafka for all tests, and clusters of their own for those that kill, stop or configure brokers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.integration.kafka.conftest import config, no_client_left, nothing_remembered
from tests.integration.support.kafka_server import ADDRESS
from tests.peers.support.apache_kafka import NEWEST, OLDEST, ApacheKafka, own_cluster

__all__ = ["config", "no_client_left", "nothing_remembered"]

Own = Callable[..., ApacheKafka]


@pytest.fixture(scope="session")
def newest() -> Iterator[str]:
    """The address of the newest Apache Kafka, unless the environment names another one: one broker."""
    if given := os.environ.get(ADDRESS):
        yield given
        return
    with own_cluster(NEWEST) as cluster:
        yield cluster.address


@pytest.fixture(scope="session")
def oldest() -> Iterator[str]:
    """The address of the oldest one."""
    with own_cluster(OLDEST) as cluster:
        yield cluster.address


@pytest.fixture(scope="session")
def kafka(newest: str) -> str:
    """What tests of the integration tests' classes run on."""
    return newest


@pytest.fixture
def own() -> Iterator[Own]:
    """Runs clusters that belong to the test."""
    with ExitStack() as running:

        def run(profile: str = NEWEST, **options: Any) -> ApacheKafka:
            return running.enter_context(own_cluster(profile, **options))

        yield run
