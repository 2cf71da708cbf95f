"""Drives a `FileSink` by hand, step by step, so that tests can stop between any two."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from outfall.capabilities import (
    CleanUpContext,
    CommitRequest,
    CommitterInitContext,
    PartSeal,
    SealContext,
    TargetCheck,
    TargetContext,
    WriterId,
    WriterInitContext,
)
from outfall.file import FileSink
from outfall.file.growing.part_files import FileState
from outfall.file.growing.partition import GrowingPart
from outfall.file.growing.sink import GrowingFiles
from outfall.file.stores.locks import Patience
from outfall.file.stores.store import StagedFile
from outfall.file.whole.sink import LocalWholeFiles
from outfall.file.whole.writer import WholeFileWriter
from outfall.trace_points import listen

OURS = "00000000000000aa"
OTHERS = "00000000000000bb"


def end(out: Path, incarnation: str = OURS) -> None:
    """Do what an error advises about a query that has ended for good."""
    (out / "_outfall" / f"{incarnation}.json").unlink()


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
    begun: dict[int, str] = field(default_factory=dict)
    """Generation and token of each BEGIN since the last completed epoch's, and of that one."""
    completed_generation: int = 0
    published: int | None = None
    found: Any = None
    """What the last check returned for the opening."""

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
            token=self.token if generation else "",
            begun=dict(self.begun),
            published=self.published,
            unfinished=self.generation - bool(generation) > self.completed_generation,
            found=self.found if generation else None,
        )

    @property
    def token(self) -> str:
        """The token of the newest BEGIN."""
        return self.begun.get(self.generation, "")

    @property
    def epoch(self) -> int:
        return 0 if self.completed is None else self.completed + 1

    def check(self) -> Mapping[str, FileState]:
        check: TargetCheck[FileState] = self.sink.check_target(self.context())
        self.found = check.found
        return check.states

    def begin(self, *, open_target: bool = True) -> None:
        bases = self.check()
        self.states = {**self.states, **bases}
        self.append_begin()
        if open_target:
            self.open()

    def append_begin(self) -> None:
        """What a driver does that dies before it opens the target."""
        self.generation += 1
        self.begun[self.generation] = secrets.token_hex(8)

    def record_completed(self) -> None:
        self.completed = self.epoch
        self.completed_generation = self.generation
        self.begun = {self.generation: self.token}

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
            token=self.begun.get(self.generation if generation is None else generation, ""),
        )

    def restored_copy(self, sink: Any) -> Self:
        """The driver of a checkpoint that was copied now."""
        return replace(self, sink=sink, states=dict(self.states), begun=dict(self.begun))


class GrowingDriver(Driver):
    sink: FileSink

    def part(self, name: str | None = None, *, attempt: int = 0, generation: int | None = None) -> GrowingPart:
        name = name or self.sink.list_parts()[0]
        bound = self.sink.bind(self.writer(attempt=attempt, generation=generation))
        part: GrowingPart = bound.build_part("sink", name, self.states.get(name))
        return part

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
        context = SealContext("sink", self.incarnation, self.generation, self.epoch, token=self.token)
        self.sink.seal(context, list({**unanswered, **answers}.values()))

    def complete(self, answers: Mapping[str, PartSeal[FileState]]) -> None:
        self.states.update({name: seal.state for name, seal in answers.items()})
        self.record_completed()

    def run(self, rows: Mapping[str, list[Any]]) -> None:
        self.begin()
        answers = self.write(rows)
        self.seal(answers)
        self.complete(answers)


class WholeDriver(Driver):
    sink: FileSink

    def file(self, *, attempt: int = 0, worker_index: int = 0) -> WholeFileWriter:
        bound = self.sink.bind(self.writer(attempt=attempt, worker_index=worker_index))
        writer: WholeFileWriter = bound.build("sink", worker_index, 0)
        return writer

    def stage(self, values: list[Any], *, attempt: int = 0, worker_index: int = 0) -> list[StagedFile]:
        part = self.file(attempt=attempt, worker_index=worker_index)
        if values:
            part.write_batch(values)
        staged = part.prepare_commit()
        part.close()
        return staged

    def commit(self, staged: list[StagedFile]) -> list[CommitRequest[StagedFile]]:
        requests = [CommitRequest(file) for file in staged]
        self.sink.create_committer(self.committing()).commit(requests)
        return requests

    def committing(self) -> CommitterInitContext:
        return CommitterInitContext(
            "sink", self.incarnation, self.generation, self.epoch, token=self.token, begun=dict(self.begun)
        )

    def clean_up(self) -> int:
        removed: int = self.sink.clean_up(self._cleaning())
        return removed

    def leftovers(self) -> list[str]:
        return list(self.sink.find_leftovers(self._cleaning()))

    def _cleaning(self) -> CleanUpContext:
        return CleanUpContext("sink", self.incarnation, self.generation, states=dict, writer_states=tuple)

    def run(self, *tasks: list[Any]) -> None:
        self.begin()
        staged = [file for index, rows in enumerate(tasks) for file in self.stage(rows, worker_index=index)]
        self.commit(staged)
        if staged:
            self.published = self.epoch
        self.record_completed()
        self.clean_up()


def growing(path: Path, parts: int = 1, **options: Any) -> FileSink:
    sink = FileSink(path, parts=parts, **options)
    assert isinstance(sink.delegate, GrowingFiles)
    sink.delegate.patience = Patience(seconds=0.05)
    return sink


def whole(path: Path, **options: Any) -> FileSink:
    sink = FileSink(path, **options)
    assert isinstance(sink.delegate, LocalWholeFiles)
    sink.delegate.patience = Patience(seconds=0.05)
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


def staged_names(path: Path) -> list[str]:
    return sorted(os.listdir(path / "_outfall" / "staging"))


def committer(driver: WholeDriver) -> Any:
    return driver.sink.create_committer(driver.writer())  # has the fields that are read
