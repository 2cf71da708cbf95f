"""`offset_columns=…` against a real server and without Spark."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from outfall.errors import (
    ConfigurationError,
    TargetAheadError,
    TargetError,
    TargetLostError,
    TransientError,
    ValueRefusedError,
)
from outfall.postgres import PostgresSink
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from outfall.testing.tcp_proxy import NetworkFault, TcpProxy
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import Server, pgbouncer
from tests.integration.support.servers import free_port
from tests.integration.support.sql import first, listening, mostly_thorough, run
from tests.integration.support.sql_parts import numbered
from tests.integration.support.waiting import until

TABLE = "CREATE TABLE t (id bigint, name text, UNIQUE (id))"


@pytest.fixture
def target(dsn: str) -> Target:
    return Target(dsn, TABLE)


def sink_of(target: Target, **options: Any) -> PostgresSink:
    return target.sink(**({"offset_columns": "id"} | options))


STEPS = [
    "before BEGIN", "after BEGIN", "sql: opening", "after open target", "sql: copying", "task: after write",
    "sql: publishing", "sql: staging", "sql: staged", "task: after snapshot", "after collect",
    "before PREPARED", "after PREPARED", "after COMMITTING", "sql: publishing#2", "after commit",
    "before COMPLETED", "after COMPLETED", "after clean-up",
]  # fmt: skip


BY_DEFAULT = ["after BEGIN", "sql: publishing", "task: after snapshot", "after PREPARED", "after commit"]


@pytest.mark.parametrize("step", first(2, mostly_thorough(STEPS, BY_DEFAULT)))
def test_a_driver_that_dies_anywhere_leaves_each_row_once(target: Target, recovery: str, step: str) -> None:
    sink = sink_of(target)
    run(sink, recovery, 0, numbered(100))
    with crash_at(step) as seen:
        run(sink, recovery, 1, numbered(1, 2), numbered(3))
    assert step.partition("#")[0] in seen
    run(sink, recovery, 1, numbered(3, 2), [], numbered(1))
    run(sink, recovery, 2, numbered(4))
    assert target.ids() == [1, 2, 3, 4, 100]
    assert target.staged() == 0


def test_rows_that_are_there_stay_as_they_are(target: Target, recovery: str) -> None:
    target.run("INSERT INTO t VALUES (1, 'mine')")
    result = run(sink_of(target), recovery, 0, numbered(1, 2, 2))
    assert target.run("SELECT * FROM t ORDER BY 1") == [(1, "mine"), (2, "n2")]
    assert result.counts["rows_changed"] == 1


def test_a_checkpoint_that_was_lost_does_no_harm_while_offsets_come_again(target: Target, tmp_path: Path) -> None:
    for checkpoint in ("lost", "new"):
        run(sink_of(target), str(tmp_path / checkpoint), 0, numbered(1, 2))
    assert target.ids() == [1, 2]


def test_a_zombie_of_an_older_generation_changes_nothing(target: Target, recovery: str) -> None:
    sink = sink_of(target)
    older = LocalDriver(sink, recovery)
    ticket = older.coordinator().begin(0)
    run(sink, recovery, 0, numbered(1, 2))
    run(sink, recovery, 1, numbered(3))
    older.run_task(ticket, 0, 0, [(None, numbered(2, 1))])
    assert target.ids() == [1, 2, 3]


def test_a_lost_reply_to_commit_is_sent_again(target: Target, recovery: str) -> None:
    given = psycopg.conninfo.conninfo_to_dict(target.dsn)
    with TcpProxy(str(given["host"]), int(str(given["port"])), listen=free_port()) as proxy:
        dsn = psycopg.conninfo.make_conninfo(target.dsn, host="127.0.0.1", port=proxy.port)
        driver = LocalDriver(sink_of(target, dsn=dsn), recovery)
        coordinator = driver.coordinator()
        ticket = coordinator.begin(0)
        armed: list[str] = []

        def swallow(step: str) -> None:
            if step == "sql: staging" and not armed:
                armed.append(step)
                proxy.inject(NetworkFault("reset", "reply", connections=1))

        with listening(swallow), pytest.raises(TransientError):
            driver.run_task(ticket, 0, 0, [(None, numbered(1, 2))])
        assert target.ids() == [1, 2]
        coordinator.finish(ticket, [driver.run_task(ticket, 0, 0, [(None, numbered(1, 2))], retries=1)])
    assert target.ids() == [1, 2]


def test_two_attempts_with_the_same_rows_in_other_orders_do_not_deadlock(target: Target, recovery: str) -> None:
    ids = list(range(20_000))
    driver = LocalDriver(sink_of(target), recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    meeting = threading.Barrier(2)
    answers: list[Any] = []

    def attempt(order: list[int], number: int) -> None:
        def meet(step: str) -> None:
            if step == "sql: publishing":
                meeting.wait(30)

        with listening(meet) if number == 0 else listening(lambda step: None):
            answers.append(driver.run_task(ticket, 0, 0, [(None, numbered(*order))], attempt=number))

    threads = [threading.Thread(target=attempt, args=(order, n)) for n, order in enumerate([ids, ids[::-1]])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 2
    coordinator.finish(ticket, answers[:1])
    assert target.ids() == ids


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["sql: copying", "sql: publishing"])
def test_a_server_that_is_killed_while_a_task_writes_loses_and_doubles_nothing(
    mortal_postgres: Server, recovery: str, step: str
) -> None:
    target = Target(mortal_postgres.new_database(), TABLE)
    sink = sink_of(target, retry_deadline=30)
    run(sink, recovery, 0, numbered(1))
    driver = LocalDriver(sink, recovery)
    coordinator = driver.coordinator()
    ticket = coordinator.begin(1)
    driver.run_task(ticket, 1, 1, [(None, numbered(10))])
    killed: list[str] = []

    def kill(reached: str) -> None:
        if reached == step and not killed:
            killed.append(reached)
            mortal_postgres.kill()

    with listening(kill), pytest.raises(TransientError):
        driver.run_task(ticket, 1, 0, [(None, numbered(20, 21))])
    mortal_postgres.start()
    answers = [
        driver.run_task(ticket, 1, index, [(None, numbered(*ids))]) for index, ids in enumerate([(20, 21), (10,)])
    ]
    coordinator.finish(ticket, answers)
    assert target.ids() == [1, 10, 20, 21]


@pytest.mark.thorough
def test_all_of_it_goes_through_a_pooler_and_leaves_the_catalogue_flat(target: Target, recovery: str) -> None:
    with pgbouncer(target.dsn) as pooled:
        driver = LocalDriver(sink_of(target, dsn=pooled), recovery)
        driver.run_epoch(0, [numbered(0), numbered(1)])
        catalogue = "SELECT count(*), (SELECT count(*) FROM pg_attribute) FROM pg_class"
        before = target.run(catalogue)
        for epoch in range(1, 30):
            driver.run_epoch(epoch, [numbered(2 * epoch), numbered(2 * epoch + 1)])
        assert target.run(catalogue) == before
    # Sessions tell the statistics when they end; the rows that were inserted last are told with or after the rest.
    counted = "SELECT n_tup_ins FROM pg_stat_all_tables WHERE relid = 't'::regclass"
    until(lambda: target.run(counted) == [(60,)], "the statistics being complete")
    changed = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_all_tables WHERE relname = 'pg_class'"
    assert target.run(changed)[0][0] < 60
    assert target.ids() == list(range(60))


def test_a_table_without_the_index_is_refused_with_the_statement_that_makes_it(dsn: str) -> None:
    schema = pa.schema([("topic", pa.string()), ("id", pa.int64())])
    target = Target(dsn, "CREATE TABLE t (topic text, id bigint, name text)")
    sink = sink_of(target, offset_columns=["topic", "id"])
    for index in ("ON t (topic)", "ON t (id, topic, name)", "ON t (topic, id) WHERE id > 0", "ON t (topic, (id + 1))"):
        target.run(f"CREATE UNIQUE INDEX {index}")
    target.run("ALTER TABLE t ADD UNIQUE (topic, id) DEFERRABLE")
    with pytest.raises(
        TargetError, match=r'no unique index on topic, id.*CREATE UNIQUE INDEX ON "t" \("topic", "id"\)'
    ):
        sink.check_schema(schema)
    target.run("CREATE UNIQUE INDEX ON t (id, topic) INCLUDE (name)")
    # The server would select both, and reject every INSERT for the deferrable one.
    with pytest.raises(TargetError, match="drop the deferrable constraint t_topic_id_key"):
        sink.check_schema(schema)
    target.run("ALTER TABLE t DROP CONSTRAINT t_topic_id_key")
    sink.check_schema(schema)


def test_a_table_that_is_made_has_the_offsets_as_its_key(dsn: str, recovery: str) -> None:
    target = Target(dsn, "SELECT 1")
    sink = sink_of(target, offset_columns=["id", "name"], create_table="if_missing")
    sink.check_schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    for _ in range(2):
        with crash_at("after collect"):
            run(sink, recovery, 0, numbered(1, 2))
    run(sink, recovery, 0, numbered(1, 2))
    assert target.ids() == [1, 2]


def test_an_offset_that_is_missing_or_null_is_refused(target: Target, recovery: str) -> None:
    with pytest.raises(ConfigurationError, match="an option requires the column 'id', and the rows have name"):
        sink_of(target).check_schema(pa.schema([("name", pa.string())]))
    with pytest.raises(ValueRefusedError, match="offset column 'id' is NULL"):
        run(sink_of(target), recovery, 0, [*numbered(1), {"id": None, "name": "x"}])
    assert target.ids() == []


def test_a_log_and_a_ledger_that_part_are_found(target: Target, recovery: str) -> None:
    sink = sink_of(target)
    for epoch in range(3):
        run(sink, recovery, epoch, numbered(epoch))
    target.run("UPDATE outfall.ledger SET generation = 100")
    with pytest.raises(TargetAheadError, match="generation 100"):
        run(sink, recovery, 3, numbered(3))
    target.run("DELETE FROM outfall.ledger")
    with pytest.raises(TargetLostError, match="has no epoch"):
        run(sink, recovery, 3, numbered(3))
    assert target.ids() == [0, 1, 2]


def test_rows_of_others_are_deleted_once_if_told(target: Target, recovery: str) -> None:
    target.run("INSERT INTO t VALUES (1000, 'x')")
    sink = sink_of(target, on_existing="overwrite")
    with crash_at("after collect"):
        run(sink, recovery, 0, numbered(1))
    run(sink, recovery, 0, numbered(1, 2))
    run(sink, recovery, 1, numbered(3))
    assert target.ids() == [1, 2, 3]
