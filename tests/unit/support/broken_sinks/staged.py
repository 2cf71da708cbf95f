"""Faults of sinks that stage rows and commit them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from outfall.capabilities import (
    CleanUpContext,
    CommitRequest,
    Committer,
    CommitterInitContext,
    TargetContext,
    WriterInitContext,
)
from outfall.serde import SimpleVersionedSerializer
from outfall.sinks import StatelessSinkPartition
from outfall.trace_points import reached
from tests.unit.support.broken_sinks.registry import found_by
from tests.unit.support.conforming import CarefulStagingSink, Staging
from tests.unit.support.warehouse import (
    Staged,
    StagingCommitter,
    StagingPartition,
    Warehouse,
    staging_name,
)


class FaultySink(CarefulStagingSink):
    """A sink of which one piece is exchanged."""

    partition: type[StagingPartition] = StagingPartition
    committer: type[StagingCommitter] = StagingCommitter

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        return self.partition(self.warehouse, self.area(self._context))

    def area(self, context: WriterInitContext) -> str:
        return staging_name(context)

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        # A committer that is exchanged may not write down its epochs.
        return super().check_target(replace(context, published=None))

    def open_target(self, context: TargetContext[Any]) -> None:
        super().open_target(replace(context, published=None))

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return self.committer(self.warehouse)


class Faulty(Staging):
    """Its sink is of the class named beside it."""

    sink: type[CarefulStagingSink]

    def make_sink(self, target: Any) -> Any:
        return self.sink(target)


class LastRowHeldBackPartition(StagingPartition):
    """Keeps the last row for a batch that never comes."""

    def prepare_commit(self) -> Sequence[Staged]:
        if self._rows:
            self._warehouse.staged[self._name] = self._rows[:-1]
        return super().prepare_commit()


class LastRowHeldBackSink(FaultySink):
    partition = LastRowHeldBackPartition


@found_by("one_epoch", "are missing")
class HoldsTheLastRowBack(Faulty):
    sink = LastRowHeldBackSink


class EmptyIsAnErrorPartition(StagingPartition):
    def prepare_commit(self) -> Sequence[Staged]:
        return [Staged(name=self._name, count=len(self._warehouse.staged[self._name]))]


class EmptyIsAnErrorSink(FaultySink):
    partition = EmptyIsAnErrorPartition


@found_by("empty_epochs_and_tasks")
class FailsWithoutRows(Faulty):
    sink = EmptyIsAnErrorSink


class PublishingInWritePartition(StagingPartition):
    def write_batch(self, values: list[Any]) -> None:
        super().write_batch(values)
        self._warehouse.published[self._name] = list(self._rows)


class PublishingInWriteSink(FaultySink):
    partition = PublishingInWritePartition


@found_by("nothing_visible_before_commit", "are visible although only its tasks have run")
class PublishesInWrite(Faulty):
    sink = PublishingInWriteSink


class PublishingInClosePartition(StagingPartition):
    def close(self) -> None:
        super().close()
        if self._rows:
            self._warehouse.published[self._name] = list(self._rows)


class PublishingInCloseSink(FaultySink):
    partition = PublishingInClosePartition


@found_by("close_publishes_nothing", r"close\(\) made \d+ rows visible")
class PublishesInClose(Faulty):
    sink = PublishingInCloseSink


class ChangingPartition(StagingPartition):
    def write_batch(self, values: list[Any]) -> None:
        super().write_batch([dict(value) for value in values])
        for value in values:
            value["written"] = True


class ChangingSink(FaultySink):
    partition = ChangingPartition


@found_by("values_unchanged", "a value was modified during the write")
class ChangesValues(Faulty):
    sink = ChangingSink


class RememberingSink(FaultySink):
    """Counts on the sink what its tasks write."""

    written = 0

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return super().build(step_id, worker_index, worker_count)

    def bind(self, context: WriterInitContext) -> Any:
        self.written += 1
        return super().bind(context)


@found_by("no_state_on_the_sink", "attributes written changed")
class KeepsStateOnItself(Faulty):
    sink = RememberingSink


class CountingSink(FaultySink):
    def bind(self, context: WriterInitContext) -> Any:
        context.metrics.add("rows")
        return super().bind(context)


@found_by("counts_are_facts", "the correct number is")
class CountsTwice(Faulty):
    sink = CountingSink


class ByTaskSink(FaultySink):
    """Names what it stages by task, not by attempt, and goes on with what it finds there."""

    partition: type[StagingPartition]

    def area(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-g{context.generation}-e{context.epoch}-w{context.worker_index}"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        part: Any = super().build(step_id, worker_index, worker_count)
        part._rows = list(self.warehouse.staged.get(part._name, []))
        return part  # type: ignore[no-any-return]


@found_by("task_retry", "an attempt of a task failed")
@found_by("two_attempts_finish", "two attempts of a task finished")
class StagesByTask(Faulty):
    sink = ByTaskSink


class ByEpochSink(FaultySink):
    """Names what it stages by epoch and task alone, so that a later generation meets what an earlier one staged."""

    partition: type[StagingPartition]

    def area(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-g1-e{context.epoch}-w{context.worker_index}"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        part: Any = super().build(step_id, worker_index, worker_count)
        part._rows = list(self.warehouse.staged.get(part._name, []))
        return part  # type: ignore[no-any-return]

    def clean_up(self, context: CleanUpContext) -> int:
        return 0


@found_by("replay_of_a_lost_epoch", "a driver died at")
class StagesByEpoch(Faulty):
    sink = ByEpochSink


class OverwritingSink(FaultySink):
    """Names what it publishes without the epoch."""

    def area(self, context: WriterInitContext) -> str:
        return f"{context.incarnation}-g0-w{context.worker_index}"


class OverwritingCommitter(StagingCommitter):
    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        self._warehouse.publish(request.committable.name)


class OverwritingAtLastSink(OverwritingSink):
    committer = OverwritingCommitter


@found_by("several_epochs", "are missing")
class OverwritesEarlierEpochs(Faulty):
    sink = OverwritingAtLastSink


class AppendingCommitter(StagingCommitter):
    """Publishes whatever it is given, as often as it is given."""

    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        name = request.committable.name
        rows = self._warehouse.staged[name]
        self._warehouse.published[f"{name}-{len(self._warehouse.published)}"] = list(rows)


class AppendingSink(FaultySink):
    committer = AppendingCommitter

    def clean_up(self, context: CleanUpContext) -> int:
        return 0


@found_by("lost_reply_of_a_commit", "a commit succeeded and its response was lost")
@found_by("commit_is_asked_again", "a committer signaled")
@found_by("leftovers_are_cleaned_up", "leftovers of failed drivers")
class CommitsTwice(Faulty):
    sink = AppendingSink


class TidyCommitter(StagingCommitter):
    """Takes for refuse what was not committed."""

    def close(self) -> None:
        self._warehouse.staged.clear()


class TidySink(FaultySink):
    committer = TidyCommitter


@found_by("failed_commit_is_resumed", "a commit failed for")
@found_by("commit_deadline", "a commit passed its deadline")
class TidiesUpAfterAFailure(Faulty):
    sink = TidySink


class TrustingCommitter(StagingCommitter):
    """Takes what is not there for committed."""

    def find_lost(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        pass

    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        if request.committable.name in self._warehouse.staged:
            self._warehouse.publish(request.committable.name)
        else:
            request.signal_already_committed()


class TrustingSink(FaultySink):
    committer = TrustingCommitter


@found_by("lost_before_committing", "data of one of its committables was lost")
@found_by("lost_after_committing", "data of one of its committables was lost")
class TakesLostForCommitted(Faulty):
    sink = TrustingSink


class SwallowingCommitter(StagingCommitter):
    """Logs an error, and lets the request count as committed."""

    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        with suppress(ConnectionError):
            self._warehouse.after_commit()
            super()._commit_one(request)

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        for request in requests:
            self._commit_one(request)


class SwallowingSink(FaultySink):
    committer = SwallowingCommitter


@found_by("target_refuses", "the target failed from")
class DropsOnFailure(Faulty):
    sink = SwallowingSink

    @contextmanager
    def breaking(self, target: Any) -> Iterator[None]:
        with target.replies_lost():
            yield


class LateLedgerCommitter(StagingCommitter):
    """Publishes first and notes it afterwards."""

    def __init__(self, warehouse: Warehouse) -> None:
        super().__init__(warehouse)
        self._ledger = warehouse.followed

    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        name = request.committable.name
        if name in self._ledger:
            request.signal_already_committed()
            return
        self._warehouse.published[f"{name}-{len(self._warehouse.published)}"] = list(self._warehouse.staged[name])
        reached("fake: published, not noted")
        self._ledger.add(name)


class LateLedgerSink(FaultySink):
    committer = LateLedgerCommitter

    def clean_up(self, context: CleanUpContext) -> int:
        return 0


@found_by("crash_at_every_step", "a driver died at 'fake: published, not noted")
@found_by("crash_at_every_line", "a driver died at 'line staged.py", thorough=True)
class NotesAfterPublishing(Faulty):
    sink = LateLedgerSink


class PatientCommitter(LateLedgerCommitter):
    """Makes one crash good, and no other."""

    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        name = request.committable.name
        tries = [known for known in self._warehouse.followed if known.startswith(f"{name} try")]
        self._warehouse.followed.add(f"{name} try {len(tries)}")
        reached("fake: try noted")
        if len(tries) < 2:
            self._warehouse.published[name] = list(self._warehouse.staged[name])
        else:
            self._warehouse.published[f"{name}-again"] = list(self._warehouse.staged[name])


class PatientSink(LateLedgerSink):
    committer = PatientCommitter


@found_by("crash_twice", "two drivers, one after the other")
class StandsOneCrash(Faulty):
    sink = PatientSink


class ForgetfulSerializer(SimpleVersionedSerializer[Staged]):
    """Leaves a field out, reads every version, and takes damage for nothing."""

    @property
    def version(self) -> int:
        return 1

    def serialize(self, value: Staged) -> bytes:
        return json.dumps({"name": value.name}).encode()

    def deserialize(self, version: int, data: bytes) -> Staged:
        with suppress(ValueError):
            return Staged(name=json.loads(data)["name"], count=0)
        return Staged(name="", count=0)


class ForgetfulSink(FaultySink):
    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return ForgetfulSerializer()


@found_by("stored_values_come_back", "was deserialized as")
@found_by("unknown_version_is_refused", "read version 2")
@found_by("damaged_bytes_are_refused", "read b")
class StoresTooLittle(Faulty):
    sink = ForgetfulSink


class TalkativeSink(FaultySink):
    password = "hunter2"

    def __repr__(self) -> str:
        return f"TalkativeSink(password={self.password!r})"


@found_by("no_secret_comes_out", r"a secret appears in the sink's repr.*\*\*\*\*\*\*")
class ShowsItsPassword(Faulty):
    sink = TalkativeSink
    secrets = ("hunter2",)


class ClosingOncePartition(StagingPartition):
    _open = True

    def close(self) -> None:
        if not self._open:
            raise ValueError("it is closed already")
        self._open = False


class ClosingOnceSink(FaultySink):
    partition = ClosingOncePartition


@found_by("close_after_errors_and_twice", r"the second call of close\(\) failed")
class FailsOnTheSecondClose(Faulty):
    sink = ClosingOnceSink


class LeakingPartition(StagingPartition):
    open_files: list[Any] = []

    def __init__(self, warehouse: Warehouse, name: str) -> None:
        super().__init__(warehouse, name)
        self.open_files.append(Path("/dev/null").open())  # noqa: SIM115


class LeakingSink(FaultySink):
    partition = LeakingPartition


@found_by("files_and_threads_stay_flat", "more open files", thorough=True)
class LeavesFilesOpen(Faulty):
    sink = LeakingSink


class EmptyingSink(FaultySink):
    """Empties its target as soon as it is made."""

    def __init__(self, warehouse: Any) -> None:
        super().__init__(warehouse)
        warehouse.published.clear()


@found_by("replay_of_a_completed_epoch", "Spark lost its commit entry")
class EmptiesTheTargetWhenItIsMade(Faulty):
    sink = EmptyingSink
