"""`parts=N` in MySQL and MariaDB: what the server does on its own, and what tasks do to each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import TargetError, TransientError, ValueRefusedError
from outfall.testing import LocalDriver
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, Server
from tests.integration.support.sql import first, listening
from tests.integration.support.sql_parts import one_task, parts_sink, run
from tests.unit.support.command import done, importable

SPLITTING = "wsrep_load_data_splitting"


def test_a_server_that_commits_pieces_of_a_load_is_refused_before_the_first_row(mortal: Server, tmp_path: Path) -> None:
    client = mortal.client
    if not client.run(f"SHOW GLOBAL VARIABLES LIKE '{SPLITTING}'"):
        pytest.skip(f"the server has no {SPLITTING}")
    target = Target(client, client.new_database())
    driver = LocalDriver(parts_sink(target), str(tmp_path))
    ticket = driver.coordinator().begin(0)
    client.run(f"SET GLOBAL {SPLITTING} = ON")
    try:
        with pytest.raises(TargetError, match=rf"{SPLITTING} is ON.*SET GLOBAL {SPLITTING} = OFF"):
            one_task(driver, ticket, 0, {"0": [1]})
        with pytest.raises(TargetError, match=SPLITTING):
            run(parts_sink(target), str(tmp_path), 0, 1)
    finally:
        client.run(f"SET GLOBAL {SPLITTING} = OFF")
    assert target.ids() == []
    run(parts_sink(target), str(tmp_path), 0, 1)
    assert target.ids() == [1]


@pytest.mark.parametrize("loads", first(1, ["ON", "OFF"]))
@pytest.mark.parametrize(
    ("ddl", "bad", "reason"),
    first(
        2,
        [
            ("CREATE TABLE t (id bigint PRIMARY KEY, name text)", 3, "1062"),
            ("CREATE TABLE t (id bigint, name text, CHECK (id < 40))", 41, "4025|3819"),
            ("CREATE TABLE t (id tinyint, name text)", 1000, "cannot hold the value"),
            ("CREATE TABLE t (id bigint, name varchar(2))", 41, "cannot hold the value"),
            (
                "CREATE TABLE o (id bigint PRIMARY KEY); INSERT INTO o VALUES (1), (2), (3);"
                " CREATE TABLE t (id bigint, name text, FOREIGN KEY (id) REFERENCES o (id))",
                41,
                "1452",
            ),
            (
                "CREATE TABLE t (id bigint, name text) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (40))",
                41,
                "1526",
            ),
        ],
    ),
)
def test_a_row_that_the_table_rejects_undoes_all_rows_of_its_task(
    mortal: Server, tmp_path: Path, ddl: str, bad: int, reason: str, loads: str
) -> None:
    """LOAD DATA LOCAL skips or changes such rows with a warning."""
    client = mortal.client
    target = Target(client, client.new_database(), ddl)
    client.run(f"SET GLOBAL local_infile = {loads}")
    try:
        sink = parts_sink(target)
        driver = LocalDriver(sink, str(tmp_path))
        ticket = driver.coordinator().begin(0)
        with pytest.raises(ValueRefusedError, match=rf"(?i)rejects .*({reason})"):
            one_task(driver, ticket, 0, {"0": [1, 2, 3, bad], "1": []})
        assert target.ids() == []
        one_task(driver, ticket, 0, {"0": [1, 2, 3]})
        assert target.ids() == [1, 2, 3]
    finally:
        client.run("SET GLOBAL local_infile = ON")


def test_columns_that_the_server_fills_and_triggers_work_as_with_an_insert(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    target = Target(
        server,
        database,
        "CREATE TABLE log (id bigint PRIMARY KEY); CREATE TABLE t (id bigint, name text, n bigint AUTO_INCREMENT"
        " PRIMARY KEY, twice bigint AS (id * 2) STORED, at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6));"
        " CREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW SET NEW.name = CONCAT(NEW.name, '!');"
        " CREATE TRIGGER a AFTER INSERT ON t FOR EACH ROW INSERT INTO log VALUES (NEW.id)",
    )
    run(parts_sink(target), str(tmp_path), 0, 1, 2)
    assert target.read("SELECT id, name, twice FROM t ORDER BY 1") == [(1, "n1!", 2), (2, "n2!", 4)]
    assert target.read("SELECT id FROM log ORDER BY 1") == [(1,), (2,)]
    target.run(
        "DROP TRIGGER b;\nDELIMITER //\nCREATE TRIGGER b BEFORE INSERT ON t FOR EACH ROW"
        " IF NEW.id = 5 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no fives'; END IF//\nDELIMITER ;"
    )
    with pytest.raises(ValueRefusedError, match="rejects row 1"):
        run(parts_sink(target), str(tmp_path), 1, 4, 5)
    assert target.read("SELECT id FROM t ORDER BY 1") == [(1,), (2,)] == target.read("SELECT id FROM log ORDER BY 1")


def test_a_table_that_was_altered_under_its_task_is_written_as_it_is_now(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """Its columns were read before: the server would round the value without an error."""
    target = Target(server, database, "CREATE TABLE t (id bigint, name varchar(9))")
    sink = parts_sink(target)
    run(sink, str(tmp_path), 0, 1)
    driver = LocalDriver(sink, str(tmp_path))
    ticket = driver.coordinator().begin(1)
    target.retype(name="varchar(2)")
    with pytest.raises(ValueRefusedError, match="name"):
        one_task(driver, ticket, 1, {"0": [100]})
    assert target.ids() == [1]


def test_two_attempts_with_the_same_rows_in_other_orders_leave_each_row_once(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """They wait for each other's keys, and the server ends one of them."""
    target = Target(server, database, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    driver = LocalDriver(parts_sink(target, statement_timeout=3), str(tmp_path))
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    both = Barrier(2, timeout=20)
    waited: list[int] = []

    def write(ids: list[int]) -> Any:
        values = [("0", [{"id": number, "name": "x"}]) for number in ids]
        for retry in range(6):
            try:
                return driver.run_task(ticket, 0, 0, values, retries=retry)
            except (TransientError, ValueRefusedError) as error:
                failed.append(error)
        raise failed[-1]

    def meet(step: str) -> None:
        if step == "task: after write" and len(waited) < 2:
            waited.append(1)
            both.wait()

    failed: list[Exception] = []
    with listening(meet), ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(write, ([1, 2], [2, 1])))
    assert failed
    coordinator.finish(ticket, answers[:1])
    assert target.ids() == [1, 2]


def test_tasks_lock_the_rows_of_their_own_parts_only(target: Target, tmp_path: Path) -> None:
    """Otherwise one would wait for another's COMMIT, or both for each other."""
    driver = LocalDriver(parts_sink(target, 6, statement_timeout=3), str(tmp_path))
    coordinator = driver.coordinator()
    ticket = coordinator.begin(0)
    answers: list[Any] = []

    def other(step: str) -> None:
        if step == "sql: publishing" and not answers:
            answers.append(None)
            answers[0] = one_task(driver, ticket, 0, {"1": [2], "3": [4], "4": [5]}, number=1)

    with listening(other):
        answers.append(one_task(driver, ticket, 0, {"0": [1], "2": [3], "5": [6]}))
    coordinator.finish(ticket, answers)
    assert target.ids() == [1, 2, 3, 4, 5, 6]


def test_a_step_whose_row_was_deleted_leaves_no_parts_to_a_new_start(target: Target, tmp_path: Path) -> None:
    sink = parts_sink(target)
    driver = LocalDriver(sink, str(tmp_path))
    one_task(driver, driver.coordinator().begin(0), 0, {"0": [1]})
    target.run("DELETE FROM t; DELETE FROM ledger")
    run(sink, str(tmp_path), 0, 2)
    run(sink, str(tmp_path), 1, 3)
    assert target.ids() == [2, 3]


def test_parts_move_with_the_database_that_is_renamed(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, log = Target(server, database), str(tmp_path / "log")
    run(parts_sink(target), log, 0, 1)
    with target.copied() as other:
        sink = parts_sink(other)
        done("move", log, "sink", "--sink", importable(monkeypatch, sink), "--yes")
        run(sink, log, 1, 2)
        assert other.ids() == [1, 2]


def test_a_row_as_json_beside_its_part_and_number(server: MySQLServer, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE t (p varchar(9), n bigint, data json NOT NULL, PRIMARY KEY (p, n))")
    sink = parts_sink(target, 1, offset_keys="columns", part_column="p", part_offset_column="n", payload_column="data")
    sink.check_schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
    run(sink, str(tmp_path), 0, 1)
    assert target.read("SELECT p, n, JSON_EXTRACT(data, '$.id') FROM t") == [("0", 0, "1")]
