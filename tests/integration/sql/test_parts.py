"""`parts=N` against a real server and without Spark, on each database."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.capabilities import WriterInitContext
from outfall.errors import (
    CapabilityError,
    ConfigurationError,
    PartsChangedError,
    ReplayDiffersError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TerminalError,
)
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from outfall.wrappers import FanOutSink
from tests.integration.support.sql import ON_EACH, Make, Table, first, mostly_thorough
from tests.integration.support.sql_parts import keyed, numbered, one_task, parts_sink, run

STEPS = [
    "before BEGIN", "after BEGIN", "sql: opening", "after open target", "sql: copying", "task: after write",
    "sql: publishing", "sql: before COMMIT#2", "sql: after COMMIT", "sql: after COMMIT#2",
    "sql: before COMMIT#3", "sql: after COMMIT#3",
    "task: after snapshot", "after collect", "sql: sealing", "after seal", "before PREPARED", "after PREPARED",
    "before COMPLETED", "after COMPLETED",
]  # fmt: skip


BY_DEFAULT = ["after BEGIN", "sql: publishing", "sql: after COMMIT", "after collect", "after PREPARED",
              "before COMPLETED"]  # fmt: skip


@pytest.mark.parametrize("step", first(2, mostly_thorough(STEPS, BY_DEFAULT)))
def test_a_driver_that_dies_anywhere_leaves_each_row_once(target: Table, recovery: str, step: str) -> None:
    sink = parts_sink(target)
    run(sink, recovery, 0, 100)
    with crash_at(step) as seen:
        run(sink, recovery, 1, *range(20))
    assert step.partition("#")[0] in seen
    run(sink, recovery, 1, *reversed(range(20)))
    run(sink, recovery, 2, 200)
    assert target.ids() == [*range(20), 100, 200]


def test_rows_are_numbered_by_part_in_columns_that_are_made(make: Make, recovery: str) -> None:
    target = make("SELECT 1")
    sink = parts_sink(target, 2, offset_keys="columns", create_table="if_missing")
    sink.check_schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for epoch in range(3):
        run(sink, recovery, epoch, *range(10 * epoch, 10 * epoch + 10))
    found = target.read(f"SELECT partition_id, {target.quote}offset{target.quote}, id FROM t ORDER BY 1, 2")
    for part in (0, 1):
        assert [offset for number, offset, _ in found if number == part] == list(
            range(sum(f[0] == part for f in found))
        )
    assert sorted(row[2] for row in found) == list(range(30))
    assert [row[0] for row in target.read(f"SELECT next_offset FROM {target.own('parts')} ORDER BY part")] == [
        sum(row[0] == part for row in found) for part in (0, 1)
    ]


def test_a_table_that_was_dropped_in_the_middle_of_an_epoch_is_not_made_anew(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    with crash_at("after collect"):
        run(sink, recovery, 0, *range(20))
    target.run("DROP TABLE t")
    with pytest.raises(TargetLostError, match="the table t is missing"):
        run(parts_sink(target, create_table="if_missing"), recovery, 0, *range(20))


@ON_EACH
def test_a_replay_in_another_order_and_other_batches_writes_nothing(target: Table, recovery: str) -> None:
    driver = LocalDriver(parts_sink(target, 1), recovery)
    ticket = driver.coordinator().begin(0)
    driver.run_task(ticket, 0, 0, [("0", numbered(1, 2, 3))])
    again = LocalDriver(parts_sink(target, 1), recovery)
    coordinator = again.coordinator()
    ticket = coordinator.begin(0)
    answer = again.run_task(ticket, 0, 0, [("0", numbered(3)), ("0", numbered(2, 1))])
    result = coordinator.finish(ticket, [answer])
    assert target.ids() == [1, 2, 3]
    assert (result.counts["rows"], result.counts["rows_present"], result.counts.get("bytes", 0)) == (3, 3, 0)


@pytest.mark.parametrize("ids", first(1, [[1, 2], [1, 2, 4], [1, 2, 3, 3]]))
def test_a_replay_with_other_rows_is_refused(target: Table, recovery: str, ids: list[int]) -> None:
    sink = parts_sink(target, 1)
    with crash_at("after collect"):
        run(sink, recovery, 0, 1, 2, 3)
    with pytest.raises(ReplayDiffersError, match=r"part '0'.*it has 3 rows"):
        run(sink, recovery, 0, *ids)
    assert target.ids() == [1, 2, 3]
    run(sink, recovery, 0, 1, 2, 3)
    run(sink, recovery, 1, 4)
    assert target.ids() == [1, 2, 3, 4]


def test_a_replay_that_brings_a_part_nothing_is_refused(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    with crash_at("after collect"):
        run(sink, recovery, 0, *range(20))
    with pytest.raises(ReplayDiffersError, match="were not replayed"):
        LocalDriver(sink, recovery).run_epoch(0, [[]])
    run(sink, recovery, 0, *range(20))
    assert target.ids() == list(range(20))


def test_parts_that_another_task_wrote_are_not_sent_again(target: Table, recovery: str) -> None:
    """A replay with fewer tasks: one part is there, the other is not."""
    sink = parts_sink(target)
    driver = LocalDriver(sink, recovery)
    one_task(driver, driver.coordinator().begin(0), 0, {"0": [1, 2]})
    again = LocalDriver(sink, recovery)
    coordinator = again.coordinator()
    ticket = coordinator.begin(0)
    coordinator.finish(ticket, [one_task(again, ticket, 0, {"0": [2, 1], "1": [3]})])
    assert target.ids() == [1, 2, 3]


def opened(sink: Any, ticket: Any, part: str) -> Any:
    """One part of a task, as the engine opens it."""
    given = {"part": part, "attempt": 0, "token": ticket.token}
    context = WriterInitContext(ticket.step_id, ticket.incarnation, ticket.generation, 0, **given)
    return sink.bind(context).build_part(ticket.step_id, part, None)


def test_the_flush_of_the_last_part_publishes_and_a_state_is_given_only_then(target: Table, recovery: str) -> None:
    sink = parts_sink(target)
    ticket = LocalDriver(sink, recovery).coordinator().begin(0)
    first, second = opened(sink, ticket, "0"), opened(sink, ticket, "1")
    first.write_batch([{"id": 1, "name": "a"}])
    second.write_batch([{"id": 2, "name": "b"}, {"id": 3, "name": "c"}])
    first.flush(True)
    assert target.ids() == []
    with pytest.raises(TerminalError, match="before its rows for t were published"):
        first.snapshot()
    second.flush(True)
    assert target.ids() == [1, 2, 3]
    assert (first.snapshot().next_offset, second.snapshot().next_offset) == (1, 2)
    with pytest.raises(TerminalError, match="after their part was flushed"):
        first.write_batch([{"id": 4, "name": "d"}])
    for part in (first, second):
        part.close()
    assert target.ids() == [1, 2, 3]


def test_a_part_that_is_opened_after_the_others_were_published_is_published_too(target: Table, recovery: str) -> None:
    """As one for dead letters, which are refused while another part is flushed."""
    sink = parts_sink(target)
    ticket = LocalDriver(sink, recovery).coordinator().begin(0)
    first = opened(sink, ticket, "0")
    first.write_batch([{"id": 1, "name": "a"}])
    first.flush(True)
    late = opened(sink, ticket, "1")
    late.write_batch([{"id": 2, "name": "b"}])
    assert target.ids() == [1]
    late.flush(True)
    assert (target.ids(), late.snapshot().next_offset, first.snapshot().next_offset) == ([1, 2], 1, 1)
    for part in (first, late):
        part.close()


# --- batch jobs, and checkpoints that are lost


def test_a_job_that_is_never_resumed_is_refused_before_the_first_row(target: Table, recovery: str) -> None:
    """Where it fails half-way, nobody could complete what its tasks have published, nor take it back."""
    for sink in (parts_sink(target), FanOutSink(parts=parts_sink(target))):
        with pytest.raises(CapabilityError, match="requires epoch= and recovery="):
            LocalDriver(sink, recovery, options=EpochOptions(final=True)).run_epoch(0, [keyed(1)])
    assert target.tables("ledger") == []


@pytest.mark.parametrize(
    ("step", "published"), first(1, [("sql: publishing", False), ("after collect", True), ("before COMPLETED", True)])
)
def test_a_job_that_was_killed_and_lost_its_log_is_noticed_if_it_had_published(
    target: Table, tmp_path: Path, step: str, published: bool
) -> None:
    with crash_at(step) as seen:
        run(parts_sink(target), str(tmp_path / "killed"), 0, 1)
    assert step in seen
    with pytest.raises(TargetNotEmptyError, match="killed after it had published") if published else nullcontext():
        run(parts_sink(target), str(tmp_path / "again"), 0, 1)
    assert target.ids() == [1]


# --- the table and the log


def test_a_ledger_that_is_behind_the_log_is_found(target: Table, recovery: str) -> None:
    sink = parts_sink(target, 1)
    for epoch in range(3):
        run(sink, recovery, epoch, epoch)
    target.run(f"UPDATE {target.own('parts')} SET next_offset = 2, epoch = 1")
    with pytest.raises(TargetLostError, match=r"part 0 ends at offset 2, but 3 is recorded"):
        run(sink, recovery, 3, 3)
    target.run(f"DELETE FROM {target.own('parts')}")
    with pytest.raises(TargetLostError, match="no part 0"):
        run(sink, recovery, 3, 3)
    target.run(f"DELETE FROM {target.own('ledger')}")
    with pytest.raises(TargetLostError, match="has no epoch"):
        run(sink, recovery, 3, 3)


def test_a_ledger_that_is_ahead_of_the_log_is_found(target: Table, recovery: str) -> None:
    sink, q = parts_sink(target, 1), target.quote
    run(sink, recovery, 0, 0)
    target.run(f"UPDATE {target.own('parts')} SET next_offset = 2, {q}rows{q} = 1, epoch = 2")
    with pytest.raises(TargetAheadError, match="part 0 holds epoch 2, but epoch 1 must be next"):
        run(sink, recovery, 1, 1)
    target.run(f"UPDATE {target.own('parts')} SET next_offset = 2, {q}rows{q} = 1, epoch = 0")
    with pytest.raises(TargetAheadError, match="part 0 ends at offset 2, but 1 is recorded"):
        run(sink, recovery, 1, 1)
    target.run(f"UPDATE {target.own('parts')} SET next_offset = 1; UPDATE {target.own('ledger')} SET generation = 100")
    with pytest.raises(TargetAheadError, match="generation 100"):
        run(sink, recovery, 1, 1)


def test_parts_are_not_added_in_the_middle_of_an_epoch(target: Table, recovery: str) -> None:
    run(parts_sink(target), recovery, 0, 100)
    with crash_at("after collect"):
        run(parts_sink(target), recovery, 1, *range(20))
    with pytest.raises(PartsChangedError, match=r"2 parts were added while epoch 1"):
        run(parts_sink(target, 5), recovery, 1, *range(20))
    run(parts_sink(target), recovery, 1, *range(20))
    run(parts_sink(target, 5), recovery, 2, *range(20, 40))
    with pytest.raises(PartsChangedError):
        run(parts_sink(target, 3), recovery, 3, 50)
    assert target.ids() == [*range(40), 100]


@pytest.mark.parametrize("column", first(1, ["varchar(9)", "char(3)", "smallint"]))
def test_a_part_goes_on_after_the_rows_that_the_table_has(make: Make, recovery: str, column: str) -> None:
    target = make(f"CREATE TABLE t (p {column}, n bigint, id bigint, name text, PRIMARY KEY (p, n))")
    target.run("INSERT INTO t VALUES ('0', 41, 1, 'x')")
    options = {"offset_keys": "columns", "part_column": "p", "part_offset_column": "n"}
    with pytest.raises(TargetNotEmptyError):
        run(parts_sink(target, 1, on_existing="error", **options), recovery, 0, 2)
    run(parts_sink(target, 1, **options), recovery, 0, 2, 3)
    assert target.read("SELECT n, id FROM t ORDER BY 1") == [(41, 1), (42, 2), (43, 3)]


def test_rows_of_others_are_deleted_once_if_told(target: Table, recovery: str) -> None:
    target.run("INSERT INTO t VALUES (1000, 'x')")
    sink = parts_sink(target, on_existing="overwrite")
    with crash_at("sql: after COMMIT"):
        run(sink, recovery, 0, *range(20))
    run(sink, recovery, 0, *range(20))
    run(sink, recovery, 1, 20)
    assert target.ids() == list(range(21))


def test_a_column_that_is_ours_is_refused(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (partition_id integer, id bigint)")
    sink: Any = parts_sink(target, offset_keys="columns")
    with pytest.raises(ConfigurationError, match=r"column 'partition_id'.*part_column"):
        sink.check_schema(pa.schema([("partition_id", pa.int64())]))


def test_the_ledger_has_one_row_for_each_part(target: Table, recovery: str) -> None:
    driver = LocalDriver(parts_sink(target), recovery)
    for epoch in range(3):
        driver.run_epoch(epoch, [keyed(*range(10 * epoch, 10 * epoch + 10))])
    assert target.count(target.own("parts")) == 3


def test_a_dba_can_make_what_is_needed(target: Table, recovery: str) -> None:
    sink = parts_sink(target, create_staging="never")
    with pytest.raises(Exception, match=r"ledger is missing.*Sink.ddl"):
        run(sink, recovery, 0, 1)
    for _ in range(2):
        target.run(sink.ddl())
    run(sink, recovery, 0, 1)
    assert target.ids() == [1]
