"""What the parts ask of a cluster: topics, the ledger's two ends, and producers with transactions."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa

from outfall.kafka.partition import Partition, Write

_ASIDE = 0.7


class PartProducer(ABC):
    """A producer with a transactional id (KIP-98). After any error it is closed and never used again."""

    @abstractmethod
    def init(self) -> None:
        """Fence every earlier producer of this id, and end what one of them left open: `InitProducerId`.

        Raises:
            ConfigurationError: the brokers refuse the id or its timeout; the text says what to do.
            TransientError: no answer came in time.
        """

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction. Called after `init`, or after a commit."""

    @abstractmethod
    def send(self, batch: pa.RecordBatch) -> int:
        """Send rows within the transaction, in their order; wait while the client's queue is full.

        Returns:
            How many bytes their keys and values have.
        """

    @abstractmethod
    def commit(self, records: Sequence[Write]) -> int:
        """Wait until all rows are acknowledged, then add records to the ledger, and commit at once.

        Returns:
            The offset of the last record in the ledger.

        Raises:
            ProducerFencedError: nothing was committed.
            TransientError: it may have been committed, or not.
            OutfallError: the brokers refuse a row; nothing was committed.
        """

    def peaks(self) -> dict[str, int]:
        """Return the largest counts since the last call, for `Metrics.peak`."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End what is open, as far as that takes no time, and release resources."""


class LedgerTopic(ABC):
    """The ledger's topic as the brokers have it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Whose holder reads: queries of one process share the consumers."""

    @property
    @abstractmethod
    def committed(self) -> Partition:
        """Reads what is committed. Its end is the last stable offset; reading goes no further while one is open."""

    @property
    @abstractmethod
    def everything(self) -> Partition:
        """Its end is the high watermark: behind all that was ever acknowledged."""


class PartsCluster(ABC):
    """One cluster, seen from one process."""

    where: str
    """Its brokers, for texts."""

    @abstractmethod
    def topic_id(self, name: str) -> str | None:
        """Return a topic's id, empty where the brokers know none; `None` where the topic is not there."""

    @abstractmethod
    def prepare_ledger(self, name: str) -> None:
        """Make the ledger's topic if it is missing, and check it.

        Raises:
            ConfigurationError: it is not as a ledger needs it.
        """

    @abstractmethod
    def ledger(self, name: str) -> LedgerTopic:
        """Return a way to read the ledger, which is kept for the next that asks in this process."""

    @abstractmethod
    def kept(self, transactional_id: str, after: str) -> PartProducer | None:
        """Take the producer that this process has kept under this name of its last commit. Nobody else gets it."""

    @abstractmethod
    def producer(self, transactional_id: str, ledger: str) -> PartProducer:
        """Make a producer, for `init`."""

    def step_aside(self) -> None:
        """Leave whoever registers the same id a moment in which no transaction of it is open. Called when fenced.

        `InitProducerId` over an open transaction aborts it, and has to be asked again (CONCURRENT_TRANSACTIONS). A
        client that does so each half second would else fence all attempts of a task, one after the other.
        """
        time.sleep(_ASIDE)

    @abstractmethod
    def keep(self, transactional_id: str, producer: PartProducer, after: str) -> None:
        """Keep a producer that has just committed, for the next epoch in this process, under a name of the commit."""
