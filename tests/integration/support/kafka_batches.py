"""Record batches of Kafka's format 2: as a producer sends them, as they lie in a log, as a consumer gets them.

https://kafka.apache.org/documentation/#recordbatch; the codecs are kafka-python's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

_CRC, _ATTRIBUTES = 17, 21
_CONTROL = 0x20


class Stored(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True)
class Batch:
    """One batch: what its header says, and its bytes, compressed or not."""

    first: int
    """The offset of its first record."""
    last: int
    producer: int
    epoch: int
    sequence: int
    """The sequence number of its first record; -1 for none."""
    transactional: bool
    control: bool
    """Whether it is a marker, which ends a transaction."""
    data: bytes

    @property
    def last_sequence(self) -> int:
        return (self.sequence + self.last - self.first) & 0x7FFFFFFF

    def at(self, offset: int) -> Batch:
        """The same batch in another place. Checksums leave the place out."""
        data = struct.pack(">q", offset) + self.data[8:]
        return replace(self, first=offset, last=offset + self.last - self.first, data=data)

    def records(self) -> list[Stored]:
        """Its records; a marker's too."""
        found = DefaultRecordBatch(self.data)
        return [Stored(each.offset, each.timestamp, each.key, each.value, tuple(each.headers)) for each in found]

    def holding(self, records: Sequence[Stored]) -> Batch:
        """The same batch with fewer records: its bounds stay, as the log cleaner leaves them."""
        return replace(self, data=_encoded(self, records))


def batches_in(data: bytes) -> Iterator[Batch]:
    """Take apart what a Produce request carries for one partition."""
    found = MemoryRecords(data)
    start = 0
    while (batch := found.next_batch()) is not None:
        end = start + batch.size_in_bytes
        yield Batch(
            batch.base_offset, batch.last_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence,
            batch.is_transactional, batch.is_control_batch, data[start:end],
        )  # fmt: skip
        start = end


def marker(offset: int, producer: int, epoch: int, *, commit: bool, timestamp: int) -> Batch:
    """Make the control record that ends a transaction in a partition."""
    empty = Batch(offset, offset, producer, epoch, -1, transactional=True, control=True, data=b"")
    return empty.holding([Stored(offset, timestamp, struct.pack(">hh", 0, commit), struct.pack(">hi", 0, 0))])


def _encoded(batch: Batch, records: Sequence[Stored]) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=batch.transactional, producer_id=batch.producer,
        producer_epoch=batch.epoch, base_sequence=batch.sequence, batch_size=1 << 30,
    )  # fmt: skip
    for record in records:
        builder.append(
            record.offset - batch.first, record.timestamp, record.key, record.value, list(record.headers)
        )  # fmt: skip
    data = bytearray(builder.build())
    # The builder knows neither markers nor batches that end in a gap.
    (attributes,) = struct.unpack_from(">h", data, _ATTRIBUTES)
    attributes |= _CONTROL if batch.control else 0
    struct.pack_into(">hi", data, _ATTRIBUTES, attributes, batch.last - batch.first)
    struct.pack_into(">I", data, _CRC, calc_crc32c(memoryview(data)[_ATTRIBUTES:]))
    struct.pack_into(">q", data, 0, batch.first)
    return bytes(data)
