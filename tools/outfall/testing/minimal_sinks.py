"""Minimal sinks, for tests and measurements of what surrounds a sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outfall.capabilities import (
    BufferedRows,
    CommitRequest,
    Committer,
    CommitterInitContext,
    SupportsBufferedRows,
    SupportsCommitter,
    SupportsWriterContext,
    SupportsWriterState,
    WriterInitContext,
)
from outfall.serde import JsonSerializer, SimpleVersionedSerializer
from outfall.sinks import DynamicSink, FixedPartitionedSink, StatefulSinkPartition, StatelessSinkPartition


class CountingSink(FixedPartitionedSink[Any, list[Any]], SupportsWriterContext):
    """Counts rows in the state of each part, and records restored states."""

    def __init__(self, parts: int, padding: int = 0) -> None:
        """Create a sink with `parts` parts and states with `padding` extra bytes."""
        self.names = [f"part-{number}" for number in range(parts)]
        self.padding = "x" * padding
        self.opened: dict[tuple[str, int], int] = {}
        """Restored counts by part and epoch."""
        self.rows: dict[str, int] = {}
        """The rows of each part in the last epoch."""

    def list_parts(self) -> list[str]:
        return self.names

    def part_fn(self, item_key: str) -> int:
        return int(item_key)

    def build_part(self, step_id: str, for_part: str, resume_state: list[Any] | None) -> _CountingPart:
        count = 0 if resume_state is None else resume_state[0]
        self.opened[for_part, self.writer_context().epoch] = count
        return _CountingPart(self, for_part, count)


class _CountingPart(StatefulSinkPartition[Any, list[Any]]):
    def __init__(self, sink: CountingSink, part: str, count: int) -> None:
        self._sink, self._part, self._count = sink, part, count

    def write_batch(self, values: list[Any]) -> None:
        self._count += len(values)
        self._sink.rows[self._part] = len(values)

    def snapshot(self) -> list[Any]:
        return [self._count, self._sink.padding]


class HoldingSink(
    DynamicSink[Any],
    SupportsWriterState[Any, list[Any]],
    SupportsBufferedRows[list[Any]],
    SupportsWriterContext,
):
    """Each writer buffers the rows of an epoch and delivers them in the next epoch."""

    def __init__(self, padding: int = 0) -> None:
        """Create a sink with states with `padding` extra bytes."""
        self.padding = "x" * padding
        self.delivered: list[Any] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return _Holding(self, [])

    def restore_writer(self, context: WriterInitContext, recovered: Sequence[list[Any]]) -> StatelessSinkPartition[Any]:
        return _Holding(self, [row for state in recovered for row in state[1:]])

    def writer_state_serializer(self) -> SimpleVersionedSerializer[Any]:
        return JsonSerializer()

    def buffered_rows(self, state: list[Any]) -> BufferedRows:
        return BufferedRows(len(state) - 1)


class _Holding(StatelessSinkPartition[Any]):
    def __init__(self, sink: HoldingSink, due: list[Any]) -> None:
        self._sink, self._due = sink, due
        self._held: list[Any] = []

    def write_batch(self, values: list[Any]) -> None:
        self._held += values

    def flush(self, end_of_input: bool) -> None:
        self._sink.delivered += self._due
        if end_of_input:
            self._sink.delivered += self._held
            self._held = []

    def snapshot_state(self, epoch: int) -> Sequence[list[Any]]:
        return [[self._sink.padding, *self._held]] if self._held else []


@dataclass
class MemoryTarget:
    """A target in memory."""

    staged: dict[str, list[Any]] = field(default_factory=dict)
    published: dict[str, list[Any]] = field(default_factory=dict)


class PublishingSink(DynamicSink[Any], SupportsCommitter[str], SupportsWriterContext):
    """Stages rows by attempt and publishes them at commit."""

    def __init__(self, ledger: MemoryTarget) -> None:
        """Write to `ledger`."""
        self.ledger = ledger

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        context = self.writer_context()
        return _Staging(self.ledger, f"g{context.generation}-w{context.worker_index}-a{context.attempt}")

    def create_committer(self, context: CommitterInitContext) -> Committer[str]:
        return _Publisher(self.ledger)

    def committable_serializer(self) -> SimpleVersionedSerializer[Any]:
        return JsonSerializer()


class _Staging(StatelessSinkPartition[Any]):
    def __init__(self, ledger: MemoryTarget, name: str) -> None:
        self._rows = ledger.staged.setdefault(name, [])
        self._name = name

    def write_batch(self, values: list[Any]) -> None:
        self._rows.extend(values)

    def prepare_commit(self) -> Sequence[str]:
        return [self._name] if self._rows else []


class _Publisher(Committer[str]):
    def __init__(self, ledger: MemoryTarget) -> None:
        self._ledger = ledger

    def commit(self, requests: Sequence[CommitRequest[str]]) -> None:
        for request in requests:
            self._ledger.published[request.committable] = self._ledger.staged[request.committable]
