"""The table that epochs are written to: what it holds at first, who may write it, and what becomes of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from outfall.errors import (
    CommitRefusedError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
)
from outfall.postgres import PostgresSink
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from outfall.testing.crash_points import CrashError, crash_at
from tests.integration.postgres.support import Target, listening, mostly_thorough, rows, run


@contextmanager
def dying_before_the_commit_that_publishes() -> Iterator[None]:
    seen: list[str] = []

    def die(step: str) -> None:
        seen.append(step)
        if step == "sql: before COMMIT" and "sql: publishing" in seen:
            raise CrashError(step)

    with listening(die), pytest.raises(CrashError):
        yield


def test_rows_that_are_there_are_kept_refused_or_replaced(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn)
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


@pytest.mark.parametrize("tasks", [[], [[], []]], ids=["no task ran", "tasks without rows"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"write_mode": "upsert", "key_columns": "id", "dead_letter_table": "dead"}, marks=pytest.mark.thorough
        ),
    ],
    ids=["append", "upsert with dead letters"],
)
def test_a_first_epoch_without_rows_replaces_what_is_there_by_nothing(
    dsn: str, recovery: str, options: dict[str, Any], tasks: list[list[Any]]
) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
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


def test_a_checkpoint_that_was_deleted_is_noticed(target: Target, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    run(target.sink(), recovery, 1, rows(2))
    lose(recovery)
    with pytest.raises(TargetNotEmptyError, match=r"step 'sink' wrote under another checkpoint, up to epoch 1"):
        run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1, 2]


@pytest.mark.parametrize(("choice", "found"), [("resume", [1, 1, 2]), ("overwrite", [1])])
def test_who_knows_that_a_checkpoint_is_gone_says_so(
    target: Target, recovery: str, choice: str, found: list[int]
) -> None:
    run(target.sink(), recovery, 0, rows(1, 2))
    lose(recovery)
    run(target.sink(on_existing=choice), recovery, 0, rows(1))
    assert target.ids() == found
    # Once it has begun, it is this query's own table.
    run(target.sink(), recovery, 1, rows(9))
    assert target.ids() == [*found, 9]


def test_a_lost_checkpoint_is_retired_with_its_ledger_row(target: Target, recovery: str, tmp_path: Path) -> None:
    run(target.sink(), recovery, 0, rows(1))
    target.run("DELETE FROM outfall.ledger WHERE target = 't' AND step = 'sink'")
    run(target.sink(), str(tmp_path / "new"), 0, rows(2))
    with pytest.raises(TargetLostError, match="has no epoch of this query"):
        run(target.sink(), recovery, 1, rows(3))
    run(target.sink(), str(tmp_path / "new"), 1, rows(4))
    assert target.ids() == [1, 2, 4]


def test_a_checkpoint_that_was_deleted_with_the_tables_rows_starts_anew(target: Target, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    lose(recovery)
    target.run("TRUNCATE t")
    run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [1]


def test_a_checkpoint_that_was_deleted_before_anything_was_published_starts_anew(target: Target, recovery: str) -> None:
    target.run("INSERT INTO t VALUES (0, 'theirs')")
    with crash_at("after PREPARED"):
        run(target.sink(), recovery, 0, rows(1))
    lose(recovery)
    run(target.sink(), recovery, 0, rows(1))
    assert target.ids() == [0, 1]


def test_steps_of_other_names_write_the_same_table(target: Target, tmp_path: Path) -> None:
    for name in ("a", "b"):
        LocalDriver(target.sink(), str(tmp_path / name), step_id=name).run_epoch(0, [rows(1)])
    assert target.ids() == [1, 1]


# --- batch jobs that are never resumed


def job(sink: PostgresSink, recovery: Path, *tasks: Any) -> None:
    """Run a batch job as `outfall.spark.write` does without a recovery location."""
    LocalDriver(sink, str(recovery), options=EpochOptions(final=True)).run_epoch(0, tasks)


def test_batch_jobs_leave_no_ledger_rows(target: Target, tmp_path: Path) -> None:
    for number in range(3):
        job(target.sink(), tmp_path / str(number), rows(number))
    assert target.ids() == [0, 1, 2]
    assert target.run("SELECT count(*) FROM outfall.ledger") == [(0,)]
    assert (target.attempts(), target.staged()) == (0, 0)


@pytest.mark.parametrize(
    ("step", "published"), [("sql: publishing", False), ("sql: after COMMIT#3", True), ("after commit", True)]
)
def test_a_batch_job_that_was_killed_is_noticed_if_it_had_published(
    target: Target, tmp_path: Path, step: str, published: bool
) -> None:
    job(target.sink(), tmp_path / "first", rows(0))
    with crash_at(step) as seen:
        job(target.sink(), tmp_path / "killed", rows(1))
    assert step.partition("#")[0] in seen
    with pytest.raises(TargetNotEmptyError, match="killed after it had published") if published else nullcontext():
        job(target.sink(), tmp_path / "again", rows(1))
    assert target.ids() == [0, 1]


def test_a_task_that_finishes_after_its_job_is_cleaned_up_by_the_next(target: Target, tmp_path: Path) -> None:
    local = LocalDriver(target.sink(), str(tmp_path / "job"), options=EpochOptions(final=True))
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1))])])
    local.run_task(ticket, 0, 0, [(None, rows(1))], retries=1)
    assert (target.attempts(), target.staged()) == (1, 1)
    job(target.sink(), tmp_path / "next", rows(2))
    assert (target.attempts(), target.staged()) == (0, 0)
    assert target.ids() == [1, 2]


def test_a_job_that_ends_leaves_the_attempts_of_others(target: Target, tmp_path: Path) -> None:
    with crash_at("after PREPARED"):
        run(target.sink(), str(tmp_path / "stream"), 0, rows(1))
    job(target.sink(), tmp_path / "job", rows(2))
    assert target.attempts() == 1
    run(target.sink(), str(tmp_path / "stream"), 0, rows(1))
    assert target.ids() == [1, 2]


# --- copies of databases and checkpoints


def test_a_database_without_our_ledger_is_not_the_one_that_was_written(target: Target, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    target.run("DELETE FROM outfall.ledger")
    with pytest.raises(TargetLostError):
        run(target.sink(), recovery, 1, rows(2))


def test_a_database_restored_from_an_older_copy_is_refused(target: Target, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    before = target.run("SELECT generation, begun, epoch FROM outfall.ledger")[0]
    run(target.sink(), recovery, 1, rows(2))
    target.run("UPDATE outfall.ledger SET generation = %s, begun = %s, epoch = %s", *before)
    with pytest.raises(TargetLostError, match="older copy"):
        run(target.sink(), recovery, 2, rows(3))


@pytest.mark.parametrize(
    "ids", mostly_thorough([[57, 58, 59], [57, None, 59], [None, 58, 59], [None, None, 59]], [[None, 58, 59]])
)
def test_an_adopted_checkpoint_goes_on_where_its_first_batch_id_came_with_the_tasks(
    target: Target, recovery: str, ids: list[int | None]
) -> None:
    """Through options BEGIN is written before the batch id is known; batches may be empty."""
    local = LocalDriver(target.sink(), recovery, options=EpochOptions(adopt_checkpoint=True))
    for batch, number in enumerate(ids, 57):
        ticket = local.coordinator().begin(None)
        answers = local.run_tasks(ticket, batch, [[] if number is None else rows(number)])
        coordinator = local.coordinator()
        coordinator.finish(coordinator.resume(answers), answers)
    assert target.ids() == [number for number in ids if number is not None]
    target.run("UPDATE outfall.ledger SET begun = 57, epoch = 57")
    with pytest.raises(TargetLostError, match="it has epoch 57, but epoch 59 was published"):
        local.coordinator().begin(None)


def test_a_checkpoint_restored_from_an_older_copy_is_refused(target: Target, tmp_path: Path, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    shutil.copytree(recovery, tmp_path / "copy")
    run(target.sink(), recovery, 1, rows(2))
    with pytest.raises(TargetAheadError, match="epoch 1"):
        run(target.sink(), str(tmp_path / "copy"), 1, rows(3))
    assert target.ids() == [1, 2]


def test_a_row_that_breaks_a_constraint_is_named_and_nothing_is_written(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    target.run("INSERT INTO t VALUES (2, 'theirs')")
    with pytest.raises(CommitRefusedError, match=r'row with key \{"id": 2\}.*unique constraint "t_pkey"'):
        run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == [2]
    target.run("DELETE FROM t")
    run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == [1, 2]


def test_a_missing_right_is_told_with_the_way_out(
    dsn: str, role: str, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.staging.staging_table._TRUNCATE_BYTES", 1)
    target = Target(dsn)
    target.run(f"GRANT INSERT, SELECT ON t TO {role}")
    poor = psycopg.conninfo.make_conninfo(target.dsn, user=role)
    with pytest.raises(TargetError, match=r"Permission denied.*ddl\(\)"):
        run(target.sink(dsn=poor), recovery, 0, rows(1))
    target.run(target.sink().ddl())
    target.run(f"GRANT USAGE ON SCHEMA outfall TO {role}")
    target.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA outfall TO {role}")
    run(target.sink(dsn=poor, create_staging="never"), recovery, 0, rows(1))
    assert target.ids() == [1]
    assert target.staged() == 0  # by DELETE, without the privilege TRUNCATE


@pytest.mark.parametrize("options", [{}, {"parts": 2, "offset_keys": "ledger"}], ids=["epoch", "parts"])
def test_who_may_only_insert_needs_no_more_to_append(
    dsn: str, role: str, recovery: str, options: dict[str, Any]
) -> None:
    target = Target(dsn)
    target.run(f"GRANT INSERT ON t TO {role}; CREATE SCHEMA outfall AUTHORIZATION {role}")
    sink: Any = target.sink(dsn=psycopg.conninfo.make_conninfo(target.dsn, user=role), **options)
    assert "INSERT on t granted" in sink.check_connection()
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    made = rows(1, 2)
    run(sink, recovery, 0, [("k", row) for row in made] if options else made)
    assert target.ids() == [1, 2]
    # Only for a table that this step wrote to it is to be looked whether rows are left.
    shutil.rmtree(recovery)
    with pytest.raises(TargetError, match="Permission denied for table t"):
        run(sink, recovery, 0, [])


def test_a_table_that_was_dropped_is_not_made_anew(dsn: str, recovery: str) -> None:
    sink = PostgresSink(dsn, "made", create_table="if_missing")
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    local = LocalDriver(sink, recovery)
    local.run_epoch(0, [rows(1)])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE made RENAME TO away")
        with pytest.raises(TargetLostError, match="the table made is missing"):
            local.run_epoch(1, [rows(2)])
        connection.execute("ALTER TABLE away RENAME TO made")
        LocalDriver(sink, recovery).run_epoch(1, [rows(2)])
        assert connection.execute("SELECT count(*) FROM made").fetchone() == (2,)


def test_a_table_that_is_dropped_under_a_recorded_epoch_is_told_as_lost(dsn: str, recovery: str) -> None:
    """Whoever created it anew would get the recorded epoch alone, without those before it."""
    target = Target(dsn)
    run(target.sink(), recovery, 0, rows(1))
    with crash_at("after COMMITTING"):
        run(target.sink(), recovery, 1, rows(2))
    target.run("ALTER TABLE t RENAME TO away")
    with pytest.raises(TargetLostError, match="the table t is missing, but this query has written to it"):
        run(target.sink(), recovery, 1, rows(2))
    target.run("ALTER TABLE away RENAME TO t")
    run(target.sink(), recovery, 1, rows(2))
    assert target.ids() == [1, 2]


@pytest.mark.parametrize(
    "options",
    mostly_thorough(
        [{}, {"write_mode": "upsert", "key_columns": "id"}, {"offset_columns": "id"}, {"parts": 2}], [{}, {"parts": 2}]
    ),
)
@pytest.mark.parametrize(
    "moment", mostly_thorough(["before BEGIN", "after open target", "before COMPLETED"], ["after open target"])
)
def test_a_table_that_is_created_before_the_target_in_the_search_path_gets_no_rows(
    dsn: str, recovery: str, options: dict[str, Any], moment: str
) -> None:
    """Such as one in a schema with the name of the user."""
    columns = '(id bigint PRIMARY KEY, name text, partition_id int, "offset" bigint)'
    target = Target(dsn, f"CREATE TABLE t {columns}")
    path = make_conninfo(dsn, options="-csearch_path=nearer,public")
    sink = target.sink(dsn=path, **options)

    def shadow(step: str) -> None:
        if step == moment and under_way == 1:
            target.run(f"CREATE SCHEMA nearer; CREATE TABLE nearer.t {columns}")

    driver = LocalDriver(sink, recovery)
    with listening(shadow):
        for under_way in range(3):
            made = rows(under_way)
            driver.run_epoch(under_way, [[("k", row) for row in made] if "parts" in options else made])
    assert target.run("SELECT id FROM public.t ORDER BY id") == [(0,), (1,), (2,)]
    assert target.run("SELECT id FROM nearer.t") == []
    # A run that starts now means the other one, which has nothing of it.
    with pytest.raises(TargetLostError):
        run(target.sink(dsn=path, **options), recovery, 3)
    assert target.run("SELECT id FROM nearer.t") == []


def test_a_missing_table_is_told(dsn: str, recovery: str) -> None:
    with pytest.raises(TargetError, match="there is no table nowhere"):
        run(PostgresSink(dsn, "nowhere"), recovery, 0, rows(1))


def test_odd_names_are_quoted(dsn: str, recovery: str) -> None:
    target = Target(dsn)
    target.run('CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."select ""T""" ("user" bigint, "a b" text)')
    sink = PostgresSink(dsn, '"My Schema"."select ""T"""', metadata_schema="Odd one")
    run(sink, recovery, 0, [{"user": 1, "a b": "x"}])
    assert target.run('SELECT * FROM "My Schema"."select ""T"""') == [(1, "x")]


def tenants(dsn: str) -> tuple[Target, str, str]:
    """Two schemas with a table `t` each, and the DSNs whose search paths find the one or the other."""
    target = Target(dsn, "CREATE SCHEMA a; CREATE TABLE a.t (id bigint, name text)")
    target.run("CREATE SCHEMA b; CREATE TABLE b.t (id text, name text, more text)")
    first, second = (make_conninfo(dsn, options=f"-csearch_path={schema}") for schema in "ab")
    return target, first, second


def test_tables_of_one_name_in_two_schemas_do_not_meet(dsn: str, recovery: str) -> None:
    target, first, second = tenants(dsn)
    with crash_at("after PREPARED"):
        run(PostgresSink(first, "t"), recovery, 0, rows(1))
    for epoch in range(2):
        run(PostgresSink(second, "t"), f"{recovery}-b", epoch, [{"id": str(epoch), "name": "b"}])
    assert run(PostgresSink(first, "t"), recovery, 0, rows(1)).skipped
    run(PostgresSink(first, "t"), recovery, 1, rows(2))
    assert target.run("SELECT id FROM a.t ORDER BY 1") == [(1,), (2,)]
    assert target.run("SELECT id FROM b.t ORDER BY 1") == [("0",), ("1",)]
    assert len(target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%%'")) == 2


@pytest.mark.parametrize("options", [{}, {"parts": 1, "offset_keys": "ledger"}])
def test_what_another_schema_holds_is_no_lost_checkpoint(dsn: str, recovery: str, options: dict[str, Any]) -> None:
    target, first, second = tenants(dsn)
    target.run("INSERT INTO b.t VALUES ('x')")

    def start(where: str, checkpoint: str, made: Sequence[Any]) -> None:
        run(PostgresSink(where, "t", **options), f"{recovery}-{checkpoint}", 0, made if not options else [("k", *made)])

    start(first, "a", rows(1))
    start(second, "b", [{"id": "1", "name": "b"}])
    for where in (first, second):
        with pytest.raises(TargetNotEmptyError, match="under another checkpoint"):
            start(where, "lost", rows(2))
    assert target.run("SELECT id FROM b.t ORDER BY 1") == [("1",), ("x",)]
