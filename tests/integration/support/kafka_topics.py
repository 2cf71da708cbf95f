"""The topics of the tests' own broker: records in memory, compacted when a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Stored(NamedTuple):
    """One record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass
class ModelTopic:
    """One topic. All partitions but the first stay empty: the log has one."""

    partitions: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    records: list[Stored] = field(default_factory=list)
    end: int = 0
    sequences: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """The first sequence number of each producer's last batch, and the offset it was given."""

    def append(self, producer: tuple[int, int], sequence: int, batch: list[Stored]) -> int | None:
        """Add a batch once, however often it is sent; `None` when one before it is missing."""
        if producer[0] >= 0:
            before, offset = self.sequences.get(producer, (-1, -1))
            if sequence <= before:
                return offset
            self.sequences[producer] = sequence, self.end
        start = self.end
        self.records += [record._replace(offset=start + index) for index, record in enumerate(batch)]
        self.end += len(batch)
        return start

    def read(self, offset: int, limit: int) -> list[Stored]:
        """Return the records from an offset on, at least one if there is any."""
        found: list[Stored] = []
        size = 0
        for record in self.records:
            if record.offset >= offset:
                size += len(record.key or b"") + len(record.value or b"")
                if found and size > limit:
                    break
                found.append(record)
        return found

    def compact(self, *, tombstones: bool = True) -> None:
        """Do what a cleaner that has caught up does; the last record stays, as it lies in an open segment."""
        last = {record.key: record.offset for record in self.records}
        newest = self.records[-1:] and self.records[-1].offset
        self.records = [
            record
            for record in self.records
            if last[record.key] == record.offset
            and (record.value is not None or not tombstones or record.offset == newest)
        ]

    def size(self) -> int:
        """Return the bytes of keys and values."""
        return sum(len(record.key or b"") + len(record.value or b"") for record in self.records)
