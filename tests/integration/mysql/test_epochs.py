"""`MySQLSink` by epochs, against a real server and without Spark: crashes, zombies, lost replies, deadlocks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer
from tests.integration.support.sql import listening, rows, run

KEYED = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT); INSERT INTO t VALUES (1, 'a')"


def test_a_deadlock_repeats_the_whole_transaction(server: MySQLServer, database: str, tmp_path: Path) -> None:
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
    assert target.rows()[:2] == [(1, "n1"), (2, "n2")]


def _connect(target: Target) -> Any:
    given = target.server
    return pymysql.connect(
        host=given.host, port=given.port, user=given.user, password=given.password, database=target.database
    )


def test_a_failed_statement_before_dead_letters_is_not_taken_for_one_of_them(
    server: MySQLServer, database: str
) -> None:
    target = Target(server, database, KEYED)
    dialect: Any = target.sink().dialect()
    name, row = dialect.parse(f"{database}.t"), pa.RecordBatch.from_pylist([{"id": 2}])
    with dialect.database.transaction(undo=True) as session:
        session.later("INSERT INTO t VALUES (1, 'again')")
        with pytest.raises(pymysql.IntegrityError, match="Duplicate entry '1'"):
            dialect.insert_dead_letters(session, name, row)


def _want_the_ledger(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM ledger FOR UPDATE")
    connection.rollback()


@pytest.mark.thorough
def test_a_lock_that_is_held_for_too_long_repeats_the_whole_transaction(
    server: MySQLServer, database: str, tmp_path: Path
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
    assert target.rows() == [(1, "n1")]
