"""Messages between the driver and its tasks: the ticket, and the task results with their checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict

from outfall.capabilities import (
    CommittableMessage,
    Metrics,
    PartSeal,
    SupportsPreCommitTopology,
    WriterId,
)
from outfall.capability_checks import ResolvedSink, returned_list
from outfall.errors import FencedError, ResponsesError
from outfall.protocol.states import load_states
from outfall.protocol.validation import check_version, earlier_epoch, unexpected_epoch
from outfall.recovery.entries import (
    StoredCommittable,
    StoredModel,
    StoredValue,
    WinningAttempt,
    carry_in,
    load_value,
    store_value,
)
from outfall.recovery.log import RecoveryConfig, RecoveryLog


@dataclass(frozen=True)
class Ticket:
    """A driver's permission to write one epoch. Picklable, without secrets and Spark objects."""

    step_id: str
    incarnation: str
    generation: int
    epoch: int | None
    """The number of the epoch to write; `None` if the first batch id decides."""
    completed: int | None
    """The last completed epoch, whose rows are dropped if Spark replays it."""
    outfall: str
    """The driver's version."""
    recovery: RecoveryConfig
    query_id: str | None = None
    parts: tuple[str, ...] = ()
    states: dict[str, StoredValue] = field(default_factory=dict)
    writer_states: tuple[StoredValue, ...] = ()
    worker_count: int = 0
    key: str | None = None
    """The routing column; `None` if there is none."""
    began_at: float = 0.0
    """The Unix time at which the driver began, by its wall clock."""
    any_later: bool = False
    """Whether any epoch after the completed one is valid, as in batch jobs."""
    drains: int = 0
    """The number of earlier drains: an epoch's number is the batch id plus this number."""
    drain: bool = False
    """Whether this epoch has no batch and delivers the buffered rows of earlier epochs."""
    end_of_input: bool = False
    """Whether a sink that buffers rows must deliver them all now."""
    token: str = ""
    """The token of the BEGIN of `generation`."""
    begun_before: bool = False
    """Whether the epoch was begun before this generation and not completed."""
    widest_row: int = 0
    """The bytes per row in the widest batch of the last epochs with the same columns; 0 if unknown.

    See `outfall.counters.WIDEST_ROW`.
    """

    def epoch_of(self, batch: int) -> int:
        """Return the epoch number of a batch."""
        return batch + self.drains

    def skips(self, epoch: int) -> bool:
        """Return whether the rows of the epoch are dropped.

        Raises `UnexpectedEpochError` if the epoch is neither the completed one nor the one to write.
        """
        if self.completed is not None and epoch == self.completed:
            return True
        if self.epoch is None or epoch == self.epoch or (self.any_later and epoch > self.epoch):
            return False
        if self.any_later:
            raise earlier_epoch(self.step_id, epoch, completed=self.completed, drains=self.drains)
        raise unexpected_epoch(self.step_id, epoch, completed=self.completed, expected=self.epoch, drains=self.drains)


class PartResponse(StoredModel):
    """The result of one part, or of one writer of a dynamic sink."""

    model_config = ConfigDict(extra="forbid")

    part: str | None
    writer: WinningAttempt
    states: dict[str, StoredValue] = {}
    """By name, which is that of the part unless it has several. States that are missing here do not change."""
    writer_states: list[StoredValue] = []
    committables: list[StoredValue] = []


class TaskResponse(StoredModel):
    """The result of one task. Driver and tasks are of one release, so unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")

    worker_index: int
    generation: int
    epoch: int
    incarnation: str
    outfall: str
    query_id: str | None = None
    parts: list[PartResponse] = []
    consumed_states: list[int] = []
    """Indices of the recorded writer states that this task's writer has restored."""
    skipped: bool = False
    counts: dict[str, int] = {}
    examples: dict[str, str] = {}
    seconds: float = 0.0

    def encode(self) -> bytes:
        """Return the result as JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, data: bytes) -> TaskResponse:
        """Return the result from JSON."""
        return cls.model_validate_json(data)


@dataclass(frozen=True)
class EpochResult:
    """The outcome of one epoch."""

    epoch: int
    """Its number: the batch id plus the number of earlier drains."""
    generation: int
    skipped: bool
    counts: dict[str, int]
    """Its counters by name. `rows`, the number of written rows, is always present."""
    seconds: float


class CollectedResponses:
    """The task results of one epoch, checked: one per task, at most one per part, all of one generation."""

    def __init__(self, ticket: Ticket, responses: Sequence[TaskResponse]) -> None:
        """Check the results against their ticket.

        Raises `ResponsesError` if they contradict each other, and `FencedError` if one is of another generation.
        """
        self._ticket = ticket
        self.responses = sorted(responses, key=lambda response: response.worker_index)
        self._check_belonging()
        self._check_unique()
        self.parts = {
            part.part: part for response in self.responses for part in response.parts if part.part is not None
        }

    @property
    def epoch(self) -> int:
        """The epoch that the tasks wrote."""
        if self.responses:
            return self.responses[0].epoch
        if self._ticket.epoch is None:
            raise ResponsesError("no task returned a result, so the epoch is unknown", step=self._ticket.step_id)
        return self._ticket.epoch

    @property
    def skipped(self) -> bool:
        """Whether the tasks dropped their rows."""
        return self.responses[0].skipped if self.responses else self._ticket.skips(self.epoch)

    @property
    def query_id(self) -> str | None:
        """The Spark query id in the tasks."""
        return next((response.query_id for response in self.responses if response.query_id), self._ticket.query_id)

    def counts(self) -> dict[str, int]:
        """The sums of the counters of all tasks."""
        total = Metrics()
        for response in self.responses:
            total.add_all(response.counts)
        return total.counts

    def examples(self) -> dict[str, str]:
        """The examples by the names of their counters, each of the first task that has one."""
        return {name: text for response in reversed(self.responses) for name, text in response.examples.items()}

    def states(self) -> dict[str, StoredValue]:
        """All states after this epoch; those without a result do not change."""
        responded = {name: state for part in self.parts.values() for name, state in part.states.items()}
        return {**self._ticket.states, **responded}

    def writer_states(self) -> list[StoredValue]:
        """The writer states after this epoch; those that no task restored are carried forward."""
        consumed = {index for response in self.responses for index in response.consumed_states}
        kept = [state for index, state in enumerate(self._ticket.writer_states) if index not in consumed]
        return kept + [state for response in self.responses for part in response.parts for state in part.writer_states]

    def seals(self, resolved: ResolvedSink, log: RecoveryLog) -> list[PartSeal[Any]]:
        """Return every part that has a state, with its winner if there is one."""
        winners = {
            name: WriterId(part.writer.generation, part.writer.epoch, part.writer.attempt)
            for part in self.parts.values()
            for name in part.states
        }
        states = load_states(resolved, self.states(), log)
        return [PartSeal(name, state, winners.get(name)) for name, state in states.items()]

    def committables(self, resolved: ResolvedSink, log: RecoveryLog) -> list[StoredCommittable]:
        """The committables to record, after the sink's pre-commit topology. Large ones are stored next to the log."""
        generation = self._ticket.generation
        return [
            item.model_copy(update={"value": carry_in(item.value, log, name="committable", generation=generation)})
            for item in self._topology(resolved)
        ]

    def _topology(self, resolved: ResolvedSink) -> list[StoredCommittable]:
        handed_over = [
            StoredCommittable(value=value, worker_index=response.worker_index, part=part.part)
            for response in self.responses
            for part in response.parts
            for value in part.committables
        ]
        if SupportsPreCommitTopology not in resolved.capabilities:
            return handed_over
        sink, serializer = resolved.sink, resolved.hand_over_serializer()
        results = [
            CommittableMessage(load_value(serializer, item.value), self.epoch, item.worker_index, item.part)
            for item in handed_over
        ]
        return [
            StoredCommittable(
                value=store_value(sink.committable_serializer(), message.value),
                worker_index=message.worker_index,
                part=message.part,
            )
            for message in returned_list(
                sink, "add_pre_commit_topology", sink.add_pre_commit_topology(results), step=self._ticket.step_id
            )
        ]

    def _check_belonging(self) -> None:
        step = self._ticket.step_id
        expected: tuple[int, bool] | None = None
        for response in self.responses:
            check_version(self._ticket.outfall, response.outfall, step)
            if (response.incarnation, response.generation) != (self._ticket.incarnation, self._ticket.generation):
                raise FencedError(
                    f"a task returned a result of generation {response.generation},"
                    f" the driver's is {self._ticket.generation}",
                    step=step,
                    epoch=response.epoch,
                )
            expected = expected or (self.epoch, self._ticket.skips(self.epoch))
            if (response.epoch, response.skipped) != expected:
                raise ResponsesError(
                    f"the tasks returned results of epochs {self.epoch} and {response.epoch}", step=step
                )

    def _check_unique(self) -> None:
        tasks = Counter(f"task {response.worker_index}" for response in self.responses)
        parts = Counter(f"part {part.part!r}" for a in self.responses for part in a.parts if part.part is not None)
        for name, count in (tasks + parts).items():
            if count > 1:
                raise ResponsesError(
                    f"{name} returned {count} results",
                    step=self._ticket.step_id,
                    epoch=self.epoch,
                    why="two tasks wrote the same part" if name.startswith("part") else "a task ran twice in one job",
                    do="report this; nothing was published, and the epoch can run again",
                )
