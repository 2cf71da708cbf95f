"""Puts the answers of one epoch's tasks together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from outfall.capabilities import (
    CommittableMessage,
    Metrics,
    PartSeal,
    SupportsPreCommitTopology,
)
from outfall.errors import AnswersError, FencedError
from outfall.protocol.messages import TaskAnswer, Ticket, stored_committables, writer_id
from outfall.protocol.returned import returned_list
from outfall.protocol.states import hand_over_serializer, load_states
from outfall.protocol.validation import check_version
from outfall.recovery.entries import StoredCommittable, StoredValue
from outfall.recovery.log import RecoveryLog
from outfall.recovery.values import load_value, store_value


class CollectedAnswers:
    """The answers of one epoch, checked: exactly one per task, at most one per part, all of one generation."""

    def __init__(self, ticket: Ticket, answers: Sequence[TaskAnswer]) -> None:
        """Check the answers against the ticket they were made under.

        Raises:
            AnswersError: they do not fit together.
            FencedError: one was made under another generation.
        """
        self._ticket = ticket
        self.answers = sorted(answers, key=lambda answer: answer.worker_index)
        self._check_belonging()
        self._check_unique()
        self.parts = {part.part: part for answer in self.answers for part in answer.parts if part.part is not None}

    @property
    def epoch(self) -> int:
        """The epoch that the tasks wrote."""
        if self.answers:
            return self.answers[0].epoch
        if self._ticket.epoch is None:
            raise AnswersError("no task answered, so the epoch is unknown", step=self._ticket.step_id)
        return self._ticket.epoch

    @property
    def skipped(self) -> bool:
        """Whether the tasks dropped their rows."""
        return self.answers[0].skipped if self.answers else self._ticket.skips(self.epoch)

    @property
    def query_id(self) -> str | None:
        """The Spark query that the tasks saw."""
        return next((answer.query_id for answer in self.answers if answer.query_id), self._ticket.query_id)

    def counts(self) -> dict[str, int]:
        """The counters of all tasks, summed."""
        total = Metrics()
        for answer in self.answers:
            total.add_all(answer.counts)
        return total.counts

    def states(self) -> dict[str, StoredValue]:
        """Each state after this epoch; those without an answer stay as they were."""
        answered = {name: state for part in self.parts.values() for name, state in part.states.items()}
        return {**self._ticket.states, **answered}

    def writer_states(self) -> list[StoredValue]:
        """The writer states after this epoch; those that no task consumed are carried forward."""
        consumed = {index for answer in self.answers for index in answer.consumed_states}
        kept = [state for index, state in enumerate(self._ticket.writer_states) if index not in consumed]
        return kept + [state for answer in self.answers for part in answer.parts for state in part.writer_states]

    def seals(self, sink: Any, log: RecoveryLog) -> list[PartSeal[Any]]:
        """Every part that has a state, with its winner if it has one."""
        winners = {name: writer_id(part.writer) for part in self.parts.values() for name in part.states}
        return [
            PartSeal(name, state, winners.get(name)) for name, state in load_states(sink, self.states(), log).items()
        ]

    def committables(self, sink: Any) -> list[StoredCommittable]:
        """What is to be committed, after the sink's pre-commit topology."""
        handed_over = stored_committables(self.answers)
        if not isinstance(sink, SupportsPreCommitTopology):
            return handed_over
        serializer = hand_over_serializer(sink)
        results = [
            CommittableMessage(load_value(serializer, item.value), self.epoch, item.worker_index, item.part)
            for item in handed_over
        ]
        target: Any = sink
        return [
            StoredCommittable(
                value=store_value(target.committable_serializer(), message.value),
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
        for answer in self.answers:
            check_version(self._ticket.outfall, answer.outfall, step)
            if (answer.incarnation, answer.generation) != (self._ticket.incarnation, self._ticket.generation):
                raise FencedError(
                    f"a task answered for generation {answer.generation}, the driver is {self._ticket.generation}",
                    step=step,
                    epoch=answer.epoch,
                )
            expected = expected or (self.epoch, self._ticket.skips(self.epoch))
            if (answer.epoch, answer.skipped) != expected:
                raise AnswersError(f"tasks answered for epochs {self.epoch} and {answer.epoch}", step=step)

    def _check_unique(self) -> None:
        tasks = Counter(f"task {answer.worker_index}" for answer in self.answers)
        parts = Counter(f"part {part.part!r}" for a in self.answers for part in a.parts if part.part is not None)
        for name, count in (tasks + parts).items():
            if count > 1:
                raise AnswersError(
                    f"{name} answered {count} times",
                    step=self._ticket.step_id,
                    epoch=self.epoch,
                    why="two tasks wrote the same part" if name.startswith("part") else "a task ran twice in one job",
                    do="report this; nothing was published and the epoch can run again",
                )
