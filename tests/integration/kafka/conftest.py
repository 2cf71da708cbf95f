"""Brokers: one that is not ours (`kafka`), the tests' own model (`model`), librdkafka's mock cluster (`cluster`)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outfall.kafka import KafkaRecoveryConfig, delivery, partition, topics
from outfall.kafka.idle import Idle
from outfall.kafka.producer import PRODUCERS
from outfall.kafka.recovery import config as recovery_config
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_mock import MockCluster
from tests.integration.support.kafka_server import kafka_server


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Brokers of other tests had these names and perhaps these ports."""
    monkeypatch.setattr(partition, "_checked", set())
    monkeypatch.setattr(recovery_config, "IDLE", Idle(recovery_config.MOST))
    yield
    # Else they would go on looking for brokers that are gone.
    PRODUCERS.close()
    for clients in delivery.CLIENTS.clear():
        clients.shut()


@pytest.fixture
def model() -> Iterator[ModelBroker]:
    """The tests' own broker, for what only a model does on demand."""
    broker = ModelBroker()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a broker that nobody here wrote, for all tests; topics have names of their own."""
    with kafka_server() as address:
        yield address


@pytest.fixture
def config(kafka: str) -> Callable[..., KafkaRecoveryConfig]:
    """Makes a configuration with topics of its own."""

    def make(**options: Any) -> KafkaRecoveryConfig:
        given = {"replication_factor": 1, "timeout": 20} | options
        return KafkaRecoveryConfig(kafka, f"test-{uuid.uuid4().hex}", **given)

    return make


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    """librdkafka's mock cluster. It cannot be asked for the settings of a topic, so they are taken for granted."""
    monkeypatch.setattr(topics.Topics, "settings", lambda self, name: {"cleanup.policy": "compact"})
    mock = MockCluster()
    for topic in ("p-progress", "p-state"):
        mock.make(topic)
    yield mock
    mock.close()
