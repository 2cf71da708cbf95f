"""The topics of the tests' own broker: batches in memory, producers' sequences, transactions, compaction on demand.

The rules are those of Apache Kafka's `ProducerStateManager`, `ProducerAppendInfo` and `LogCleaner` (KIP-98).
"""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.integration.support.kafka_batches import Batch, Stored, marker

OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 45, 47


class Aborted(NamedTuple):
    """A transaction that was aborted, in one partition."""

    producer: int
    first: int
    """The offset of its first record."""
    last: int
    """The offset of its marker."""


@dataclass
class _Producer:
    """What a partition knows of a producer: its newest epoch, and in it the batches of which it may send one again."""

    epoch: int = -1
    recent: deque[Batch] = field(default_factory=lambda: deque(maxlen=5))

    def enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.recent.clear()

    def follows(self, batch: Batch) -> bool:
        """Whether no batch is missing before this one."""
        if self.epoch < 0:
            return True
        before = self.recent[-1].last_sequence if self.recent and batch.epoch == self.epoch else -1
        return batch.sequence == (before + 1) & 0x7FFFFFFF


@dataclass
class ModelPartition:
    """One partition."""

    batches: list[Batch] = field(default_factory=list)
    end: int = 0
    """The high watermark."""
    open: dict[int, int] = field(default_factory=dict)
    """The offset of the first record of each transaction that is open here, by its producer."""
    aborted: list[Aborted] = field(default_factory=list)
    producers: dict[int, _Producer] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        """The last stable offset: what is before it is committed or aborted."""
        return min(self.open.values(), default=self.end)

    @property
    def records(self) -> list[Stored]:
        """All records that lie here, those of open and of aborted transactions among them, without markers."""
        return [record for batch in self.batches if not batch.control for record in batch.records()]

    def append(self, batch: Batch) -> tuple[int, int]:
        """Add a batch once, however often it is sent; return an error, or 0, and the offset it has."""
        if batch.producer >= 0:
            known = self.producers.setdefault(batch.producer, _Producer())
            if batch.epoch < known.epoch:
                return INVALID_PRODUCER_EPOCH, -1
            for before in known.recent if batch.epoch == known.epoch else ():
                if (before.sequence, before.last_sequence) == (batch.sequence, batch.last_sequence):
                    return 0, before.first
            if not known.follows(batch):
                return OUT_OF_ORDER_SEQUENCE, -1
            known.enter(batch.epoch)
            known.recent.append(batch.at(self.end))
        if batch.transactional:
            self.open.setdefault(batch.producer, self.end)
        return 0, self._put(batch)

    def mark(self, producer: int, epoch: int, *, commit: bool) -> None:
        """End a producer's transaction here. From now on no older epoch of it is taken."""
        self.producers.setdefault(producer, _Producer()).enter(epoch)
        first = self.open.pop(producer, None)
        if first is not None and not commit:
            self.aborted.append(Aborted(producer, first, self.end))
        self._put(marker(self.end, producer, epoch, commit=commit, timestamp=int(time.time() * 1000)))

    def read(self, offset: int, limit: int, end: int) -> bytes:
        """Return whole batches from an offset on up to before `end`, at least one if there is any."""
        found: list[bytes] = []
        size = 0
        for batch in self.batches[bisect_left(self.batches, offset, key=lambda batch: batch.last) :]:
            size += len(batch.data)
            if batch.first >= end or (found and size > limit):
                break
            found.append(batch.data)
        return b"".join(found)

    def aborted_between(self, start: int, end: int) -> list[Aborted]:
        """The aborted transactions of which a reader of these offsets must know."""
        return [each for each in self.aborted if each.last >= start and each.first < end]

    def compact(self, *, tombstones: bool = True) -> None:
        """Do what a cleaner that has caught up does; the last record stays, as it lies in an open segment.

        So does what is behind the last stable offset, with the batch before it. Each producer's last batch stays too,
        if need be without records: a broker has its sequence from there. Other markers go with the tombstones: both
        have their time.
        """
        clean = self.stable
        seen = [(batch, [] if self._is_aborted(batch) else batch.records()) for batch in self.batches]
        data = [record for batch, records in seen for record in records if not batch.control]
        last = {record.key: record.offset for record in data if record.offset < clean}
        newest = data[-1].offset if data else -1
        last_of = {batch.producer: batch for batch in self.batches if batch.producer >= 0}

        def stays(batch: Batch, record: Stored) -> bool:
            if record.offset >= clean - batch.control or record.offset == newest:
                return True
            if batch.control:
                return not tombstones or last_of[batch.producer] is batch
            return last[record.key] == record.offset and (record.value is not None or not tombstones)

        self.batches = []
        for batch, records in seen:
            kept = [record for record in records if stays(batch, record)]
            if kept or batch.last == clean - 1 or last_of.get(batch.producer) is batch:
                self.batches.append(batch if len(kept) == len(records) else batch.holding(kept))
        # None of an aborted transaction's records is left.
        self.aborted = [each for each in self.aborted if each.last >= clean]

    def _put(self, batch: Batch) -> int:
        start = self.end
        self.batches.append(batch.at(start))
        self.end = self.batches[-1].last + 1
        return start

    def _is_aborted(self, batch: Batch) -> bool:
        return (
            batch.transactional
            and not batch.control
            and any(each.producer == batch.producer and each.first <= batch.first < each.last for each in self.aborted)
        )


class ModelTopic:
    """One topic. One that is made anew under an old name has another id."""

    def __init__(self, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        """Make it with so many partitions; settings that are not given have the broker's defaults."""
        self.id = uuid.uuid4()
        self.partitions = [ModelPartition() for _ in range(partitions)]
        self.settings = {} if settings is None else settings

    @property
    def records(self) -> list[Stored]:
        """All records of all partitions, whatever became of their transactions."""
        return [record for partition in self.partitions for record in partition.records]

    def grow(self, partitions: int) -> None:
        """Add partitions up to this number."""
        self.partitions += [ModelPartition() for _ in range(partitions - len(self.partitions))]

    def compact(self, *, tombstones: bool = True) -> None:
        for partition in self.partitions:
            partition.compact(tombstones=tombstones)

    def size(self) -> int:
        """Return the bytes of keys and values."""
        return sum(len(record.key or b"") + len(record.value or b"") for record in self.records)
