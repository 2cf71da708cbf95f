"""Upserts and deletes by epochs, against a real server and without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import CommitRefusedError, TargetError, ValueRefusedError
from tests.integration.mysql.support import Target, rows, run
from tests.integration.support.mariadb import MariaDB

THOROUGH = pytest.mark.thorough
KEYED = "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, version BIGINT)"


def keyed(number: int, name: str | None, version: int | None, gone: bool | None = False) -> dict[str, Any]:
    return {"id": number, "name": name, "version": version, "gone": gone}


@pytest.fixture
def target(server: MariaDB, database: str) -> Target:
    return Target(server, database, KEYED)


def test_upserts_replace_rows_by_their_key(target: Target, tmp_path: Path) -> None:
    sink = target.sink(write_mode="upsert", key_columns="id", order_column="version", delete_marker="gone")
    run(sink, tmp_path, 0, [keyed(1, "a", 1), keyed(1, "b", 2), keyed(2, "x", 1)])
    assert target.rows() == [("1", "b", "2"), ("2", "x", "1")]
    run(sink, tmp_path, 1, [keyed(1, "late", 1)], [keyed(2, "x", 3, gone=True), keyed(3, None, 1)])
    assert target.rows() == [("1", "b", "2"), ("3", "NULL", "1")]
    run(sink, tmp_path, 2, [keyed(1, None, 3), keyed(3, "late", 0, gone=True)])
    assert target.rows() == [("1", "NULL", "3"), ("3", "NULL", "1")]


def test_of_equal_versions_the_later_row_counts_also_a_removal(target: Target, tmp_path: Path) -> None:
    sink = target.sink(write_mode="upsert", key_columns="id", order_column="version", delete_marker="gone")
    run(sink, tmp_path, 0, [keyed(1, "a", 1), keyed(1, "b", 1), keyed(2, "x", 1), keyed(2, "x", 1, gone=True)])
    assert target.rows("id, name") == [("1", "b")]
    assert run(sink, tmp_path, 1, [keyed(1, "c", 1, gone=None)]).counts["rows_changed"] == 1
    assert target.rows("id, name") == [("1", "c")]
    run(sink, tmp_path, 2, [keyed(3, "y", 1), keyed(4, "z", 5)])
    removals = [keyed(1, "d", 1, gone=True), keyed(2, "x", 9, gone=True), keyed(4, "z", 4)]
    run(sink, tmp_path, 3, [*removals, keyed(3, "y", 2, gone=True), keyed(3, "w", 2)])
    assert target.rows("id, name") == [("3", "w"), ("4", "z")]


def test_a_value_without_an_order_is_older_than_any_other(target: Target, tmp_path: Path) -> None:
    sink = target.sink(write_mode="upsert", key_columns="id", order_column="version")
    plain = [{"id": 1, "name": name, "version": version} for name, version in (("a", None), ("b", 1), ("c", None))]
    run(sink, tmp_path, 0, plain)
    assert target.rows() == [("1", "b", "1")]
    run(sink, tmp_path, 1, plain[:1])
    assert target.rows() == [("1", "b", "1")]


def test_the_last_row_of_a_key_counts_where_no_column_orders_them(target: Target, tmp_path: Path) -> None:
    sink = target.sink(write_mode="upsert", key_columns="id")
    run(sink, tmp_path, 0, [{"id": 1, "name": name, "version": 0} for name in "abc"])
    assert target.rows("name") == [("c",)]


@pytest.mark.parametrize("columns", ["name", "name, version"])
def test_a_late_row_is_refused_also_where_few_columns_are_updated(target: Target, tmp_path: Path, columns: str) -> None:
    sink = target.sink(write_mode="upsert", key_columns="id", update_columns=columns, order_column="version")
    for epoch, (name, version) in enumerate([("a", 1), ("c", 3), ("b", 2)]):
        run(sink, tmp_path, epoch, [{"id": 1, "name": name, "version": version}])
    assert target.rows() == [("1", "c", "3")]


@pytest.mark.parametrize(
    ("options", "dead", "epochs"),
    [
        # By default each pair of them once.
        pytest.param(options, dead, epochs, marks=[] if (not options) ^ bool(dead) ^ (epochs == 3) else THOROUGH)
        for options in ({"update_columns": "status"}, {})
        for dead in (None, "dead")
        for epochs in (1, 3)
    ],
)
def test_where_epochs_end_changes_nothing(
    server: MariaDB, database: str, tmp_path: Path, options: dict[str, Any], dead: str | None, epochs: int
) -> None:
    """As if each row came alone: what is removed goes, also where its key comes again, and the first row inserts it."""
    target = Target(
        server, database,
        "CREATE TABLE t (id BIGINT PRIMARY KEY, made TEXT, status TEXT, more INT, CHECK (status <> 'bad'));"
        " INSERT INTO t (id) VALUES (3), (4), (5), (6); UPDATE t SET made = 'old', status = 'old', more = 5",
    )  # fmt: skip
    sink = target.sink(write_mode="upsert", key_columns="id", delete_marker="gone", dead_letter_table=dead, **options)
    written = [
        (1, "A", "x", 0), (3, "A", "x", 0), (4, "A", "x", 0), (5, "A", "x", 0), (6, "A", "x", 0), (7, "A", "x", 1),
        (1, "B", "y", 0), (2, "A", "x", 0), (4, None, None, 1), (5, None, None, 1), (6, None, None, 1),
        (7, "B", "y", 0), (2, None, None, 1), (4, "B", "y", 0), (5, "B", "y", 0), (2, "C", "z", 0),
        (4, "C", "z", 0), (7, "C", "z", 0),
    ]  # fmt: skip
    written += [(9, "A", "bad", 0)] if dead else []
    made = [dict(zip(("id", "made", "status", "gone"), row, strict=True)) for row in written]
    made = [row | {"gone": bool(row["gone"])} for row in made]
    each = -(-len(made) // epochs)
    for epoch in range(epochs):
        run(sink, tmp_path, epoch, made[each * epoch : each * (epoch + 1)])
    first = bool(options)
    assert target.rows() == [
        ("1", "A" if first else "B", "y", "NULL"), ("2", "C", "z", "NULL"), ("3", "old" if first else "A", "x", "5"),
        ("4", "B" if first else "C", "z", "NULL"), ("5", "B", "y", "NULL"), ("7", "B" if first else "C", "z", "NULL"),
    ]  # fmt: skip


@pytest.mark.parametrize("ordered", [None, "version"])
def test_an_upsert_takes_the_row_before_one_that_is_refused(
    server: MariaDB, database: str, tmp_path: Path, ordered: str | None
) -> None:
    target = Target(server, database, f"{KEYED[:-1]}, CHECK (name <> 'bad'))")
    sink = target.sink(write_mode="upsert", key_columns="id", order_column=ordered, dead_letter_table="dead")
    given = [(1, "a", 1), (1, "bad", 2), (2, "b", 1), (3, "bad", 1), (2, "c", 2)]
    run(sink, tmp_path, 0, [dict(zip(("id", "name", "version"), row, strict=True)) for row in given])
    assert target.rows() == [("1", "a", "1"), ("2", "c", "2")]
    code = "4025" if server.is_mariadb else "3819"
    assert target.run("SELECT JSON_VALUE(`row`, '$.id'), code FROM dead ORDER BY 1") == [("1", code), ("3", code)]
    assert (target.attempts(), target.staged()) == (0, 0)


@pytest.mark.parametrize(
    ("type", "same", "found"),
    [
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "A", 1),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "a ", 1),
        ("VARCHAR(9) COLLATE utf8mb4_bin", "A", 2),
        ("VARCHAR(9) COLLATE utf8mb4_bin", "a ", 1),
        ("VARCHAR(9) COLLATE nopad_bin", "a ", 2),
        ("VARBINARY(9)", b"A", 2),
    ],
)
@pytest.mark.parametrize("marker", [None, "gone"])
def test_keys_are_equal_as_their_column_says(
    server: MariaDB, database: str, tmp_path: Path, type: str, same: Any, found: int, marker: str | None
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


def test_deletes_remove_rows_by_their_key(target: Target, tmp_path: Path) -> None:
    target.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1), (3, 'c', 1)")
    sink = target.sink(write_mode="delete", key_columns="id")
    assert run(sink, tmp_path, 0, [{"id": 1}, {"id": 1}, {"id": 9}], [{"id": 3}]).counts["rows_changed"] == 2
    assert target.rows("id") == [("2",)]


def test_a_delete_that_is_refused_is_a_dead_letter(target: Target, tmp_path: Path) -> None:
    target.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)")
    target.run("CREATE TABLE child (id BIGINT, FOREIGN KEY (id) REFERENCES t (id)); INSERT INTO child VALUES (1)")
    run(target.sink(write_mode="delete", key_columns="id", dead_letter_table="dead"), tmp_path, 0, rows(1, 2))
    assert target.rows("id") == [("1",)]
    assert target.run("SELECT code FROM dead") == [("1451",)]


def test_rows_that_refer_to_others_of_the_epoch_are_written_in_any_order(
    server: MariaDB, database: str, tmp_path: Path
) -> None:
    target = Target(server, database, "CREATE TABLE t (id BIGINT PRIMARY KEY, up BIGINT REFERENCES t (id))")
    given = [(3, 2), (2, 1), (1, None), (5, 4)]
    sink = target.sink(dead_letter_table="dead")
    run(sink, tmp_path, 0, [{"id": number, "up": up} for number, up in given])
    assert target.rows("id") == [("1",), ("2",), ("3",)]
    assert target.run("SELECT JSON_VALUE(`row`, '$.id') FROM dead") == [("5",)]


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
    assert target.rows("id") == [("2",)]


def test_too_many_dead_letters_fail_the_epoch(target: Target, tmp_path: Path) -> None:
    target.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)")
    with pytest.raises(ValueRefusedError, match="more than 1 rows of this epoch were rejected"):
        run(target.sink(dead_letter_table="dead", max_dead_letters=1), tmp_path, 0, rows(1, 2, 3))
    assert target.rows("id") == [("1",), ("2",)]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("(id BIGINT, name TEXT)", "no unique index on id"),
        ("(id BIGINT, KEY (id), name TEXT)", "no unique index on id"),
        ("(id VARCHAR(9), name TEXT, UNIQUE KEY (id(3)))", "no unique index on id"),
        ("(id BIGINT PRIMARY KEY, name VARCHAR(9) UNIQUE)", "a second unique index, name"),
        ("(id BIGINT PRIMARY KEY, name TEXT, UNIQUE KEY (name(9)))", "a second unique index, name"),
    ],
)
def test_a_table_in_which_a_key_is_not_one_row_is_refused(
    server: MariaDB, database: str, ddl: str, message: str
) -> None:
    target = Target(server, database, f"CREATE TABLE t {ddl}")
    sink = target.sink(write_mode="upsert", key_columns="id")
    kind = pa.string() if "id VARCHAR" in ddl else pa.int64()
    with pytest.raises(TargetError, match=message):
        sink.check_schema(pa.schema({"id": kind, "name": pa.string()}))
    with pytest.raises(TargetError, match=message):
        sink.check_connection()


def test_a_column_that_the_server_numbers_may_have_an_index(server: MariaDB, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE t (n INT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNIQUE, name TEXT)")
    sink = target.sink(write_mode="upsert", key_columns="id")
    sink.check_schema(pa.schema({"id": pa.int64(), "name": pa.string()}))
    with pytest.raises(TargetError, match="second unique index, PRIMARY"):
        sink.check_schema(pa.schema({"n": pa.int32(), "id": pa.int64()}))
    run(target.sink(write_mode="upsert", key_columns="id"), tmp_path, 0, rows(5, 6))
    run(sink, tmp_path, 1, [{"id": 5, "name": "new"}])
    assert target.rows("id, name") == [("5", "new"), ("6", "n6")]


def test_null_is_no_key(server: MariaDB, database: str, tmp_path: Path) -> None:
    target = Target(server, database, "CREATE TABLE t (id BIGINT UNIQUE, name TEXT)")
    with pytest.raises(ValueRefusedError, match="'id' cannot hold the value: NULL"):
        run(target.sink(write_mode="upsert", key_columns="id"), tmp_path, 0, [{"id": None, "name": "x"}, *rows(1)])
