"""The table that epochs are written to: what it holds at first, who wrote to it, and what becomes of it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall import first_contact
from outfall.errors import (
    CommitRefusedError,
    ConfigurationError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
)
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from outfall.testing.crash_points import CrashError, crash_at
from tests.integration.support.sql import (
    ON_EACH,
    TABLE,
    THOROUGH,
    UPSERT,
    Make,
    Table,
    first,
    listening,
    mostly_thorough,
    rows,
    run,
)


@contextmanager
def dying_before_the_commit_that_publishes() -> Iterator[None]:
    seen: list[str] = []

    def die(step: str) -> None:
        seen.append(step)
        if step == "sql: before COMMIT" and "sql: publishing" in seen:
            raise CrashError(step)

    with listening(die), pytest.raises(CrashError):
        yield


def test_rows_that_are_there_are_kept_refused_or_replaced(make: Make, tmp_path: Path) -> None:
    target = make(TABLE)
    target.run("INSERT INTO t VALUES (1, 'theirs')")
    run(target.sink(), str(tmp_path / "a"), 0, rows(2))
    assert target.ids() == [1, 2]
    with pytest.raises(TargetNotEmptyError):
        run(target.sink(on_existing="error"), str(tmp_path / "b"), 0, rows(3))
    sink = target.sink(on_existing="overwrite")
    with dying_before_the_commit_that_publishes():
        run(sink, str(tmp_path / "c"), 0, rows(3))
    assert target.ids() == [1, 2]
    run(sink, str(tmp_path / "c"), 0, rows(3))
    run(sink, str(tmp_path / "c"), 1, rows(4))
    assert target.ids() == [3, 4]


@pytest.mark.parametrize("tasks", first(1, [[], [[], []]]), ids=["no task ran", "tasks without rows"])
@pytest.mark.parametrize(
    "options",
    first(
        1,
        [
            {},
            pytest.param(
                {"write_mode": "upsert", "key_columns": "id", "dead_letter_table": "dead"}, marks=pytest.mark.thorough
            ),
        ],
    ),
    ids=["append", "upsert with dead letters"],
)
def test_a_first_epoch_without_rows_replaces_what_is_there_by_nothing(
    make: Make, recovery: str, options: dict[str, Any], tasks: list[list[Any]]
) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    target.run("INSERT INTO t VALUES (1, 'of yesterday')")
    sink = target.sink(on_existing="overwrite", **options)
    with dying_before_the_commit_that_publishes():
        run(sink, recovery, 0, *tasks)
    assert target.ids() == [1]
    run(sink, recovery, 0, *tasks)
    assert target.ids() == []
    target.run("INSERT INTO t VALUES (2, 'since the query began')")
    for epoch, made in enumerate([tasks, [rows(3)], tasks], 1):
        run(sink, recovery, epoch, *made)
    assert target.ids() == [2, 3]


def lose(recovery: str) -> None:
    """Delete the checkpoint and keep the table."""
    shutil.rmtree(recovery)


def test_a_checkpoint_that_was_deleted_is_noticed(target: Table, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    run(target.sink(), recovery, 1, rows(2))
    lose(recovery)
    with pytest.raises(TargetNotEmptyError, match=r"step 'sink' wrote under another checkpoint, up to epoch 1"):
        run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1, 2]


@pytest.mark.parametrize(("choice", "found"), first(1, [("resume", [1, 1, 2]), ("overwrite", [1])]))
def test_who_knows_that_a_checkpoint_is_gone_says_so(
    target: Table, recovery: str, choice: str, found: list[int]
) -> None:
    run(target.sink(), recovery, 0, rows(1, 2))
    lose(recovery)
    run(target.sink(on_existing=choice), recovery, 0, rows(1))
    assert target.ids() == found
    # Once it has begun, it is this query's own table.
    run(target.sink(), recovery, 1, rows(9))
    assert target.ids() == [*found, 9]


@pytest.mark.thorough
def test_a_lost_checkpoint_is_retired_with_its_ledger_row(target: Table, recovery: str, tmp_path: Path) -> None:
    run(target.sink(), recovery, 0, rows(1))
    target.run(f"DELETE FROM {target.own('ledger')} WHERE step = 'sink'")
    run(target.sink(), str(tmp_path / "new"), 0, rows(2))
    with pytest.raises(TargetLostError, match="has no epoch of this query"):
        run(target.sink(), recovery, 1, rows(3))
    run(target.sink(), str(tmp_path / "new"), 1, rows(4))
    assert target.ids() == [1, 2, 4]


@pytest.mark.thorough
def test_a_checkpoint_that_was_deleted_with_the_tables_rows_starts_anew(target: Table, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    lose(recovery)
    target.run("TRUNCATE t")
    run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1]


def test_a_checkpoint_that_was_deleted_before_anything_was_published_starts_anew(target: Table, recovery: str) -> None:
    target.run("INSERT INTO t VALUES (0, 'theirs')")
    with crash_at("after PREPARED"):
        run(target.sink(), recovery, 0, rows(1))
    lose(recovery)
    run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [0, 1]


def test_steps_of_other_names_write_the_same_table(target: Table, tmp_path: Path) -> None:
    for name in ("a", "b"):
        LocalDriver(target.sink(), str(tmp_path / name), step_id=name).run_epoch(0, [rows(1)])
    assert target.ids() == [1, 1]


# --- batch jobs that are never resumed


def job(sink: Any, recovery: Path, *tasks: Any) -> None:
    """Run a batch job as `outfall.spark.write` does without a recovery location."""
    LocalDriver(sink, str(recovery), options=EpochOptions(final=True)).run_epoch(0, tasks)


def test_batch_jobs_leave_no_ledger_rows(target: Table, tmp_path: Path) -> None:
    for number in range(3):
        job(target.sink(), tmp_path / str(number), rows(number))
    assert target.ids() == [0, 1, 2]
    assert target.count(target.own("ledger")) == 0
    assert (target.attempts(), target.staged()) == (0, 0)


@pytest.mark.parametrize(
    ("step", "published"), first(1, [("sql: publishing", False), ("sql: after COMMIT#3", True), ("after commit", True)])
)
def test_a_batch_job_that_was_killed_is_noticed_if_it_had_published(
    target: Table, tmp_path: Path, step: str, published: bool
) -> None:
    job(target.sink(), tmp_path / "first", rows(0))
    with crash_at(step) as seen:
        job(target.sink(), tmp_path / "killed", rows(1))
    assert step.partition("#")[0] in seen
    with pytest.raises(TargetNotEmptyError, match="killed after it had published") if published else nullcontext():
        job(target.sink(), tmp_path / "again", rows(1))
    assert target.ids() == [0, 1]


def test_a_task_that_finishes_after_its_job_is_cleaned_up_by_the_next(target: Table, tmp_path: Path) -> None:
    local = LocalDriver(target.sink(), str(tmp_path / "job"), options=EpochOptions(final=True))
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1))])])
    local.run_task(ticket, 0, 0, [(None, rows(1))], retries=1)
    assert (target.attempts(), target.staged()) == (1, 1)
    job(target.sink(), tmp_path / "next", rows(2))
    assert (target.attempts(), target.staged()) == (0, 0)
    assert target.ids() == [1, 2]


@pytest.mark.thorough
def test_a_job_that_ends_leaves_the_attempts_of_others(target: Table, tmp_path: Path) -> None:
    with crash_at("after PREPARED"):
        run(target.sink(), str(tmp_path / "stream"), 0, rows(1))
    job(target.sink(), tmp_path / "job", rows(2))
    assert target.attempts() == 1
    run(target.sink(), str(tmp_path / "stream"), 0, rows(1))
    assert target.ids() == [1, 2]


# --- copies of databases and checkpoints


def test_a_database_without_our_ledger_is_not_the_one_that_was_written(target: Table, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    target.run(f"DELETE FROM {target.own('ledger')}")
    with pytest.raises(TargetLostError):
        run(target.sink(), recovery, 1, rows(2))


def test_a_database_restored_from_an_older_copy_is_refused(target: Table, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    columns = ("generation", "begun", "epoch")
    ledger = target.own("ledger")
    (before,) = target.run(f"SELECT {', '.join(columns)} FROM {ledger}")
    run(target.sink(), recovery, 1, rows(2))
    older = zip(columns, before, strict=True)
    target.run(f"UPDATE {ledger} SET {', '.join(f'{name} = {value}' for name, value in older)}")
    with pytest.raises(TargetLostError, match="older copy"):
        run(target.sink(), recovery, 2, rows(3))


@pytest.mark.parametrize(
    "ids", mostly_thorough([[57, 58, 59], [57, None, 59], [None, 58, 59], [None, None, 59]], [[None, 58, 59]])
)
def test_an_adopted_checkpoint_goes_on_where_its_first_batch_id_came_with_the_tasks(
    target: Table, recovery: str, ids: list[int | None]
) -> None:
    """Through options BEGIN is written before the batch id is known; batches may be empty."""
    local = LocalDriver(target.sink(), recovery, options=EpochOptions(adopt_checkpoint=True))
    for batch, number in enumerate(ids, 57):
        ticket = local.coordinator().begin(None)
        answers = local.run_tasks(ticket, batch, [[] if number is None else rows(number)])
        coordinator = local.coordinator()
        coordinator.finish(coordinator.resume(answers), answers)
    assert target.ids() == [number for number in ids if number is not None]
    target.run(f"UPDATE {target.own('ledger')} SET begun = 57, epoch = 57")
    with pytest.raises(TargetLostError, match="it has epoch 57, but epoch 59 was published"):
        local.coordinator().begin(None)


def test_a_checkpoint_restored_from_an_older_copy_is_refused(target: Table, tmp_path: Path, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    shutil.copytree(recovery, tmp_path / "copy")
    run(target.sink(), recovery, 1, rows(2))
    with pytest.raises(TargetAheadError, match="epoch 1"):
        run(target.sink(), str(tmp_path / "copy"), 1, rows(3))
    assert target.ids() == [1, 2]


# --- tables that refuse, are missing, or are made


def test_a_row_that_breaks_a_constraint_is_named_and_nothing_is_written(make: Make, recovery: str) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    target.run("INSERT INTO t VALUES (2, 'theirs')")
    with pytest.raises(CommitRefusedError, match=r'row with key \{"id": 2\}.*(unique constraint|Dup entry)'):
        run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == [2]
    target.run("DELETE FROM t")
    run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == [1, 2]


@pytest.mark.thorough
def test_a_table_that_was_dropped_is_not_made_anew(target: Table, recovery: str) -> None:
    sink = target.sink(table="made", create_table="if_missing")
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    local = LocalDriver(sink, recovery)
    local.run_epoch(0, [rows(1)])
    target.run("ALTER TABLE made RENAME TO away")
    with pytest.raises(TargetLostError, match="the table made is missing"):
        local.run_epoch(1, [rows(2)])
    target.run("ALTER TABLE away RENAME TO made")
    LocalDriver(sink, recovery).run_epoch(1, [rows(2)])
    assert target.count("made") == 2


def test_a_table_that_is_dropped_under_a_recorded_epoch_is_told_as_lost(make: Make, recovery: str) -> None:
    """Whoever created it anew would get the recorded epoch alone, without those before it."""
    target = make(TABLE)
    run(target.sink(), recovery, 0, rows(1))
    with crash_at("after COMMITTING"):
        run(target.sink(), recovery, 1, rows(2))
    target.run("ALTER TABLE t RENAME TO away")
    with pytest.raises(TargetLostError, match="the table t is missing, but this query has written to it"):
        run(target.sink(), recovery, 1, rows(2))
    target.run("ALTER TABLE away RENAME TO t")
    run(target.sink(), recovery, 1, rows(2))
    assert target.ids() == [1, 2]


def test_a_missing_table_is_told(target: Table, recovery: str) -> None:
    with pytest.raises(TargetError, match="there is no table nowhere"):
        run(target.sink(table="nowhere"), recovery, 0, rows(1))


def test_a_table_is_created_and_grows_columns_where_options_say_so(target: Table, recovery: str) -> None:
    target.run("DROP TABLE t")
    sink = target.sink(create_table="if_missing", schema_evolution="add_columns", **UPSERT)
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    local = LocalDriver(sink, recovery)
    local.run_epoch(0, [rows(1)])
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string(), "more": pa.float64()}))
    # Its key has a unique index.
    local.run_epoch(1, [[{"id": 2, "name": "b", "more": 0.5}, {"id": 1, "name": "c", "more": None}]])
    assert target.rows() == [(1, "c", None), (2, "b", 0.5)]
    with pytest.raises(target.refused, match=r"(?i)duplicate"):
        target.run("INSERT INTO t (id) VALUES (1)")


def test_a_missing_column_is_told_with_the_option_that_adds_it(make: Make, recovery: str) -> None:
    target = make(TABLE)
    schema = pa.schema({"id": pa.int64(), "more": pa.int64()})
    with pytest.raises(ConfigurationError, match=r"no column 'more'.*set schema_evolution='add_columns'"):
        target.sink().check_schema(schema)
    with pytest.raises(TargetError, match=r"no column 'more'.*schema_evolution='add_columns'"):
        target.sink(write_mode="upsert", key_columns="more").check_connection()
    sink = target.sink(schema_evolution="add_columns")
    sink.check_schema(schema)
    run(sink, recovery, 0, [{"id": 1, "more": 2}])
    assert target.rows("id, more") == [(1, 2)]


def test_columns_of_options_must_be_there(make: Make) -> None:
    target = make("CREATE TABLE t (id bigint PRIMARY KEY, name text, version bigint)")
    sink = target.sink(write_mode="upsert", key_columns="id", order_column="version", delete_marker="gone")
    with pytest.raises(ConfigurationError, match=r"an option requires the column 'version'"):
        sink.check_schema(pa.schema({"id": pa.int64(), "gone": pa.bool_()}))
    with pytest.raises(ConfigurationError, match=r"delete marker 'gone' is string"):
        sink.check_schema(pa.schema({"id": pa.int64(), "version": pa.int64(), "gone": pa.string()}))


def test_a_table_that_is_altered_between_epochs_is_followed(target: Table, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    target.retype(id="numeric(20)")
    target.run(f"ALTER TABLE t ADD COLUMN at {target.moment} DEFAULT '2020-01-01'")
    run(target.sink(), recovery, 1, rows(2))
    assert target.ids() == [1, 2]
    assert target.read("SELECT count(at) FROM t") == [(2,)]


@pytest.mark.thorough
def test_staging_that_is_gone_once_its_rows_are_published_is_no_loss(target: Table, recovery: str) -> None:
    with crash_at("after commit", required=True):
        run(target.sink(), recovery, 0, rows(1, 2), rows(3))
    target.run(f"DROP TABLE {target.staging()}")
    assert run(target.sink(), recovery, 0, rows(1, 2), rows(3)).skipped
    run(target.sink(), recovery, 1, rows(4))
    assert target.ids() == [1, 2, 3, 4]


def test_staging_that_is_dropped_or_half_gone_is_written_again(target: Table, recovery: str) -> None:
    for epoch, loss in enumerate(["DROP TABLE {}", "DELETE FROM {} WHERE id = 3"]):
        with crash_at("after COMMITTING", required=True):
            run(target.sink(), recovery, epoch, rows(1, 2), rows(3))
        target.run(loss.format(target.staging()))
        assert not run(target.sink(), recovery, epoch, rows(3, 2, 1)).skipped
    assert target.ids() == [1, 1, 2, 2, 3, 3]
    assert (target.attempts(), target.staged()) == (0, 0)


@pytest.mark.thorough
def test_two_sinks_begin_at_once_in_a_database_without_a_ledger(target: Table, recovery: str) -> None:
    target.run("CREATE TABLE u (id bigint, name text)")
    failed: list[Exception] = []

    def begin(table: str) -> None:
        try:
            run(target.sink(table=table), f"{recovery}-{table}", 0, rows(1))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(table,)) for table in "tu"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert (target.count("t"), target.count("u")) == (1, 1)


@ON_EACH
@THOROUGH
def test_a_wrong_address_ends_the_first_start_and_a_failover_not_the_next(
    target: Table, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "PATIENCE", 0.3)
    with target.proxy() as proxy:
        port = proxy.port
        run(target.sink(dsn=target.address(port)), recovery, 0, rows(1))
    started = time.monotonic()
    wrong = target.sink(dsn=target.address(port), retry_deadline="3 seconds")
    wrong.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    with pytest.raises(TransientError, match=r"failed for 0.3 s"):
        run(wrong, f"{recovery}-new", 0, rows(2))
    assert time.monotonic() - started < 3
    with pytest.raises(TransientError, match=r"failed for 3 s"):
        run(wrong, recovery, 1, rows(2))
    run(target.sink(), recovery, 1, rows(2))
    assert target.ids() == [1, 2]
