"""Two nodes that both take writes, of Galera and of Group Replication: a commit may fail at its end, a node may lag."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from outfall.errors import OutfallError, ReplayDiffersError, TargetError, TransientError
from outfall.testing import LocalDriver
from tests.integration.mysql.support import Target
from tests.integration.support.sql import listening, rows, run
from tests.integration.support.sql_parts import one_task, parts_sink
from tests.integration.support.waiting import until
from tests.peers.support.galera import Galera
from tests.peers.support.group_replication import Group

TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)"
Cluster = Galera | Group
MODES: dict[str, dict[str, Any]] = {"append": {}, "upsert": {"write_mode": "upsert", "key_columns": "id"}}


def test_a_commit_that_another_node_contradicts_is_repeated(cluster: Cluster, tmp_path: Any) -> None:
    """The other node changes a row of the epoch between its INSERT and its COMMIT, where no lock holds it off."""
    first, second = cluster.clients
    target = Target(first, first.new_database(), TABLE)
    sink = target.sink(write_mode="upsert", key_columns="id")
    run(sink, tmp_path, 0, rows(1, 2))
    meddled: list[str] = []

    def meddle(step: str) -> None:
        meddled.append(step)
        if step == "sql: before COMMIT" and 0 < meddled.count("sql: moving") <= 2:
            second.run(f"UPDATE t SET name = 'theirs {len(meddled)}' WHERE id = 1", target.database)

    with listening(meddle):
        result = run(sink, tmp_path, 1, [{"id": 1, "name": "ours"}, {"id": 3, "name": "ours"}])
    assert result.counts["retries"] == 2
    for node in cluster.clients:
        found = node.run(f"{cluster.waiting}; SELECT id, name FROM t ORDER BY id", target.database)
        assert found == [("1", "ours"), ("2", "n2"), ("3", "ours")]


@pytest.mark.parametrize("mode", MODES)
def test_two_drivers_of_one_epoch_on_two_nodes_publish_it_once(cluster: Cluster, tmp_path: Any, mode: str) -> None:
    first, second = cluster.clients
    target = Target(first, first.new_database(), TABLE)
    there = Target.__new__(Target)
    there.server, there.database = second, target.database
    run(target.sink(**MODES[mode]), tmp_path, 0, rows(1, 2))
    others: list[OutfallError | None] = []

    def other() -> None:
        try:
            run(there.sink(**MODES[mode]), tmp_path, 1, rows(3, 4))
            others.append(None)
        except OutfallError as error:
            others.append(error)

    started: list[threading.Thread] = []

    def start(step: str) -> None:
        if step == "sql: before COMMIT" and not started and threading.current_thread() is threading.main_thread():
            started.append(threading.Thread(target=other))
            started[0].start()
            started[0].join()

    errors = []
    with listening(start):
        try:
            run(target.sink(**MODES[mode]), tmp_path, 1, rows(3, 4))
        except OutfallError as error:
            errors.append(error)
    assert started
    run(target.sink(**MODES[mode]), tmp_path, 2, rows(5))
    for node in (target, there):
        found = node.run(f"{cluster.waiting}; SELECT id FROM t ORDER BY id")
        assert found == [(str(number),) for number in range(1, 6)]


def test_a_query_that_moves_from_node_to_node_writes_each_row_once(cluster: Cluster, tmp_path: Any) -> None:
    """Without a wait, the next node may not yet have what the last one has confirmed."""
    first, second = cluster.clients
    target = Target(first, first.new_database(), TABLE)
    there = Target.__new__(Target)
    there.server, there.database = second, target.database
    for epoch in range(30):
        run((target, there)[epoch % 2].sink(), tmp_path, epoch, rows(2 * epoch, 2 * epoch + 1))
    assert target.ids() == list(range(60))


def test_an_epoch_that_is_too_large_for_the_cluster_is_refused_with_the_way_out(
    cluster: Cluster, tmp_path: Any
) -> None:
    first, _ = cluster.clients
    target = Target(first, first.new_database(), TABLE)
    sink = target.sink(retry_deadline="2 seconds")
    many = [{"id": number, "name": "x" * 1000} for number in range(500)]
    ((size,),) = first.run(f"SELECT @@{cluster.limit}")
    first.run(f"SET GLOBAL {cluster.limit} = 100000")
    try:
        with pytest.raises(OutfallError, match=cluster.limit):
            run(sink, tmp_path, 0, many)
    finally:
        first.run(f"SET GLOBAL {cluster.limit} = {size}")
    assert target.ids() == []
    run(sink, tmp_path, 0, many)
    assert target.ids() == list(range(500))


def test_a_node_that_lags_is_waited_for(cluster: Cluster, tmp_path: Any) -> None:
    """The second node applies nothing while the first one commits an epoch; the next one begins on the second."""
    first, second = cluster.clients
    target, there = (Target(node, first.new_database(), "SELECT 1") for node in (first, second))
    there.database = target.database
    target.run(TABLE)
    run(target.sink(), tmp_path, 0, rows(1))
    run(there.sink(), tmp_path, 1, rows(2))
    connection = pymysql.connect(host=second.host, port=second.port, user=second.user)
    with connection, connection.cursor() as holding, ThreadPoolExecutor(1) as pool:
        for statement in cluster.hold:
            holding.execute(statement)
        run(target.sink(), tmp_path, 2, rows(3))
        lagging = pool.submit(run, there.sink(), tmp_path, 3, rows(4))
        ours = "SELECT count(*) > 0 FROM information_schema.processlist WHERE db = %s AND command = 'Query'"

        def asks() -> bool:
            holding.execute(ours, (target.database,))
            return lagging.done() or holding.fetchone() == (1,)

        until(asks, "the sink waiting for the node", 30)
        for statement in cluster.release:
            holding.execute(statement)
        lagging.result()
    assert target.ids() == [1, 2, 3, 4]


def test_changes_by_two_nodes_at_one_moment_end_as_one_after_the_other(cluster: Cluster, tmp_path: Any) -> None:
    """The older change is published on the other node, where no lock holds it off, before the COMMIT of the newer."""
    first, second = cluster.clients
    target = Target(first, first.new_database(), "CREATE TABLE t (id BIGINT PRIMARY KEY, lsn BIGINT)")
    there = Target.__new__(Target)
    there.server, there.database = second, target.database
    changes: dict[str, Any] = {
        "write_mode": "changes",
        "key_columns": "id",
        "operation_column": "op",
        "sequence_column": "lsn",
        "on_existing": "resume",
    }
    for number, node in enumerate((target, there)):
        run(node.sink(**changes), tmp_path / str(number), 0, [{"op": "c", "id": 10 + number, "lsn": 1}])
    older = [{"op": "c", "id": 1, "lsn": 3}]
    seen: list[str] = []

    def meddle(step: str) -> None:
        seen.append(step)
        if seen[-2:] == ["sql: moving", "sql: before COMMIT"] and seen.count("sql: moving") == 1:
            run(there.sink(**changes), tmp_path / "1", 1, older)

    with listening(meddle):
        run(target.sink(**changes), tmp_path / "0", 1, [{"op": "d", "id": 1, "lsn": 5}])
    for node in (target, there):
        assert node.run(f"{cluster.waiting}; SELECT id FROM t ORDER BY id") == [("10",), ("11",)]
    assert seen.count("sql: moving") == 3


def test_a_table_without_a_key_is_refused_before_a_row_and_written_as_advised(
    writing_group: Group, tmp_path: Any
) -> None:
    first, _ = writing_group.clients
    target = Target(first, first.new_database(), "CREATE TABLE t (id BIGINT NOT NULL, name TEXT)")
    with pytest.raises(TargetError, match="no primary key") as refused:
        run(target.sink(), tmp_path, 0, rows(1))
    assert not list(tmp_path.iterdir())
    advised = re.search("or (ADD COLUMN .*)", str(refused.value.do))
    assert advised
    target.run(f"ALTER TABLE t {advised[1]}")
    run(target.sink(), tmp_path, 0, rows(1))
    target.run("ALTER TABLE t DROP COLUMN outfall_id, ADD UNIQUE (id)")
    run(target.sink(), tmp_path, 1, rows(2))
    assert target.ids() == [1, 2]


def test_a_stale_task_on_another_node_does_not_commit_into_an_epoch_that_is_closed(
    cluster: Cluster, tmp_path: Any
) -> None:
    """Its rows were not replayed, and no lock of the driver's node holds it off."""
    first, second = cluster.clients
    target = Target(first, first.new_database(), TABLE)
    there = Target.__new__(Target)
    there.server, there.database = second, target.database
    driver = LocalDriver(parts_sink(target), str(tmp_path))
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    stale = LocalDriver(parts_sink(there), str(tmp_path))
    closed: list[str] = []

    def close(step: str) -> None:
        if step == "sql: publishing" and not closed:
            closed.append(step)
            coordinator.finish(ticket, [one_task(driver, ticket, 0, {"0": [1]})])

    with listening(close), pytest.raises(TransientError):
        one_task(stale, ticket, 0, {"1": [2]})
    with pytest.raises(ReplayDiffersError, match="closed"):
        one_task(stale, ticket, 0, {"1": [2]})
    driver.run_epoch(1, [[("0", {"id": 3, "name": "x"})]])
    for node in (target, there):
        assert node.run(f"{cluster.waiting}; SELECT id FROM t ORDER BY id") == [("1",), ("3",)]


def test_two_attempts_of_a_task_on_two_nodes_write_its_rows_once(cluster: Cluster, tmp_path: Any) -> None:
    first, second = cluster.clients
    # Without a key of the rows, only the row of the ledger tells them apart.
    ddl = "CREATE TABLE t (n BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT, name TEXT)"
    target = Target(first, first.new_database(), ddl)
    there = Target.__new__(Target)
    there.server, there.database = second, target.database
    driver = LocalDriver(parts_sink(target), str(tmp_path))
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    other = LocalDriver(parts_sink(there), str(tmp_path))
    overtaken: list[Any] = []

    def overtake(step: str) -> None:
        if step == "sql: publishing" and not overtaken:
            overtaken.append(None)
            overtaken[0] = one_task(other, ticket, 0, {"0": [1, 2]})

    with listening(overtake):
        # Its COMMIT fails, and the row of the ledger says that the rows are there.
        answer = one_task(driver, ticket, 0, {"0": [1, 2]})
    assert overtaken
    result = coordinator.finish(ticket, [answer])
    assert result.counts["commits_settled"] == 1
    for node in (target, there):
        assert node.run(f"{cluster.waiting}; SELECT id FROM t ORDER BY id") == [("1",), ("2",)]
