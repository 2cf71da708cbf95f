"""The ledger topic: which epoch each part was last committed in, read to an end that hides nothing.

```
<incarnation>/<step>/<topic>          who writes: the generation and token of the BEGIN that opened the target last
<incarnation>/<step>/<topic>/<part>   the part's last commit: epoch, count, hash, attempt and a random id
```
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from outfall.errors import FencedError, RecordError, TransientError
from outfall.kafka.partition import TopicRecord, Write
from outfall.kafka.parts.cluster import LedgerTopic
from outfall.part_ledger.checks import PartPlace, PartRow
from outfall.target_record import TargetRecord


@dataclass(frozen=True)
class StepName:
    """Which step of which incarnation, and the topic that it writes; `*` where each row names its own."""

    incarnation: str
    step_id: str
    topic: str

    @property
    def key(self) -> str:
        """The key of its record; those of its parts begin with it."""
        return f"{self.incarnation}/{self.step_id}/{self.topic}"

    def transactional_id(self, prefix: str, part: str) -> str:
        """Return the name that fences the writers of a part; of the driver for the part `"driver"`."""
        return f"{prefix}/{self.key}/{part}"


class StepRecord(BaseModel):
    """Who writes a step's parts."""

    model_config = ConfigDict(frozen=True)

    generation: int
    token: str
    parts: int
    """How many parts there are, as `"0"`, `"1"`, …"""
    ended_by: str | None = None
    """The incarnation that took over for good, by `on_existing="resume"`."""

    def record(self) -> TargetRecord:
        """Return it as the shared checks take it."""
        return TargetRecord(self.generation, self.token)


class PartRecord(BaseModel):
    """What a part's transaction says of itself."""

    model_config = ConfigDict(frozen=True)

    generation: int
    token: str
    epoch: int
    attempt: int
    next_offset: int
    rows: int
    hash: int
    commit: str
    """Random: tells this commit from every other."""

    @classmethod
    def of(cls, row: PartRow, token: str, commit: str) -> PartRecord:
        """Make the record of rows that are to be committed."""
        return cls(
            generation=row.generation, token=token, epoch=row.epoch or 0, attempt=row.attempt,
            next_offset=row.next_offset, rows=row.rows, hash=row.hash, commit=commit,
        )  # fmt: skip

    def row(self, part: str) -> PartRow:
        """Return it as the shared checks take it."""
        return PartRow(part, self.generation, self.epoch, self.attempt, self.next_offset, self.rows, self.hash)


@dataclass(frozen=True)
class PartCommit:
    """A part's record and where it lies."""

    offset: int
    record: PartRecord


def written(key: str, record: BaseModel | None) -> Write:
    """Return a record as it goes into the topic; `None` buries what has the key."""
    return key, None if record is None else record.model_dump_json().encode()


class Ledger:
    """The records of one step and topic, of all incarnations, as far as they have been read.

    Args:
        name: the ledger's topic, for texts.
        topic: how it is read.
        step: whose records.
    """

    def __init__(self, name: str, topic: LedgerTopic, step: StepName) -> None:
        self.name = name
        self._topic = topic
        self._step = step
        self._start: int | None = None
        self._position = 0
        self._steps: dict[str, StepRecord] = {}
        self._parts: dict[str, dict[str, PartCommit]] = {}

    def is_stable(self) -> bool:
        """Whether no transaction is open in the ledger now."""
        with self._topic.lock:
            return self._topic.everything.bounds()[1] <= self._topic.committed.bounds()[1]

    def read_stable(self, start: int = 0) -> None:
        """Read what no open transaction hides, and wait for nothing. It may miss the newest records.

        Args:
            start: an offset from which all that counts for the caller is found.
        """
        with self._topic.lock:
            self._read(start, *self._topic.committed.bounds())

    def read(self, start: int = 0) -> int:
        """Read all that was acknowledged when this was called; return the high watermark.

        A `read_committed` reader takes the last stable offset for the end of a partition. Behind another transaction
        that is still open it would find nothing, and a retry would write again what is there: so the end is the high
        watermark, and the reading waits until nothing before it is open.

        Raises:
            TransientError: something before it stayed open.
        """
        try:
            with self._topic.lock:
                low, end = self._topic.everything.bounds()
                self._read(start, low, end)
        except TransientError as error:
            raise TransientError(
                f"the ledger {self.name} cannot be read to its end, only to offset {self._position}",
                why=f"a transaction that is open there hides what follows, or the brokers do not answer: {error.what}",
                do="nothing, if a task or another query has just died: its transaction ends when the part is written"
                " again, or after its transaction.timeout.ms. kafka-transactions.sh find-hanging shows one that does"
                " not end",
            ) from error
        return end

    def step(self, incarnation: str | None = None) -> StepRecord | None:
        """Return who writes, by default of the own incarnation."""
        return self._steps.get(incarnation or self._step.incarnation)

    def parts(self, incarnation: str | None = None) -> Mapping[str, PartCommit]:
        """Return the last commits of parts, by default of the own incarnation."""
        return self._parts.get(incarnation or self._step.incarnation, {})

    def incarnations(self) -> frozenset[str]:
        """Return all that have a record here."""
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
                self._steps[incarnation] = StepRecord.model_validate_json(record.value)
            else:
                self._steps.pop(incarnation, None)
        except ValidationError as error:
            raise RecordError(
                f"the record {record.key} at offset {record.offset} of the ledger {self.name} cannot be read",
                why=f"{error.error_count()} of its fields are missing or of another type",
                do="see who else writes to this topic; only outfall may",
            ) from None


def check_not_ended(step: StepRecord | None, place: PartPlace, part: str | None = None) -> None:
    """Refuse to go on under a checkpoint that another one has ended by `on_existing="resume"`.

    Raises:
        FencedError: it has.
    """
    if step is not None and step.ended_by is not None:
        raise FencedError(
            f"another query has taken {place.target} over for good",
            step=place.step,
            epoch=place.epoch,
            part=part,
            why='it was started with on_existing="resume" and a checkpoint of its own',
            do="nothing, if the other one is meant to run; else start with a step_id of its own",
        )


def empty_row(part: str) -> PartRow:
    """Return what a part without a record stands for: nothing was ever committed."""
    return PartRow(part, generation=0, epoch=None, attempt=0, next_offset=0, rows=0, hash=0)


def beyond(offset: int | None, topic: LedgerTopic) -> bool:
    """Tell whether an offset that was once acknowledged is behind all that the brokers have."""
    if offset is None:
        return False
    with topic.lock:
        return offset >= topic.everything.bounds()[1]
