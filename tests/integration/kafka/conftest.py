"""Brokers beside the shared one: the tests' own model (`model`), librdkafka's mock cluster (`cluster`)."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outfall.idle import Idle
from outfall.kafka import KafkaRecoveryConfig, delivery, partition, topics
from outfall.kafka.parts import brokers
from outfall.kafka.producer.cache import PRODUCERS
from outfall.kafka.recovery import config as recovery_config
from outfall.kafka.recovery.log import KafkaLog
from outfall.process_clients import ProcessClients
from tests.integration.support.kafka_broker import ModelBroker
from tests.integration.support.kafka_mock import MockCluster


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Brokers of other tests had these names and perhaps these ports."""
    monkeypatch.setattr(partition, "_checked", set())
    logs = Idle[KafkaLog](recovery_config.MOST)
    monkeypatch.setattr(recovery_config, "IDLE", logs)
    monkeypatch.setattr(brokers, "_clusters", ProcessClients[Any](16))
    yield
    # Else they would go on looking for brokers that are gone.
    brokers._clusters._made.clear()
    PRODUCERS.close()
    for clients in delivery.CLIENTS.clear():
        clients.shut()
    for log in logs.clear():
        log.shut()


@pytest.fixture
def no_client_left() -> None:
    """For tests that fork: clients in cycles are still there, and look for the brokers of other tests.

    A child that is forked while one of their threads looks up an address never finds one itself: the C library's lock
    (of `getaddrinfo`) stays locked in it.
    """
    gc.collect()


@pytest.fixture
def model() -> Iterator[ModelBroker]:
    """The tests' own broker, for what only a model does on demand."""
    broker = ModelBroker()
    yield broker
    broker.close()


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
