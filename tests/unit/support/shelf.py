"""A fixed sink that writes in place, over a target in memory that outlives drivers: files of values."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from outfall.capabilities import (
    DeclaresGuarantee,
    Guarantee,
    PartSeal,
    SealContext,
    SupportsSeal,
    SupportsTarget,
    SupportsWriterContext,
    TargetContext,
    WriterId,
    WriterInitContext,
)
from outfall.errors import SealError, StaleWriterError, TargetAheadError, TargetLostError, TargetNotEmptyError
from outfall.sinks import FixedPartitionedSink, StatefulSinkPartition
from outfall.trace_points import reached


@dataclass
class PartFile:
    """One file: what readers see, and beside it who wrote last and what is sealed."""

    values: list[Any] = field(default_factory=list)
    writer: WriterId | None = None
    sealed: int = 0
    """The generation that sealed it last."""

    def take(self, writer: WriterId) -> None:
        """Become the last writer, unless somebody newer is."""
        if writer.generation <= self.sealed or (self.writer is not None and self.writer > writer):
            raise StaleWriterError(f"{writer} comes after {self.writer}, sealed by {self.sealed}")
        self.writer = writer

    def append(self, writer: WriterId, values: Sequence[Any]) -> None:
        """Write at the end, as the last writer only."""
        self.check(writer)
        self.values.extend(values)

    def check(self, writer: WriterId) -> None:
        """Refuse everybody but the last writer."""
        if writer != self.writer or writer.generation <= self.sealed:
            raise StaleWriterError(f"{writer} is not {self.writer}")


@dataclass
class Shelf:
    """The target: files by name."""

    files: dict[str, PartFile] = field(default_factory=dict)

    def file(self, name: str) -> PartFile:
        """Return a file, made on first use."""
        return self.files.setdefault(name, PartFile())


def values_on(shelf: Shelf) -> list[Any]:
    """What a reader finds in all files."""
    return [value for file in shelf.files.values() for value in file.values]


class ShelfPartition(StatefulSinkPartition[Any, int]):
    """Appends; the state is the length."""

    def __init__(self, file: PartFile, writer: WriterId, length: int) -> None:
        self._file = file
        self._writer = writer
        file.take(writer)
        del file.values[length:]
        reached("fake: part cut")

    def write_batch(self, values: list[Any]) -> None:
        for value in values:
            self._file.append(self._writer, [value])
            reached("fake: value written")

    def snapshot(self) -> int:
        self._file.check(self._writer)
        return len(self._file.values)


class ShelfSink(
    FixedPartitionedSink[Any, int], SupportsWriterContext, SupportsTarget[int], SupportsSeal[int], DeclaresGuarantee
):
    """Appends to files in place; a file is cut back to its state, fenced by its last writer, and sealed."""

    def __init__(
        self, shelf: Shelf, parts: Sequence[str] = ("a", "b", "c"), on_existing: Literal["error", "resume"] = "error"
    ) -> None:
        self.shelf = shelf
        self.parts = list(parts)
        self._on_existing = on_existing
        self._context: WriterInitContext | None = None

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound._context = context
        return bound

    def list_parts(self) -> list[str]:
        return self.parts

    def part_fn(self, item_key: str) -> int:
        return int(item_key)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        assert self._context is not None
        writer = WriterId(self._context.generation, self._context.epoch, self._context.attempt)
        return ShelfPartition(self.shelf.file(for_part), writer, resume_state or 0)

    def target(self) -> str:
        return "shelf"

    def check_target(self, context: TargetContext[int]) -> Mapping[str, int]:
        bases: dict[str, int] = {}
        for part in self.parts:
            file = self.shelf.files.get(part, PartFile())
            if len(file.values) < context.states.get(part, 0):
                raise TargetLostError(f"{part} is too short", step=context.step_id, part=part)
            if file.writer is not None and file.writer.generation > context.last_generation:
                raise TargetAheadError(f"{part} is ahead", step=context.step_id, part=part)
            if part not in context.states:
                bases[part] = self._base(part, file)
        return bases

    def seal(self, context: SealContext, parts: Sequence[PartSeal[int]]) -> None:
        for part in parts:
            self._seal_part(self.shelf.file(part.part), part, context)
            reached("fake: part sealed")

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def _base(self, part: str, file: PartFile) -> int:
        if file.values and self._on_existing == "error":
            raise TargetNotEmptyError(f"{part} holds somebody's data", part=part)
        return len(file.values)

    def _seal_part(self, file: PartFile, part: PartSeal[int], context: SealContext) -> None:
        if file.sealed > context.generation or (file.writer and file.writer.generation > context.generation):
            raise StaleWriterError(f"{part.part} belongs to a newer driver", part=part.part)
        if part.writer is None:
            del file.values[part.state :]
        elif (file.writer, len(file.values)) != (part.writer, part.state):
            raise SealError(f"{part.part} was written by {file.writer}, not by {part.writer}", part=part.part)
        file.sealed = context.generation
