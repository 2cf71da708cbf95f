"""What MySQL has and MariaDB has not: JSON that is no text, keys by default, passwords by SHA-2, errors of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from outfall.errors import ConfigurationError, TargetNotEmptyError, TransientError, ValueRefusedError
from tests.integration.mysql.support import Target
from tests.integration.support.mysql import MySQLServer, own_server
from tests.integration.support.sql import rows, run
from tests.peers.support.debian import mysql_programs

UPSERT: dict[str, Any] = {"write_mode": "upsert", "key_columns": "id", "order_column": "seq"}


@pytest.fixture(scope="module")
def server() -> Iterator[MySQLServer]:
    """A MySQL whose settings a test may change."""
    with mysql_programs() as programs, own_server(programs) as own:
        yield own.client


@pytest.fixture
def target(server: MySQLServer) -> Target:
    return Target(server, server.new_database())


@pytest.fixture
def documents(server: MySQLServer) -> Target:
    return Target(server, server.new_database(), "CREATE TABLE t (id BIGINT, doc JSON)")


@pytest.mark.parametrize(
    "text",
    [
        '{"b": [1, -2.5, 1e300, 5e-324], "a": {"ü": "x\\\\\\"y", "": null}, "aa": true}',
        "[18446744073709551615, -9223372036854775808, 0.1, 1.10, 1000000000000000000000, 1e23, -0.0]",
        '"\\u0000"',
        "null",
    ],
)
def test_json_comes_back_as_it_was_sent(documents: Target, tmp_path: Path, text: str) -> None:
    given = {"id": 1, "doc": text}
    run(documents.sink(), tmp_path, 0, [given])
    assert documents.json("SELECT doc AS `row` FROM t") == [json.loads(text)]


@pytest.mark.parametrize(
    ("doc", "reason"),
    [
        ("100000000000000000000000", "integers of at most 64 bits, doubles"),
        ("0.1000000000000000000000000001", "integers of at most 64 bits, doubles"),
        ('{"a": [{"n": 1e-400}]}', "integers of at most 64 bits, doubles"),
        ('{"a": 1, "a": 2}', "no duplicate names"),
        ({"paid": [Decimal("12345678901234567890.5")]}, "integers of at most 64 bits, doubles"),
        ("[" * 101 + "]" * 101, "maximum depth"),
        (f'{{"{"k" * 70_000}": 1}}', "key name that is too long"),
        ("[1, 2", "error 3140"),
        ("1e400", "integers of at most 64 bits, doubles"),
    ],
)
def test_json_that_the_server_would_change_is_refused(documents: Target, tmp_path: Path, doc: Any, reason: str) -> None:
    given = [{"id": 1, "doc": doc}]
    with pytest.raises(ValueRefusedError, match=reason):
        run(documents.sink(), tmp_path / "a", 0, given)
    run(documents.sink(dead_letter_table="dead"), tmp_path / "b", 0, given)
    assert documents.run("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM dead)") == [("0", "1")]


def test_decimals_that_a_double_keeps_may_be_in_json(documents: Target, tmp_path: Path) -> None:
    paid = pa.array([{"paid": Decimal("0.10")}], pa.struct({"paid": pa.decimal128(30, 2)}))
    batch = pa.RecordBatch.from_arrays([pa.array([1]), paid], names=["id", "doc"])
    run(documents.sink(), tmp_path, 0, batch.to_pylist())
    assert documents.json("SELECT doc AS `row` FROM t") == [{"paid": 0.1}]


@pytest.mark.parametrize(
    ("columns", "text", "code"),
    [
        ("g INT AS (name->'$.x')", '{"x": "secret"}', "3156"),
        ("g INT AS (JSON_EXTRACT(more, '$.x'))", "secret", "3141"),
        ("g DATE AS (STR_TO_DATE(more, '%Y-%m-%d'))", "secret", "1411"),
        ("g POINT AS (ST_GeomFromText(more)) STORED", "secret", "3037"),
        ("g POINT AS (ST_GeomFromText(more, 4326)) STORED", "POINT(200 2)", "3617"),
        ("g VECTOR(3) AS (STRING_TO_VECTOR(more)) STORED", "secret", "6138"),
        ("KEY ((CAST(name->'$.x' AS UNSIGNED ARRAY)))", '{"x": ["secret"]}', "3903"),
        ("KEY ((CAST(name->'$.x' AS UNSIGNED ARRAY)))", '{"x": [-1]}', "3752"),
        ("KEY ((CAST(name->>'$.x' AS CHAR(3))))", '{"x": "secret"}', "3751"),
        ("g INT AS (CHAR_LENGTH(more)) STORED, CHECK (g < 3)", "secret", "3819"),
    ],
)
def test_a_value_that_an_expression_of_the_table_refuses_is_a_dead_letter_and_not_shown(
    server: MySQLServer, tmp_path: Path, columns: str, text: str, code: str
) -> None:
    target = Target(server, server.new_database(), f"CREATE TABLE t (id BIGINT, name JSON, more TEXT, {columns})")
    given = [{"id": number, "name" if "name" in columns else "more": text} for number in (1, None)]
    given[1] = {"id": 2}
    with pytest.raises(Exception, match=f"error {code}") as refused:
        run(target.sink(), tmp_path / "a", 0, given)
    assert "secret" not in str(refused.value)
    assert "200" not in str(refused.value)
    run(target.sink(dead_letter_table="dead"), tmp_path / "b", 0, given)
    assert target.run("SELECT code FROM dead") == [(code,)]
    assert target.ids() == [2]


@pytest.mark.parametrize("shown", ["ON", "OFF"])
def test_a_key_that_the_server_adds_by_itself_changes_nothing(server: MySQLServer, tmp_path: Path, shown: str) -> None:
    settings = {"sql_generate_invisible_primary_key": "ON", "show_gipk_in_create_table_and_information_schema": shown}
    with server.settings(**settings):
        ddl = "CREATE TABLE t (id BIGINT UNIQUE, seq BIGINT, name VARCHAR(9), CHECK (name <> 'bad'))"
        target = Target(server, server.new_database(), ddl)
        assert target.run("SELECT count(my_row_id) FROM t") == [("0",)]
        given = [{"id": 1, "seq": 1, "name": "a"}, {"id": 2, "seq": 1, "name": "bad"}]
        modes: list[dict[str, Any]] = [{}, UPSERT, UPSERT | {"order_column": None}]
        for number, options in enumerate(modes):
            sink = target.sink(**options, dead_letter_table="dead", on_existing="resume", create_table="if_missing")
            sink.check_schema(pa.RecordBatch.from_pylist(given).schema)
            run(sink, tmp_path / str(number), 0, given)
        made = target.sink(table="made", create_table="if_missing")
        made.check_schema(pa.RecordBatch.from_pylist(given).schema)
        run(made, tmp_path / "made", 0, given)
    assert target.rows("id, name") == [(1, "a")]
    assert target.run("SELECT code, count(*) FROM dead GROUP BY code") == [("3819", "3")]
    assert target.run("SELECT count(_outfall_id) FROM made") == [("2",)]


def test_columns_of_types_that_no_row_has_stay_as_the_server_fills_them(server: MySQLServer, tmp_path: Path) -> None:
    target = Target(
        server, server.new_database(),
        "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT DEFAULT ('none'), doc JSON DEFAULT (JSON_OBJECT('a', 1)),"
        " v VECTOR(3) DEFAULT (STRING_TO_VECTOR('[1,2,3]')), g POINT SRID 4326, y YEAR DEFAULT 2020, b BIT(5),"
        " s SET('a','b') DEFAULT 'a,b', hidden INT INVISIBLE DEFAULT 4, twice INT AS (id * 2) VIRTUAL,"
        " at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)",
    )  # fmt: skip
    run(target.sink(), tmp_path / "a", 0, [{"id": 1}, {"id": 2}])
    upsert = target.sink(write_mode="upsert", key_columns="id", on_existing="resume")
    run(upsert, tmp_path / "b", 0, [{"id": 1, "name": "x"}, {"id": 3, "name": "y"}])
    run(target.sink(write_mode="delete", key_columns="id", on_existing="resume"), tmp_path / "c", 0, [{"id": 2}])
    shown = "id, name, doc->>'$.a', VECTOR_TO_STRING(v), g IS NULL, y, b IS NULL, s, hidden, twice, at > '2020-01-01'"
    vector = "[1.00000e+00,2.00000e+00,3.00000e+00]"
    assert target.run(f"SELECT {shown} FROM t ORDER BY 1") == [
        ("1", "x", "1", vector, "1", "2020", "1", "a,b", "4", "2", "1"),
        ("3", "y", "1", vector, "1", "2020", "1", "a,b", "4", "6", "1"),
    ]
    with pytest.raises(ConfigurationError, match="binary cannot be stored in vector"):
        target.sink().check_schema(pa.schema({"id": pa.int64(), "v": pa.binary()}))


@pytest.fixture
def user(server: MySQLServer, request: pytest.FixtureRequest) -> str:
    """A user whose password the server keeps by a method, and has not in its cache."""
    method = request.param
    server.run(f"DROP USER IF EXISTS writer@'%'; CREATE USER writer@'%' IDENTIFIED WITH {method} BY 'hunter2';"
               " GRANT ALL ON *.* TO writer@'%'; FLUSH PRIVILEGES")  # fmt: skip
    return "writer:hunter2"


SHA2 = pytest.mark.parametrize("user", ["caching_sha2_password", "sha256_password"], indirect=True)


@SHA2
@pytest.mark.parametrize("tls", ["prefer", "off"])
def test_passwords_by_sha2_are_sent_with_and_without_tls(target: Target, tmp_path: Path, user: str, tls: str) -> None:
    run(target.sink(dsn=target.dsn(user=user, query=f"tls={tls}")), tmp_path, 0, rows(1))
    assert target.ids() == [1]


@SHA2
def test_without_the_package_for_their_encryption_it_is_named_and_tls_is_a_way(
    target: Target, tmp_path: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    with pytest.raises(ConfigurationError, match=r"'cryptography' package.*install that package") as refused:
        run(target.sink(dsn=target.dsn(user=user, query="tls=off")), tmp_path, 0, rows(1))
    assert "hunter2" not in str(refused.value)
    run(target.sink(dsn=target.dsn(user=user)), tmp_path, 0, rows(1))
    assert target.ids() == [1]


def test_a_limit_of_the_server_for_statements_that_read_is_that_of_the_sink(
    server: MySQLServer, target: Target, tmp_path: Path
) -> None:
    with server.settings(max_execution_time="1"):
        for epoch in range(3):
            run(target.sink(), tmp_path, epoch, rows(*range(epoch * 1000, epoch * 1000 + 1000)))
    assert len(target.ids()) == 3000


def test_a_server_that_takes_no_connections_for_a_while_is_waited_for(
    server: MySQLServer, target: Target, tmp_path: Path
) -> None:
    server.run("DROP USER IF EXISTS plain@'%'; CREATE USER plain@'%' IDENTIFIED BY 'hunter2';"
               f" GRANT ALL ON {target.database}.* TO plain@'%'")  # fmt: skip
    sink = target.sink(dsn=target.dsn(user="plain:hunter2"), retry_deadline="0.3 seconds")
    with server.settings(offline_mode="ON"), pytest.raises(TransientError, match=r"offline mode.*set its offline_mode"):
        run(sink, tmp_path, 0, rows(1))
    run(sink, tmp_path, 0, rows(1))
    assert target.ids() == [1]


def test_a_server_that_only_reads_by_default_is_named_with_the_setting(
    server: MySQLServer, target: Target, tmp_path: Path
) -> None:
    sink = target.sink(retry_deadline="0.3 seconds")
    with (
        server.settings(transaction_read_only="ON"),
        pytest.raises(TransientError, match="set transaction_read_only to OFF"),
    ):
        run(sink, tmp_path, 0, rows(1))
    run(sink, tmp_path, 0, rows(1))
    assert target.ids() == [1]


def test_names_in_small_letters_only(tmp_path: Path) -> None:
    """As servers on Windows, and some managed ones, have them."""
    with mysql_programs() as programs:
        small = replace(programs, make=(*programs.make, "--lower-case-table-names=1"))
        with own_server(small, lower_case_table_names="1") as own:
            database = own.client.new_database()
            target = Target(own.client, database, "CREATE TABLE Flights (id BIGINT PRIMARY KEY, seq BIGINT)")
            sink = target.sink(table="Flights", metadata_schema=f"{database}_Own", **UPSERT)
            for epoch in range(2):
                run(sink, tmp_path, epoch, [{"id": 1, "seq": epoch}, {"id": 2 + epoch, "seq": 1}])
            assert target.run("SELECT * FROM flights ORDER BY id") == [("1", "1"), ("2", "1"), ("3", "1")]
            with pytest.raises(TargetNotEmptyError):
                run(sink, tmp_path / "another", 0, [{"id": 9, "seq": 9}])
