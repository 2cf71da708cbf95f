"""Which lives of topics a query reads: offsets order the changes of a key only within one."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from outfall.delivery_order import TopicLife, check_generation
from outfall.errors import ConfigurationError, TargetError
from outfall.kafka.options import ClientOptions, check_brokers
from outfall.kafka.recovery.config import client_options, client_timeout
from outfall.options import parse_duration

_log = logging.getLogger(__name__)

_GUIDE = "see 'After an accident' in the recipe for change data"


@dataclass(frozen=True)
class _Topic:
    """What is known of a topic: by an earlier start, or by the brokers now."""

    generation: int = 1
    topic_id: str | None = None
    partitions: int | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether an earlier start has found it."""
        return self.topic_id is not None or self.partitions is not None


_Topics = Mapping[str, _Topic]


@dataclass(frozen=True)
class _AskedOrder(ABC):
    """The order of the changes in topics, about which the brokers are asked."""

    brokers: str
    client_options: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    timeout: timedelta | float | str = field(default=timedelta(seconds=60), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "brokers", check_brokers(self.brokers))
        object.__setattr__(self, "client_options", client_options(self.client_options))
        object.__setattr__(self, "timeout", client_timeout(self.timeout))
        for name, topic in self._expected().items():
            check_generation(topic.generation, name)

    @abstractmethod
    def _expected(self) -> _Topics:
        """Return the topics as the user gives them."""

    @abstractmethod
    def _given(self, topics: _Topics) -> str:
        """Return how the user gives topics, to be pasted."""

    def open(self) -> Sequence[TopicLife]:
        """Return the life of each topic.

        Raises:
            TargetError: A topic does not exist, was created again, or has another number of partitions.
            TransientError: The brokers do not respond within `timeout`.
        """
        expected = self._expected()
        asked = self._ask(list(expected))
        found = {name: replace(topic, **asked[name]) for name, topic in expected.items() if name in asked}
        # A topic that was never there is that of a table without rows.
        gone = [name for name, topic in expected.items() if name not in found and (topic.is_pinned or not found)]
        if gone:
            raise TargetError(
                f"the brokers {self.brokers} have no topic {_listed(gone)}",
                do="correct the name, or start the connector, which creates the topic",
            )
        self._check_ids(expected, found)
        self._check_partitions(expected, found)
        self._tell(expected, found)
        known = {**expected, **found}
        return [TopicLife(name, topic.generation, topic.partitions) for name, topic in known.items()]

    def _check_ids(self, expected: _Topics, found: _Topics) -> None:
        others = [name for name, topic in found.items() if expected[name].topic_id not in (None, topic.topic_id)]
        if not others:
            return
        has, had = found[others[0]].topic_id, expected[others[0]].topic_id
        raise TargetError(
            f"the topic {others[0]} has the id {has or 'of no topic'}, and not {had}{_and_others(others)}",
            why="it was created again, so its offsets begin anew, and later changes would seem older"
            if has
            else "the brokers have no ids of topics",
            do=f"set {self._next(found, others)}, and start with a new checkpoint and on_existing='resume' of the sink;"
            f" {_GUIDE}"
            if has
            else "leave topic_id out",
        )

    def _check_partitions(self, expected: _Topics, found: _Topics) -> None:
        others = [name for name, topic in found.items() if expected[name].partitions not in (None, topic.partitions)]
        if not others:
            return
        has, had = found[others[0]].partitions, expected[others[0]].partitions
        raise TargetError(
            f"the topic {others[0]} has {has} partitions, and not {had}{_and_others(others)}",
            why="keys move to other partitions, where their later changes can have smaller offsets",
            do=f"set {self._next(found, others)}, once the query has applied the changes before; {_GUIDE}",
        )

    def _next(self, found: _Topics, names: Sequence[str]) -> str:
        new = {name: replace(found[name], generation=found[name].generation + 1) for name in names}
        return f"{self._given(new)} in {type(self).__name__}"

    def _tell(self, expected: _Topics, found: _Topics) -> None:
        """Log what no earlier start has found, as the user gives it."""
        unpinned = [name for name, topic in found.items() if expected[name] != topic]
        if unpinned:
            _log.warning(
                "%s: not compared with an earlier start. Pass %s to %s, so that a topic that was created again or got"
                " more partitions is noticed",
                _listed(unpinned),
                self._given({**expected, **found}),
                type(self).__name__,
            )
        if absent := [name for name in expected if name not in found]:
            _log.warning("%s: not there yet. A table without rows has no topic; else correct the name", _listed(absent))

    def _ask(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return id and number of partitions of the topics that exist."""
        # Imported here: a process that imports this class may not have the client installed.
        from outfall.kafka.client import KafkaClients
        from outfall.kafka.topics import Topics

        options = self.client_options if isinstance(self.client_options, ClientOptions) else ClientOptions({})
        clients = KafkaClients(
            self.brokers,
            options,
            parse_duration(self.timeout).total_seconds(),
            role="the topics with changes",
            then="the query can be started",
        )
        with closing(clients):
            topics = Topics(clients)
            there = {name: count for name in names if (count := topics.partitions(name)) is not None}
            ids = topics.topic_ids(list(there))
        # Of brokers without ids, none is known.
        return {name: {"topic_id": ids[name] or None, "partitions": count} for name, count in there.items()}


@dataclass(frozen=True)
class TopicGeneration(_AskedOrder):
    """The order of the changes in one life of a topic, for `outfall.spark.debezium.changes(order=…)`.

    Offsets begin anew in a topic that was created again, and a key can move to a partition with smaller offsets when
    partitions are added. Then later changes would seem older. So the brokers are asked for the topic's id and number of
    partitions where the query is defined, and both are compared with the expected ones. Needs
    `pip install 'outfall[kafka]'`.

    Args:
        brokers: `host:port`, several separated by commas, or a list.
        topic: The topic with the changes.
        generation: 1 for the first life of the topic; 1 more for each later one. Changes of a greater generation are
            newer than all of smaller ones.
        topic_id: The id of the topic in this life (KIP-516, brokers from 2.8). Without it, a warning names the id that
            the brokers have, and a topic that was created again is not noticed.
        partitions: The number of partitions in this life. Without it, a warning names the number that the brokers
            have, and partitions that were added between two starts are not noticed.
        client_options: librdkafka's connection properties, such as `security.protocol`. Secrets may be `env:NAME` or
            `file:PATH`.
        timeout: How long the brokers are waited for.

    Raises:
        ConfigurationError: An argument is invalid. The text contains no secret.
    """

    topic: str
    generation: int = 1
    topic_id: str | None = None
    partitions: int | None = None

    def _expected(self) -> _Topics:
        return {self.topic: _Topic(self.generation, self.topic_id, self.partitions)}

    def _given(self, topics: _Topics) -> str:
        (topic,) = topics.values()
        return ", ".join(f"{name}={value!r}" for name, value in asdict(topic).items() if value is not None)


@dataclass(frozen=True)
class TopicGenerations(_AskedOrder):
    """The order of the changes in many topics, such as those of all tables of a connector: `TopicGeneration` for each.

    Args:
        brokers: `host:port`, several separated by commas, or a list.
        topics: By the name of each topic `generation`, `topic_id` and `partitions`, as `TopicGeneration` takes them.
            For a first start, a list of the names: a warning has the mapping as JSON, to be passed from then on. A
            topic that does not exist yet is that of a table without rows: its name is enough.
        client_options: librdkafka's connection properties, such as `security.protocol`. Secrets may be `env:NAME` or
            `file:PATH`.
        timeout: How long the brokers are waited for.

    Raises:
        ConfigurationError: An argument is invalid. The text contains no secret.
    """

    topics: Mapping[str, Mapping[str, Any]] | Sequence[str]

    def _expected(self) -> _Topics:
        if not self.topics or not isinstance(self.topics, Mapping | list | tuple):
            raise ConfigurationError(
                f"topics is {self.topics!r}", do="pass the names of the topics as a list, or what the warning says"
            )
        given = self.topics if isinstance(self.topics, Mapping) else {name: {} for name in self.topics}
        return {name: _topic(name, known) for name, known in given.items()}

    def _given(self, topics: _Topics) -> str:
        known = {name: asdict(topic) for name, topic in topics.items()}
        return json.dumps(
            {name: {key: value for key, value in of.items() if value is not None} for name, of in known.items()}
        )


def _topic(name: str, known: Mapping[str, Any]) -> _Topic:
    kinds = {"generation": int, "topic_id": str, "partitions": int}
    if not isinstance(known, Mapping) or not all(isinstance(known[key], kinds.get(key, ())) for key in known):
        raise ConfigurationError(
            f"topics has {known!r} for {name}",
            do='pass {"generation": 1, "topic_id": "…", "partitions": 4}, or parts of it',
        )
    return _Topic(**known)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _and_others(names: Sequence[str]) -> str:
    return f"; others than expected are also {_listed(names[1:])}" if len(names) > 1 else ""
