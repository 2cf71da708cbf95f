"""Parts of Kafka as tests write them: queries with drivers and attempts of their own, and what a reader then sees."""

from __future__ import annotations

import copy
import json
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from outfall.errors import OutfallError, TransientError
from outfall.kafka.options import KafkaOptions
from outfall.kafka.parts.brokers import connect
from outfall.kafka.parts.delivery import KafkaPartDelivery
from outfall.protocol.messages import EpochResult, TaskResponse, Ticket
from outfall.testing.local_engine import LocalDriver
from outfall.trace_points import listen
from tests.integration.support.kafka_reader import Security, read
from tests.integration.support.waiting import until

_QUIET: Any = logging.getLogger(__name__)
TRIES = 4
"""How often a task is tried (`spark.task.maxFailures`)."""
Rows = list[tuple[str, Any]]


def rows_of(epoch: int, count: int = 12) -> Rows:
    """Return the rows of an epoch, which all parts share."""
    return [(f"k{number}", {"n": epoch * 1000 + number}) for number in range(count)]


def make_topic(address: str, name: str, partitions: int = 1, replicas: int = 1, security: Security = None) -> None:
    """Make a topic as an administrator does, and wait until it is known: a broker learns of it from the controller."""
    client = AdminClient({"bootstrap.servers": address, "logger": _QUIET, **(security or {})})
    client.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=replicas)])[name].result(10)
    until(lambda: name in client.list_topics(timeout=10).topics, f"the topic {name}", 30)


class PartsTopic:
    """A topic and its ledger, and whoever writes there.

    Args:
        address: of the brokers.
        directory: for recovery data.
        replicas: of the topic and its ledger.
        security: properties of the administrator and of the reader, librdkafka's.
    """

    def __init__(self, address: str, directory: Path, *, replicas: int = 1, security: Security = None) -> None:
        self.address = address
        self.security = dict(security or {})
        self._replicas = replicas
        self.name = f"test-{uuid.uuid4().hex}"
        self.ledger = f"{self.name}-outfall-ledger"
        self._directory = directory
        make_topic(address, self.name, 2, replicas, security)

    def sink(self, process: str = "first", **options: Any) -> KafkaPartDelivery:
        """Return a sink; those of another `process` share no producer with it, as in processes of their own."""
        given: dict[str, Any] = {
            "brokers": self.address, "topic": self.name, "parts": 2, "value_format": "json",
            "delivery_timeout": timedelta(seconds=10), "create_topic": "if_missing", "partitions": 2,
            "replication_factor": self._replicas, "client_options": {"client.id": process},
        }  # fmt: skip
        return KafkaPartDelivery(KafkaOptions(**given | options), connect)

    def query(self, process: str = "first", checkpoint: str = "checkpoint", **options: Any) -> PartsQuery:
        """Start a driver."""
        return PartsQuery(self.sink(process, **options), str(self._directory / checkpoint))

    def found(self) -> Counter[int]:
        """Count the rows that a `read_committed` reader sees."""
        return Counter(
            json.loads(record.value or b"")["n"] for record in read(self.address, self.name, security=self.security)
        )

    def holds(self, *epochs: Rows) -> bool:
        """Tell whether a reader sees each row of these epochs once, and nothing else."""
        return self.found() == Counter(row["n"] for rows in epochs for _, row in rows)


class PartsQuery(LocalDriver):
    """A driver that tries a task again as Spark does."""

    def executor(self, process: str, **options: Any) -> PartsQuery:
        """Return what runs this driver's tasks in another process. Call it when the epoch has begun."""
        sink = copy.copy(self.sink)
        changed = {"client_options": {"client.id": process}} | options
        sink.options = KafkaOptions(**self.sink.options.model_dump(exclude={"client_options"}) | changed)
        return PartsQuery(sink, self.recovery)

    def epoch(self, number: int, rows: Rows | None = None) -> EpochResult:
        """Run an epoch to its end."""
        with closing(self.coordinator()) as coordinator:
            ticket = coordinator.begin(number)
            return coordinator.finish(ticket, self.answers(ticket, number, rows))

    def answers(self, ticket: Ticket, number: int, rows: Rows | None = None) -> list[TaskResponse]:
        """Run all tasks of an epoch."""
        routed = self.route([rows_of(number) if rows is None else rows])
        return [self.attempts(ticket, number, index, task) for index, task in enumerate(routed)]

    def attempts(
        self, ticket: Ticket, number: int, index: int, task: list[Any] | Callable[[], Iterable[Any]]
    ) -> TaskResponse:
        """Run a task until it succeeds, or has failed too often. Its rows are given, or made for each attempt."""
        rows = task if callable(task) else lambda: task
        for _ in range(TRIES - 1):
            try:
                return self.run_task(ticket, number, index, rows())
            except TransientError:
                continue
        return self.run_task(ticket, number, index, rows())

    def late(self, ticket: Ticket, number: int, rows: Rows) -> list[TaskResponse | OutfallError]:
        """Run one attempt at each task, of which any may be refused."""
        outcomes: list[TaskResponse | OutfallError] = []
        for index, task in enumerate(self.route([rows])):
            try:
                outcomes.append(self.run_task(ticket, number, index, task))
            except OutfallError as error:
                outcomes.append(error)
        return outcomes


@contextmanager
def at_step(step: str, action: Callable[[], None]) -> Generator[list[str]]:
    """Do something the first time that a step is reached, while whoever reached it waits; yields the steps reached."""
    steps: list[str] = []

    def listener(reached: str) -> None:
        first = reached == step and step not in steps
        steps.append(reached)
        if first:
            action()

    stop = listen(listener)
    try:
        yield steps
    finally:
        stop()


def halves(task: Iterable[Any], between: Callable[[], object]) -> Iterator[Any]:
    """Give a task's rows with a pause after the first of them, in which others come."""
    for part, rows in task:
        yield part, rows[:1]
        between()
        yield part, rows[1:]
