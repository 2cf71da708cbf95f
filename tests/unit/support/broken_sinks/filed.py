"""Faults that only processes of their own bring to light, of a sink that stages files and renames them."""

from __future__ import annotations

import copy
import fcntl
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


def sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        os.fsync(self._file.fileno())
        sync(self._path.parent)
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
        sync(self._directory)

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
        bound._name = self.name(context)
        return bound

    def name(self, context: WriterInitContext) -> str:
        return f".{context.incarnation}-{context.generation}-{context.epoch}-{context.attempt}"

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

    memory_limit = 1 << 17
    not_claimed = dict.fromkeys(
        ["rewound_log", "copied_log", "log_copied_during_an_epoch", "foreign_log", "lost_target", "restored_target"],
        "the sink has no SupportsTarget",
    )
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


@found_by("tasks_in_processes_of_their_own", "each task ran in a separate process")
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


@found_by("killed_at_every_step", "the driver's process was killed at", thorough=True)
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


@found_by("memory_over_epochs", "each ten epochs of sixty rows left", thorough=True)
@found_by("memory_of_a_task", "its limit is", thorough=True)
class HoardsRows(Renaming):
    sink = HoardingSink


class TrustingPartition(RenamingPartition):
    """Makes the best of an fsync that fails."""

    def prepare_commit(self) -> Sequence[str]:
        with suppress(OSError):
            return super().prepare_commit()
        return [self._path.name] if self._rows else []


class TrustingSink(RenamingSink):
    partition = TrustingPartition


@found_by("failing_system_calls", "an fsync failed, but the epoch completed")
class SwallowsAFailedSync(Renaming):
    sink = TrustingSink


class ByWorkerSink(RenamingSink):
    """Names what it stages by the worker's index, so that an attempt truncates what another one has answered for."""

    def name(self, context: WriterInitContext) -> str:
        return f".{context.incarnation}-{context.generation}-{context.epoch}-w{context.worker_index}"


@found_by("attempt_after_the_winner", "an attempt started before the results are collected, when another one had won")
class StagesByWorker(Renaming):
    sink = ByWorkerSink


class WithoutIncarnationSink(RenamingSink):
    """Names files, and so knows what is committed, by what two queries number alike."""

    def name(self, context: WriterInitContext) -> str:
        return f".{context.generation}-{context.epoch}-{context.attempt}"


@found_by("second_query", "another query with its own recovery data wrote to the same target after the first")
@found_by("lost_log", "the checkpoint was deleted and the target kept")
class NamesWithoutIncarnation(Renaming):
    sink = WithoutIncarnationSink


class FlushingInClosePartition(RenamingPartition):
    def prepare_commit(self) -> Sequence[str]:
        return [self._path.name] if self._rows else []

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            sync(self._path.parent)
        super().close()


class FlushingInCloseSink(RenamingSink):
    partition = FlushingInClosePartition


@found_by("killed_before_close", "killed between its snapshot and close")
class FlushesInClose(Renaming):
    sink = FlushingInCloseSink


class UnsyncedPartition(RenamingPartition):
    def prepare_commit(self) -> Sequence[str]:
        self._file.flush()
        return [self._path.name] if self._rows else []


class UnsyncedSink(RenamingSink):
    partition = UnsyncedPartition


@found_by("loss_of_power", "not synced were ")
class NeverSyncsItsFiles(Renaming):
    sink = UnsyncedSink


class UnsyncedNamesCommitter(RenamingCommitter):
    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            self.commit_one(request)


class NeverSyncingSink(RenamingSink):
    partition = UnsyncedPartition
    committer = UnsyncedNamesCommitter


@found_by("loss_of_power", "not synced were ")
class NeverSyncs(Renaming):
    sink = NeverSyncingSink


class UnsyncedNamesSink(RenamingSink):
    committer = UnsyncedNamesCommitter


@found_by("loss_of_power", "the machine lost power after COMPLETED")
class NeverSyncsWhatItRenames(Renaming):
    sink = UnsyncedNamesSink


class MissingIsCommittedCommitter(RenamingCommitter):
    def commit_one(self, request: CommitRequest[str]) -> None:
        if (self._directory / request.committable).exists():
            super().commit_one(request)
        else:
            request.signal_already_committed()


class MissingIsCommittedSink(RenamingSink):
    committer = MissingIsCommittedCommitter


@found_by("lost_before_committing", "data of one of its committables was lost")
@found_by("lost_after_committing", "data of one of its committables was lost")
class TakesMissingForCommitted(Renaming):
    """Its test says nothing of how a file is lost."""

    sink = MissingIsCommittedSink


class LockedPartition(RenamingPartition):
    """Waits without end for the attempt that writes before it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lock = (path.parent / ".lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        super().close()
        self._lock.close()


class LockedSink(RenamingSink):
    partition = LockedPartition


@found_by("zombie_of_an_older_generation", "the check stalled", thorough=True)
@found_by("old_driver_wakes", "the check stalled", thorough=True)
class HoldsALockAcrossAttempts(Renaming):
    sink = LockedSink
    deadline = 1.0
