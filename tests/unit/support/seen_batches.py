"""Sinks that note the batches they are given, and epochs of rows for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.sinks import DynamicSink, FixedPartitionedSink, StatefulSinkPartition, StatelessSinkPartition
from outfall.testing import LocalDriver, MemoryRecoveryConfig


def rows(*ids: int) -> list[dict[str, int]]:
    return [{"id": number} for number in ids]


def batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows(*ids), schema=pa.schema([("id", pa.int64())]))


class Seen(DynamicSink[Any]):
    """Notes the batches it is given; fails on them when told to."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.fails_at: int | None = None
        self.closed = 0

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        return _SeenPartition(self)

    def take(self, ids: list[int]) -> None:
        if self.fails_at == len(self.batches):
            self.fails_at = None
            raise ConnectionError("not now")
        self.batches.append(ids)


class _SeenPartition(StatelessSinkPartition[Any]):
    def __init__(self, sink: Seen) -> None:
        self._sink = sink

    def write_batch(self, values: list[Any]) -> None:
        self._sink.take([value["id"] if isinstance(value, dict) else value for value in values])

    def close(self) -> None:
        self._sink.closed += 1


class SeenInArrow(Seen):
    """Takes Arrow batches, and no others."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        partition: Any = ArrowPartition(self)
        return partition  # type: ignore[no-any-return]


class ArrowPartition:
    def __init__(self, sink: Seen) -> None:
        self._sink = sink

    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        self._sink.take(batch.column("id").to_pylist())

    def close(self) -> None:
        self._sink.closed += 1


class DiscardingInArrow(SeenInArrow):
    """Keeps nothing."""

    def take(self, values: list[Any]) -> None:
        pass


class SeenInParts(FixedPartitionedSink[Any, int]):
    """Two parts, and what each was given."""

    def __init__(self) -> None:
        self.batches: dict[str, list[Any]] = {"a": [], "b": []}

    def list_parts(self) -> list[str]:
        return list(self.batches)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> StatefulSinkPartition[Any, int]:
        del self.batches[for_part][resume_state or 0 :]
        return _SeenPart(self.batches[for_part])


class _SeenPart(StatefulSinkPartition[Any, int]):
    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def write_batch(self, values: list[Any]) -> None:
        self._batches.append([value["id"] for value in values])

    def snapshot(self) -> int:
        return len(self._batches)


def run(sink: Any, *batches: Any, recovery: Any = None, epoch: int = 0) -> None:
    """One task, with Arrow batches as on Spark."""
    driver = LocalDriver(sink, recovery or MemoryRecoveryConfig())
    coordinator = driver.coordinator()
    ticket = coordinator.begin(epoch)
    coordinator.finish(ticket, [EpochTask(sink, ticket, TaskIdentity(epoch, 0, 0)).run((None, b) for b in batches)])


ONE = EpochOptions(worker_count=1)


def epochs(sink: Any, recovery: Any, *contents: Sequence[Any], first: int = 0) -> LocalDriver:
    driver = LocalDriver(sink, recovery, options=ONE)
    for epoch, content in enumerate(contents, first):
        driver.run_epoch(epoch, [content])
    return driver
