"""Faults that only processes of their own bring to light, of a sink that stages files and renames them."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from outfall.capabilities import (
    CommitRequest,
    Committer,
    CommitterInitContext,
    DeclaresGuarantee,
    Guarantee,
    SupportsCommitter,
    SupportsWriterContext,
    WriterInitContext,
)
from outfall.serde import JsonSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.testing import SinkHarness
from tests.unit.support.broken_sinks.registry import found_by


class RenamingPartition(StatelessSinkPartition[Any]):
    """Writes a hidden file, a batch at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("w")
        self._rows = 0

    def write_batch(self, values: list[Any]) -> None:
        self._rows += len(values)
        self._file.writelines(json.dumps(value) + "\n" for value in values)

    def prepare_commit(self) -> Sequence[str]:
        self._file.flush()
        return [self._path.name] if self._rows else []

    def close(self) -> None:
        self._file.close()


class RenamingCommitter(Committer[str]):
    """Shows hidden files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            self.commit_one(request)

    def commit_one(self, request: CommitRequest[str]) -> None:
        shown = self._directory / request.committable.lstrip(".")
        if shown.exists():
            request.signal_already_committed()
        else:
            os.rename(self._directory / request.committable, shown)


class RenamingSink(DynamicSink[Any], SupportsCommitter[str], SupportsWriterContext, DeclaresGuarantee):
    """Files that are hidden until they are committed."""

    committer: type[RenamingCommitter] = RenamingCommitter
    partition: type[RenamingPartition] = RenamingPartition

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = ""

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound._name = f".{context.incarnation}-{context.generation}-{context.epoch}-{context.attempt}"
        return bound

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return self.partition(self._directory / self._name)

    def create_committer(self, context: CommitterInitContext) -> Committer[str]:
        return self.committer(self._directory)

    def committable_serializer(self) -> JsonSerializer:
        return JsonSerializer()

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE


class Renaming(SinkHarness):
    """Does what it claims."""

    memory_limit = 1 << 20
    sink: type[RenamingSink] = RenamingSink

    def make_sink(self, target: Any) -> Any:
        return self.sink(target)

    def read(self, target: Any) -> Iterable[Any]:
        return [json.loads(line) for path in target.glob("[!.]*") for line in path.read_text().splitlines()]


class TellingPartition(RenamingPartition):
    """Tells the driver through its class what it wrote."""

    told: list[str] = []

    def prepare_commit(self) -> Sequence[str]:
        prepared = super().prepare_commit()
        self.told.extend(prepared)
        return prepared


class ListeningCommitter(RenamingCommitter):
    def commit_one(self, request: CommitRequest[str]) -> None:
        if request.committable in TellingPartition.told:
            super().commit_one(request)


class TellingSink(RenamingSink):
    partition = TellingPartition
    committer = ListeningCommitter


@found_by("tasks_in_processes_of_their_own", "each task ran in a process of its own")
class TalksThroughAClass(Renaming):
    sink = TellingSink


class LockingCommitter(RenamingCommitter):
    """Makes a lock file, and relies on coming to remove it."""

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        lock = self._directory / ".lock"
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        try:
            super().commit(requests)
        finally:
            lock.unlink()


class LockingSink(RenamingSink):
    committer = LockingCommitter


@found_by("killed_at_every_step", "the driver's process was killed at")
class LeavesALock(Renaming):
    sink = LockingSink


class HoardingPartition(RenamingPartition):
    """Keeps all it has ever written."""

    hoard: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        super().write_batch(values)
        self.hoard.extend(json.dumps(value) for value in values)


class HoardingSink(RenamingSink):
    partition = HoardingPartition


@found_by("memory_over_epochs", "thirty epochs of sixty rows left")
@found_by("memory_of_a_task", "its limit is")
class HoardsRows(Renaming):
    sink = HoardingSink


class TrustingPartition(RenamingPartition):
    """Makes the best of an fsync that fails."""

    def prepare_commit(self) -> Sequence[str]:
        prepared = super().prepare_commit()
        with suppress(OSError):
            os.fsync(self._file.fileno())
        return prepared


class TrustingSink(RenamingSink):
    partition = TrustingPartition


@found_by("failing_system_calls", "an fsync failed, and the epoch was completed all the same")
class SwallowsAFailedSync(Renaming):
    sink = TrustingSink
