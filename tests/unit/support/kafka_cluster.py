"""A cluster with transactions in memory: fencing, the last stable offset, answers that are lost, time-outs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from outfall.errors import TransientError
from outfall.kafka.partition import Partition, TopicRecord, Write
from outfall.kafka.parts.cluster import (
    LedgerTopic,
    PartProducer,
    PartsCluster,
)
from outfall.kafka.parts.delivery import KafkaPartDelivery
from outfall.kafka.producer.transactions import ProducerFencedError
from outfall.kafka.records import KafkaRecordMaker
from outfall.testing import ByReference

OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"
_PATIENCE = 4
"""How often a reader looks again whether a transaction before its end is over."""


@dataclass
class Transaction:
    """One transaction: its fate is that of all its records, in every topic."""

    producer_id: str
    state: str = OPEN


@dataclass
class Entry:
    """A record, or the marker that ends a transaction, which takes an offset too."""

    transaction: Transaction
    key: str = ""
    value: bytes | None = None
    marker: bool = False


@dataclass
class Faults:
    """What becomes of the next ends of transactions.

    `"lost"` before, `"landed"` after they took place, or `"late"`: the writer hears nothing. `"repeated"`: the client
    sends the end again, which is answered, and the first one comes late.
    """

    commits: list[str] = field(default_factory=list)


class Broker(ByReference):
    """What all clusters of a test have in common: the brokers."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.open: dict[str, Transaction] = {}
        self.ledger: list[Entry] = []
        self.rows: list[tuple[Transaction, Any]] = []
        self.late: list[tuple[str, int]] = []
        """The producers, with their epochs, that have sent the end of a transaction which has not arrived."""
        self.ids = {"ledger": "ledger-1", "events": "events-1"}
        self.lock = threading.RLock()
        self.marks: list[int] = []
        """What a test wants to remember of a moment."""

    def init(self, name: str) -> int:
        with self.lock:
            self.abort(name)
            self.epochs[name] = self.epochs.get(name, -1) + 1
            return self.epochs[name]

    def abort(self, name: str) -> None:
        """End what is open of an id: by its next producer, or since it took too long."""
        transaction = self.open.get(name)
        if transaction is not None and transaction.state == OPEN:
            self._end(transaction, ABORTED)

    def expire(self, name: str) -> None:
        """Abort a transaction that takes too long; its producer is fenced by that (KIP-360)."""
        self.abort(name)
        self.epochs[name] += 1

    def commit(self, transaction: Transaction) -> None:
        if transaction.state == OPEN:
            self._end(transaction, COMMITTED)

    def _end(self, transaction: Transaction, state: str) -> None:
        # In one step: a caller that dies here does not take the brokers with it.
        transaction.state = state
        self.open.pop(transaction.producer_id, None)
        if any(entry.transaction is transaction for entry in self.ledger):
            self.ledger.append(Entry(transaction, marker=True))

    def arrive(self) -> None:
        """Let the end of a transaction arrive that was sent before: whatever its producer has open is committed."""
        name, epoch = self.late.pop(0)
        if self.epochs[name] == epoch and name in self.open:
            self.commit(self.open[name])

    def stable(self) -> int:
        """The last stable offset of the ledger."""
        opened = [offset for offset, entry in enumerate(self.ledger) if entry.transaction.state == OPEN]
        return min(opened, default=len(self.ledger))

    def committed_rows(self) -> list[Any]:
        """What a `read_committed` reader finds that waits until nothing is open."""
        return [row for transaction, row in self.rows if transaction.state == COMMITTED]


class MemoryLedger(Partition):
    """The ledger, as one reader sees it."""

    def __init__(self, broker: Broker, pause: Callable[[], None], *, committed: bool) -> None:
        self._broker = broker
        self._pause = pause
        self._committed = committed

    @property
    def name(self) -> str:
        return "ledger"

    def prepare(self) -> None:
        pass

    def bounds(self) -> tuple[int, int]:
        self._pause()
        return 0, self._broker.stable() if self._committed else len(self._broker.ledger)

    def records(self, start: int, end: int) -> Generator[TopicRecord]:
        patience = _PATIENCE
        while self._broker.stable() < end:
            if not patience:
                raise TransientError("reading the ledger took too long")
            patience -= 1
            self._pause()
        for offset in range(start, end):
            entry = self._broker.ledger[offset]
            if entry.transaction.state == COMMITTED and not entry.marker:
                yield TopicRecord(offset, entry.key, entry.value)

    def write(self, writes: Sequence[Write]) -> list[int]:
        raise AssertionError("the ledger is written in transactions")

    def close(self) -> None:
        pass


class MemoryTopic(LedgerTopic):
    def __init__(self, broker: Broker, pause: Callable[[], None]) -> None:
        super().__init__()
        self.broker = broker
        self.pause = pause

    @property
    def committed(self) -> Partition:
        return MemoryLedger(self.broker, self.pause, committed=True)

    @property
    def everything(self) -> Partition:
        return MemoryLedger(self.broker, self.pause, committed=False)


class MemoryProducer(PartProducer):
    """A producer. `pause` is called before everything that others could come before."""

    def __init__(self, broker: Broker, name: str, pause: Callable[[], None], faults: Faults) -> None:
        self._broker = broker
        self._name = name
        self._pause = pause
        self._faults = faults
        self._epoch = -1
        self._transaction: Transaction | None = None
        self.reusable = True
        """Whether all its requests were answered."""

    def init(self) -> None:
        self._pause()
        self._epoch = self._broker.init(self._name)

    def begin(self) -> None:
        self._transaction = None

    def send(self, batch: pa.RecordBatch, maker: KafkaRecordMaker) -> int:
        self._pause()
        transaction = self._joined()
        self._broker.rows.extend((transaction, row) for row in batch.to_pylist())
        return int(batch.nbytes)

    def commit(self, records: Sequence[Write]) -> int:
        self._pause()
        transaction = self._joined()
        self._broker.ledger.extend(Entry(transaction, key, value) for key, value in records)
        offset = len(self._broker.ledger) - 1
        self._pause()
        self._joined()
        fate = self._faults.commits.pop(0) if self._faults.commits else ""
        if fate in ("late", "repeated"):
            self._broker.late.append((self._name, self._epoch))
        if fate not in ("late", "lost"):
            self._broker.commit(transaction)
        self.reusable = self.reusable and fate != "repeated"
        if fate and fate != "repeated":
            raise TransientError("no answer came to the end of the transaction")
        return offset

    def close(self) -> None:
        """As a process that is killed: what is open stays open."""

    def _joined(self) -> Transaction:
        if self._broker.epochs.get(self._name) != self._epoch:
            raise ProducerFencedError("fenced")
        if self._transaction is None:
            self._transaction = self._broker.open[self._name] = Transaction(self._name)
        if self._transaction.state != OPEN:
            raise ProducerFencedError("the transaction is over")
        return self._transaction


class MemoryCluster(ByReference, PartsCluster):
    """The brokers as one process sees them."""

    where = "memory"

    def __init__(self, broker: Broker, pause: Callable[[], None] = lambda: None, faults: Faults | None = None) -> None:
        self.broker = broker
        self.pause = pause
        self.faults = faults or Faults()
        self._kept: dict[str, tuple[str, MemoryProducer]] = {}

    def topic_id(self, name: str) -> str | None:
        return self.broker.ids.get(name)

    def prepare_ledger(self, name: str) -> None:
        self.broker.ids.setdefault(name, f"{name}-{len(self.broker.ids)}")

    def ledger(self, name: str) -> LedgerTopic:
        return MemoryTopic(self.broker, self.pause)

    def kept(self, transactional_id: str, after: str) -> PartProducer | None:
        name, producer = self._kept.pop(transactional_id, ("", None))
        return producer if producer is not None and producer.reusable and name == after else None

    def producer(self, transactional_id: str, ledger: str) -> PartProducer:
        return MemoryProducer(self.broker, transactional_id, self.pause, self.faults)

    def step_aside(self) -> None:
        self.pause()

    def keep(self, transactional_id: str, producer: PartProducer, after: str) -> None:
        assert isinstance(producer, MemoryProducer)
        self._kept[transactional_id] = after, producer


class MemoryDelivery(KafkaPartDelivery):
    """Parts of a topic that is there."""

    def check_topic(self) -> None:
        pass

    def make_topic(self) -> None:
        pass
