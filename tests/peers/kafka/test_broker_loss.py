"""Brokers that are killed (-9) or stand still within an epoch: it is completed, by them or by others, each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from outfall.errors import TransientError
from tests.integration.support.kafka_parts import PartsTopic, at_step, rows_of
from tests.peers.support.apache_kafka import NEWEST, OLDEST, ApacheKafka, Node, own_cluster

pytestmark = pytest.mark.faults

PATIENT: dict[str, Any] = {"delivery_timeout": timedelta(minutes=2)}
STEPS = (
    "kafka: opening", "kafka: opened", "kafka: before init", "kafka: begun", "task: after write",
    "kafka: before commit", "kafka: after commit", "before PREPARED",
)  # fmt: skip


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(OLDEST, marks=pytest.mark.long)])
def alone(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """One broker, which comes back on its disk."""
    with own_cluster(request.param) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three() -> Iterator[ApacheKafka]:
    """Three brokers; each record is on two disks at least before it is acknowledged."""
    with own_cluster(NEWEST, brokers=3) as cluster:
        yield cluster


@contextmanager
def restarted(cluster: ApacheKafka, broker: Node) -> Iterator[Callable[[], None]]:
    """Yield what kills a broker and starts it again meanwhile; in the end it is there again."""
    back: list[Future[None]] = []

    def kill() -> None:
        broker.kill()
        back.append(cluster.restart(broker))

    yield kill
    for each in back:
        each.result()


@pytest.mark.parametrize(
    "step", [pytest.param(each, marks=() if each == "kafka: before commit" else pytest.mark.long) for each in STEPS]
)
def test_an_epoch_whose_only_broker_is_killed_and_comes_back(alone: ApacheKafka, step: str, tmp_path: Path) -> None:
    topic = PartsTopic(alone.address, tmp_path)
    query = topic.query(**PATIENT)
    query.epoch(0)
    again = topic.query("second", **PATIENT)
    with restarted(alone, alone.brokers[0]) as kill, at_step(step, kill) as steps:
        again.epoch(1)
    assert step in steps
    again.epoch(2)
    assert topic.holds(*map(rows_of, range(3)))


@pytest.mark.parametrize(
    ("which", "step"),
    [
        pytest.param(*case, marks=() if case == ("ledger", "kafka: before commit") else pytest.mark.long)
        for case in product(("target", "ledger", "coordinator"), STEPS)
    ],
)
def test_a_leader_that_is_killed_within_an_epoch(three: ApacheKafka, which: str, step: str, tmp_path: Path) -> None:
    """The two brokers that are left go on: `min.insync.replicas` is 2. The one that was killed comes back."""
    topic = PartsTopic(three.address, tmp_path, replicas=3)
    query = topic.query(**PATIENT)
    query.epoch(0)
    # One of the partitions that coordinate, as there are four of them on three brokers.
    name = {"target": topic.name, "ledger": topic.ledger, "coordinator": "__transaction_state"}[which]
    broker = three.brokers[leader(three, name) - 1]
    with at_step(step, broker.kill) as steps:
        query.epoch(1)
    assert step in steps
    assert not broker.running
    topic.query("second", **PATIENT).epoch(2)
    three.restart(broker).result()
    query = topic.query("third", **PATIENT)
    query.epoch(3)
    assert topic.holds(*map(rows_of, range(4)))


def leader(cluster: ApacheKafka, topic: str) -> int:
    """Return the number of the broker that leads the first partition."""
    found = AdminClient({"bootstrap.servers": cluster.address}).list_topics(topic, timeout=30).topics[topic]
    return int(found.partitions[0].leader)


@pytest.mark.long
def test_too_few_replicas_acknowledge_nothing(three: ApacheKafka, tmp_path: Path) -> None:
    topic = PartsTopic(three.address, tmp_path, replicas=3)
    topic.query(**PATIENT).epoch(0)

    def kill_two() -> None:
        for each in three.brokers[1:]:
            each.kill()

    with pytest.raises(TransientError), at_step("kafka: begun", kill_two):
        topic.query("second", delivery_timeout=timedelta(seconds=5)).epoch(1)
    for back in [three.restart(broker) for broker in three.brokers[1:]]:
        back.result()
    query = topic.query("third", **PATIENT)
    query.epoch(1)
    query.epoch(2)
    assert topic.holds(*map(rows_of, range(3)))


@pytest.mark.long
def test_a_broker_that_stands_still_while_others_lead(three: ApacheKafka, tmp_path: Path) -> None:
    """It wakes as a leader that it is no more."""
    topic = PartsTopic(three.address, tmp_path, replicas=3)
    query = topic.query(**PATIENT)
    query.epoch(0)
    broker = three.brokers[leader(three, topic.ledger) - 1]
    with at_step("kafka: begun", broker.pause):
        query.epoch(1)
    query.epoch(2)
    broker.resume()
    for epoch in range(3, 6):
        query.epoch(epoch)
    assert topic.holds(*map(rows_of, range(6)))
