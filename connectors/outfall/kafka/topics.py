"""Topics: existence, configuration and permissions of topics, and their creation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from outfall.kafka.client import MISSING, KafkaClients, error_of

T = TypeVar("T")

_SURE = 10.0
"""Seconds for which an existing topic must be missing before it counts as deleted.

A broker of a cluster with ZooKeeper that has just restarted responds before the controller has sent it the topics.
"""
_seen: set[tuple[str, str]] = set()
"""Clusters and topics that were there, as far as this process knows."""

BROKERS_CHOICE = -1
"""As partitions or replicas of a created topic: the default of the brokers (KIP-464)."""
_PAUSE = 0.05


class Topics:
    """Queries and creates topics."""

    def __init__(self, clients: KafkaClients) -> None:
        """Connect to nothing yet."""
        self._clients = clients

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions of a topic; `None` if the brokers do not have it.

        Does not create the topic. If it existed before, the request is repeated for a moment.
        """
        deadline = time.monotonic() + min(_SURE, self._clients.timeout)
        while (count := self._partitions(name)) is None and self._was_there(name) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        if count is None:
            _seen.discard((self._clients.where, name))
        else:
            self.expect(name)
        return count

    def expect(self, name: str) -> None:
        """Record that a topic existed before, according to the recovery data."""
        _seen.add((self._clients.where, name))

    def _was_there(self, name: str) -> bool:
        return (self._clients.where, name) in _seen

    def _partitions(self, name: str) -> int | None:

        def look(seconds: float) -> int | None:
            # Not with the admin client, which is a producer: some brokers create a topic that a producer queries.
            found = self._clients.consumer().list_topics(name, timeout=seconds).topics.get(name)
            error = None if found is None else found.error
            if found is None or (error is not None and error.code() in MISSING):
                return None
            if error is not None:
                raise KafkaException(error)
            return len(found.partitions)

        return self._clients.ask(f"querying the topic {name}", look)

    def make(self, name: str, partitions: int, replication_factor: int, settings: Mapping[str, str], how: str) -> None:
        """Create a topic, unless it exists, and wait until the brokers have its metadata.

        The two numbers may be `BROKERS_CHOICE`. `settings` are the topic's configuration; `how` describes them for
        texts, such as `"with 3 replicas"`. Raises `ConfigurationError` if the brokers reject it.
        """
        new = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(settings))

        def make(seconds: float) -> None:
            try:
                _answer(self._admin().create_topics([new], request_timeout=seconds), seconds)
            except KafkaException as error:
                known = error_of(error)
                if known is None or known.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

        self._clients.ask(f"creating the topic {name} {how}", make)
        deadline = time.monotonic() + self._clients.timeout
        while self.partitions(name) is None:
            if time.monotonic() >= deadline:
                raise self._clients.explain(KafkaError(KafkaError._TIMED_OUT), f"waiting for the topic {name}")
            time.sleep(_PAUSE)

    def settings(self, name: str) -> dict[str, str]:
        """Return the configuration of a topic.

        Raises `ConfigurationError` without permission to read it (DESCRIBE_CONFIGS).
        """
        resource = ConfigResource(ResourceType.TOPIC, name)

        def describe(seconds: float) -> dict[str, str]:
            found = _answer(self._admin().describe_configs([resource], request_timeout=seconds), seconds)
            return {setting: str(entry.value) for setting, entry in found.items()}

        return self._clients.ask(f"reading the configuration of {name}", describe)

    def largest_batch(self, name: str) -> int | None:
        """Return a topic's maximum batch size in bytes; `None` if the brokers do not report it."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            found = _answer(self._admin().describe_configs([resource], request_timeout=_PATIENCE), _PATIENCE)
        except KafkaException:
            return None
        return int(found["max.message.bytes"].value) if "max.message.bytes" in found else None

    def topic_id(self, name: str) -> str | None:
        """Return a topic's id, which changes if the topic is deleted and recreated (KIP-516).

        Empty if the brokers have no ids (before 2.8); `None` if the topic does not exist.
        """
        return None if self.partitions(name) is None else self.topic_ids([name])[name]

    def topic_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Return the ids of topics that exist, by one request; empty if the brokers have no ids."""

        def describe(seconds: float) -> dict[str, str]:
            asked = TopicCollection(list(names))
            answers = self._admin().describe_topics(asked, request_timeout=seconds)
            return {name: str(_answer({name: answer}, seconds).topic_id) for name, answer in answers.items()}

        found = self._clients.ask(f"querying the topics {', '.join(names[:3])}", describe) if names else {}
        return {name: "" if set(one) <= {"A", "=", "-"} or one == "None" else one for name, one in found.items()}

    def may_write(self, name: str) -> bool | None:
        """Whether this user may write to a topic; `None` if the brokers do not report it."""
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
"""Seconds that the brokers have for optional responses."""


def _answer(answers: Mapping[Any, Future[T]], seconds: float) -> T:
    (answer,) = answers.values()
    try:
        return answer.result(seconds + 1)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
