"""Topics that are deleted, made anew or emptied under a query: no later row is written as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from outfall.errors import OutfallError, TargetError, TargetLostError
from tests.integration.support.kafka_parts import PartsQuery, PartsTopic, at_step, make_topic, rows_of
from tests.integration.support.kafka_reader import ends, read
from tests.integration.support.waiting import until

pytestmark = pytest.mark.faults

Deed = Callable[[PartsTopic, str], None]


@pytest.fixture
def topic(kafka: str, tmp_path: Path) -> PartsTopic:
    return PartsTopic(kafka, tmp_path)


def delete(topic: PartsTopic, name: str) -> None:
    """As `kafka-topics.sh --delete`; it takes a moment."""
    client = AdminClient({"bootstrap.servers": topic.address})
    client.delete_topics([name])[name].result(20)
    until(lambda: name not in client.list_topics(timeout=10).topics, f"the end of {name}", 30)


def make_anew(topic: PartsTopic, name: str) -> None:
    delete(topic, name)
    make_topic(topic.address, name, 1 if name == topic.ledger else 2)


def empty(topic: PartsTopic, name: str) -> None:
    """As `kafka-delete-records.sh`, which Kafka allows where the policy has `delete`."""
    with closing(KafkaAdminClient(bootstrap_servers=topic.address)) as admin:
        admin.delete_records({TopicPartition(name, part): end for part, end in ends(topic.address, name).items()})


class _DiedError(Exception):
    """The driver is no longer."""


def die() -> None:
    raise _DiedError


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    ("which", "happens", "text"),
    [
        ("ledger", delete, "was deleted"),
        ("ledger", make_anew, "was deleted, and possibly recreated"),
        ("target", make_anew, "was deleted, and possibly recreated"),
    ],
)
def test_a_topic_that_is_not_what_was_written_is_refused(
    topic: PartsTopic, which: str, happens: Deed, text: str, restarted: bool
) -> None:
    query = topic.query()
    query.epoch(0)
    happens(topic, topic.ledger if which == "ledger" else topic.name)
    with pytest.raises(TargetLostError, match=text):
        (topic.query("second") if restarted else query).epoch(1)
    assert which == "ledger" or topic.found().total() == 0


def test_a_target_that_is_gone_is_refused(topic: PartsTopic) -> None:
    query = topic.query(create_topic="never", partitions=None, replication_factor=None)
    query.epoch(0)
    delete(topic, topic.name)
    with pytest.raises((TargetError, TargetLostError), match=r"does not exist|was deleted"):
        query.epoch(1)


def two_epochs(query: PartsQuery, first: int) -> None:
    query.epoch(first)
    query.epoch(first + 1)


STEPS = ("kafka: opening", "kafka: opened", "kafka: begun", "kafka: before commit", "kafka: after commit")
SLICE = {("target", 0, STEPS[3]), ("target", 1, STEPS[0]), ("ledger", 1, STEPS[4])}


def cases() -> list[Any]:
    every = [*product(("target",), (0, 1), STEPS), *product(("ledger",), (1,), STEPS)]
    return [pytest.param(*case, marks=() if case in SLICE else pytest.mark.long) for case in every]


@pytest.mark.parametrize(("which", "epoch", "step"), cases())
def test_a_topic_that_is_made_anew_within_an_epoch(topic: PartsTopic, which: str, epoch: int, step: str) -> None:
    """This epoch fails or the next one, and then each: nobody goes on over rows that are gone."""
    query = topic.query()
    for number in range(epoch):
        query.epoch(number)
    name = topic.ledger if which == "ledger" else topic.name
    with at_step(step, lambda: make_anew(topic, name)) as steps, pytest.raises(OutfallError):
        two_epochs(query, epoch)
    assert step in steps
    for process in ("second", "third"):
        with pytest.raises(TargetLostError, match="was deleted, and possibly recreated"):
            two_epochs(topic.query(process), epoch)


def test_a_target_that_is_made_anew_after_a_first_epoch_that_is_committed_in_part(topic: PartsTopic) -> None:
    """No state of a part is recorded yet, and the ledger says that its rows are there."""
    with at_step("kafka: after commit", die), pytest.raises(_DiedError):
        topic.query().epoch(0)
    make_anew(topic, topic.name)
    with pytest.raises(TargetLostError, match="was deleted, and possibly recreated"):
        topic.query("second").epoch(0)
    assert read(topic.address, topic.name) == []


def test_a_target_whose_records_are_deleted_is_as_after_its_retention(topic: PartsTopic) -> None:
    query = topic.query()
    query.epoch(0)
    empty(topic, topic.name)
    query.epoch(1)
    topic.query("second").epoch(2)
    assert topic.holds(rows_of(1), rows_of(2))
