"""`PostgresSink` by epochs, against a real server and without Spark: crashes, zombies, lost replies, bounds."""

from __future__ import annotations

import threading
import time
from typing import Any, Literal

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.capabilities import CommitRequest, CommitterInitContext, WriterInitContext
from outfall.errors import (
    EpochAbandonedError,
    FencedError,
    OutfallError,
    TransientError,
)
from outfall.postgres.connection.database import PostgresConnection
from outfall.testing import LocalDriver
from outfall.testing.crash_points import crash_at
from outfall.testing.tcp_proxy import NetworkFault, TcpProxy
from tests.integration.postgres.support import Target, listening, mostly_thorough, rows, run
from tests.integration.support.postgres import Server, pgbouncer
from tests.integration.support.waiting import until

STEPS = [
    "before BEGIN", "after BEGIN", "sql: opening", "after open target", "sql: copying", "task: after write",
    "sql: staging", "sql: staged", "task: after snapshot", "after collect", "before PREPARED",
    "after PREPARED", "after COMMITTING", "sql: publishing", "sql: before COMMIT",
    "sql: before COMMIT#2", "sql: before COMMIT#3",
    "sql: after COMMIT", "sql: after COMMIT#2", "sql: after COMMIT#3",
    "after commit", "before COMPLETED", "after COMPLETED", "after clean-up",
]  # fmt: skip


BY_DEFAULT = ["after BEGIN", "task: after snapshot", "after PREPARED", "sql: before COMMIT#2",
              "sql: after COMMIT#2", "before COMPLETED"]  # fmt: skip


@pytest.mark.parametrize("step", mostly_thorough(STEPS, BY_DEFAULT))
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


def test_an_attempt_whose_answer_was_lost_is_cleaned_up(target: Target, recovery: str) -> None:
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
    context = CommitterInitContext("sink", ticket.incarnation, ticket.generation, 0, token=ticket.token)
    older = sink.create_committer(context)
    with pytest.raises(FencedError, match="a newer driver has taken over the step"):
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


def test_who_publishes_holds_the_ledgers_row_so_that_a_rival_waits(target: Target, recovery: str) -> None:
    locked: list[str] = []

    def look(step: str) -> None:
        if step == "sql: publishing":
            with pytest.raises(psycopg.errors.LockNotAvailable):
                target.run("SELECT 1 FROM outfall.ledger FOR UPDATE NOWAIT")
            locked.append(step)

    with listening(look):
        run(target.sink(), recovery, 0, rows(1))
    assert locked


@pytest.mark.parametrize(("lost", "published"), [("reply", 1), ("request", 2)])
def test_a_connection_that_breaks_in_commit_is_settled_by_the_ledger(
    target: Target, recovery: str, lost: Literal["reply", "request"], published: int
) -> None:
    """The proxy lets COMMIT through and swallows what comes back, or does not let it through."""
    given = psycopg.conninfo.conninfo_to_dict(target.dsn)
    publishing: list[str] = []
    cut: list[str] = []

    def break_off(step: str) -> None:
        if step == "sql: publishing":
            publishing.append(step)
        if step == "sql: before COMMIT" and publishing and not cut:
            cut.append(step)
            proxy.inject(NetworkFault("reset", lost, connections=1))

    with TcpProxy(str(given["host"]), int(str(given["port"]))) as proxy, listening(break_off):
        sink = target.sink(dsn=psycopg.conninfo.make_conninfo(target.dsn, host="127.0.0.1", port=proxy.port))
        run(sink, recovery, 0, rows(1, 2), rows(3))
    assert cut
    assert len(publishing) == published
    assert target.ids() == [1, 2, 3]


@pytest.mark.parametrize("step", ["sql: publishing", "sql: before COMMIT#3"])
def test_a_server_that_falls_silent_is_given_up_and_the_ledger_says_what_it_did(
    target: Target, recovery: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open and nothing comes any more; then the time passes that the server is given."""
    given = {"host": "127.0.0.1", "port": 5432} | conninfo_to_dict(target.dsn)
    wanted, _, times = step.partition("#")
    seen: list[str] = []
    passed = 0.0

    def now() -> float:
        """Time flies while the server is silent."""
        nonlocal passed
        passed += 100 if len(seen) == int(times or 1) else 0
        return time.monotonic() + passed

    with TcpProxy(str(given["host"]), int(str(given["port"]))) as proxy:
        sink = target.sink(dsn=make_conninfo(target.dsn, host="127.0.0.1", port=proxy.port))
        run(sink, recovery, 0, rows(1))
        monkeypatch.setattr(PostgresConnection, "now", staticmethod(now))

        def fall_silent(reached: str) -> None:
            if reached == wanted:
                seen.append(reached)
                if len(seen) == int(times or 1):
                    proxy.inject(NetworkFault("drop", "reply", connections=1))

        with listening(fall_silent):
            run(sink, recovery, 1, rows(2, 3))
    assert len(seen) > int(times or 1)
    assert target.ids() == [1, 2, 3]


def test_connections_that_are_ended_are_made_anew(target: Target, recovery: str) -> None:
    sink = target.sink()
    run(sink, recovery, 0, rows(1))
    ended: list[str] = []

    def end(step: str) -> None:
        if step == "sql: publishing" and not ended:
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


def test_a_server_killed_while_it_publishes_loses_nothing(mortal_postgres: Server, recovery: str) -> None:
    """The driver lives: it tries again, finds staging empty, and proves by the ledger that nothing was published."""
    target = Target(mortal_postgres.new_database())
    sink = target.sink()
    run(sink, recovery, 0, rows(1))
    killed: list[str] = []

    def kill(step: str) -> None:
        if step == "sql: publishing" and not killed:
            killed.append(step)
            mortal_postgres.kill()
            mortal_postgres.start()

    local = LocalDriver(sink, recovery)
    with listening(kill), pytest.raises(EpochAbandonedError, match=r"holds 0 of the 2 rows of attempt"):
        local.run_epoch(1, [rows(2, 3)])
    assert target.ids() == [1]
    local.run_epoch(1, [rows(3), rows(2)])
    assert target.ids() == [1, 2, 3]


@pytest.mark.thorough
def test_a_server_killed_after_the_driver_died_in_publishing_loses_nothing(
    mortal_postgres: Server, recovery: str
) -> None:
    target = Target(mortal_postgres.new_database())
    sink = target.sink()
    with crash_at("sql: publishing"):
        run(sink, recovery, 0, rows(2, 3))
    mortal_postgres.kill()
    mortal_postgres.start()
    run(sink, recovery, 0, rows(3), rows(2))
    assert target.ids() == [2, 3]


def test_a_server_that_stays_away_is_named_after_the_deadline(mortal_postgres: Server, recovery: str) -> None:
    target = Target(mortal_postgres.new_database())
    sink = target.sink(retry_deadline="0.3 seconds")
    run(sink, recovery, 0, rows(1))
    with crash_at("after COMMITTING"):
        run(sink, recovery, 1, rows(2))
    mortal_postgres.kill()
    with pytest.raises(TransientError, match=r"(?s)failed for 0.3 s.*the next run of the query finishes"):
        run(sink, recovery, 1, rows(2))


def test_a_pooler_in_transaction_mode_may_stand_between(target: Target, recovery: str) -> None:
    with pgbouncer(target.dsn) as pooled:
        sink = target.sink(dsn=pooled)
        for epoch in range(3):
            run(sink, recovery, epoch, rows(epoch), rows(epoch + 10))
    assert target.ids() == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize(
    "count", [10, pytest.param(200, marks=pytest.mark.thorough), pytest.param(10_000, marks=pytest.mark.long)]
)
def test_many_epochs_leave_the_catalogue_as_it_was(target: Target, recovery: str, count: int) -> None:
    local = LocalDriver(target.sink(dead_letter_table="dead"), recovery)
    local.run_epoch(0, [rows(0)])

    def size() -> list[tuple[Any, ...]]:
        return target.run("SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_attribute)")

    before = size()
    for epoch in range(1, count):
        local.run_epoch(epoch, [rows(epoch)])
    assert size() == before
    assert target.ids() == list(range(count))
    assert (target.attempts(), target.staged()) == (0, 0)
    assert target.run("SELECT count(*) FROM outfall.ledger") == [(1,)]


def test_a_large_staging_table_is_truncated_once_nobody_writes(
    target: Target, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.staging.staging_table._TRUNCATE_BYTES", 1)
    sink = target.sink()
    run(sink, recovery, 0, rows(*range(1000)))
    name = target.run("SELECT tablename FROM pg_tables WHERE tablename LIKE 'staging%'")[0][0]
    assert target.run("SELECT pg_relation_size(format('outfall.%%I', %s::text)::regclass)", name) == [(0,)]
    # Somebody else's attempt is under way: its lock is respected, and its rows stay.
    with psycopg.connect(target.dsn) as other:
        other.execute(f'INSERT INTO outfall."{name}" VALUES (7, 1, NULL)')
        run(sink, recovery, 1, rows(1, 2))
    assert target.staged() == 1


def test_tasks_that_run_at_once_have_a_connection_each(target: Target, recovery: str) -> None:
    local = LocalDriver(target.sink(), recovery)
    coordinator = local.coordinator()
    ticket = coordinator.begin(0)
    together = threading.Barrier(4, timeout=30)
    answers: list[Any] = []

    def meet(step: str) -> None:
        if step == "sql: staging":
            together.wait()
            together.wait()

    def connections() -> int:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outfall'"
        return int(target.run(f"{query} AND datname = current_database()")[0][0])

    def task(index: int) -> None:
        answers.append(local.run_task(ticket, 0, index, [(None, rows(index))]))

    threads = [threading.Thread(target=task, args=(index,)) for index in range(3)]
    with listening(meet):
        for thread in threads:
            thread.start()
        together.wait()
        most = connections()
        together.wait()
        for thread in threads:
            thread.join(30)
    coordinator.finish(ticket, answers)
    assert most == 3
    until(lambda: connections() == 1, "all but one connection being closed", 30)
    assert target.ids() == [0, 1, 2]


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
