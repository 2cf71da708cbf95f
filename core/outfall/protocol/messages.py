"""What travels between the driver and its tasks: the ticket out, the answers back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outfall.capabilities import WriterId
from outfall.protocol.validation import earlier_epoch, unexpected_epoch
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.entries import Record, StoredCommittable, StoredValue, WriterRecord


@dataclass(frozen=True)
class Ticket:
    """A driver's permission to write one epoch. Picklable; holds no secret and no Spark object."""

    step_id: str
    incarnation: str
    generation: int
    epoch: int | None
    """The number of the epoch to write; `None` when the first batch id to come decides."""
    completed: int | None
    """The epoch whose rows are read and dropped when Spark brings it again."""
    outfall: str
    """The driver's version."""
    recovery: RecoveryConfig
    query_id: str | None = None
    parts: tuple[str, ...] = ()
    states: dict[str, StoredValue] = field(default_factory=dict)
    writer_states: tuple[StoredValue, ...] = ()
    worker_count: int = 0
    key: str | None = None
    """The column that says which part a row belongs to; `None` where none was given."""
    began_at: float = 0.0
    """When the driver began, in seconds since 1970 by its wall clock."""
    any_later: bool = False
    """Whether any epoch after the completed one will do, as in batch jobs."""
    drains: int = 0
    """How many drains came before: an epoch's number is the batch id and this."""
    drain: bool = False
    """Whether this epoch has no batch, and delivers what former ones held back."""
    end_of_input: bool = False
    """Whether a sink that holds rows back has to deliver them all now."""
    token: str = ""
    """The token of the BEGIN of `generation`."""

    def epoch_of(self, batch: int) -> int:
        """Return the number of a batch's epoch."""
        return batch + self.drains

    def skips(self, epoch: int) -> bool:
        """Whether the epoch's rows are to be dropped.

        Raises:
            UnexpectedEpochError: the epoch is neither the completed one nor the one to write.
        """
        if self.completed is not None and epoch == self.completed:
            return True
        if self.epoch is None or epoch == self.epoch or (self.any_later and epoch > self.epoch):
            return False
        if self.any_later:
            raise earlier_epoch(self.step_id, epoch, completed=self.completed, drains=self.drains)
        raise unexpected_epoch(self.step_id, epoch, completed=self.completed, expected=self.epoch, drains=self.drains)


class PartAnswer(Record):
    """What one part, or one writer of a dynamic sink, hands over."""

    part: str | None
    writer: WriterRecord
    states: dict[str, StoredValue] = {}
    """By name: one of the part's own name, unless the sink keeps several. Those that are left out stay as they were."""
    writer_states: list[StoredValue] = []
    committables: list[StoredValue] = []


class TaskAnswer(Record):
    """The one answer of one task."""

    worker_index: int
    generation: int
    epoch: int
    incarnation: str
    outfall: str
    query_id: str | None = None
    parts: list[PartAnswer] = []
    consumed_states: list[int] = []
    """Indices of the recorded writer states that this task's writer goes on from."""
    skipped: bool = False
    counts: dict[str, int] = {}
    seconds: float = 0.0

    def encode(self) -> bytes:
        """Return the answer as JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, data: bytes) -> TaskAnswer:
        """Read an answer back."""
        return cls.model_validate_json(data)


@dataclass(frozen=True)
class EpochResult:
    """What became of one epoch."""

    epoch: int
    """Its number: the batch id, and how many drains came before."""
    generation: int
    skipped: bool
    counts: dict[str, int]
    seconds: float


def writer_id(record: WriterRecord) -> WriterId:
    """The identity as connectors see it."""
    return WriterId(record.generation, record.epoch, record.attempt)


def stored_committables(answers: Sequence[TaskAnswer]) -> list[StoredCommittable]:
    """All committables of all answers, in the order of the tasks."""
    return [
        StoredCommittable(value=value, worker_index=answer.worker_index, part=part.part)
        for answer in answers
        for part in answer.parts
        for value in part.committables
    ]
