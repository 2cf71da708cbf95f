"""A real cluster for the parts: librdkafka's clients, cached in the process between epochs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from outfall.errors import OutfallError
from outfall.kafka.client import KafkaClients
from outfall.kafka.options import KafkaOptions, ProducerOptions
from outfall.kafka.partition import KafkaPartition, Partition, Write
from outfall.kafka.parts.cluster import LedgerTopic, PartProducer, PartsCluster
from outfall.kafka.producer.cache import PRODUCERS
from outfall.kafka.producer.transactions import TransactionalProducer
from outfall.kafka.records import KafkaRecordMaker
from outfall.kafka.topics import Topics
from outfall.process_clients import ProcessClients

_ABORTING = 5.0
"""Maximum seconds that a failing writer takes to abort its transaction; else the next writer of its id ends it."""


class KafkaCluster(PartsCluster):
    """The cluster in a sink's options; `producing` are the properties of a producer."""

    def __init__(self, options: KafkaOptions, producing: ProducerOptions) -> None:
        self.where = options.brokers
        self._options = options
        self._producing = producing
        self._ledgers: dict[str, KafkaLedgerTopic] = {}

    def topic_id(self, name: str) -> str | None:
        ledger = self._ledger(self._options.ledger)
        with ledger.lock:
            return ledger.topics.topic_id(name)

    def expect(self, name: str) -> None:
        self._ledger(self._options.ledger).topics.expect(name)

    def prepare_ledger(self, name: str) -> None:
        ledger = self._ledger(name)
        with ledger.lock:
            ledger.everything.prepare()

    def ledger(self, name: str) -> LedgerTopic:
        return self._ledger(name)

    def kept(self, transactional_id: str, after: str) -> PartProducer | None:
        found = PRODUCERS.kept(self._wanted(transactional_id))
        if found is None:
            return None
        if found.note[0] == after:
            return KafkaPartProducer(found, found.note[1])
        PRODUCERS.drop(found)
        return None

    def producer(self, transactional_id: str, ledger: str) -> PartProducer:
        made = PRODUCERS.open(self._wanted(transactional_id))
        return KafkaPartProducer(made, ledger)

    def keep(self, transactional_id: str, producer: PartProducer, after: str) -> None:
        if not self._options.reuse_producers:
            producer.close()
        elif isinstance(producer, KafkaPartProducer):
            producer.keep(after)

    def _ledger(self, name: str) -> KafkaLedgerTopic:
        if name not in self._ledgers:
            self._ledgers[name] = KafkaLedgerTopic(self._options, name)
        return self._ledgers[name]

    def _wanted(self, transactional_id: str) -> TransactionalProducer:
        return TransactionalProducer(
            self._options.brokers,
            self._producing,
            self._options.seconds,
            transactional_id=transactional_id,
            transaction_timeout=self._options.transaction_timeout.total_seconds(),
        )


class KafkaLedgerTopic(LedgerTopic):
    """The ledger topic, with two consumers: one reads everything, the other only committed records."""

    def __init__(self, options: KafkaOptions, name: str) -> None:
        super().__init__()
        clients = _clients(options, committed=False)
        self.topics = Topics(clients)
        factor = options.replication_factor
        self._everything = KafkaPartition(clients, name, replication_factor=factor, named_by="ledger_topic")
        self._committed = KafkaPartition(_clients(options, committed=True), name, replication_factor=factor)

    @property
    def committed(self) -> Partition:
        return self._committed

    @property
    def everything(self) -> Partition:
        return self._everything


class KafkaPartProducer(PartProducer):
    """One of librdkafka's producers."""

    def __init__(self, producer: TransactionalProducer, ledger: str) -> None:
        self._producer = producer
        self._ledger = ledger
        self._open = False
        self._released = False

    def init(self) -> None:
        self._producer.init(self._ledger)

    def begin(self) -> None:
        self._producer.begin()
        self._open = True

    def send(self, batch: pa.RecordBatch, maker: KafkaRecordMaker) -> int:
        records = maker.make(batch)
        self._producer.send(records)
        return records.size

    def commit(self, records: Sequence[Write]) -> int:
        # All rows first: the ledger record hides later records until the transaction ends.
        self._producer.flush()
        offset = -1
        for key, value in records:
            offset = self._producer.produce_one(self._ledger, key.encode(), value, 0)
        self._producer.commit()
        self._open = False
        return offset

    def peaks(self) -> dict[str, int]:
        return self._producer.peaks()

    def close(self) -> None:
        if self._released:
            return
        self._released = True
        if self._open and not self._producer.broken:
            with suppress(OutfallError):
                self._producer.abort(_ABORTING)
        PRODUCERS.drop(self._producer)

    def keep(self, after: str) -> None:
        """Return the producer to the cache for the next epoch."""
        self._released = True
        self._producer.note = (after, self._ledger)
        PRODUCERS.keep(self._producer)


@dataclass(frozen=True)
class _Access:
    key: Hashable = field(repr=False)  # has the password
    options: KafkaOptions = field(compare=False)
    producing: ProducerOptions = field(compare=False)

    def make(self) -> KafkaCluster:
        return KafkaCluster(self.options, self.producing)


_clusters = ProcessClients[_Access](16)


def connect(options: KafkaOptions, producing: ProducerOptions) -> PartsCluster:
    """Return the cluster of these options, the same object for each call in a process."""
    # With the current secrets: the content of a file may have changed.
    key = (options.model_dump_json(), tuple(sorted(producing.resolved().items())))
    cluster: PartsCluster = _clusters.get(_Access(key, options, producing))
    return cluster


def _clients(options: KafkaOptions, *, committed: bool) -> KafkaClients:
    return KafkaClients(
        options.brokers,
        options.client.reaching(),
        options.seconds,
        isolation="read_committed" if committed else "read_uncommitted",
        role="the ledger",
        then="the next attempt continues from the ledger",
    )
