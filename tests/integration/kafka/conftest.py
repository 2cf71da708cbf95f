"""A broker for the log in Kafka: a real one where `OUTFALL_TEST_KAFKA` says so, else the tests' own model of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outfall.kafka import KafkaRecoveryConfig, partition, topics
from outfall.kafka.idle import Idle
from outfall.kafka.recovery import config as recovery_config
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_mock import MockCluster


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of other tests had these names and perhaps these ports."""
    monkeypatch.setattr(partition, "_checked", set())
    monkeypatch.setattr(recovery_config, "IDLE", Idle(recovery_config.MOST))


@pytest.fixture
def model() -> Iterator[ModelBroker]:
    """The tests' own broker, for what only a model does on demand."""
    broker = ModelBroker()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def kafka_address() -> Iterator[str]:
    """Where the broker is that all tests share that can do with a real one."""
    given = os.environ.get("OUTFALL_TEST_KAFKA")
    if given:
        yield given
        return
    broker = ModelBroker()
    yield broker.address
    broker.close()


@pytest.fixture
def config(kafka_address: str) -> Callable[..., KafkaRecoveryConfig]:
    """Makes a configuration with topics of its own."""

    def make(**options: Any) -> KafkaRecoveryConfig:
        given = {"replication_factor": 1, "timeout": 20} | options
        return KafkaRecoveryConfig(kafka_address, f"test-{uuid.uuid4().hex}", **given)

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
