"""The interface between the parts and a cluster: topics, the two ends of the ledger, and transactional producers."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from outfall.kafka.partition import Partition, Write
from outfall.kafka.records import KafkaRecordMaker

_ASIDE = 0.7


class PartProducer(ABC):
    """A producer with a transactional id (KIP-98). After any error it is closed and never used again."""

    @abstractmethod
    def init(self) -> None:
        """Fence every earlier producer of this id, and end its open transaction: `InitProducerId`.

        Raises `ConfigurationError`, with the remedy, if the brokers reject the id or its timeout, and `TransientError`
        if there was no response in time.
        """

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction. Called after `init`, or after a commit."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch, maker: KafkaRecordMaker) -> int:
        """Send rows as records within the transaction, in order, and return the total bytes of their keys and values.

        Blocks while the client's queue is full.
        """

    @abstractmethod
    def commit(self, records: Sequence[Write]) -> int:
        """Wait until all rows are acknowledged, then add records to the ledger, and commit at once.

        Returns the offset of the last record in the ledger. After `ProducerFencedError`, or another `OutfallError`
        because the brokers rejected a row, nothing was committed. After `TransientError` it may or may not be
        committed.
        """

    def peaks(self) -> dict[str, int]:
        """Return the largest counts since the last call, for `Metrics.peak`."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End an open transaction if that takes no time, and release resources."""


class LedgerTopic(ABC):
    """The ledger topic in the brokers."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held during a read: the queries of one process share the consumers."""

    @property
    @abstractmethod
    def committed(self) -> Partition:
        """Reads committed records. Its end is the last stable offset, which an open transaction holds back."""

    @property
    @abstractmethod
    def everything(self) -> Partition:
        """Reads everything. Its end is the high watermark, after every acknowledged record."""


class PartsCluster(ABC):
    """One cluster, as used by one process."""

    where: str
    """The brokers, for texts."""

    @abstractmethod
    def topic_id(self, name: str) -> str | None:
        """Return a topic's id, empty if the brokers have none; `None` if the topic does not exist."""

    def expect(self, name: str) -> None:
        """Record that a topic existed. Brokers that have just restarted may not know it yet."""

    @abstractmethod
    def prepare_ledger(self, name: str) -> None:
        """Create the ledger topic if it is missing, and check it.

        Raises `ConfigurationError` if it is not suitable for a ledger.
        """

    @abstractmethod
    def ledger(self, name: str) -> LedgerTopic:
        """Return a reader of the ledger, cached for later calls in this process."""

    @abstractmethod
    def kept(self, transactional_id: str, after: str) -> PartProducer | None:
        """Take the producer that this process has cached under this id of its last commit. Each is returned once.

        A producer with a request that may still arrive is not returned (`TransactionalProducer.reusable`).
        """

    @abstractmethod
    def producer(self, transactional_id: str, ledger: str) -> PartProducer:
        """Create a producer; call `init` next."""

    def step_aside(self) -> None:
        """Wait for a moment, in which another producer can register the same id. Called after being fenced.

        `InitProducerId` over an open transaction aborts it, and must be repeated (CONCURRENT_TRANSACTIONS). A client
        that repeats it every half second would otherwise fence all attempts of a task, one after the other.
        """
        time.sleep(_ASIDE)

    @abstractmethod
    def keep(self, transactional_id: str, producer: PartProducer, after: str) -> None:
        """Cache a producer that has just committed, for the next epoch in this process, under the id of the commit."""
