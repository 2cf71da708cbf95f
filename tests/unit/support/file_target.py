"""Drives a `FileSink` by hand, step by step, so that tests can stop between any two."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outfall.capabilities import (
    CommitRequest,
    CommitterInitContext,
    PartSeal,
    SealContext,
    SweepContext,
    TargetContext,
    WriterId,
    WriterInitContext,
)
from outfall.file import FileSink
from outfall.file.growing import GrowingFileSink
from outfall.file.growing_part import FileState, GrowingPart
from outfall.file.local_whole import LocalWholeFileSink
from outfall.file.locked import Patience
from outfall.file.store import StagedFile
from outfall.file.whole import WholeFileSink
from outfall.file.whole_writer import WholeFileWriter
from outfall.steps import listen

OURS = "00000000000000aa"
OTHERS = "00000000000000bb"


def meanwhile(step: str, action: Callable[[], Any]) -> ExitStack:
    """Run an action once, when a step is reached within the block."""
    done: list[bool] = []

    def listener(reached: str) -> None:
        if reached == step and not done:
            done.append(True)
            action()

    stack = ExitStack()
    stack.callback(listen(listener))
    return stack


@dataclass
class Driver:
    """One driver of one step: what its log says, and the calls that the engine makes."""

    sink: Any
    incarnation: str = OURS
    generation: int = 0
    completed: int | None = None
    states: dict[str, FileState] = field(default_factory=dict)

    def context(self, *, generation: int = 0, epoch: int | None = None) -> TargetContext[Any]:
        first = self.generation == 0
        return TargetContext(
            step_id="sink",
            incarnation="" if first and generation == 0 else self.incarnation,
            epoch=self.epoch if epoch is None else epoch,
            completed=self.completed,
            first_contact=first,
            states=dict(self.states),
            last_generation=self.generation,
            generation=generation,
        )

    @property
    def epoch(self) -> int:
        return 0 if self.completed is None else self.completed + 1

    def check(self) -> Mapping[str, FileState]:
        bases: Mapping[str, FileState] = self.sink.check_target(self.context())
        return bases

    def begin(self, *, open_target: bool = True) -> None:
        bases = self.check()
        self.states = {**self.states, **bases}
        self.generation += 1
        if open_target:
            self.open()

    def open(self) -> None:
        self.sink.open_target(self.context(generation=self.generation))

    def writer(self, *, attempt: int = 0, generation: int | None = None, worker_index: int = 0) -> WriterInitContext:
        return WriterInitContext(
            step_id="sink",
            incarnation=self.incarnation,
            generation=self.generation if generation is None else generation,
            epoch=self.epoch,
            part=None,
            attempt=attempt,
            worker_index=worker_index,
        )

    def restored_copy(self, sink: Any) -> Driver:
        """The driver of a checkpoint that was copied now."""
        return Driver(sink, self.incarnation, self.generation, self.completed, dict(self.states))


class GrowingDriver(Driver):
    sink: GrowingFileSink

    def part(self, name: str | None = None, *, attempt: int = 0, generation: int | None = None) -> GrowingPart:
        name = name or self.sink.list_parts()[0]
        bound = self.sink.bind(self.writer(attempt=attempt, generation=generation))
        return bound.build_part("sink", name, self.states.get(name))

    def write(self, rows: Mapping[str, list[Any]], *, attempt: int = 0) -> dict[str, PartSeal[FileState]]:
        answers = {}
        for name, values in rows.items():
            part = self.part(name, attempt=attempt)
            part.write_batch(values)
            answers[name] = self.answer(name, part.snapshot(), attempt)
            part.close()
        return answers

    def answer(self, name: str, state: FileState, attempt: int) -> PartSeal[FileState]:
        return PartSeal(name, state, WriterId(self.generation, self.epoch, attempt))

    def seal(self, answers: Mapping[str, PartSeal[FileState]]) -> None:
        unanswered = {name: PartSeal(name, state, None) for name, state in self.states.items()}
        context = SealContext("sink", self.incarnation, self.generation, self.epoch)
        self.sink.seal(context, list({**unanswered, **answers}.values()))

    def complete(self, answers: Mapping[str, PartSeal[FileState]]) -> None:
        self.states.update({name: seal.state for name, seal in answers.items()})
        self.completed = self.epoch

    def run(self, rows: Mapping[str, list[Any]]) -> None:
        self.begin()
        answers = self.write(rows)
        self.seal(answers)
        self.complete(answers)

    def restored_copy(self, sink: Any) -> GrowingDriver:
        return GrowingDriver(sink, self.incarnation, self.generation, self.completed, dict(self.states))


class WholeDriver(Driver):
    sink: WholeFileSink

    def file(self, *, attempt: int = 0, worker_index: int = 0) -> WholeFileWriter:
        bound = self.sink.bind(self.writer(attempt=attempt, worker_index=worker_index))
        return bound.build("sink", worker_index, 0)

    def stage(self, values: list[Any], *, attempt: int = 0, worker_index: int = 0) -> list[StagedFile]:
        part = self.file(attempt=attempt, worker_index=worker_index)
        if values:
            part.write_batch(values)
        staged = part.prepare_commit()
        part.close()
        return staged

    def commit(self, staged: list[StagedFile]) -> list[CommitRequest[StagedFile]]:
        requests = [CommitRequest(file) for file in staged]
        context = CommitterInitContext("sink", self.incarnation, self.generation, self.epoch)
        self.sink.create_committer(context).commit(requests)
        return requests

    def sweep(self) -> int:
        return self.sink.sweep(
            SweepContext("sink", self.incarnation, self.generation, states=dict, writer_states=tuple)
        )

    def run(self, *tasks: list[Any]) -> None:
        self.begin()
        staged = [file for index, rows in enumerate(tasks) for file in self.stage(rows, worker_index=index)]
        self.commit(staged)
        self.completed = self.epoch
        self.sweep()

    def restored_copy(self, sink: Any) -> WholeDriver:
        return WholeDriver(sink, self.incarnation, self.generation, self.completed, dict(self.states))


def growing(path: Path, parts: int = 1, **options: Any) -> GrowingFileSink:
    sink = FileSink(path, parts=parts, **options)
    assert isinstance(sink, GrowingFileSink)
    sink.patience = Patience(seconds=0.2)
    return sink


def whole(path: Path, **options: Any) -> LocalWholeFileSink:
    sink = FileSink(path, **options)
    assert isinstance(sink, LocalWholeFileSink)
    sink.patience = Patience(seconds=0.2)
    return sink


def visible(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.name[0] not in "_.") if path.exists() else []


def rows_in(path: Path) -> list[Any]:
    return [json.loads(line) for file in visible(path) for line in file.read_text().splitlines()]


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"id": number} for number in numbers]


def ids(path: Path) -> list[int]:
    """The rows that readers see."""
    return [row["id"] for row in rows_in(path)]


def everything(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def open_files(below: Path) -> int:
    """How many of this process's descriptors are of files below a directory: what others leave open does not count."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{below}/")
    return count
