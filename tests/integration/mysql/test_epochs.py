"""`MySQLSink` by epochs, against a real server and without Spark: crashes, zombies, lost replies, deadlocks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import pymysql
import pytest

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import (
    FencedError,
    TargetAheadError,
    TargetLostError,
    TargetNotEmptyError,
    TransientError,
    ValueRefusedError,
)
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from outfall.testing.tcp_proxy import NetworkFault, TcpProxy
from tests.integration.mysql.support import Target, listening, rows, run
from tests.integration.support.mariadb import MariaDB, RefusedError, Server

BY_DEFAULT = ["after BEGIN", "task: after snapshot", "after PREPARED", "sql: before COMMIT#2", "sql: after COMMIT#2"]
KEYED = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'a')"
STEPS = [
    "before BEGIN", "sql: opening", "after open target", "sql: copying", "task: after write", "sql: staging",
    "sql: staged", "after collect", "before PREPARED", "after COMMITTING", "sql: publishing", "sql: moving",
    "sql: before COMMIT", "sql: before COMMIT#3", "sql: after COMMIT", "sql: after COMMIT#3", "after commit",
    "before COMPLETED", "after COMPLETED", "after clean-up",
]  # fmt: skip


@pytest.mark.parametrize("step", [*BY_DEFAULT, *(pytest.param(step, marks=pytest.mark.thorough) for step in STEPS)])
def test_a_driver_that_dies_anywhere_leaves_each_row_once(target: Target, tmp_path: Path, step: str) -> None:
    sink = target.sink()
    run(sink, tmp_path, 0, rows(100))
    with crash_at(step) as seen:
        run(sink, tmp_path, 1, rows(1, 2), rows(3))
    assert step.partition("#")[0] in seen
    assert target.ids() in ([100], [1, 2, 3, 100])
    run(sink, tmp_path, 1, rows(3), rows(2, 1))
    run(sink, tmp_path, 2, rows(4))
    assert target.ids() == [1, 2, 3, 4, 100]
    assert (target.attempts(), target.staged()) == (0, 0)


def test_nothing_is_in_the_table_before_all_of_an_epoch_is(target: Target, tmp_path: Path) -> None:
    local = LocalDriver(target.sink(), str(tmp_path))
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    answers = local.run_tasks(ticket, 0, [rows(1, 2), rows(3)])
    assert target.ids() == []
    coordinator.finish(ticket, answers)
    assert target.ids() == [1, 2, 3]
    assert run(target.sink(), tmp_path, 0, rows(1)).skipped
    assert target.ids() == [1, 2, 3]


def test_the_ledger_refuses_what_an_older_generation_staged(target: Target, tmp_path: Path) -> None:
    sink: Any = target.sink()
    ticket = LocalDriver(sink, str(tmp_path)).coordinator().begin(0)
    part = sink.bind(WriterInitContext("sink", ticket.incarnation, ticket.generation, 0, None, attempt=0))
    writer = part.build("sink", 0, 1)
    writer.write_batch(rows(1))
    requests = [CommitRequest(staged) for staged in writer.prepare_commit()]
    writer.close()
    LocalDriver(sink, str(tmp_path)).coordinator().begin(0)
    context = CommitterInitContext("sink", ticket.incarnation, ticket.generation, 0, token=ticket.token)
    with pytest.raises(FencedError, match="a newer driver has taken over the step"):
        sink.create_committer(context).commit(requests)
    assert target.ids() == []


@pytest.mark.parametrize(("lost", "published"), [("reply", 1), ("request", 2)])
def test_a_connection_that_breaks_in_commit_is_settled_by_the_ledger(
    target: Target, tmp_path: Path, lost: Literal["reply", "request"], published: int
) -> None:
    publishing: list[str] = []
    cut: list[str] = []

    def break_off(step: str) -> None:
        if step == "sql: publishing":
            publishing.append(step)
        if step == "sql: before COMMIT" and publishing and not cut:
            cut.append(step)
            proxy.inject(NetworkFault("reset", lost, connections=1))

    with TcpProxy(target.server.host, target.server.port) as proxy, listening(break_off):
        run(target.sink(dsn=target.dsn(proxy.port)), tmp_path, 0, rows(1, 2), rows(3))
    assert cut
    assert len(publishing) == published
    assert target.ids() == [1, 2, 3]


def test_a_deadlock_repeats_the_whole_transaction(server: MariaDB, database: str, tmp_path: Path) -> None:
    """Another session holds a row that is updated, and wants one that was updated before it."""
    target = Target(server, database, KEYED)
    moving: list[str] = []
    other = _connect(target)
    threads: list[threading.Thread] = []

    def clash(step: str) -> None:
        if step != "sql: moving":
            return
        moving.append(step)
        if len(moving) == 1:
            with other.cursor() as cursor:
                cursor.execute("UPDATE t SET name = 'b' WHERE id = 1")
                # More rows that are changed: the server ends the transaction that has changed fewer.
                cursor.execute(f"INSERT INTO t (id) VALUES {', '.join(f'({more})' for more in range(100, 2000))}")
            threads.append(threading.Thread(target=_want_the_ledger, args=(other,)))
            threads[0].start()

    with other, listening(clash):
        sink = target.sink(write_mode="upsert", key_columns="id", on_existing="resume")
        run(sink, tmp_path, 0, rows(1, 2))
    threads[0].join(30)
    assert len(moving) == 2
    assert target.rows()[:2] == [("1", "n1"), ("2", "n2")]


def _connect(target: Target) -> Any:
    given = target.server
    return pymysql.connect(
        host=given.host, port=given.port, user=given.user, password=given.password, database=target.database
    )


def _want_the_ledger(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM ledger FOR UPDATE")
    connection.rollback()


def test_a_lock_that_is_held_for_too_long_repeats_the_whole_transaction(
    server: MariaDB, database: str, tmp_path: Path
) -> None:
    target = Target(server, database, KEYED)
    moving: list[str] = []
    other = _connect(target)

    def hold(step: str) -> None:
        if step == "sql: moving":
            moving.append(step)
            if len(moving) == 1:
                other.cursor().execute("SELECT * FROM t FOR UPDATE")
            else:
                other.rollback()

    with other, listening(hold):
        sink = target.sink(write_mode="upsert", key_columns="id", on_existing="resume", statement_timeout="1 second")
        run(sink, tmp_path, 0, rows(1))
    assert len(moving) == 2
    assert target.rows() == [("1", "n1")]


def test_a_server_that_stays_locked_is_given_up_with_advice(server: MariaDB, database: str, tmp_path: Path) -> None:
    target = Target(server, database, KEYED)
    sink = target.sink(
        write_mode="upsert", key_columns="id", on_existing="resume", statement_timeout="1 second", retry_deadline="0.1s"
    )
    with _connect(target) as other:
        other.cursor().execute("SELECT * FROM t FOR UPDATE")
        # The wait for the lock and the statement have the same limit, and either may end first.
        with pytest.raises(
            TransientError, match=r"raise the option statement_timeout|find the session that holds the lock"
        ):
            run(sink, tmp_path, 0, rows(1))
        other.rollback()
    run(sink, tmp_path, 0, rows(1))
    assert target.rows() == [("1", "n1")]


def test_nobody_alters_the_table_between_its_check_and_its_rows(target: Target, tmp_path: Path) -> None:
    refused: list[str] = []

    def alter(step: str) -> None:
        if step == "sql: moving":
            with pytest.raises(RefusedError, match="1205"):
                target.run("SET lock_wait_timeout = 1; ALTER TABLE t MODIFY name VARCHAR(1)")
            refused.append(step)

    with listening(alter):
        run(target.sink(), tmp_path, 0, rows(1))
    assert refused


def test_a_table_that_was_altered_after_staging_gets_the_rows_again(target: Target, tmp_path: Path) -> None:
    sink = target.sink()
    with crash_at("after COMMITTING"):
        run(sink, tmp_path, 0, rows(1, 2))
    target.run("ALTER TABLE t MODIFY id SMALLINT")
    with pytest.raises(ValueRefusedError, match="'id' cannot hold the value"):
        run(sink, tmp_path, 0, rows(70_000))
    assert target.ids() == []
    run(sink, tmp_path, 0, rows(2), rows(1))
    assert target.ids() == [1, 2]


def test_a_wider_column_gets_the_recorded_rows(server: MariaDB, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE t (id INT, name VARCHAR(9))")
    with crash_at("after COMMITTING"):
        run(target.sink(), tmp_path, 0, rows(1, 2))
    target.run("ALTER TABLE t MODIFY id BIGINT, MODIFY name VARCHAR(20)")
    run(target.sink(), tmp_path, 0)
    assert target.ids() == [1, 2]


def test_an_attempt_whose_answer_was_lost_is_cleaned_up(target: Target, tmp_path: Path) -> None:
    local = LocalDriver(target.sink(), str(tmp_path))
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    local.run_task(ticket, 0, 0, [(None, rows(1, 2))])
    coordinator.finish(ticket, [local.run_task(ticket, 0, 0, [(None, rows(1, 2))])])
    assert target.ids() == [1, 2]
    local.run_epoch(1, [rows(3)])
    assert (target.attempts(), target.staged()) == (0, 0)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_database_restored_from_an_older_copy_is_refused(target: Target, tmp_path: Path, epoch: int) -> None:
    """As a failover to a replica that lags: the ledger and the table are older than the log."""
    run(target.sink(), tmp_path, 0, rows(0))
    ledger = target.run("SELECT * FROM ledger") if epoch == 0 else []
    run(target.sink(), tmp_path, 1, rows(1))
    if ledger:
        target.run("UPDATE ledger SET epoch = 0; DELETE FROM t WHERE id = 1")
    else:
        target.run("DELETE FROM ledger; DELETE FROM t")
    with pytest.raises(TargetLostError):
        run(target.sink(), tmp_path, 2, rows(2))
    assert 2 not in target.ids()


def test_a_checkpoint_restored_from_an_older_copy_is_refused(target: Target, tmp_path: Path) -> None:
    older = tmp_path / "older"
    run(target.sink(), tmp_path / "log", 0, rows(0))
    (tmp_path / "log").rename(older)
    run(target.sink(on_existing="resume"), tmp_path / "log", 0, rows(9))
    with pytest.raises(TargetNotEmptyError):
        run(target.sink(), tmp_path / "third", 0, rows(9))
    target.run("UPDATE ledger SET epoch = 5, generation = generation + 9")
    with pytest.raises((TargetAheadError, FencedError)):
        run(target.sink(), older, 1, rows(1))


def test_a_server_that_is_killed_keeps_what_was_staged(mortal: Server, tmp_path: Path) -> None:
    target = Target(mortal.client, mortal.client.new_database())
    sink = target.sink()
    with crash_at("after COMMITTING"):
        run(sink, tmp_path, 0, rows(1, 2))
    mortal.server.kill()
    mortal.server.start()
    run(sink, tmp_path, 0)
    assert target.ids() == [1, 2]
