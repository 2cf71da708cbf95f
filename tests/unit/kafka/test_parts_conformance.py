"""Parts in Kafka are exactly once where the source is repeatable: the suite does not refute it over a model."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outfall.capabilities import Guarantee
from outfall.errors import TransientError
from outfall.kafka.options import KafkaOptions
from outfall.testing import ByReference, SinkConformance, SinkHarness
from tests.unit.support.conforming import saved
from tests.unit.support.kafka_cluster import Broker, MemoryCluster, MemoryDelivery


class Place(ByReference):
    """The brokers, and the one process that all drivers and tasks of a check run in."""

    def __init__(self) -> None:
        self.topic = f"events-{uuid.uuid4().hex}"
        self.broker = Broker()
        self.broker.ids[self.topic] = "1"
        self.cluster = MemoryCluster(self.broker, self._answer)
        self.gone = False

    def _answer(self) -> None:
        if self.gone:
            raise TransientError("the brokers do not answer")

    def connect(self, *_: object) -> MemoryCluster:
        return self.cluster


class Parts(SinkHarness):
    claim = Guarantee.EXACTLY_ONCE
    repeatable_source = True
    not_claimed = dict.fromkeys(
        ["tasks_in_processes_of_their_own", "killed_before_close", "killed_at_every_step"],
        "the brokers are in this process; it runs in tests/integration",
    ) | {
        "connection_check": "the model has no clients; it runs in tests/integration",
        "leftovers_are_cleaned_up": "nothing is staged",
        "crash_at_every_line": "lines of the model would be among them, and brokers do not die with a driver; it is"
        " killed at every step",
        "parts_reordered": "an epoch that is partly committed must be routed as before, or it is refused; the sink"
        " itself lists its parts in one order only",
    }

    def new_target(self, directory: Path) -> Place:
        return Place()

    def make_sink(self, target: Place) -> MemoryDelivery:
        options = KafkaOptions(
            brokers="memory:9092", topic=target.topic, ledger_topic="ledger", parts=4, value_format="json"
        )
        return MemoryDelivery(options, target.connect)

    def read(self, target: Place) -> list[Any]:
        return target.broker.committed_rows()

    def lose_target(self, target: Place) -> None:
        """Delete both topics, which are made anew with their next use."""
        target.broker.ledger.clear()
        target.broker.rows.clear()
        target.broker.ids = {target.topic: "2"}

    def replace_target(self, target: Place) -> None:
        """Delete the topic and make it again. The ledger stays."""
        target.broker.rows.clear()
        target.broker.ids[target.topic] = "2"

    def save_target(self, target: Place) -> Callable[[], None]:
        """Copy the disks of the brokers."""
        return saved(target.broker, "ledger", "rows", "epochs")

    @contextmanager
    def breaking(self, target: Place) -> Iterator[None]:
        target.gone = True
        try:
            yield
        finally:
            target.gone = False


@pytest.mark.thorough
class TestParts(Parts, SinkConformance):
    pass
