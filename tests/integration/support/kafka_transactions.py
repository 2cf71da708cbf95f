"""The transaction coordinator of the tests' own broker: who may write under a transactional id, and in what.

The rules, and which error each breach has, are those of Apache Kafka's `TransactionCoordinator` and
`TransactionMetadata` (KIP-98, KIP-360), with the check of KIP-890 that a partition is in the transaction before records
are taken. Not modelled: epochs that run out, ids that expire, and the second protocol of KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.integration.support.kafka_topics import INVALID_PRODUCER_EPOCH, ModelTopic

NONE, INVALID_REQUEST = 0, 42
INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS = 48, 49, 50, 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED, PRODUCER_FENCED = 53, 90

State = Literal["empty", "open", "ending", "committed", "aborted"]


@dataclass
class Transaction:
    """What the coordinator knows of a transactional id."""

    producer: int
    epoch: int = -1
    last_epoch: int = -1
    """The epoch before, where the same producer went on after an error; else -1."""
    timeout: int = 60_000
    """Milliseconds for which a transaction may be open."""
    state: State = "empty"
    commit: bool = False
    """How the transaction ends, or has ended."""
    partitions: set[tuple[str, int]] = field(default_factory=set)


class Transactions:
    """The coordinator of all transactional ids. Called under the broker's lock."""

    def __init__(self, topics: dict[str, ModelTopic]) -> None:
        """Know no id yet."""
        self.by_id: dict[str, Transaction] = {}
        self.longest = 900_000
        """The broker's `transaction.max.timeout.ms`."""
        self.denied: tuple[str, ...] = ()
        """Transactional ids that begin so are refused."""
        self.late_markers = False
        """Whether markers are written no sooner than `resolve` is called; a real broker answers before they are."""
        self._topics = topics
        self._producers = 0

    def new_producer(self) -> int:
        self._producers += 1
        return self._producers

    def open(self) -> list[str]:
        """The ids whose transaction is open."""
        return [name for name, found in self.by_id.items() if found.state == "open"]

    def denies(self, name: str) -> int:
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED if name.startswith(self.denied) else NONE

    def init(self, name: str, timeout: int, producer: int, epoch: int) -> tuple[int, int, int]:
        """Let a producer begin under this id and fence those before; return an error, its id and its epoch.

        Args:
            name: the transactional id.
            timeout: milliseconds for which its transactions may be open.
            producer: the id that it has already, to go on after an error; else -1.
            epoch: the epoch that it has already; else -1.
        """
        if error := self.denies(name):
            return error, -1, -1
        if not name:
            return INVALID_REQUEST, -1, -1
        if not 0 < timeout <= self.longest:
            return INVALID_TRANSACTION_TIMEOUT, -1, -1
        found = self.by_id.setdefault(name, Transaction(-1))
        if found.producer < 0:
            found.producer = self.new_producer()
        if found.epoch >= 0 and producer not in (-1, found.producer):
            return PRODUCER_FENCED, -1, -1
        if found.state == "ending":
            return CONCURRENT_TRANSACTIONS, -1, -1
        if found.state == "open":
            # The caller asks again, and gets the epoch after this one.
            self._fence(found)
            return CONCURRENT_TRANSACTIONS, -1, -1
        if epoch < 0 or found.epoch in (-1, epoch):
            found.last_epoch = -1 if epoch < 0 else found.epoch
            found.epoch += 1
        elif epoch != found.last_epoch:
            return PRODUCER_FENCED, -1, -1
        found.state, found.timeout, found.partitions = "empty", timeout, set()
        return NONE, found.producer, found.epoch

    def add(self, name: str, producer: int, epoch: int, partitions: Iterable[tuple[str, int]]) -> int:
        """Take partitions into the open transaction, or open one."""
        found, error = self._of(name, producer, epoch)
        if found is None:
            return error
        if found.state == "ending":
            return CONCURRENT_TRANSACTIONS
        if found.state != "open":
            found.state, found.partitions = "open", set()
        found.partitions |= set(partitions)
        return NONE

    def verify(self, name: str, producer: int, epoch: int, partition: tuple[str, int]) -> int:
        """Whether records of this producer may be written to a partition."""
        found, error = self._of(name, producer, epoch)
        if found is None:
            return INVALID_PRODUCER_EPOCH if error == PRODUCER_FENCED else error
        return NONE if found.state == "open" and partition in found.partitions else INVALID_TXN_STATE

    def end(self, name: str, producer: int, epoch: int, *, commit: bool) -> int:
        """Commit or abort. The same once more is taken, since the answer to the first may be lost."""
        found, error = self._of(name, producer, epoch)
        if found is None:
            return error
        if found.state == "open":
            self._end(found, commit=commit)
            return NONE
        if found.state == "empty" or found.commit != commit:
            return INVALID_TXN_STATE
        return CONCURRENT_TRANSACTIONS if found.state == "ending" else NONE

    def expire(self, name: str | None = None) -> list[str]:
        """Abort what is open, or one id's, and fence its producer; return the ids."""
        expired = [each for each in self.open() if name in (None, each)]
        for each in expired:
            self._fence(self.by_id[each])
        return expired

    def resolve(self) -> None:
        """Write the markers that are due."""
        for found in self.by_id.values():
            if found.state == "ending":
                self._write_markers(found)

    def _of(self, name: str, producer: int, epoch: int) -> tuple[Transaction | None, int]:
        if error := self.denies(name):
            return None, error
        found = self.by_id.get(name)
        if found is None or found.producer != producer:
            return None, INVALID_PRODUCER_ID_MAPPING
        return (found, NONE) if found.epoch == epoch else (None, PRODUCER_FENCED)

    def _fence(self, found: Transaction) -> None:
        found.epoch, found.last_epoch = found.epoch + 1, -1
        self._end(found, commit=False)

    def _end(self, found: Transaction, *, commit: bool) -> None:
        found.state, found.commit = "ending", commit
        if not self.late_markers:
            self._write_markers(found)

    def _write_markers(self, found: Transaction) -> None:
        for name, index in sorted(found.partitions):
            # A topic that was deleted since takes no markers.
            if name in self._topics and index < len(self._topics[name].partitions):
                self._topics[name].partitions[index].mark(found.producer, found.epoch, commit=found.commit)
        found.state = "committed" if found.commit else "aborted"
