"""A sink gets its rows in batches of a size, and nothing else about it changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ByteSize

from outfall.capabilities import CommittingSinkPartition, SupportsArrow, SupportsCommitter, SupportsDeadLetters
from outfall.capability_checks import capabilities_of, resolve
from outfall.errors import CapabilityError, ConfigurationError
from outfall.file import FileSink
from outfall.sinks import StatelessSinkPartition
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig
from outfall.values import rows_to_batch
from outfall.wrappers import BatchingOptions, BatchingSink, DeadLetteringSink, FanOutSink
from outfall.wrappers.batch_buffer import ArrowChunk, Buffer, ValueChunk
from tests.unit.support.fanned import NamedStagingSink
from tests.unit.support.refusing import RefusingSink
from tests.unit.support.seen_batches import (
    ArrowPartition,
    Seen,
    SeenInArrow,
    batch,
    epochs,
    rows,
    run,
)
from tests.unit.support.warehouse import Warehouse, rows_of
from tests.unit.wrappers.test_dead_lettering import Letters, ids_of


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
    run(BatchingSink(target, batch_bytes=100), pa.RecordBatch.from_pylist(values, schema))
    assert target.batches == [[0, 1], [2], [3, 4, 5]]


def test_bytes_of_values_are_those_that_arrow_would_need() -> None:
    target = Seen()
    LocalDriver(BatchingSink(target, batch_bytes=32), MemoryRecoveryConfig()).run_epoch(0, [rows(*range(6))])
    assert target.batches == [[0, 1, 2, 3], [4, 5]]


def test_each_value_is_measured_once_however_many_batches_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def counted(values: Sequence[Any]) -> pa.RecordBatch:
        measured.append(len(values))
        return rows_to_batch(values)

    monkeypatch.setattr("outfall.wrappers.batch_buffer.rows_to_batch", counted)
    buffer = Buffer(BatchingOptions(batch_bytes=ByteSize(80)))
    for start in (0, 500):
        buffer.add(ValueChunk(rows(*range(start, start + 500))), 0.0)
    out = list(handed_on(buffer))
    assert out == [list(range(first, first + 10)) for first in range(0, 1000, 10)]
    assert measured == [500, 500]


def test_a_batch_is_due_at_exactly_its_bytes() -> None:
    for ids, due in ((9, False), (10, True)):
        buffer = Buffer(BatchingOptions(batch_bytes=ByteSize(80)))
        buffer.add(ValueChunk(rows(*range(ids))), 0.0)  # of 8 bytes each
        assert (buffer.due(0.0) is not None) == due


def test_values_that_arrow_does_not_know_are_measured_by_their_text() -> None:
    buffer = Buffer(BatchingOptions(batch_bytes=ByteSize(40)))
    values = [{"id": 1 if number % 2 else "one"} for number in range(6)]
    assert [len(repr(value)) for value in values[:2]] == [13, 9]
    buffer.add(ValueChunk(values), 0.0)
    assert [len(batch) for batch in handed_on(buffer)] == [3, 3]


def test_what_is_left_of_a_batch_counts_alone_towards_the_next() -> None:
    buffer = Buffer(BatchingOptions(batch_size=10, batch_bytes=ByteSize(130)))
    buffer.add(ArrowChunk(batch(*range(15))), 0.0)
    first = buffer.due(0.0)
    assert first is not None
    assert first.rows == 10
    buffer.drop(10)
    buffer.add(ArrowChunk(batch(*range(15, 19))), 0.0)
    assert buffer.due(0.0) is None


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
        batch_size=size, batch_bytes=None if limit is None else ByteSize(limit), flush_interval=timedelta(seconds=6)
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


class _KeepingPartition(ArrowPartition):
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
    assert SupportsCommitter in capabilities_of(sink)
    assert sink.delegate is target
    own, inner = resolve(sink), resolve(target)
    assert (own.kind(), own.target()) == (inner.kind(), inner.target())
    assert (own.guarantee(), own.requirements()) == (inner.guarantee(), inner.requirements())


class Elsewhere(Seen):
    """A class that pickle finds."""


@pytest.mark.parametrize("again", [copy.copy, lambda sink: pickle.loads(pickle.dumps(sink))], ids=["copied", "sent"])
def test_a_copy_has_batches_too(again: Any) -> None:
    sink = again(BatchingSink(Elsewhere(), batch_size=2))
    run(sink, batch(1, 2, 3))
    assert sink.delegate.batches == [[1, 2], [3]]
    assert isinstance(sink.delegate, Elsewhere)


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
    assert SupportsArrow not in capabilities_of(BatchingSink(Seen()).build("sink", 0, 1))
    assert SupportsArrow in capabilities_of(BatchingSink(SeenInArrow()).build("sink", 0, 1))
    assert SupportsDeadLetters not in capabilities_of(BatchingSink(Seen()).build("sink", 0, 1))


def test_a_batched_sink_hands_over_what_it_refuses() -> None:
    target, letters = RefusingSink(Warehouse()), Letters()
    sink = DeadLetteringSink(BatchingSink(target, batch_size=2), letters)
    LocalDriver(sink, MemoryRecoveryConfig()).run_epoch(0, [rows(1, -1, 2)])
    assert (rows_of(target.warehouse), ids_of(rows_of(letters.warehouse))) == (rows(1, 2), [-1])


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"flush_interval": -1}, {"batch_bytes": "0"}])
def test_wrong_options_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        BatchingSink(Seen(), **wrong)


def test_what_is_no_sink_is_refused() -> None:
    with pytest.raises(CapabilityError):
        BatchingSink(object())


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
    assert CommittingSinkPartition in capabilities_of(partition)
