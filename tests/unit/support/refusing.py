"""Sinks that refuse some records: those below nought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outfall.capabilities import SupportsDeadLetterSink, WriterInitContext
from outfall.dead_letter import DeadLetter
from outfall.errors import ValueRefusedError
from outfall.formats.row_text import row_text
from outfall.sinks import StatefulSinkPartition, StatelessSinkPartition
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.shelf import ShelfSink

When = str
"""In which call records are refused: `write_batch`, `flush` or `prepare_commit`."""


class RefusingSink(NamedStagingSink, SupportsDeadLetterSink):
    """Stages what it does not refuse."""

    when: When = "write_batch"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        return RefusingPartition(super().build(step_id, worker_index, worker_count), self._context, self.when)


class RefusingShelf(ShelfSink, SupportsDeadLetterSink):
    """Appends what it does not refuse."""

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        assert self._context is not None
        part: Any = RefusingPartition(super().build_part(step_id, for_part, resume_state), self._context, "write_batch")
        return part  # type: ignore[no-any-return]


class RefusingPartition(StatelessSinkPartition[Any]):
    """Stands before a partition, and hands over what is refused."""

    def __init__(self, inner: Any, context: WriterInitContext, when: When) -> None:
        self._inner = inner
        self._context = context
        self._when = when
        self._refused: list[Any] = []
        self._take: Callable[[Sequence[DeadLetter]], None] | None = None

    def dead_letters_to(self, take: Callable[[Sequence[DeadLetter]], None]) -> None:
        self._take = take

    def write_batch(self, values: list[Any]) -> None:
        self._refused += [value for value in values if value["id"] < 0]
        accepted = [value for value in values if value["id"] >= 0]
        if accepted:
            self._inner.write_batch(accepted)
        self._hand_over("write_batch")

    def flush(self, end_of_input: bool) -> None:
        self._hand_over("flush")

    def prepare_commit(self) -> Sequence[Any]:
        self._hand_over("prepare_commit")
        return self._inner.prepare_commit()  # type: ignore[no-any-return]

    def snapshot(self) -> int:
        return self._inner.snapshot()  # type: ignore[no-any-return]

    def close(self) -> None:
        self._inner.close()

    def _hand_over(self, call: str) -> None:
        if call != self._when or not self._refused:
            return
        letters = [
            DeadLetter(row_text(value), "below nought", self._context.step_id, self._context.epoch)
            for value in self._refused
        ]
        self._refused = []
        if self._take is None:
            raise ValueRefusedError(f"{len(letters)} records are below nought")
        self._take(letters)
        self._context.metrics.add("dead_letters", len(letters))
