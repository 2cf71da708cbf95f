"""What the log asks of a topic's only partition: a totally ordered sequence of records that may be compacted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from outfall.errors import TransientError

Write = tuple[str, bytes | None]
"""A key and its value; `None` is a tombstone, which lets compaction remove the key."""


class DeliveryUnknownError(TransientError):
    """A record was sent and the answer is missing. It is there, or not, or will be."""


@dataclass(frozen=True)
class Record:
    """One record as it is read."""

    offset: int
    key: str
    value: bytes | None


class Partition(ABC):
    """One partition. Compaction may remove a record when a later one has its key, and nothing else."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in texts."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the topic when it is missing, and check it. Called before the first write.

        Raises:
            ConfigurationError: it is not as a log needs it; the text says in what.
        """

    @abstractmethod
    def bounds(self) -> tuple[int, int]:
        """Return the first offset and the one after the last, as the broker has them now; equal for no records.

        A topic that is missing has none.
        """

    @abstractmethod
    def records(self, start: int, end: int) -> Generator[Record]:
        """Give the records from `start` up to before `end` in the order of their offsets, without those compacted.

        One reading at a time: who does not read to the end closes it.

        Raises:
            RecordError: `start` is not in the partition any more.
            TransientError: the broker did not give them in time.
        """

    @abstractmethod
    def write(self, writes: Sequence[Write]) -> list[int]:
        """Add records in this order, each once, and return their offsets when all replicas in sync have them.

        Raises:
            DeliveryUnknownError: an answer is missing. Each of them may be there, or come.
            ConfigurationError: the broker refuses such records.
        """

    @abstractmethod
    def close(self) -> None:
        """Release resources. It may be used again."""
