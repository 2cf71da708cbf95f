"""The tests' own broker and one that nobody here wrote answer the same requests alike, whatever producers do.

Random schedules of three transactional ids, whose older producers go on as zombies: each answer, both ends of each
partition, and what a reader finds. Left out is what noida-db is known to do in another way, see `kafka_server`.
"""

from __future__ import annotations

import io
import random
import socket
import struct
import time
import uuid
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.integration.support.kafka_broker import (
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    ModelBroker,
)
from tests.integration.support.kafka_reader import ends, read
from tests.integration.support.kafka_transactions import CONCURRENT_TRANSACTIONS
from tests.integration.support.waiting import until

VERSIONS = {FIND_COORDINATOR: 1, PRODUCE: 7, INIT_PRODUCER_ID: 1, ADD_PARTITIONS_TO_TXN: 1, END_TXN: 1}
PARTITIONS = 2
NOT_YET = {14, 15, 16, CONCURRENT_TRANSACTIONS}
"""Errors after which the same request is sent again: the coordinator is loading, unknown or elsewhere, or the last
transaction has not ended (Kafka's protocol guide, "Error Codes")."""


@dataclass
class Broker:
    """One of the two, asked by bare requests: a client would hide some answers and follow others up."""

    address: str
    topic: str

    def ask(self, number: int, **fields: Any) -> Any:
        api, version = ModelBroker.apis[number], VERSIONS[number]
        request = api.request[version](**fields)
        request.with_header(correlation_id=1, client_id="test")
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(request.encode(header=True, framed=True))
            answer = connection.makefile("rb")
            (size,) = struct.unpack(">i", answer.read(4))
            return api.response[version].decode(io.BytesIO(answer.read(size)[4:]))

    def init(self, name: str) -> Incarnation:
        who = {"transactional_id": f"{self.topic}-{name}", "transaction_timeout_ms": 60_000}
        found = until(partial(self._not_busy, who), "the end of the last transaction", 30)
        assert found.error_code == 0
        return Incarnation(self, f"{self.topic}-{name}", found.producer_id, found.producer_epoch)

    def _not_busy(self, who: dict[str, Any]) -> Any:
        # Apache Kafka has no coordinator before the first question who it is.
        self.ask(FIND_COORDINATOR, key=who["transactional_id"], key_type=1)
        found = self.ask(INIT_PRODUCER_ID, **who)
        return None if found.error_code in NOT_YET else found


@dataclass
class Incarnation:
    """A producer of a transactional id, on one broker."""

    broker: Broker
    name: str
    producer: int
    epoch: int
    sequences: dict[int, int] = field(default_factory=dict)

    def add(self, partition: int) -> int:
        make = ModelBroker.apis[ADD_PARTITIONS_TO_TXN].request[1].AddPartitionsToTxnTopic

        def answered() -> list[int]:
            answer = self.broker.ask(
                ADD_PARTITIONS_TO_TXN, v3_and_below_transactional_id=self.name, v3_and_below_producer_id=self.producer,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=[make(name=self.broker.topic, partitions=[partition], version=1)],
            )  # fmt: skip
            error = int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
            return [] if error in NOT_YET else [error]

        # The markers of the last transaction may still be due.
        return until(answered, "the end of the last transaction", 30)[0]

    def produce(self, partition: int, value: bytes) -> int:
        sequence = self.sequences.get(partition, 0)
        batch = DefaultRecordBatchBuilder(2, 0, True, self.producer, self.epoch, sequence, 1 << 20)
        batch.append(0, int(time.time() * 1000), b"key", value, [])
        make = ModelBroker.apis[PRODUCE].request[7].TopicProduceData
        data = make.PartitionProduceData(index=partition, records=bytes(batch.build()), version=7)
        answer = self.broker.ask(
            PRODUCE, transactional_id=self.name, acks=-1, timeout_ms=1000,
            topic_data=[make(name=self.broker.topic, partition_data=[data], version=7)],
        )  # fmt: skip
        error = int(answer.responses[0].partition_responses[0].error_code)
        if not error:
            self.sequences[partition] = sequence + 1
        return error

    def end(self, commit: bool) -> int:
        who = {"transactional_id": self.name, "producer_id": self.producer, "producer_epoch": self.epoch}

        def answered() -> list[int]:
            error = int(self.broker.ask(END_TXN, committed=commit, **who).error_code)
            return [] if error in NOT_YET else [error]

        return until(answered, "the coordinator", 30)[0]


class Producer:
    """The same producer on both brokers."""

    def __init__(self, name: str, brokers: list[Broker]) -> None:
        self.name = name
        self.dead = False
        self._both = [broker.init(name) for broker in brokers]
        self._partitions: set[int] = set()

    def step(self, chance: random.Random, value: bytes) -> tuple[str, list[int]]:
        """Do something that a producer may do, and return what the brokers answered."""
        what = chance.choices(("add", "produce", "end"), (3, 5, 2) if self._partitions else (1, 0, 0))[0]
        if what == "end":
            commit = chance.random() < 0.6
            answers = [each.end(commit) for each in self._both]
            self._partitions.clear()
        else:
            partition = chance.randrange(PARTITIONS) if what == "add" else chance.choice(sorted(self._partitions))
            answers = [each.add(partition) for each in self._both] if what == "add" else []
            # Never a partition without records.
            if not any(answers):
                answers = [each.produce(partition, value) for each in self._both]
                self._partitions.add(partition)
        self.dead = any(answers)
        return f"{self.name}: {what}", answers


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_two_brokers_answer_alike(model: ModelBroker, kafka: str, seed: int) -> None:
    chance, topic = random.Random(seed), f"test-{uuid.uuid4().hex}"
    brokers = [Broker(kafka, topic), Broker(model.address, topic)]
    for broker in brokers:
        client = AdminClient({"bootstrap.servers": broker.address})
        client.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(10)
        # The leaders of a new topic may not know yet that they are: they are asked until they answer.
        ends(broker.address, topic)

    def agreed(isolation: str) -> bool:
        noida, ours = (ends(broker.address, topic, isolation=isolation) for broker in brokers)
        return noida == ours

    producers, done = [Producer("a", brokers)], []
    for number in range(60):
        producer = chance.choice(producers[-4:])
        if chance.random() < 0.12:
            producers.append(Producer(chance.choice("abc"), brokers))
        elif not producer.dead:
            done.append(producer.step(chance, b"%d" % number))
            assert len(set(done[-1][1])) == 1, done
        if number % 20 == 19:
            for isolation in ("read_uncommitted", "read_committed"):
                until(partial(agreed, isolation), f"the same end after {done}", 5)
    for name in "abc":
        Producer(name, brokers)
    found = [[record[:2] + record[3:] for record in read(broker.address, topic)] for broker in brokers]
    assert found[0] == found[1] != [], done
