"""Committing sinks over a target in memory that outlives drivers, as a database outlives its clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel

from outfall.capabilities import (
    CleanUpContext,
    CommitRequest,
    CommittableMessage,
    Committer,
    CommitterInitContext,
    DeclaresGuarantee,
    Guarantee,
    SupportsCommitter,
    SupportsPostCommitTopology,
    SupportsPreCommitTopology,
    SupportsTarget,
    SupportsWriterContext,
    SupportsWriterState,
    TargetContext,
    WithCompatibleState,
    WriterInitContext,
)
from outfall.errors import TargetLostError
from outfall.serde import JsonSerializer, ModelSerializer, SimpleVersionedSerializer
from outfall.sinks import DynamicSink, StatelessSinkPartition
from outfall.trace_points import reached


class Staged(BaseModel):
    """A committable: the name of a staging area and how many rows are in it."""

    name: str
    count: int

    @property
    def rows(self) -> int:
        return self.count


class Bundle(BaseModel):
    """A committable made of several write results."""

    members: list[Staged]


@dataclass
class Warehouse:
    """The target. Rows are readable once they are in `published`."""

    staged: dict[str, list[Any]] = field(default_factory=dict)
    published: dict[str, list[Any]] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    followed: set[str] = field(default_factory=set)
    ledger: bool = False
    """Whether it keeps conclusive evidence of what was published."""
    offers: list[list[str]] = field(default_factory=list)
    """The names offered in each call of a committer."""
    after_commit: Callable[[], None] = lambda: None
    """What happens to the reply of a commit."""
    opened: int = 0
    closed: int = 0

    def lose(self, name: str) -> None:
        """Drop a staging area, as a lifecycle rule does."""
        del self.staged[name]

    def publish(self, name: str) -> None:
        """Make a staging area readable, at once and for good."""
        self.published[name] = self.staged.pop(name)

    @contextmanager
    def replies_lost(self) -> Iterator[None]:
        """Every commit does its work and then raises."""
        former, self.after_commit = self.after_commit, _lose_reply
        try:
            yield
        finally:
            self.after_commit = former


def _lose_reply() -> None:
    raise ConnectionError("the reply was lost")


def rows_of(warehouse: Warehouse) -> list[Any]:
    """What a reader finds, whoever published it."""
    return [row for rows in warehouse.published.values() for row in rows]


class StagingPartition(StatelessSinkPartition[Any]):
    """Writes into a staging area of its own attempt."""

    def __init__(self, warehouse: Warehouse, name: str) -> None:
        self._warehouse = warehouse
        self._name = name
        self._rows: list[Any] = []
        warehouse.opened += 1

    def write_batch(self, values: list[Any]) -> None:
        self._rows.extend(values)
        self._warehouse.staged[self._name] = list(self._rows)

    def prepare_commit(self) -> Sequence[Staged]:
        if not self._rows:
            return []
        reached("fake: staged")
        return [Staged(name=self._name, count=len(self._rows))]

    def close(self) -> None:
        self._warehouse.closed += 1


class StagingCommitter(Committer[Staged]):
    """Publishes staging areas one by one."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def commit(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        self._warehouse.offers.append([request.committable.name for request in requests])
        for request in requests:
            self._commit_one(request)
            reached("fake: published one")
        self._warehouse.after_commit()

    def find_lost(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        for request in requests:
            if request.committable.name not in self._warehouse.staged:
                request.signal_lost(f"{request.committable.name} is gone")

    def revoke(self, requests: Sequence[CommitRequest[Staged]]) -> None:
        for request in requests:
            self._warehouse.revoked.add(request.committable.name)
            self._warehouse.staged.pop(request.committable.name, None)

    def nothing_published(self, requests: Sequence[CommitRequest[Staged]]) -> bool:
        names = {request.committable.name for request in requests}
        return self._warehouse.ledger and not names & self._warehouse.published.keys()

    def _commit_one(self, request: CommitRequest[Staged]) -> None:
        name = request.committable.name
        if name in self._warehouse.published:
            request.signal_already_committed()
        elif name not in self._warehouse.staged:
            request.signal_lost(f"{name} is gone")
        else:
            self._warehouse.publish(name)


class StagingSink(
    DynamicSink[Any],
    SupportsCommitter[Staged],
    SupportsWriterContext,
    SupportsTarget[Any],
    DeclaresGuarantee,
):
    """Stages by attempt and publishes at commit."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self._context: WriterInitContext | None = None

    def bind(self, context: WriterInitContext) -> Self:
        bound = copy.copy(self)
        bound._context = context
        return bound

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        return StagingPartition(self.warehouse, staging_name(self._context))

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return StagingCommitter(self.warehouse)

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return ModelSerializer(Staged)

    def target(self) -> str:
        return "warehouse"

    def check_target(self, context: TargetContext[Any]) -> Mapping[str, Any]:
        if context.completed is not None and rows_of(self.warehouse) == [] and self.warehouse.ledger:
            raise TargetLostError("the warehouse is empty", step=context.step_id)
        return {}

    def clean_up(self, context: CleanUpContext) -> int:
        dead = [name for name in self.warehouse.staged if _is_dead(name, context)]
        for name in dead:
            del self.warehouse.staged[name]
        return len(dead)

    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE


def staging_name(context: WriterInitContext) -> str:
    """Name a staging area by everything that tells attempts apart."""
    who = f"w{context.worker_index}-a{context.attempt}-t{context.token}"
    return f"{context.incarnation}-g{context.generation}-e{context.epoch}-{who}"


def _is_dead(name: str, context: CleanUpContext) -> bool:
    incarnation, generation, *_ = name.split("-")
    return incarnation == context.incarnation and int(generation[1:]) < context.generation


class BundlingCommitter(Committer[Bundle]):
    """Publishes bundles, each at once."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def commit(self, requests: Sequence[CommitRequest[Bundle]]) -> None:
        for request in requests:
            names = [member.name for member in request.committable.members]
            if set(names) <= self._warehouse.published.keys():
                request.signal_already_committed()
            else:
                self._warehouse.published |= {name: self._warehouse.staged.pop(name) for name in names}
            reached("fake: published one")


class BundlingSink(StagingSink, SupportsPreCommitTopology[Staged, Bundle], SupportsPostCommitTopology[Bundle]):
    """Turns the write results of all tasks into one committable, and notes in the target what was committed."""

    def create_committer(self, context: CommitterInitContext) -> Committer[Any]:
        return BundlingCommitter(self.warehouse)

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return ModelSerializer(Bundle)

    def write_result_serializer(self) -> SimpleVersionedSerializer[Staged]:
        return ModelSerializer(Staged)

    def add_pre_commit_topology(
        self, results: Sequence[CommittableMessage[Staged]]
    ) -> Sequence[CommittableMessage[Bundle]]:
        if not results:
            return []
        return [CommittableMessage(Bundle(members=[item.value for item in results]), results[0].epoch, 0)]

    def add_post_commit_topology(self, committed: Sequence[CommittableMessage[Bundle]]) -> None:
        for message in committed:
            self.warehouse.followed |= {member.name for member in message.value.members}
            reached("fake: followed one")


class HoldingPartition(StagingPartition):
    """Stages what it was restored with; keeps this epoch's rows for the next one."""

    def __init__(self, warehouse: Warehouse, name: str, recovered: Iterable[list[Any]]) -> None:
        super().__init__(warehouse, name)
        emitted = [row for state in recovered for row in state]
        if emitted:
            super().write_batch(emitted)
        self._held: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        self._held.extend(values)

    def snapshot_state(self, epoch: int) -> Sequence[list[Any]]:
        return [[row] for row in self._held]


class HoldingSink(StagingSink, SupportsWriterState[Any, list[Any]], WithCompatibleState):
    """Delivers each row one epoch late, out of recorded states of one row each."""

    def __init__(self, warehouse: Warehouse, *, adopts: Sequence[str] = ()) -> None:
        super().__init__(warehouse)
        self._adopts = adopts

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        assert self._context is not None
        return HoldingPartition(self.warehouse, staging_name(self._context), [])

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[list[Any]]) -> StatelessSinkPartition[Any]:
        return HoldingPartition(self.warehouse, staging_name(context), recovered)

    def writer_state_serializer(self) -> SimpleVersionedSerializer[list[Any]]:
        return JsonSerializer()

    def compatible_writer_state_names(self) -> Sequence[str]:
        return self._adopts


class PlainPartition(StatelessSinkPartition[Any]):
    """Writes at once."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def write_batch(self, values: list[Any]) -> None:
        self._rows.extend(values)


class PlainSink(DynamicSink[Any]):
    """At least once: what a lost attempt wrote stays."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return PlainPartition(self.rows)
