"""Batches across epochs: rows wait in the writers' state for those of later epochs, and come out once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outfall.delta import DeltaSink
from outfall.dynamodb import DynamoDBSink
from outfall.errors import CapabilityError, ConfigurationError, ForeignRecordsError, SerializationError
from outfall.file import FileSink
from outfall.http import HttpSink
from outfall.iceberg import IcebergSink
from outfall.kafka import KafkaSink
from outfall.mysql import MySQLSink
from outfall.opensearch import OpenSearchSink
from outfall.postgres import PostgresSink
from outfall.protocol.step import EpochOptions
from outfall.protocol.task import EpochTask, TaskIdentity
from outfall.recovery.history import history
from outfall.redis import RedisSink
from outfall.testing import FakeClock, LocalDriver, MemoryRecoveryConfig, crash_at
from outfall.wrappers import BatchingOptions, BatchingSink, FanOutSink
from outfall.wrappers.cross_epoch_batching import BatchState, BatchStateSerializer, BufferPartition
from tests.unit.support.fanned import NamedStagingSink, NeedsSameRows
from tests.unit.support.seen_batches import (
    ONE,
    DiscardingInArrow,
    Seen,
    SeenInArrow,
    SeenInParts,
    batch,
    epochs,
    rows,
)
from tests.unit.support.warehouse import Warehouse, rows_of


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


def test_of_several_workers_rows_the_oldest_go_first_and_their_age_counts() -> None:
    earlier, later = (BatchState((batch(day),), datetime(2026, 11, day, tzinfo=UTC)) for day in (20, 21))
    (state,) = BufferPartition(BatchingOptions(), FakeClock(), [later, earlier]).snapshot_state(0)
    assert state.oldest == earlier.oldest
    assert [row["id"] for joined in state.batches for row in joined.to_pylist()] == [20, 21]


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


_KEYED: dict[str, Any] = {"write_mode": "upsert", "key_columns": ["id"]}


REPLACING: dict[str, Callable[[], Any]] = {
    "postgres": lambda: PostgresSink("postgresql://db.example/w", "t", **_KEYED),
    "mysql": lambda: MySQLSink("mysql://app@db.example/w", "t", write_mode="delete", key_columns=["id"]),
    "delta": lambda: DeltaSink("/data/table", **_KEYED),
    "iceberg": lambda: IcebergSink("db.t", **_KEYED),
    "redis": lambda: RedisSink("redis://kv.example/0", "{id}", layout="json"),
    "dynamodb": lambda: DynamoDBSink("items"),
    "opensearch": lambda: OpenSearchSink("https://search.example", index="i", key_columns=["id"]),
    "http": lambda: HttpSink("https://example.org/{id}", method="PUT", body="record"),
    "kafka": lambda: KafkaSink("broker:9092", "t"),
    "within": lambda: FanOutSink(a=NamedStagingSink(Warehouse()), b=DynamoDBSink("items")),
}


@pytest.mark.parametrize("sink", REPLACING)
def test_a_row_that_waits_must_not_replace_a_newer_one(sink: str) -> None:
    made = REPLACING[sink]()
    with pytest.raises(CapabilityError, match="replace earlier ones"):
        BatchingSink(made, across_epochs=True)
    BatchingSink(made)


def test_records_without_keys_may_wait() -> None:
    BatchingSink(KafkaSink("broker:9092", "t", value_format="json"), across_epochs=True)


def test_a_request_that_waits_must_not_replace_a_newer_one() -> None:
    with pytest.raises(ConfigurationError, match="across_epochs is not available with method PUT"):
        HttpSink("https://example.org/{id}", method="PUT", body="record", across_epochs=True)


def test_what_waits_comes_back_from_its_bytes_and_damage_is_seen() -> None:
    value = BatchState((batch(1, 2), pa.RecordBatch.from_pylist([{"ä": "€"}])), datetime(2026, 11, 21, tzinfo=UTC))
    serializer = BatchStateSerializer()
    data = serializer.serialize(value)
    assert serializer.deserialize(1, data) == value
    for damaged in (b"", b"{}", data[:-20], data.replace(b'"rows": 3', b'"rows": 4')):
        with pytest.raises(SerializationError):
            serializer.deserialize(1, damaged)
