"""`PostgresSink` by epochs, against a real server and without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import (
    CommitRefusedError,
    ConfigurationError,
    FencedError,
    OutfallError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
)
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from tests.integration.postgres.support import Target, listening, rows, run
from tests.integration.support.postgres import Databases, Server, pgbouncer
from tests.integration.support.waiting import until


@pytest.fixture
def target(dsn: str) -> Target:
    return Target(dsn)


@pytest.fixture
def recovery(tmp_path: Path) -> str:
    return str(tmp_path / "recovery")


STEPS = [
    "before BEGIN", "after BEGIN", "postgres: opening", "after open target", "postgres: copying", "task: after write",
    "postgres: staging", "postgres: staged", "task: after snapshot", "after collect", "before PREPARED",
    "after PREPARED", "after COMMITTING", "postgres: publishing", "postgres: before COMMIT",
    "postgres: before COMMIT#2",
    "postgres: after COMMIT", "postgres: after COMMIT#2", "after commit", "before COMPLETED", "after COMPLETED",
    "after sweep",
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_anywhere_leaves_each_row_once(target: Target, recovery: str, step: str) -> None:
    sink = target.sink()
    run(sink, recovery, 0, rows(100))
    with crash_at(step) as seen:
        run(sink, recovery, 1, rows(1, 2), rows(3))
    assert step.partition("#")[0] in seen
    assert target.ids() in ([100], [1, 2, 3, 100])
    run(sink, recovery, 1, rows(3), rows(2, 1))
    run(sink, recovery, 2, rows(4))
    assert target.ids() == [1, 2, 3, 4, 100]
    assert target.attempts() == 0


def test_nothing_is_in_the_table_before_all_of_an_epoch_is(target: Target, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    answers = local.run_tasks(ticket, 0, [rows(1, 2), rows(3)])
    assert target.ids() == []
    coordinator.finish(ticket, answers)
    assert target.ids() == [1, 2, 3]


def test_epochs_without_rows_are_no_gap(target: Target, recovery: str) -> None:
    for epoch, ids in enumerate([[1], [], [], [2]]):
        run(target.sink(), recovery, epoch, rows(*ids), [])
    assert target.ids() == [1, 2]


def test_a_replayed_epoch_is_skipped(target: Target, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    assert run(target.sink(), recovery, 0, rows(1)).skipped
    assert target.ids() == [1]


def test_a_failed_attempt_leaves_nothing(target: Target, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    ticket = local.coordinator().begin(0)
    with crash_at("task: before flush"):
        local.run_task(ticket, 0, 0, [(None, rows(1, 2))])
    assert (target.attempts(), target.staged()) == (0, 0)


def test_an_attempt_whose_answer_was_lost_is_swept(target: Target, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    local.run_task(ticket, 0, 0, [(None, rows(1, 2))])  # speculation: nobody hears of it
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1, 2))])])
    assert target.ids() == [1, 2]
    assert target.attempts() == 1
    local.run_epoch(1, [rows(3)])
    assert (target.attempts(), target.staged()) == (0, 0)


def test_an_older_driver_that_wakes_publishes_nothing(target: Target, recovery: str) -> None:
    sink = target.sink()
    older = LocalDriver(sink, recovery)
    coordinator = older.coordinator()
    ticket = coordinator.begin(0)
    answers = older.run_tasks(ticket, 0, [rows(1)])
    run(sink, recovery, 0, rows(2))
    with pytest.raises(FencedError):
        coordinator.finish(ticket, answers)
    assert target.ids() == [2]


def test_the_ledger_refuses_what_an_older_generation_staged(target: Target, recovery: str) -> None:
    """A commit that sleeps until a newer driver has begun the epoch anew, and published nothing yet."""
    sink: Any = target.sink()
    ticket = LocalDriver(sink, recovery).coordinator().begin(0)
    writer = WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, attempt=0)
    part = sink.bind(writer).build("sink", 0, 1)
    part.write_batch(rows(1))
    requests = [CommitRequest(staged) for staged in part.prepare_commit()]
    part.close()
    LocalDriver(sink, recovery).coordinator().begin(0)
    older = sink.create_committer(CommitterInitContext("sink", ticket.incarnation, ticket.generation, 0))
    with pytest.raises(FencedError, match="a newer driver writes them anew"):
        older.commit(requests)
    assert target.ids() == []


def test_two_drivers_that_publish_the_same_record_publish_once(target: Target, recovery: str) -> None:
    """The older one sleeps in its transaction's beginning; the newer one finishes what is recorded and goes on."""
    sink = target.sink()
    with crash_at("after COMMITTING"):
        run(sink, recovery, 0, rows(1, 2))
    entered, go_on = threading.Event(), threading.Event()
    outcome: list[Any] = []

    def sleep(step: str) -> None:
        if step == "before commit" and threading.current_thread().name == "older":
            entered.set()
            go_on.wait(30)

    def older() -> None:
        try:
            outcome.append(run(sink, recovery, 0, rows(1, 2)))
        except Exception as error:
            outcome.append(error)

    with listening(sleep):
        thread = threading.Thread(target=older, name="older")
        thread.start()
        assert entered.wait(30)
        run(sink, recovery, 0, rows(1, 2))
        run(sink, recovery, 1, rows(3))
        go_on.set()
        thread.join(30)
    assert target.ids() == [1, 2, 3]
    # It finds its next entry taken, reads again, and is told that Spark's checkpoint is behind the record.
    assert isinstance(outcome[0], OutfallError)


# --- replies that are lost, servers that die


def test_a_lost_reply_to_commit_is_settled_by_the_ledger(target: Target, recovery: str) -> None:
    """The server commits, and the connection breaks before we hear of it."""
    lost: list[str] = []

    def cut(step: str) -> None:
        if step == "postgres: after COMMIT" and target.ids() and not lost:
            lost.append(step)
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    with listening(cut):
        run(target.sink(), recovery, 0, rows(1, 2))
    assert lost
    assert target.ids() == [1, 2]


def test_connections_that_are_ended_are_made_anew(target: Target, recovery: str) -> None:
    sink = target.sink()
    run(sink, recovery, 0, rows(1))
    ended: list[str] = []

    def end(step: str) -> None:
        if step == "postgres: publishing" and not ended:
            ended.append(step)
            target.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )

    with listening(end):
        run(sink, recovery, 1, rows(2))
    target.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    run(sink, recovery, 2, rows(3))
    assert ended
    assert target.ids() == [1, 2, 3]


def test_a_server_killed_between_staging_and_publishing_loses_nothing(mortal_postgres: Server, recovery: str) -> None:
    """Its recovery empties unlogged tables; the counts tell, and the epoch is written anew."""
    target = Target(mortal_postgres.new_database())
    sink = target.sink()
    run(sink, recovery, 0, rows(1))
    with crash_at("after PREPARED"):
        run(sink, recovery, 1, rows(2, 3))
    mortal_postgres.kill()
    mortal_postgres.start()
    run(sink, recovery, 1, rows(3), rows(2))
    run(sink, recovery, 2, rows(4))
    assert target.ids() == [1, 2, 3, 4]


def test_a_server_killed_after_committing_began_loses_nothing(mortal_postgres: Server, recovery: str) -> None:
    target = Target(mortal_postgres.new_database())
    sink = target.sink()
    with crash_at("postgres: publishing"):
        run(sink, recovery, 0, rows(2, 3))
    mortal_postgres.kill()
    mortal_postgres.start()
    run(sink, recovery, 0, rows(3), rows(2))
    assert target.ids() == [2, 3]


def test_a_server_that_stays_away_is_named_after_the_deadline(mortal_postgres: Server, recovery: str) -> None:
    target = Target(mortal_postgres.new_database())
    sink = target.sink(retry_deadline="1 second")
    run(sink, recovery, 0, rows(1))
    with crash_at("after COMMITTING"):
        run(sink, recovery, 1, rows(2))
    mortal_postgres.kill()
    with pytest.raises(TransientError, match=r"(?s)failed for 1 s.*finished by the next run"):
        run(sink, recovery, 1, rows(2))


def test_a_pooler_in_transaction_mode_may_stand_between(target: Target, recovery: str) -> None:
    with pgbouncer(target.dsn) as pooled:
        sink = target.sink(dsn=pooled)
        for epoch in range(3):
            run(sink, recovery, epoch, rows(epoch), rows(epoch + 10))
    assert target.ids() == [0, 1, 2, 10, 11, 12]


# --- upserts and deletes

KEYED = "CREATE TABLE t (id bigint PRIMARY KEY, name text, version bigint)"


def keyed(number: int, name: str | None, version: int, gone: bool = False) -> dict[str, Any]:
    return {"id": number, "name": name, "version": version, "gone": gone}


def test_upserts_replace_rows_by_their_key(dsn: str, recovery: str) -> None:
    target = Target(dsn, KEYED)
    sink = target.sink(write_mode="upsert", key_columns="id", order_column="version", delete_marker="gone")
    run(sink, recovery, 0, [keyed(1, "a", 1), keyed(1, "b", 2), keyed(2, "x", 1)])
    assert target.run("SELECT * FROM t ORDER BY id") == [(1, "b", 2), (2, "x", 1)]
    run(sink, recovery, 1, [keyed(1, "late", 1)], [keyed(2, "x", 3, gone=True), keyed(3, None, 1)])
    assert target.run("SELECT * FROM t ORDER BY id") == [(1, "b", 2), (3, None, 1)]
    run(sink, recovery, 2, [keyed(1, None, 3), keyed(3, "late", 0, gone=True)])
    assert target.run("SELECT * FROM t ORDER BY id") == [(1, None, 3), (3, None, 1)]


def test_the_last_row_of_a_key_counts_where_no_column_orders_them(dsn: str, recovery: str) -> None:
    target = Target(dsn, KEYED)
    sink = target.sink(write_mode="upsert", key_columns="id")
    run(sink, recovery, 0, [{"id": 1, "name": name, "version": 0} for name in "abc"])
    assert target.run("SELECT name FROM t") == [("c",)]


def test_only_the_columns_that_are_named_are_updated(dsn: str, recovery: str) -> None:
    target = Target(dsn, KEYED)
    sink = target.sink(write_mode="upsert", key_columns="id", update_columns="name")
    for epoch, name in enumerate("ab"):
        run(sink, recovery, epoch, [{"id": 1, "name": name, "version": epoch}])
    assert target.run("SELECT * FROM t") == [(1, "b", 0)]


def test_rows_of_keys_alone_are_inserted_once(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY)")
    sink = target.sink(write_mode="upsert", key_columns="id")
    run(sink, recovery, 0, [{"id": 1}, {"id": 1}], [{"id": 2}])
    run(sink, recovery, 1, [{"id": 2}, {"id": 3}])
    assert target.ids() == [1, 2, 3]


@pytest.mark.parametrize(
    ("ddl", "options"),
    [
        ("CREATE UNIQUE INDEX live ON t (id) WHERE version > 0", {"conflict_where": "version > 0"}),
        ("ALTER TABLE t ADD CONSTRAINT once UNIQUE (id)", {"conflict_constraint": "once"}),
    ],
)
def test_the_index_of_a_conflict_can_be_named(dsn: str, recovery: str, ddl: str, options: dict[str, str]) -> None:
    target = Target(dsn, f"CREATE TABLE t (id bigint, name text, version bigint); {ddl}")
    sink = target.sink(write_mode="upsert", key_columns="id", **options)
    for epoch, name in enumerate("ab"):
        run(sink, recovery, epoch, [{"id": 1, "name": name, "version": 1}])
    assert target.run("SELECT name FROM t") == [("b",)]


def test_deletes_remove_rows_by_their_key(dsn: str, recovery: str) -> None:
    target = Target(dsn, KEYED)
    target.run("INSERT INTO t SELECT n, 'x', 0 FROM generate_series(1, 5) AS n")
    run(target.sink(write_mode="delete", key_columns="id"), recovery, 0, [{"id": 2}, {"id": 2}], [{"id": 4}])
    assert target.ids() == [1, 3, 5]


def test_two_queries_that_upsert_the_same_keys_do_not_deadlock(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn, KEYED)
    ids = range(2000)
    failures: list[BaseException] = []

    def write(name: str, order: range) -> None:
        try:
            sink = target.sink(write_mode="upsert", key_columns="id")
            for epoch in range(3):
                values = [{"id": number, "name": name, "version": epoch} for number in order]
                run(sink, str(tmp_path / name), epoch, values)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=args) for args in (("a", ids), ("b", ids[::-1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert target.run("SELECT count(DISTINCT id), count(*) FROM t") == [(2000, 2000)]
    assert target.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


@pytest.mark.parametrize("others", [{}, {"delete_marker": "gone"}], ids=["the same options", "other options"])
def test_two_queries_into_one_table_at_once(dsn: str, tmp_path: Path, others: dict[str, str]) -> None:
    target = Target(dsn, KEYED)
    failed: list[BaseException] = []

    def query(first: int, options: dict[str, str]) -> None:
        try:
            local = LocalDriver(
                target.sink(write_mode="upsert", key_columns="id", **options), str(tmp_path / str(first))
            )
            for epoch in range(10):
                made = rows(first + epoch, first + 100 + epoch)
                local.run_epoch(epoch, [[row | dict.fromkeys(options.values(), False) for row in made], []])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=query, args=given) for given in ((0, {}), (1000, others))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert target.ids() == sorted(first + n for first in (0, 1000, 100, 1100) for n in range(10))


def test_the_last_row_counts_also_where_staging_is_vacuumed_while_it_is_filled(dsn: str, recovery: str) -> None:
    """Pages at the front become free in the middle of a COPY: then later rows have lower addresses."""
    target = Target(dsn, KEYED)
    local = LocalDriver(target.sink(write_mode="upsert", key_columns="id"), recovery)
    local.run_epoch(0, [rows(0)])
    (name,) = target.run("SELECT format('outfall.%I', tablename) FROM pg_tables WHERE tablename LIKE 'staging%'")[0]

    def size() -> int:
        return int(target.run("SELECT pg_relation_size(%s::regclass)", name)[0][0])

    target.run(f"ALTER TABLE {name} SET (autovacuum_enabled = false)")
    target.run(f"INSERT INTO {name} (_outfall_stage, id, name) SELECT 7, n, 'x' FROM generate_series(1, 40000) AS n")
    target.run(f"DELETE FROM {name}")
    before = size()
    batches = 0

    def vacuum(step: str) -> None:
        nonlocal batches
        batches += step == "postgres: copying"
        if step == "postgres: copying" and batches == 4:
            until(lambda: size() > before, "the first rows being in staging", 30)
            target.run(f"VACUUM {name}")

    def batch(first: int) -> tuple[str | None, list[Any]]:
        return None, [{"id": 1, "name": str(number)} for number in range(first, first + 20000)]

    coordinator = local.coordinator()
    ticket = coordinator.begin(1)
    with listening(vacuum):
        answer = local.run_task(ticket, 1, 0, [batch(first) for first in range(0, 80_000, 20_000)])
    coordinator.finish(ticket, [answer])
    assert target.run("SELECT name FROM t WHERE id = 1") == [("79999",)]


# --- what the server refuses


def test_a_row_that_breaks_a_constraint_is_named_and_nothing_is_written(dsn: str, recovery: str) -> None:
    target = Target(dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    target.run("INSERT INTO t VALUES (2, 'theirs')")
    with pytest.raises(CommitRefusedError, match=r"Key \(id\)=\(2\) already exists"):
        run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == [2]
    target.run("DELETE FROM t")
    run(target.sink(), recovery, 0, rows(1, 2))
    assert target.ids() == [1, 2]


def test_a_missing_right_is_told_with_the_way_out(postgres: Databases, recovery: str) -> None:
    target = Target(postgres.new_database())
    role = "outfall_poor"
    target.run(f"DROP ROLE IF EXISTS {role}")
    target.run(f"CREATE ROLE {role} LOGIN; GRANT INSERT, SELECT ON t TO {role}")
    poor = psycopg.conninfo.make_conninfo(target.dsn, user=role)
    try:
        with pytest.raises(TargetError, match=r"permission denied.*ddl\(\)"):
            run(target.sink(dsn=poor), recovery, 0, rows(1))
        target.run(target.sink().ddl())
        target.run(f"GRANT USAGE ON SCHEMA outfall TO {role}")
        target.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA outfall TO {role}")
        run(target.sink(dsn=poor, create_staging="never"), recovery, 0, rows(1))
        assert target.ids() == [1]
    finally:
        target.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_missing_table_is_told(dsn: str, recovery: str) -> None:
    with pytest.raises(TargetError, match="there is no table nowhere"):
        run(PostgresSink(dsn, "nowhere"), recovery, 0, rows(1))


# --- first contact, and copies of databases and checkpoints


def test_rows_that_are_there_are_kept_refused_or_replaced(dsn: str, tmp_path: Path) -> None:
    target = Target(dsn)
    target.run("INSERT INTO t VALUES (1, 'theirs')")
    run(target.sink(), str(tmp_path / "a"), 0, rows(2))
    assert target.ids() == [1, 2]
    with pytest.raises(TargetNotEmptyError):
        run(target.sink(on_existing="error"), str(tmp_path / "b"), 0, rows(3))
    sink = target.sink(on_existing="overwrite")
    with crash_at("postgres: before COMMIT#2"):
        run(sink, str(tmp_path / "c"), 0, rows(3))
    assert target.ids() == [1, 2]
    run(sink, str(tmp_path / "c"), 0, rows(3))
    run(sink, str(tmp_path / "c"), 1, rows(4))
    assert target.ids() == [3, 4]


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


def test_a_checkpoint_restored_from_an_older_copy_is_refused(target: Target, tmp_path: Path, recovery: str) -> None:
    import shutil

    run(target.sink(), recovery, 0, rows(1))
    shutil.copytree(recovery, tmp_path / "copy")
    run(target.sink(), recovery, 1, rows(2))
    with pytest.raises(TargetAheadError, match="epoch 1"):
        run(target.sink(), str(tmp_path / "copy"), 1, rows(3))
    assert target.ids() == [1, 2]


# --- bounds


def test_two_hundred_epochs_leave_the_catalogue_as_it_was(target: Target, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    local.run_epoch(0, [rows(0)])

    def size() -> list[tuple[Any, ...]]:
        return target.run("SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_attribute)")

    before = size()
    for epoch in range(1, 200):
        local.run_epoch(epoch, [rows(epoch)])
    assert size() == before
    assert target.ids() == list(range(200))
    assert (target.attempts(), target.staged()) == (0, 0)
    assert target.run("SELECT count(*) FROM outfall.ledger") == [(1,)]


def test_a_large_staging_table_is_truncated_once_nobody_writes(
    target: Target, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.staging._TRUNCATE_BYTES", 1)
    sink = target.sink()
    run(sink, recovery, 0, rows(*range(1000)))
    name = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%'")[0][0]
    assert target.run("SELECT pg_relation_size(format('outfall.%%I', %s::text)::regclass)", name) == [(0,)]
    # Somebody else's attempt is under way: its lock is respected, and its rows stay.
    with psycopg.connect(target.dsn) as other:
        other.execute(f'INSERT INTO outfall."{name}" VALUES (7, 1, NULL)')
        run(sink, recovery, 1, rows(1, 2))
    assert target.staged() == 1


def test_a_connection_is_kept_between_epochs_and_none_is_leaked(target: Target, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    used = []
    for epoch in range(5):
        local.run_epoch(epoch, [rows(epoch)])
        found = target.run(
            "SELECT count(*), min(backend_start) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'outfall'"
        )
        used.append(found[0])
    assert {count for count, _ in used} == {1}
    assert len({started for _, started in used}) == 1


# --- the table and the rows


def test_a_mismatch_is_explained_column_by_column(dsn: str) -> None:
    import pyarrow as pa

    target = Target(
        dsn,
        "CREATE TABLE t (id bigint, nam text, n integer NOT NULL, made bigint GENERATED ALWAYS AS (id * 2) STORED)",
    )
    schema = pa.schema({"id": pa.binary(), "name": pa.string(), "made": pa.int64()})
    with pytest.raises(ConfigurationError) as caught:
        target.sink().check_schema(schema)
    for told in ("'id'", "'name', did you mean 'nam'", "'made' is a column that the server fills", "'n', which is NOT"):
        assert told in str(caught.value)


def test_columns_of_options_must_be_there(dsn: str) -> None:
    import pyarrow as pa

    target = Target(dsn, KEYED)
    sink = target.sink(write_mode="upsert", key_columns="id", order_column="version", delete_marker="gone")
    with pytest.raises(ConfigurationError, match=r"no column 'version'.*delete marker 'gone' is string"):
        sink.check_schema(pa.schema({"id": pa.int64(), "gone": pa.string()}))


def test_a_table_is_created_and_grows_columns_where_options_say_so(dsn: str, recovery: str) -> None:
    import pyarrow as pa

    sink = PostgresSink(
        dsn, "made", create_table="if_missing", schema_evolution="add_columns", write_mode="upsert", key_columns="id"
    )
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    local = LocalDriver(sink, recovery)
    local.run_epoch(0, [rows(1)])
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string(), "more": pa.float64()}))
    local.run_epoch(1, [[{"id": 2, "name": "b", "more": 0.5}]])
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT * FROM made ORDER BY id").fetchall() == [(1, "n1", None), (2, "b", 0.5)]
        keys = connection.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'made'").fetchall()
    assert "UNIQUE" in keys[0][0]


def test_a_table_that_is_altered_between_epochs_is_followed(target: Target, recovery: str) -> None:
    run(target.sink(), recovery, 0, rows(1))
    target.run("ALTER TABLE t ALTER COLUMN id TYPE numeric, ADD COLUMN at timestamptz DEFAULT now()")
    run(target.sink(), recovery, 1, rows(2))
    assert [int(number) for number in target.ids()] == [1, 2]
    assert target.run("SELECT count(at) FROM t") == [(2,)]


def test_odd_names_are_quoted(dsn: str, recovery: str) -> None:
    target = Target(dsn)
    target.run('CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."select ""T""" ("user" bigint, "a b" text)')
    sink = PostgresSink(dsn, '"My Schema"."select ""T"""', metadata_schema="Odd one")
    run(sink, recovery, 0, [{"user": 1, "a b": "x"}])
    assert target.run('SELECT * FROM "My Schema"."select ""T"""') == [(1, "x")]
