"""Faults of sinks that write in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outfall.capabilities import PartSeal, SealContext, TargetContext, WriterId
from outfall.errors import StaleWriterError
from outfall.sinks import StatefulSinkPartition
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.conforming import InPlace, NamedShelfSink
from tests.unit.support.shelf import PartFile, ShelfPartition


class FaultyShelfSink(NamedShelfSink):
    """A sink of which one piece is exchanged."""

    partition: type[ShelfPartition] = ShelfPartition

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        assert self._context is not None
        writer = WriterId(self._context.generation, self._context.epoch, self._context.attempt)
        return self.partition(self.shelf.file(for_part), writer, resume_state or 0)


class Faulty(InPlace):
    sink: type[FaultyShelfSink]

    def make_sink(self, target: Any) -> Any:
        return self.sink(target)


class ZeroIsNoneSink(FaultyShelfSink):
    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        return super().build_part(step_id, for_part, resume_state or len(self.shelf.file(for_part).values))


@found_by("empty_state_is_a_state", "each part's first state was recorded before its first row")
class TreatsZeroAsNoState(Faulty):
    sink = ZeroIsNoneSink


class AppendingSink(FaultyShelfSink):
    """Never goes back to its state."""

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        return super().build_part(step_id, for_part, len(self.shelf.file(for_part).values))


@found_by("replay_of_a_lost_epoch", "rows of a failed attempt of epoch 1 are visible")
@found_by("random_schedules", r"play\(AppendsOnReplay\(\), \[", thorough=True)
class AppendsOnReplay(Faulty):
    sink = AppendingSink


class UnfencedPartition(ShelfPartition):
    """Looks at nobody else's record."""

    def __init__(self, file: PartFile, writer: WriterId, length: int) -> None:
        file.writer, file.sealed = None, 0
        super().__init__(file, writer, length)

    def write_batch(self, values: list[Any]) -> None:
        self._file.values.extend(values)

    def snapshot(self) -> int:
        return len(self._file.values)


class UnfencedSink(FaultyShelfSink):
    partition = UnfencedPartition


@found_by("zombie_of_an_older_generation", "a task was suspended at")
@found_by("late_zombie", "tasks of an old driver started")
class IgnoresTheGeneration(Faulty):
    sink = UnfencedSink


class ByGenerationPartition(ShelfPartition):
    """Fences older generations only."""

    def write_batch(self, values: list[Any]) -> None:
        if self._file.writer is not None and self._file.writer.generation > self._writer.generation:
            raise StaleWriterError("it belongs to a newer driver")
        self._file.values.extend(values)

    def snapshot(self) -> int:
        return len(self._file.values)


class ByGenerationSink(FaultyShelfSink):
    partition = ByGenerationPartition


@found_by("stalled_attempt", "an attempt was suspended at")
class IgnoresTheAttempt(Faulty):
    sink = ByGenerationSink


class AttemptFirstSink(FaultyShelfSink):
    """Orders writers by attempt, which begins anew with each driver."""

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        assert self._context is not None
        last = self.shelf.file(for_part).writer
        if last is not None and last.attempt > self._context.attempt:
            raise StaleWriterError(f"{last} comes later")
        return super().build_part(step_id, for_part, resume_state)


@found_by("second_driver")
class OrdersByAttempt(Faulty):
    sink = AttemptFirstSink


class UnreadSink(FaultyShelfSink):
    """Seals what was written only."""

    def seal(self, context: SealContext, parts: Sequence[PartSeal[int]]) -> None:
        super().seal(context, [part for part in parts if part.writer is not None])


@found_by("parts_missing_in_the_replay", "the epoch was replayed with rows for one part")
class ForgetsUnreadParts(Faulty):
    sink = UnreadSink


class LateSealSink(FaultyShelfSink):
    """Seals whatever comes, whoever it belongs to by now."""

    def seal(self, context: SealContext, parts: Sequence[PartSeal[int]]) -> None:
        for part in parts:
            del self.shelf.file(part.part).values[part.state :]
            self.shelf.file(part.part).sealed = context.generation


@found_by("old_driver_wakes", "a driver was suspended at", thorough=True)
class SealsNewerRows(Faulty):
    sink = LateSealSink


class FreshStartSink(FaultyShelfSink):
    """Cleans up when a part begins."""

    def check_target(self, context: TargetContext[int]) -> Mapping[str, int]:
        bases = super().check_target(context)
        if bases and not context.first_contact:
            self.shelf.files.clear()
        return bases


@found_by("parts_added", "a part was added at a restart")
class CleansUpForANewPart(Faulty):
    sink = FreshStartSink


class ByIndexSink(FaultyShelfSink):
    """Finds parts by their place in the list."""

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        place = self.list_parts().index(for_part)
        return super().build_part(step_id, "abcdefgh"[place], resume_state)


@found_by("parts_reordered", "")
class FindsPartsByIndex(Faulty):
    sink = ByIndexSink
