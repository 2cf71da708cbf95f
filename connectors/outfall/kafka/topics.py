"""Topics: whether they are there, how they are set, who may write to them; and new ones, made and waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from outfall.errors import missing_extra
from outfall.kafka.client import MISSING, KafkaClients, error_of

try:
    from confluent_kafka import KafkaError, KafkaException, TopicCollection
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclOperation,
        ConfigResource,
        NewTopic,
        ResourceType,
    )
except ImportError as error:
    raise missing_extra("confluent-kafka", "kafka") from error

T = TypeVar("T")

BROKERS_CHOICE = -1
"""Of partitions or replicas of a topic that is made: as many as the brokers make by default (KIP-464)."""
_PAUSE = 0.05


class Topics:
    """Asks the brokers for topics, and makes them."""

    def __init__(self, clients: KafkaClients) -> None:
        """Ask nothing yet."""
        self._clients = clients

    def partitions(self, name: str) -> int | None:
        """Return how many partitions a topic has; `None` where the brokers do not know it. Asking makes no topic."""

        def look(seconds: float) -> int | None:
            # Not by way of the admin client, which is a producer: some brokers make a topic that a producer asks for.
            found = self._clients.consumer().list_topics(name, timeout=seconds).topics.get(name)
            error = None if found is None else found.error
            if found is None or (error is not None and error.code() in MISSING):
                return None
            if error is not None:
                raise KafkaException(error)
            return len(found.partitions)

        return self._clients.ask(f"looking for the topic {name}", look)

    def make(self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str], how: str) -> None:
        """Make a topic, unless somebody else does, and wait until the brokers have heard of it.

        Args:
            name: the topic's.
            partitions: how many, or `BROKERS_CHOICE`.
            replication_factor: likewise.
            settings: of the topic.
            how: says for texts how it is made, as `"with 3 replicas"`.

        Raises:
            ConfigurationError: the brokers refuse it.
        """
        new = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(settings))

        def make(seconds: float) -> None:
            try:
                _answer(self._admin().create_topics([new], request_timeout=seconds), seconds)
            except KafkaException as error:
                known = error_of(error)
                if known is None or known.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._clients.ask(f"making the topic {name} {how}", make)
        deadline = time.monotonic() + self._clients.timeout
        while self.partitions(name) is None:
            if time.monotonic() >= deadline:
                raise self._clients.explain(KafkaError(KafkaError._TIMED_OUT), f"waiting for the topic {name}")
            time.sleep(_PAUSE)

    def settings(self, name: str) -> dict[str, str]:
        """Return how a topic is set.

        Raises:
            ConfigurationError: no right to ask (DESCRIBE_CONFIGS).
        """
        resource = ConfigResource(ResourceType.TOPIC, name)

        def describe(seconds: float) -> dict[str, str]:
            found = _answer(self._admin().describe_configs([resource], request_timeout=seconds), seconds)
            return {setting: str(entry.value) for setting, entry in found.items()}

        return self._clients.ask(f"reading the configuration of {name}", describe)

    def largest_batch(self, name: str) -> int | None:
        """Return the most bytes of one batch that a topic takes; `None` where the brokers do not tell."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            found = _answer(self._admin().describe_configs([resource], request_timeout=_PATIENCE), _PATIENCE)
        except KafkaException:
            return None
        return int(found["max.message.bytes"].value) if "max.message.bytes" in found else None

    def topic_id(self, name: str) -> str | None:
        """Return a topic's id, which is another one once it was deleted and made again (KIP-516).

        Empty where the brokers know no ids, as those before 2.8; `None` where the topic is not there.
        """
        if self.partitions(name) is None:
            return None
        found = str(self._clients.ask(f"asking for the topic {name}", lambda s: self._described(name, s)).topic_id)
        return "" if set(found) <= {"A", "=", "-"} or found == "None" else found

    def may_write(self, name: str) -> bool | None:
        """Whether this user may write to a topic; `None` where the brokers do not tell."""
        try:
            operations = self._described(name, _PATIENCE).authorized_operations
        except KafkaException:
            return None
        if not operations:
            return None
        return AclOperation.WRITE in operations or AclOperation.ALL in operations

    def _described(self, name: str, seconds: float) -> Any:
        asked = TopicCollection([name])
        return _answer(
            self._admin().describe_topics(asked, include_authorized_operations=True, request_timeout=seconds), seconds
        )

    def _admin(self) -> Any:
        return self._clients.admin()


_PATIENCE = 5.0
"""Seconds that the brokers have to say what they need not say."""


def _answer(answers: Mapping[Any, Future[T]], seconds: float) -> T:
    (answer,) = answers.values()
    try:
        return answer.result(seconds + 1)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
