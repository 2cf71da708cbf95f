"""Upserts and deletes by epochs, against a real server and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import CommitRefusedError, TargetError, ValueRefusedError
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer
from tests.integration.support.sql import first, rows, run

THOROUGH = pytest.mark.thorough
KEYED = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, version BIGINT)"


@pytest.fixture
def target(server: MySQLServer, database: str) -> Target:
    return Target(server, database, KEYED)


@pytest.mark.parametrize(
    ("type", "same", "found"),
    first(
        2,
        [
            ("VARCHAR(9) COLLATE utf8mb4_general_ci", "A", 1),
            ("VARCHAR(9) COLLATE utf8mb4_general_ci", "a ", 1),
            ("VARCHAR(9) COLLATE utf8mb4_bin", "A", 2),
            ("VARCHAR(9) COLLATE utf8mb4_bin", "a ", 1),
            ("VARCHAR(9) COLLATE nopad_bin", "a ", 2),
            ("VARBINARY(9)", b"A", 2),
        ],
    ),
)
@pytest.mark.parametrize("marker", first(1, [None, "gone"]))
def test_keys_are_equal_as_their_column_says(
    server: MySQLServer, database: str, tmp_path: Path, type: str, same: Any, found: int, marker: str | None
) -> None:
    kind = type.replace("nopad_bin", "utf8mb4_nopad_bin" if server.is_mariadb else "utf8mb4_0900_bin")
    target = Target(server, database, f"CREATE TABLE t (k {kind} PRIMARY KEY, v BIGINT)")
    sink = target.sink(write_mode="upsert", key_columns="k", delete_marker=marker)
    first = b"a" if isinstance(same, bytes) else "a"
    given = [{"k": first, "v": 1}, {"k": same, "v": 2}]
    run(sink, tmp_path, 0, [row | {"gone": False} for row in given] if marker else given)
    assert target.run("SELECT count(*), max(v) FROM t") == [(str(found), "2")]
    if marker:
        run(sink, tmp_path, 1, [{"k": same, "v": None, "gone": True}])
        assert target.run("SELECT count(*) FROM t") == [(str(found - 1),)]


def test_a_row_that_publishing_refuses_is_named_without_its_values(target: Target, tmp_path: Path) -> None:
    target.run("INSERT INTO t VALUES (2, 'taken', 1)")
    with pytest.raises(CommitRefusedError) as refused:
        run(
            target.sink(),
            tmp_path,
            0,
            [{"id": 1, "name": "secret", "version": 1}, {"id": 2, "name": "b", "version": 1}],
        )
    assert 'the row with key {"id": 2}' in str(refused.value)
    # MySQL names the table too.
    assert str(refused.value).replace("t.PRIMARY", "PRIMARY").count("for key PRIMARY") == 1
    assert target.ids() == [2]


@pytest.mark.parametrize(
    ("ddl", "message"),
    first(
        2,
        [
            ("(id BIGINT, name TEXT)", "no unique index on id"),
            ("(id BIGINT, KEY (id), name TEXT)", "no unique index on id"),
            ("(id VARCHAR(9), name TEXT, UNIQUE KEY (id(3)))", "no unique index on id"),
            ("(id BIGINT PRIMARY KEY, name VARCHAR(9) UNIQUE)", "a second unique index, name"),
            ("(id BIGINT PRIMARY KEY, name TEXT, UNIQUE KEY (name(9)))", "a second unique index, name"),
        ],
    ),
)
def test_a_table_in_which_a_key_is_not_one_row_is_refused(
    server: MySQLServer, database: str, ddl: str, message: str
) -> None:
    target = Target(server, database, f"CREATE TABLE t {ddl}")
    sink = target.sink(write_mode="upsert", key_columns="id")
    kind = pa.string() if "id VARCHAR" in ddl else pa.int64()
    with pytest.raises(TargetError, match=message):
        sink.check_schema(pa.schema({"id": kind, "name": pa.string()}))
    with pytest.raises(TargetError, match=message):
        sink.check_connection()


def test_a_column_that_the_server_numbers_may_have_an_index(server: MySQLServer, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE t (n INT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, name TEXT)")
    sink = target.sink(write_mode="upsert", key_columns="id")
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    with pytest.raises(TargetError, match="second unique index, PRIMARY"):
        sink.check_schema(pa.schema({"n": pa.int32(), "id": pa.int64()}))
    run(target.sink(write_mode="upsert", key_columns="id"), tmp_path, 0, rows(5, 6))
    run(sink, tmp_path, 1, [{"id": 5, "name": "new"}])
    assert target.rows("id, name") == [(5, "new"), (6, "n6")]


def test_null_is_no_key(server: MySQLServer, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE t (id BIGINT UNIQUE, name TEXT)")
    with pytest.raises(ValueRefusedError, match="'id' cannot hold the value: NULL"):
        run(target.sink(write_mode="upsert", key_columns="id"), tmp_path, 0, [{"id": None, "name": "x"}, *rows(1)])
