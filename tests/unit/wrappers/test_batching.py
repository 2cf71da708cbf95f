"""A sink gets its rows in batches of a size, and nothing else about it changes."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize

from outfall.capabilities import CommittingSinkPartition, SupportsArrow, SupportsCommitter, SupportsDeadLetters
from outfall.capability_checks import guarantee_of, kind_of, requirements_of, supports, target_of
from outfall.errors import CapabilityError, ConfigurationError, ForeignRecordsError, SerializationError
from outfall.file import FileSink
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery.history import history
from outfall.sinks import DynamicSink, FixedPartitionedSink, StatefulSinkPartition, StatelessSinkPartition
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.values import rows_to_batch
from outfall.wrappers import BatchingOptions, BatchingSink, DeadLetteringSink, FanOutSink
from outfall.wrappers.batch_buffer import ArrowChunk, Buffer, ValueChunk
from tests.unit.support.fanned import NamedStagingSink, NeedsSameRows
from tests.unit.support.refusing import RefusingSink
from tests.unit.support.warehouse import Warehouse, rows_of
from tests.unit.wrappers.test_dead_lettering import Letters, ids_of


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
        partition: Any = _ArrowPartition(self)
        return partition  # type: ignore[no-any-return]


class _ArrowPartition:
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


# Within an epoch.


@pytest.mark.parametrize("kind", [Seen, SeenInArrow])
def test_batches_are_cut_and_joined_to_the_size_and_the_last_is_what_is_left(kind: type[Seen]) -> None:
    target = kind()
    sink = BatchingSink(target, batch_size=3)
    run(sink, batch(1), batch(2, 3, 4, 5, 6, 7), batch(), batch(8))
    assert target.batches == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert target.closed == 1


@pytest.mark.parametrize("kind", [Seen, SeenInArrow])
def test_no_rows_make_no_batch(kind: type[Seen]) -> None:
    target = kind()
    run(BatchingSink(target), batch())
    assert target.batches == []


def test_values_of_an_engine_without_arrow_are_batched_too() -> None:
    target = Seen()
    driver = LocalDriver(BatchingSink(target, batch_size=2), MemoryRecoveryConfig())
    driver.run_epoch(0, [[1, 2, 3], [4]])
    assert target.batches == [[1, 2], [3], [4]]


def test_rows_wait_no_longer_than_the_interval_while_others_come() -> None:
    clock, target = FakeClock(), SeenInArrow()
    sink = BatchingSink(target, batch_size=100, flush_interval=timedelta(seconds=10), clock=clock)
    partition = sink.build("sink", 0, 1)
    partition.write_record_batch(batch(1))
    clock.sleep(9)
    partition.write_record_batch(batch(2))
    assert target.batches == []
    clock.sleep(1)
    partition.write_record_batch(batch(3))
    assert target.batches == [[1, 2, 3]]
    clock.sleep(9)
    partition.write_record_batch(batch(4))
    assert target.batches == [[1, 2, 3]], "the age is that of the oldest row that waits"


def test_bytes_limit_a_batch_and_a_larger_row_goes_alone() -> None:
    target = SeenInArrow()
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    sizes = [10, 10, 500, 10, 10, 10]
    values = [{"id": i, "text": "x" * size} for i, size in enumerate(sizes)]
    run(BatchingSink(target, max_bytes=100), pa.RecordBatch.from_pylist(values, schema))
    assert target.batches == [[0, 1], [2], [3, 4, 5]]


def test_bytes_of_values_are_those_that_arrow_would_need() -> None:
    target = Seen()
    LocalDriver(BatchingSink(target, max_bytes=32), MemoryRecoveryConfig()).run_epoch(0, [rows(*range(6))])
    assert target.batches == [[0, 1, 2, 3], [4, 5]]


def test_each_value_is_measured_once_however_many_batches_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def counted(values: Sequence[Any]) -> pa.RecordBatch:
        measured.append(len(values))
        return rows_to_batch(values)

    monkeypatch.setattr("outfall.wrappers.batch_buffer.rows_to_batch", counted)
    buffer = Buffer(BatchingOptions(max_bytes=ByteSize(80)))
    for start in (0, 500):
        buffer.add(ValueChunk(rows(*range(start, start + 500))), 0.0)
    out = list(handed_on(buffer))
    assert out == [list(range(first, first + 10)) for first in range(0, 1000, 10)]
    assert measured == [500, 500]


def test_values_that_arrow_does_not_know_are_measured_by_their_text() -> None:
    buffer = Buffer(BatchingOptions(max_bytes=ByteSize(40)))
    values = [{"id": 1 if number % 2 else "one"} for number in range(6)]
    assert [len(repr(value)) for value in values[:2]] == [13, 9]
    buffer.add(ValueChunk(values), 0.0)
    assert [len(batch) for batch in handed_on(buffer)] == [3, 3]


def test_the_columns_of_what_waits_are_compared_once() -> None:
    compared: list[int] = []

    class Counted(ArrowChunk):
        def joins(self, other: Any) -> bool:
            compared.append(1)
            return super().joins(other)

    buffer = Buffer(BatchingOptions())
    for number in range(300):
        buffer.add(Counted(batch(number)), 0.0)
        assert buffer.due(0.0) is None
    assert len(compared) == 300


def handed_on(buffer: Buffer) -> Iterator[list[int]]:
    while (chunk := buffer.due(0.0, everything=True)) is not None:
        yield [value["id"] for value in chunk.values]
        buffer.drop(chunk.rows)


def test_other_columns_begin_another_batch() -> None:
    target = SeenInArrow()
    other = pa.RecordBatch.from_pylist([{"id": 3, "more": True}])
    run(BatchingSink(target), batch(1, 2), other)
    assert target.batches == [[1, 2], [3]]


def test_a_batch_that_the_target_does_not_take_stays_and_nothing_before_it_is_sent_again() -> None:
    target = SeenInArrow()
    target.fails_at = 1
    partition = BatchingSink(target, batch_size=2).build("sink", 0, 1)
    with pytest.raises(ConnectionError):
        partition.write_record_batch(batch(1, 2, 3, 4, 5))
    partition.flush(True)
    assert target.batches == [[1, 2], [3, 4], [5]]


def test_close_after_an_error_writes_nothing() -> None:
    target = SeenInArrow()
    sink = BatchingSink(target)
    partition = sink.build("sink", 0, 1)
    partition.write_record_batch(batch(1))
    partition.close()
    assert (target.batches, target.closed) == ([], 1)


@given(
    adds=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4), st.sampled_from(["id", "ID"])), max_size=12),
    size=st.integers(1, 5),
    limit=st.none() | st.integers(8, 40),
)
def test_any_rows_come_out_once_in_order_in_batches_within_the_limits(
    adds: list[tuple[int, int, str]], size: int, limit: int | None
) -> None:
    options = BatchingOptions(
        batch_size=size, max_bytes=None if limit is None else ByteSize(limit), flush_interval=timedelta(seconds=6)
    )
    buffer, out, now, number = Buffer(options), [], 0.0, 0
    came: dict[int, float] = {}
    for count, pause, name in adds:
        now += pause
        ids = range(number, number + count)
        came |= dict.fromkeys(ids, now)
        number += count
        buffer.add(ArrowChunk(batch(*ids).rename_columns([name])), now)
        while (chunk := buffer.due(now)) is not None:
            out.append(chunk.batch)
            buffer.drop(chunk.rows)
        written = sum(map(len, out))
        assert buffer.rows == number - written < size
        assert buffer.oldest == (came[written] if written < number else None)
        assert buffer.oldest is None or now - buffer.oldest < 6
    while (chunk := buffer.due(now, everything=True)) is not None:
        out.append(chunk.batch)
        buffer.drop(chunk.rows)
    assert [i for b in out for i in b.column(0).to_pylist()] == list(range(number))
    assert all(b.num_rows <= size and (limit is None or b.nbytes <= limit or b.num_rows == 1) for b in out)


class KeepsRows(SeenInArrow):
    """Keeps whole rows, of Arrow batches alone."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> StatelessSinkPartition[Any]:
        partition: Any = _KeepingPartition(self)
        return partition  # type: ignore[no-any-return]


class _KeepingPartition(_ArrowPartition):
    def write_record_batch(self, batch: pa.RecordBatch) -> None:
        self._sink.batches.append(batch.to_pylist())


def test_columns_that_come_with_later_rows_are_not_lost() -> None:
    target = KeepsRows()
    LocalDriver(BatchingSink(target), MemoryRecoveryConfig()).run_epoch(0, [[{"id": 1}, {"id": 2, "more": "yes"}]])
    assert target.batches == [[{"id": 1, "more": None}, {"id": 2, "more": "yes"}]]


# The sink that it was.


def test_the_capabilities_of_the_target_show_through(tmp_path: Path) -> None:
    target = FileSink(tmp_path / "out")
    sink = BatchingSink(target, batch_size=2)
    assert supports(sink, SupportsCommitter)
    assert sink.worker is target
    assert (kind_of(sink), target_of(sink)) == (kind_of(target), target_of(target))
    assert (guarantee_of(sink), requirements_of(sink)) == (guarantee_of(target), requirements_of(target))


class Elsewhere(Seen):
    """A class that pickle finds."""


@pytest.mark.parametrize("again", [copy.copy, lambda sink: pickle.loads(pickle.dumps(sink))], ids=["copied", "sent"])
def test_a_copy_has_batches_too(again: Any) -> None:
    sink = again(BatchingSink(Elsewhere(), batch_size=2))
    run(sink, batch(1, 2, 3))
    assert sink.worker.batches == [[1, 2], [3]]
    assert isinstance(sink.worker, Elsewhere)


class Bound(NamedStagingSink):
    """Makes its bound copy by its own class, as users do."""

    def bind(self, context: Any) -> Any:
        made = Bound(self.warehouse, self.name)
        made._context = context
        return made


def test_a_sink_that_makes_its_bound_copy_by_its_class_has_batches_too() -> None:
    warehouse = Warehouse()
    sink = BatchingSink(Bound(warehouse), batch_size=2)
    partition = sink.bind(_context()).build("sink", 0, 1)
    partition.write_batch([1, 2, 3])
    assert list(warehouse.staged.values()) == [[1, 2]]


def _context() -> Any:
    from outfall.capabilities import WriterInitContext

    return WriterInitContext("sink", "0" * 16, 1, 0, None, 0)


def test_batching_can_be_put_on_and_off_between_restarts() -> None:
    warehouse, recovery = Warehouse(), MemoryRecoveryConfig()
    plain = NamedStagingSink(warehouse)
    for epoch, sink in enumerate((plain, BatchingSink(plain, batch_size=2), plain)):
        LocalDriver(sink, recovery).run_epoch(epoch, [[epoch, epoch, epoch]])
    assert rows_of(warehouse) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_partitions_have_the_features_of_the_targets_and_no_others() -> None:
    assert not supports(BatchingSink(Seen()).build("sink", 0, 1), SupportsArrow)
    assert supports(BatchingSink(SeenInArrow()).build("sink", 0, 1), SupportsArrow)
    assert not supports(BatchingSink(Seen()).build("sink", 0, 1), SupportsDeadLetters)


def test_a_batched_sink_hands_over_what_it_refuses() -> None:
    target, letters = RefusingSink(Warehouse()), Letters()
    sink = DeadLetteringSink(BatchingSink(target, batch_size=2), letters)
    LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [rows(1, -1, 2)])
    assert (rows_of(target.warehouse), ids_of(rows_of(letters.warehouse))) == (rows(1, 2), [-1])


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"flush_interval": -1}, {"max_bytes": "0"}])
def test_wrong_options_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        BatchingSink(Seen(), **wrong)


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(CapabilityError):
        BatchingSink(object())


# Across epochs.

ONE = EpochOptions(worker_count=1)


def epochs(sink: Any, recovery: Any, *contents: Sequence[Any], first: int = 0) -> LocalDriver:
    driver = LocalDriver(sink, recovery, options=ONE)
    for epoch, content in enumerate(contents, first):
        driver.run_epoch(epoch, [content])
    return driver


def test_rows_wait_for_those_of_later_epochs_and_a_drain_delivers_the_rest() -> None:
    target, recovery = Seen(), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=5, across_epochs=True)
    driver = epochs(sink, recovery, rows(1, 2), rows(3, 4), rows(5, 6))
    assert target.batches == [[1, 2, 3, 4, 5]]
    assert [item.counts["rows_held"] for item in history(recovery)] == [2, 4, 1]
    driver.drain()
    assert target.batches == [[1, 2, 3, 4, 5], [6]]
    assert LocalDriver(sink, recovery, options=ONE).drain() is None


def test_rows_wait_in_the_state_of_their_part() -> None:
    target, recovery = SeenInParts(), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=3, across_epochs=True)
    for epoch in range(3):
        LocalDriver(sink, recovery).run_epoch(epoch, [[("0", {"id": epoch}), ("4", {"id": 10 + epoch})]])
    assert target.batches == {"a": [[10, 11, 12]], "b": [[0, 1, 2]]}


def test_rows_that_wait_go_out_although_the_columns_change_meanwhile(tmp_path: Path) -> None:
    target, recovery = FileSink(tmp_path / "out", format="parquet"), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=3, across_epochs=True)
    more = [{"id": number, "more": "yes"} for number in (3, 4, 5)]
    epochs(sink, recovery, rows(1, 2), more, [])
    assert [item.counts["rows_held"] for item in history(recovery)] == [2, 3, 0]
    assert columns_and_ids(tmp_path / "out") == [(["id"], [1, 2]), (["id", "more"], [3, 4, 5])]


def test_a_drain_takes_an_epoch_for_each_set_of_columns(tmp_path: Path) -> None:
    target, recovery = FileSink(tmp_path / "out", format="parquet"), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=10, across_epochs=True)
    driver = LocalDriver(sink, recovery, options=ONE)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    task = EpochTask(sink, ticket, TaskIdentity(0, 0, 0))
    contents = [{"id": 1}], [{"id": 2, "more": 1}], [{"id": 3, "more": 1, "most": 1}], [{"id": 4}]
    coordinator.finish(ticket, [task.run((None, pa.RecordBatch.from_pylist(content)) for content in contents)])
    drained = driver.drain()
    assert drained is not None
    assert (drained.epoch, drained.counts["target.rows"], drained.counts["rows_held"]) == (3, 3, 0)
    assert [ids for _, ids in columns_and_ids(tmp_path / "out")] == [[1], [2], [3], [4]]


def columns_and_ids(folder: Path) -> list[tuple[list[str], list[int]]]:
    found = [pq.read_table(path) for path in folder.glob("*.parquet")]
    return sorted(((table.column_names, table.column("id").to_pylist()) for table in found), key=lambda item: item[1])


def test_the_age_of_the_oldest_row_counts_across_epochs_and_restarts() -> None:
    clock, target, recovery = FakeClock(), Seen(), MemoryRecoveryConfig()
    sink = BatchingSink(target, flush_interval=timedelta(seconds=10), across_epochs=True, clock=clock)
    epochs(sink, recovery, rows(1))
    clock.sleep(6)
    epochs(sink, recovery, rows(2), first=1)
    assert target.batches == []
    clock.sleep(4)
    epochs(sink, recovery, [], first=2)
    assert target.batches == [[1, 2]]


@pytest.mark.parametrize("point", ["task: after write", "task: after snapshot", "after PREPARED", "after COMPLETED"])
def test_rows_that_wait_are_delivered_once_wherever_the_driver_dies(point: str) -> None:
    target, recovery = NamedStagingSink(Warehouse()), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=3, across_epochs=True)
    epochs(sink, recovery, rows(1, 2))
    with crash_at(point):
        epochs(sink, recovery, rows(3, 4), first=1)
    epochs(sink, recovery, rows(3, 4), first=1)
    assert rows_of(target.warehouse) == rows(1, 2, 3)
    LocalDriver(sink, recovery, options=ONE).drain()
    assert rows_of(target.warehouse) == rows(1, 2, 3, 4)


def test_rows_that_wait_are_kept_when_the_target_raises_in_the_middle() -> None:
    target, recovery = SeenInArrow(), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=2, across_epochs=True)
    epochs(sink, recovery, rows(1))
    target.fails_at = 1
    with pytest.raises(ConnectionError):
        epochs(sink, recovery, rows(2, 3, 4, 5), first=1)
    assert target.batches == [[1, 2]]
    driver = epochs(sink, recovery, rows(2, 3, 4, 5), first=1)
    driver.drain()
    # The target has nothing to tell rows by, and the attempt that had sent the first batch is lost.
    assert target.batches[1:] == [[1, 2], [3, 4], [5]]


def test_states_of_several_workers_are_joined_when_fewer_go_on() -> None:
    target, recovery = Seen(), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=4, across_epochs=True)
    LocalDriver(sink, recovery, options=EpochOptions(worker_count=2)).run_epoch(0, [rows(1), rows(2)])
    epochs(sink, recovery, rows(3, 4), first=1)
    assert sorted(target.batches[0]) == [1, 2, 3, 4]


def test_a_hundred_small_epochs_make_one_large_batch() -> None:
    target, recovery = SeenInArrow(), MemoryRecoveryConfig()
    sink = BatchingSink(target, batch_size=1000, across_epochs=True)
    for epoch in range(100):
        driver = LocalDriver(sink, recovery, options=ONE)
        coordinator = driver.coordinator()
        ticket = coordinator.begin(epoch)
        task = EpochTask(sink, ticket, TaskIdentity(epoch, 0, 0))
        coordinator.finish(ticket, [task.run([(None, batch(*range(epoch * 10, epoch * 10 + 10)))])])
    assert target.batches == [list(range(1000))]


@pytest.mark.thorough
def test_memory_stays_flat_over_many_batches_of_small_epochs() -> None:
    recovery, content = MemoryRecoveryConfig(), batch(*range(10))
    sink = BatchingSink(DiscardingInArrow(), batch_size=100, across_epochs=True)
    used = []
    for first in range(0, 120, 20):
        most = 0
        for epoch in range(first, first + 20):
            coordinator = LocalDriver(sink, recovery, options=ONE).coordinator()
            ticket = coordinator.begin(epoch)
            task = EpochTask(sink, ticket, TaskIdentity(epoch, 0, 0))
            coordinator.finish(ticket, [task.run([(None, content)])])
            most = max(most, pa.total_allocated_bytes())
        del coordinator, ticket, task
        gc.collect()
        used.append((most, len(gc.get_objects())))
    (bytes_then, objects_then), (bytes_now, objects_now) = used[1], used[-1]
    assert bytes_now <= bytes_then
    assert objects_now <= objects_then + 200
    assert max(item.counts["rows_held"] for item in history(recovery)) == 90


def test_batches_across_epochs_are_not_put_on_for_recovery_data_without() -> None:
    target, recovery = NamedStagingSink(Warehouse()), MemoryRecoveryConfig()
    epochs(target, recovery, rows(1))
    with pytest.raises(ForeignRecordsError, match="batching/dynamic"):
        epochs(BatchingSink(target, across_epochs=True), recovery, rows(2), first=1)


def test_a_sink_that_needs_the_same_rows_again_gets_no_batches_across_epochs() -> None:
    with pytest.raises(CapabilityError, match="needs the same rows when an epoch is run again"):
        BatchingSink(FanOutSink(a=NeedsSameRows(Warehouse())), across_epochs=True)
    BatchingSink(NeedsSameRows(Warehouse()))


def test_what_waits_comes_back_from_its_bytes_and_damage_is_seen() -> None:
    from datetime import UTC, datetime

    from outfall.wrappers.cross_epoch_batching import BufferedRows, BufferedRowsSerializer

    value = BufferedRows((batch(1, 2), pa.RecordBatch.from_pylist([{"ä": "€"}])), datetime(2026, 11, 21, tzinfo=UTC))
    serializer = BufferedRowsSerializer()
    data = serializer.serialize(value)
    assert serializer.deserialize(1, data) == value
    for damaged in (b"", b"{}", data[:-20], data.replace(b'"rows": 3', b'"rows": 4')):
        with pytest.raises(SerializationError):
            serializer.deserialize(1, damaged)


# With each other.


def test_wrappers_go_around_each_other() -> None:
    first, second, recovery = NamedStagingSink(Warehouse(), "first"), Seen(), MemoryRecoveryConfig()
    sink = BatchingSink(
        FanOutSink(a=BatchingSink(first, batch_size=2, across_epochs=True), b=BatchingSink(second, batch_size=2)),
        batch_size=5,
    )
    driver = epochs(sink, recovery, rows(1, 2, 3))
    assert rows_of(first.warehouse) == rows(1, 2)
    assert second.batches == [[1, 2], [3]]
    driver.drain()
    assert rows_of(first.warehouse) == rows(1, 2, 3)


def test_a_committing_partition_commits_what_its_batches_hold() -> None:
    sink = BatchingSink(NamedStagingSink(Warehouse()), batch_size=10)
    partition = sink.bind(_context()).build("sink", 0, 1)
    assert supports(partition, CommittingSinkPartition)
