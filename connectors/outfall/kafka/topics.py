"""The topics of a log: made when they are missing, checked when they are there."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from outfall.errors import ConfigurationError, missing_extra
from outfall.kafka.client import KafkaClients
from outfall.kafka.failures import MISSING, error_of
from outfall.kafka.log import CHUNK

try:
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]
except ImportError as error:
    raise missing_extra("confluent-kafka", "kafka") from error

_KEY = 4096
"""Bytes that a record takes beside its value, at most."""
TOMBSTONES = 3_600_000
"""Milliseconds for which tombstones are kept in topics made here: longer than any reading takes, and no longer, since
all of them are read by who comes new."""
_MADE_WITH = {
    "cleanup.policy": "compact",
    "delete.retention.ms": f"{TOMBSTONES}",
    # Only closed segments are compacted: small ones keep what a new reader has to read short.
    "segment.ms": "600000",
    "segment.bytes": f"{16 << 20}",
    "min.cleanable.dirty.ratio": "0.1",
}
_PAUSE = 0.05

_checked: set[tuple[str, str]] = set()
"""Clusters and topics that this process has checked."""


def prepare_topic(clients: KafkaClients, topic: str) -> None:
    """Make a topic when it is missing, and check it, once per process.

    Raises:
        ConfigurationError: it cannot be made, or is not as a log needs it.
    """
    if (clients.where, topic) in _checked:
        return
    admin = clients.made(lambda: AdminClient(clients.settings()))
    if partitions(clients, topic) is None:
        _make(clients, admin, topic)
        _await(clients, topic)
    _check_settings(clients, topic, _settings(clients, admin, topic))
    _checked.add((clients.where, topic))


def forget_topic(clients: KafkaClients, topic: str) -> None:
    """Have a topic that is gone made and checked again."""
    _checked.discard((clients.where, topic))


def partitions(clients: KafkaClients, topic: str) -> int | None:
    """Return how many partitions a topic has, which is one; `None` when it is missing.

    Raises:
        ConfigurationError: it has more.
    """

    def look(seconds: float) -> int | None:
        # Not by way of the admin client, which is a producer: some brokers make a topic that a producer asks for.
        found = clients.consumer().list_topics(topic, timeout=seconds).topics.get(topic)
        error = None if found is None else found.error
        if found is None or (error is not None and error.code() in MISSING):
            return None
        if error is not None:
            raise KafkaException(error)
        return len(found.partitions)

    count = clients.ask(f"looking for the topic {topic}", look)
    if count not in (None, 1):
        raise _unfit(clients, topic, f"it has {count} partitions, and must have one: the order of its records decides")
    return count


def _make(clients: KafkaClients, admin: AdminClient, topic: str) -> None:
    factor = clients.config.replication_factor
    settings = {**_MADE_WITH, "min.insync.replicas": f"{max(1, factor - 1)}"}

    def make(seconds: float) -> None:
        new = NewTopic(topic, num_partitions=1, replication_factor=factor, config=settings)
        made: dict[str, Future[Any]] = admin.create_topics([new], request_timeout=seconds)
        try:
            made[topic].result(seconds + 1)
        except KafkaException as error:
            known = error_of(error)
            if known is None or known.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None

    clients.ask(f"making the topic {topic} with {factor} replicas (replication_factor={factor})", make)


def _await(clients: KafkaClients, topic: str) -> None:
    """Wait until the brokers have heard of a topic that was just made."""
    deadline = time.monotonic() + clients.timeout
    while partitions(clients, topic) is None:
        if time.monotonic() >= deadline:
            raise clients.explain(KafkaError(KafkaError._TIMED_OUT), f"waiting for the topic {topic}")
        time.sleep(_PAUSE)


def _settings(clients: KafkaClients, admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def describe(seconds: float) -> dict[str, str]:
        (answer,) = admin.describe_configs([resource], request_timeout=seconds).values()
        try:
            found = answer.result(seconds + 1)
        except TimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        return {name: str(entry.value) for name, entry in found.items()}

    return clients.ask(f"reading the configuration of {topic}", describe)


def _check_settings(clients: KafkaClients, topic: str, settings: dict[str, str]) -> None:
    policy = settings.get("cleanup.policy", "")
    if policy != "compact":
        raise _unfit(clients, topic, f"its cleanup.policy is {policy!r}, which removes entries that count")
    limit = int(settings.get("max.message.bytes", CHUNK + _KEY))
    if limit < CHUNK + _KEY:
        raise _unfit(clients, topic, f"its max.message.bytes is {limit}, and records have up to {CHUNK + _KEY} bytes")
    kept = int(settings.get("delete.retention.ms", TOMBSTONES))
    longest = int(2000 * clients.timeout)
    if kept < longest:
        raise _unfit(
            clients,
            topic,
            f"its delete.retention.ms is {kept}, and a reader may take {longest // 2} ms: it needs {longest}",
        )


def _unfit(clients: KafkaClients, topic: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the topic {topic} at {clients.where} cannot hold a log",
        why=why,
        do="correct the topic, delete it if it holds nothing, or give another topic_prefix; it is made on first use",
    )
