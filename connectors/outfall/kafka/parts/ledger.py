"""The ledger topic: the last committed epoch of each part, read to an end that includes every acknowledged commit.

```
<incarnation>/<step>/<topic>          the writer: generation and token of the BEGIN that last opened the target
<incarnation>/<step>/<topic>/<part>   the part's last commit: epoch, count, hash, attempt and a random id
```
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.errors import FencedError, RecordError, TransientError
from outfall.kafka.partition import TopicRecord, Write
from outfall.kafka.parts.cluster import LedgerTopic
from outfall.part_ledger.checks import PartContext, PartRow
from outfall.target_record import TargetRecord


@dataclass(frozen=True)
class StepName:
    """The step and incarnation, and the topic that it writes; `*` if rows have their own topics."""

    incarnation: str
    step_id: str
    topic: str

    @property
    def key(self) -> str:
        """The key of the step record; the keys of its parts begin with it."""
        return f"{self.incarnation}/{self.step_id}/{self.topic}"

    def transactional_id(self, prefix: str, part: str) -> str:
        """Return the id that fences the writers of a part, or the driver for the part `"driver"`."""
        return f"{prefix}/{self.key}/{part}"


class KafkaStepRecord(BaseModel):
    """The writer of a step's parts."""

    model_config = ConfigDict(frozen=True)

    generation: int
    token: str
    parts: int
    """The number of parts, which are `"0"`, `"1"`, …"""
    ended_by: str | None = None
    """The incarnation that ended this one, by `on_existing="resume"`."""
    topic_id: str | None = None
    """The id of the target topic, for an epoch that no state records yet; see `KafkaPartState`."""

    ready: ClassVar[bool] = True

    @property
    def record(self) -> TargetRecord:
        """What is compared with the log."""
        return TargetRecord(self.generation, self.token)


class PartRecord(BaseModel):
    """The ledger record of a part's transaction."""

    model_config = ConfigDict(frozen=True)

    generation: int
    token: str
    epoch: int
    attempt: int
    next_offset: int
    rows: int
    hash: int
    commit: str
    """Random: distinguishes this commit from every other."""

    @classmethod
    def of(cls, row: PartRow, token: str, commit: str) -> PartRecord:
        """Create the record of rows to be committed."""
        return cls(
            generation=row.generation, token=token, epoch=row.epoch or 0, attempt=row.attempt,
            next_offset=row.next_offset, rows=row.rows, hash=row.hash, commit=commit,
        )  # fmt: skip

    def row(self, part: str) -> PartRow:
        """Return it in the form of the shared checks."""
        return PartRow(part, self.generation, self.epoch, self.attempt, self.next_offset, self.rows, self.hash)


@dataclass(frozen=True)
class PartCommit:
    """A part record with its offset."""

    offset: int
    record: PartRecord


def written(key: str, record: BaseModel | None) -> Write:
    """Return a record in its stored form; `None` is a tombstone for the key."""
    return key, None if record is None else record.model_dump_json().encode()


class Ledger:
    """The records of one step and topic, of all incarnations, as far as they have been read."""

    def __init__(self, name: str, topic: LedgerTopic, step: StepName) -> None:
        self.name = name
        self._topic = topic
        self._step = step
        self._start: int | None = None
        self._position = 0
        self._steps: dict[str, KafkaStepRecord] = {}
        self._parts: dict[str, dict[str, PartCommit]] = {}
        self.opened = ""
        """The token of the last step record that this process has written."""

    def is_stable(self) -> bool:
        """Whether no transaction is open in the ledger now."""
        with self._topic.lock:
            return self._topic.everything.bounds()[1] <= self._topic.committed.bounds()[1]

    def read_stable(self, start: int = 0) -> None:
        """Read all records before the first open transaction, without waiting. May miss the newest records.

        `start` is an offset; all records that matter to the caller are after it.
        """
        with self._topic.lock:
            self._read(start, *self._topic.committed.bounds())

    def read(self, start: int = 0) -> int:
        """Read every record that was acknowledged before this call; return the high watermark.

        A `read_committed` consumer treats the last stable offset as the end of a partition. Behind another open
        transaction it would find nothing, and a retry would duplicate committed rows. The end is therefore the high
        watermark, and the read waits until no transaction before it is open. Raises `TransientError` if one stayed
        open.
        """
        try:
            with self._topic.lock:
                low, end = self._topic.everything.bounds()
                self._read(start, low, end)
        except TransientError as error:
            raise TransientError(
                f"the ledger {self.name} cannot be read to its end, only to offset {self._position}",
                why=f"an open transaction hides the later records, or the brokers do not respond: {error.what}",
                do="if a task or another query has just failed, nothing: its transaction ends when the part is"
                " written again, or after its transaction.timeout.ms. kafka-transactions.sh find-hanging lists"
                " transactions that do not end",
            ) from error
        return end

    def step(self, incarnation: str | None = None) -> KafkaStepRecord | None:
        """Return the step record, by default of this incarnation."""
        return self._steps.get(incarnation or self._step.incarnation)

    def parts(self, incarnation: str | None = None) -> Mapping[str, PartCommit]:
        """Return the last commits of parts, by default of this incarnation."""
        return self._parts.get(incarnation or self._step.incarnation, {})

    def incarnations(self) -> frozenset[str]:
        """Return all incarnations that have a record."""
        return frozenset(self._steps) | frozenset(self._parts)

    def _read(self, start: int, low: int, end: int) -> None:
        if self._start is None or start < self._start:
            self._start = self._position = start
            self._steps, self._parts = {}, {}
        if self._position >= end:
            return
        with closing(self._topic.committed.records(max(self._position, low), end)) as records:
            for record in records:
                self._take(record)
                self._position = record.offset + 1
        self._position = end

    def _take(self, record: TopicRecord) -> None:
        incarnation, _, rest = record.key.partition("/")
        step, _, rest = rest.partition("/")
        topic, _, part = rest.partition("/")
        if (step, topic) != (self._step.step_id, self._step.topic):
            return
        try:
            if part and record.value is not None:
                found = PartCommit(record.offset, PartRecord.model_validate_json(record.value))
                self._parts.setdefault(incarnation, {})[part] = found
            elif part:
                self._parts.get(incarnation, {}).pop(part, None)
            elif record.value is not None:
                self._steps[incarnation] = KafkaStepRecord.model_validate_json(record.value)
            else:
                self._steps.pop(incarnation, None)
        except ValidationError as error:
            raise RecordError(
                f"the record {record.key} at offset {record.offset} of the ledger {self.name} cannot be read",
                why=f"{error.error_count()} of its fields are missing or have another type",
                do="find out which other program writes to this topic; only Outfall may",
            ) from None


def check_not_ended(step: KafkaStepRecord | None, place: PartContext, part: str | None = None) -> None:
    """Raise `FencedError` if another checkpoint has ended this one by `on_existing="resume"`."""
    if step is not None and step.ended_by is not None:
        raise FencedError(
            f"another query has permanently taken over {place.target}",
            step=place.step,
            epoch=place.epoch,
            part=part,
            why='that query was started with on_existing="resume" and its own checkpoint',
            do="if the other query is intended, nothing; else start this one with its own step_id",
        )


def empty_row(part: str) -> PartRow:
    """Return the row of a part without a record: no commit yet."""
    return PartRow(part, generation=0, epoch=None, attempt=0, next_offset=0, rows=0, hash=0)


def beyond(offset: int | None, topic: LedgerTopic) -> bool:
    """Return whether an acknowledged offset is after the end of the topic."""
    if offset is None:
        return False
    with topic.lock:
        return offset >= topic.everything.bounds()[1]
