"""The brokers that proofs of the sink stand on do what those proofs take for granted, for both clients.

What concerns transactions is asked of the model and of a broker that nobody here wrote. Of the model alone, since
noida-db does not show it or cannot be told to: answers that are lost, transactions that expire, markers that come late,
rights, topics that are made anew, compaction, what the coordinator refuses beside an older epoch; see `kafka_server`.
"""

from __future__ import annotations

import logging
import time
import uuid
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import TopicCollection as Topics
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.integration.support.kafka_batches import marker
from tests.integration.support.kafka_broker import DESCRIBE, END_TXN, READ, WRITE, ModelBroker
from tests.integration.support.kafka_reader import Read, ends, read, read_visible
from tests.integration.support.kafka_topics import (
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE,
    ModelPartition,
    ModelTopic,
)
from tests.integration.support.kafka_transactions import (
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
)
from tests.integration.support.waiting import until

QUIET = logging.getLogger(__name__)


@pytest.fixture(params=["model", "kafka"])
def address(request: pytest.FixtureRequest) -> str:
    found = request.getfixturevalue(request.param)
    return str(found.address if isinstance(found, ModelBroker) else found)


@pytest.fixture
def topic(address: str) -> str:
    """A topic of two partitions."""
    name = f"test-{uuid.uuid4().hex}"
    client = admin(address)
    client.create_topics([NewTopic(name, num_partitions=2, replication_factor=1)])[name].result(10)
    return name


@pytest.fixture
def modelled(model: ModelBroker) -> ModelTopic:
    """The topic `t`, of one partition, of the model."""
    model.topics["t"] = ModelTopic()
    return model.topics["t"]


def admin(address: str) -> AdminClient:
    settings: dict[str, Any] = {"bootstrap.servers": address, "logger": QUIET}
    return AdminClient(settings)


def producer(address: str, transactional_id: str, **settings: Any) -> Producer:
    """A producer that has fenced those before it."""
    made = Producer({"bootstrap.servers": address, "transactional.id": transactional_id, "logger": QUIET, **settings})
    made.init_transactions(10)
    return made


def send(begun: Producer, topic: str, value: str, partition: int = 0, **more: Any) -> Producer:
    begun.begin_transaction()
    begun.produce(topic, value, value, partition, **more)
    assert begun.flush(10) == 0
    return begun


def values(found: list[Read]) -> list[bytes | None]:
    return [record.value for record in found]


def polled(address: str, topic: str) -> tuple[list[bytes | None], int]:
    """What librdkafka's own `read_committed` consumer gets up to the end that it sees, and where that is."""
    settings = {"group.id": "none", "enable.auto.commit": False, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": address, "enable.partition.eof": True, "logger": QUIET, **settings})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    try:
        while (message := consumer.poll(10)) is not None:
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found, message.offset() or 0
            found.append(message.value())
    finally:
        consumer.close()
    raise AssertionError("the end was not reached")


@pytest.mark.thorough
def test_an_open_transaction_hides_what_is_behind_it_and_the_high_watermark_tells(address: str, topic: str) -> None:
    first = send(producer(address, f"{topic}-a"), topic, "first")
    send(producer(address, f"{topic}-b"), topic, "behind").commit_transaction(10)
    assert polled(address, topic) == ([], 0)
    assert read_visible(address, topic) == []
    client, latest = admin(address), {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
    for level, end in ((IsolationLevel.READ_UNCOMMITTED, 3), (IsolationLevel.READ_COMMITTED, 0)):
        (asked,) = client.list_offsets(latest, isolation_level=level).values()
        assert asked.result(10).offset == end
    first.commit_transaction(10)
    # A commit is answered before its markers are there.
    until(lambda: ends(address, topic) == {0: 4, 1: 0}, "all markers", 10)
    assert polled(address, topic) == ([b"first", b"behind"], 4)
    assert values(read(address, topic)) == [b"first", b"behind"]


@pytest.mark.thorough
def test_an_aborted_transaction_is_never_seen_and_a_committed_one_as_it_was_sent(address: str, topic: str) -> None:
    writer = producer(address, f"{topic}-a")
    send(writer, topic, "aborted").abort_transaction(10)
    # One from 2009 would be older than the topic's retention.
    sent: dict[str, Any] = {"headers": [("h", b"1"), ("n", None)], "timestamp": int(time.time() * 1000) - 3_600_000}
    send(writer, topic, "here", **sent).commit_transaction(10)
    send(writer, topic, "aborted").abort_transaction(10)
    send(writer, topic, "there", partition=1).commit_transaction(10)
    until(lambda: ends(address, topic) == {0: 6, 1: 2}, "all markers", 10)
    assert polled(address, topic) == ([b"here"], 6)
    here, there = read(address, topic)
    assert here == Read(0, 2, sent["timestamp"], b"here", b"here", tuple(sent["headers"]))
    assert (there.partition, there.offset, there.value) == (1, 0, b"there")
    assert len(read(address, topic, isolation="read_uncommitted")) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["produce", "commit"])
def test_a_producer_whose_id_was_initialised_again_is_fenced(address: str, topic: str, at: str) -> None:
    older = send(producer(address, f"{topic}-a"), topic, "older")
    newer = producer(address, f"{topic}-a")
    if at == "produce":
        older.produce(topic, "late", partition=0)
        # A fatal error is raised by whatever is called next, and no callback is told.
        with pytest.raises(KafkaException, match="old epoch"):
            older.flush(10)
    with pytest.raises(KafkaException) as refused:
        older.commit_transaction(10)
    assert refused.value.args[0].code() == KafkaError._FENCED
    send(newer, topic, "newer").commit_transaction(10)
    assert values(read(address, topic)) == [b"newer"]


@pytest.mark.thorough
def test_a_timeout_above_the_brokers_longest_is_refused(address: str, topic: str) -> None:
    with pytest.raises(KafkaException) as refused:
        producer(address, topic, **{"transaction.timeout.ms": 900_001})
    assert refused.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.thorough
def test_a_commit_whose_answer_is_lost_is_asked_for_again_and_there_once(
    model: ModelBroker, modelled: ModelTopic
) -> None:
    writer = send(producer(model.address, "a"), "t", "once")
    model.swallow = [END_TXN]
    writer.commit_transaction(10)
    assert model.asked.count(END_TXN) == 2
    assert values(read(model.address, "t")) == [b"once"]
    assert modelled.partitions[0].end == 2, "one record and one marker"


@pytest.mark.thorough
def test_a_transaction_that_expires_is_aborted_and_its_producer_fenced(
    model: ModelBroker, modelled: ModelTopic
) -> None:
    writer = send(producer(model.address, "a"), "t", "lost")
    assert model.expire() == ["a"]
    assert modelled.partitions[0].stable == modelled.partitions[0].end
    with pytest.raises(KafkaException, match="fenced"):
        writer.commit_transaction(10)
    assert read(model.address, "t") == []


@pytest.mark.thorough
def test_a_commit_that_is_held_hides_what_another_commits_behind_it(model: ModelBroker, modelled: ModelTopic) -> None:
    slow = send(producer(model.address, "slow"), "t", "slow")
    fast = send(producer(model.address, "fast"), "t", "fast")
    model.held = lambda number, request: number == END_TXN and request.transactional_id == "slow"
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        slow.commit_transaction(0.2)
    fast.commit_transaction(10)
    assert (read_visible(model.address, "t"), modelled.partitions[0].end) == ([], 3)
    model.held = lambda number, request: False
    slow.commit_transaction(10)
    assert values(read(model.address, "t")) == [b"slow", b"fast"]


@pytest.mark.thorough
def test_a_broker_that_was_away_for_longer_than_a_transaction_may_be_open(
    model: ModelBroker, modelled: ModelTopic
) -> None:
    writer = send(producer(model.address, "a"), "t", "lost")
    model.away = True
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        writer.commit_transaction(0.2)
    assert model.expire() == ["a"]
    model.away = False
    with pytest.raises(KafkaException, match="fenced"):
        writer.commit_transaction(20)
    assert read(model.address, "t") == []


@pytest.mark.thorough
def test_a_commit_is_answered_before_its_markers_are_there(model: ModelBroker, modelled: ModelTopic) -> None:
    model.transactions.late_markers = True
    send(producer(model.address, "a"), "t", "first").commit_transaction(10)
    assert (read_visible(model.address, "t"), modelled.partitions[0].end) == ([], 1)
    model.resolve()
    assert values(read(model.address, "t")) == [b"first"]


@pytest.mark.thorough
def test_a_topic_that_is_made_anew_has_another_id_and_rights_are_told(model: ModelBroker, modelled: ModelTopic) -> None:
    client = admin(model.address)

    def described() -> Any:
        return client.describe_topics(Topics(["t"]), include_authorized_operations=True)["t"].result(10)

    assert str(described().topic_id) == base64(modelled.id)
    model.rights["t"] = frozenset({DESCRIBE, READ})
    assert {right.value for right in described().authorized_operations} == {DESCRIBE, READ}
    with pytest.raises(KafkaException) as refused:
        send(producer(model.address, "a"), "t", "denied").commit_transaction(10)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    model.rights["t"] |= {WRITE}
    model.make_anew("t")
    assert str(described().topic_id) == base64(model.topics["t"].id) != base64(modelled.id)


@pytest.mark.thorough
def test_compaction_leaves_open_transactions_and_removes_aborted_ones(model: ModelBroker, modelled: ModelTopic) -> None:
    writer = producer(model.address, "a")
    for _ in range(3):
        send(writer, "t", "key").commit_transaction(10)
        send(writer, "t", "key").abort_transaction(10)
    send(writer, "t", "key")
    other = send(producer(model.address, "b"), "t", "other")
    model.compact()
    assert [record.offset for record in modelled.records] == [8, 12, 13]
    assert [record.offset for record in read_visible(model.address, "t")] == [8]
    writer.abort_transaction(10)
    other.commit_transaction(10)
    model.compact()
    assert values(read(model.address, "t")) == [b"key", b"other"]


def test_the_coordinator_refuses_what_apache_kafka_refuses(model: ModelBroker) -> None:
    ids = model.transactions
    error, me, epoch = ids.init("a", 1000, -1, -1)
    assert (error, epoch) == (0, 0)
    assert ids.end("a", me, 0, commit=True) == INVALID_TXN_STATE
    assert ids.add("a", me, 0, [("t", 0)]) == 0
    assert ids.verify("a", me, 0, ("t", 1)) == INVALID_TXN_STATE
    assert ids.end("a", me, 1, commit=True) == ids.add("a", me, 1, []) == PRODUCER_FENCED
    assert ids.end("a", me + 1, 0, commit=True) == INVALID_PRODUCER_ID_MAPPING
    assert ids.end("a", me, 0, commit=False) == ids.end("a", me, 0, commit=False) == 0
    assert ids.end("a", me, 0, commit=True) == INVALID_TXN_STATE
    # Who goes on after an error says who it is, and may miss the answer; who was fenced may not go on.
    assert ids.init("a", 1000, me, 0) == ids.init("a", 1000, me, 0) == (0, me, 1)
    assert ids.init("a", 1000, -1, -1) == (0, me, 2)
    assert ids.init("a", 1000, me, 1)[0] == PRODUCER_FENCED


def test_a_partition_takes_each_batch_once_and_none_before_its_turn() -> None:
    partition = ModelPartition()

    def sent(sequence: int, epoch: int = 0) -> tuple[int, int]:
        return partition.append(
            replace(marker(0, 7, epoch, commit=True, timestamp=0), sequence=sequence, control=False)
        )

    assert [sent(0), sent(1), sent(0), sent(3)] == [(0, 0), (0, 1), (0, 0), (OUT_OF_ORDER_SEQUENCE, -1)]
    partition.mark(7, 1, commit=False)
    assert sent(2) == (INVALID_PRODUCER_EPOCH, -1)
    assert [sent(5, 1), sent(0, 1)] == [(OUT_OF_ORDER_SEQUENCE, -1), (0, 3)]


def base64(identifier: uuid.UUID) -> str:
    return b64encode(identifier.bytes).decode().rstrip("=")
