"""Which life of a topic a query reads: offsets order the changes of a key only within one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

from outfall.errors import TargetError
from outfall.kafka.options import ClientOptions, check_brokers
from outfall.kafka.recovery.config import client_options, client_timeout
from outfall.options import parse_duration

_log = logging.getLogger(__name__)

_GUIDE = "see 'After an accident' in the recipe for change data"


@dataclass(frozen=True)
class TopicGeneration:
    """The order of the changes in one life of a topic, for `outfall.spark.debezium.changes(order=…)`.

    Offsets begin anew in a topic that was created again, and a key can move to a partition with smaller offsets when
    partitions are added. Then later changes would seem older. So the brokers are asked for the topic's id and number of
    partitions where the query is defined, and both are compared with the expected ones. Needs
    `pip install 'outfall[kafka]'`.

    Args:
        brokers: `host:port`, several separated by commas, or a list.
        topic: The topic with the changes of one table.
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

    brokers: str
    topic: str
    generation: int = 1
    topic_id: str | None = None
    partitions: int | None = None
    client_options: Mapping[str, str] = field(default_factory=dict)
    timeout: timedelta | float | str = timedelta(seconds=60)

    def __post_init__(self) -> None:
        object.__setattr__(self, "brokers", check_brokers(self.brokers))
        object.__setattr__(self, "client_options", client_options(self.client_options))
        object.__setattr__(self, "timeout", client_timeout(self.timeout))

    def open(self) -> int:
        """Return the number of partitions.

        Raises:
            TargetError: The topic does not exist, was created again, or has another number of partitions.
            TransientError: The brokers do not respond within `timeout`.
        """
        topic_id, partitions = self._asked()
        if self.topic_id is not None and topic_id != self.topic_id:
            raise TargetError(
                f"the topic {self.topic} has the id {topic_id or 'of no topic'}, and not {self.topic_id}",
                why="it was created again, so its offsets begin anew, and later changes would seem older"
                if topic_id
                else "the brokers have no ids of topics",
                do=f"set topic_id to {topic_id!r} and add 1 to generation, and start with a new checkpoint and"
                f" on_existing='resume' of the sink; {_GUIDE}"
                if topic_id
                else "leave topic_id out",
            )
        if self.partitions is not None and partitions != self.partitions:
            raise TargetError(
                f"the topic {self.topic} has {partitions} partitions, and not {self.partitions}",
                why="keys move to other partitions, where their later changes can have smaller offsets",
                do=f"set partitions to {partitions} and add 1 to generation, once the query has applied the changes"
                f" before; {_GUIDE}",
            )
        unpinned = {"topic_id": (self.topic_id, topic_id), "partitions": (self.partitions, partitions)}
        if missing := [f"{name}={now!r}" for name, (given, now) in unpinned.items() if given is None and now]:
            _log.warning(
                "%s: the topic was not compared with an earlier start. Pass %s to TopicGeneration, so that a topic that"
                " was created again or got more partitions is noticed",
                self.topic,
                ", ".join(missing),
            )
        return partitions

    def _asked(self) -> tuple[str, int]:
        # Imported here: a process that imports this class may not have the client installed.
        from outfall.kafka.client import KafkaClients
        from outfall.kafka.topics import Topics

        options = self.client_options if isinstance(self.client_options, ClientOptions) else ClientOptions({})
        clients = KafkaClients(
            self.brokers,
            options,
            parse_duration(self.timeout).total_seconds(),
            role="the topic with changes",
            then="the query can be started",
        )
        with closing(clients):
            topics = Topics(clients)
            partitions = topics.partitions(self.topic)
            topic_id = topics.topic_id(self.topic)
        if partitions is None or topic_id is None:
            raise TargetError(
                f"the brokers {self.brokers} have no topic {self.topic}",
                do="correct the name, or start the connector, which creates the topic",
            )
        return topic_id, partitions
