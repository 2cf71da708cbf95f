"""The tasks of a fan-out: rows to each sink in turn, whatever one does to them, how slow it is, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from outfall.async_sink import RequestOutcome
from outfall.errors import (
    OutfallError,
    TransientError,
)
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.sinks import DynamicSink
from outfall.testing import LocalDriver, MemoryRecoveryConfig
from outfall.wrappers import FanOutSink
from tests.unit.support.async_destination import Destination, TextSink
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.warehouse import Warehouse
from tests.unit.support.watched import Sorting, Watched

POOL = pa.proxy_memory_pool(pa.default_memory_pool())
"""Counts what is allocated through it, and lives longer than that."""


@pytest.mark.parametrize("arrow", [True, False])
def test_a_sink_that_changes_what_it_was_given_changes_nothing_for_the_others_or_a_retry(arrow: bool) -> None:
    seen: list[Any] = []
    sink = FanOutSink(a=Watched("a", seen, spoils=True), b=Watched("b", seen))
    rows = [{"id": 1, "nested": {"id": 2}}]
    driver = LocalDriver(sink, MemoryRecoveryConfig())
    ticket = driver.coordinator().begin(0)
    if arrow:
        EpochTask(sink, ticket, TaskIdentity(0, 0, 0)).run([(None, pa.RecordBatch.from_pylist(rows))])
    else:
        driver.run_task(ticket, 0, 0, [(None, rows)])
    assert next(values for name, values in seen if name == "b") == [{"id": 1, "nested": {"id": 2}}]
    assert rows == [{"id": 1, "nested": {"id": 2}}]


def test_sinks_are_written_in_turn_batch_by_batch() -> None:
    seen: list[Any] = []
    driver = LocalDriver(FanOutSink(a=Watched("a", seen), b=Watched("b", seen)), MemoryRecoveryConfig())
    ticket = driver.coordinator().begin(0)
    driver.run_task(ticket, 0, 0, [(None, [1]), (None, [2])])
    assert seen[:4] == [("a", [1]), ("b", [1]), ("a", [2]), ("b", [2])]


def test_rows_for_a_slow_sink_are_held_in_bounded_memory_and_its_sibling_waits() -> None:
    rows, batches, waiting = 200, 100, 300
    size = pa.record_batch({"text": ["x" * 500] * rows}).nbytes
    slow = Destination(lambda entries, number: (60.0, RequestOutcome()))
    ahead, allocated = [], []

    class Fast(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
            return FastPartition()

    class FastPartition:
        def close(self) -> None:
            """Hold nothing."""

        def write_record_batch(self, batch: pa.RecordBatch) -> None:
            allocated.append(POOL.bytes_allocated())
            ahead.append(len(allocated) * rows - slow.accepted.total())

    def brought() -> Iterator[tuple[None, pa.RecordBatch]]:
        for number in range(batches):
            texts = [f"{number}-{row}-" + "x" * 500 for row in range(rows)]
            yield None, pa.record_batch({"text": pa.array(texts, memory_pool=POOL)})

    sink = FanOutSink(fast=Fast(), slow=TextSink(slow, max_buffered_requests=waiting, max_batch_size_in_bytes=10_000))
    ticket = LocalDriver(sink, MemoryRecoveryConfig()).coordinator().begin(0)
    EpochTask(sink, ticket, TaskIdentity(0, 0, 0)).run(brought())
    assert slow.accepted.total() == rows * batches
    assert slow.events.seconds == pytest.approx(60 * rows * batches / 10)
    assert len(allocated) == batches
    # What waits at the slow sink, and the batch that is under way.
    assert max(ahead) <= waiting + 2 * rows
    assert size <= max(allocated) <= 3 * size


class Ending(NamedStagingSink):
    """Fails at the end of a task."""

    fails_in = "flush"

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Any:
        partition: Any = super().build(step_id, worker_index, worker_count)
        setattr(partition, self.fails_in, self._fail)
        return partition

    def _fail(self, *args: Any, **options: Any) -> None:
        raise TransientError(f"{self.name} fails")


@pytest.mark.parametrize("call", ["flush", "prepare_commit"])
def test_every_sink_is_reached_at_the_end_of_a_task_although_one_fails(call: str) -> None:
    sinks = [Ending(Warehouse(), name) for name in ("first", "second")]
    for sink in sinks:
        sink.fails_in = call
    with pytest.raises(TransientError, match=r"epoch 0.*several sinks .*0: first fails; 1: second fails"):
        LocalDriver(FanOutSink(sinks), MemoryRecoveryConfig()).run_epoch(0, [[1]])


def test_close_reaches_every_sink_although_one_cannot_be_closed() -> None:
    seen: list[Any] = []
    sinks = {name: Watched(name, seen, fails=name != "b") for name in ("a", "b", "c")}
    with pytest.raises(OutfallError, match=r"a: \w+: a cannot be closed; c: \w+: c cannot be closed"):
        LocalDriver(FanOutSink(**sinks), MemoryRecoveryConfig()).run_epoch(0, [[1]])
    assert [name for name, what in seen if what == "closed"] == ["a", "b", "c"]


def test_sinks_that_were_opened_are_closed_when_the_next_one_cannot_be() -> None:
    seen: list[Any] = []
    with pytest.raises(NotImplementedError):
        LocalDriver(FanOutSink(a=Watched("a", seen), b=Sorting()), MemoryRecoveryConfig()).run_epoch(0, [[1]])
    assert seen == [("a", "closed")]
