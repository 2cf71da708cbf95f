"""`PostgresSink` by epochs, against a real server and without Spark: crashes, zombies, lost replies, bounds."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.postgres.connection.database import PostgresConnection
from outfall.testing import LocalDriver
from outfall.testing.tcp_proxy import NetworkFault, TcpProxy
from tests.integration.postgres.support import Target
from tests.integration.support.postgres import pgbouncer
from tests.integration.support.servers import free_port
from tests.integration.support.sql import first, listening, rows, run
from tests.integration.support.waiting import until


@pytest.mark.parametrize("step", first(1, ["sql: publishing", "sql: before COMMIT#3"]))
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

    with TcpProxy(str(given["host"]), int(str(given["port"])), listen=free_port()) as proxy:
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


def test_a_pooler_in_transaction_mode_may_stand_between(target: Target, recovery: str) -> None:
    with pgbouncer(target.dsn) as pooled:
        sink = target.sink(dsn=pooled)
        for epoch in range(3):
            run(sink, recovery, epoch, rows(epoch), rows(epoch + 10))
    assert target.ids() == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize(
    "count", [10, pytest.param(60, marks=pytest.mark.thorough), pytest.param(10_000, marks=pytest.mark.long)]
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


@pytest.mark.thorough
def test_a_large_staging_table_is_truncated_once_nobody_writes(
    target: Target, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outfall.postgres.staging.truncation._TRUNCATE_BYTES", 1)
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
