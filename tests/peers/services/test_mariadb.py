"""What MariaDB does in silence, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.support.mysql import MySQLServer, RefusedError, own_server


@pytest.fixture
def database(mariadb: MySQLServer) -> str:
    return mariadb.new_database()


def test_strict_mode_refuses_what_insert_would_change(mariadb: MySQLServer, database: str) -> None:
    with pytest.raises(RefusedError, match="Data too long"):
        mariadb.run("CREATE TABLE t (a VARCHAR(2)); INSERT INTO t VALUES ('abc')", database)


def test_load_data_local_makes_warnings_of_the_errors_of_strict_mode(
    mariadb: MySQLServer, database: str, tmp_path: Path
) -> None:
    """Duplicates too: the second row of a key is left out."""
    rows = tmp_path / "rows"
    rows.write_text("1\tabc\n1\tab\n")
    statements = (
        f"CREATE TABLE t (k INT PRIMARY KEY, a VARCHAR(2)); LOAD DATA LOCAL INFILE '{rows}' INTO TABLE t;"
        " SHOW WARNINGS; SELECT * FROM t"
    )
    *warnings, row = mariadb.run(statements, database, "--local-infile=1")
    assert ([warning[1] for warning in warnings], row) == (["1265", "1062"], ("1", "ab"))


def test_a_decimal_is_rounded_with_a_note_and_a_fraction_of_a_second_is_cut_off(
    mariadb: MySQLServer, database: str
) -> None:
    statements = (
        "CREATE TABLE t (d DECIMAL(5, 1), s DATETIME(0)); INSERT INTO t VALUES (1.25, '2026-01-01 00:00:00.999999');"
        " SHOW WARNINGS; SELECT * FROM t"
    )
    assert mariadb.run(statements, database) == [
        ("Note", "1265", "Data truncated for column 'd' at row 1"),
        ("1.3", "2026-01-01 00:00:00"),
    ]


def test_ddl_commits_what_is_open(mariadb: MySQLServer, database: str) -> None:
    statements = "CREATE TABLE t (a INT); BEGIN; INSERT INTO t VALUES (1); CREATE TABLE u (a INT); ROLLBACK;"
    assert mariadb.run(f"{statements} SELECT a FROM t", database) == [("1",)]


def test_a_collation_decides_which_keys_are_equal(mariadb: MySQLServer, database: str) -> None:
    mariadb.run(
        "CREATE TABLE t (k VARCHAR(9) PRIMARY KEY) COLLATE utf8mb4_general_ci; INSERT INTO t VALUES ('a')", database
    )
    for equal in ("A", "a ", "á"):
        with pytest.raises(RefusedError, match="ERROR 1062"):
            mariadb.run(f"INSERT INTO t VALUES ('{equal}')", database)


def test_an_upsert_fires_on_any_unique_index(mariadb: MySQLServer, database: str) -> None:
    statements = (
        "CREATE TABLE t (k INT PRIMARY KEY, u INT UNIQUE, a INT); INSERT INTO t VALUES (1, 7, 1);"
        " INSERT INTO t VALUES (2, 7, 2) ON DUPLICATE KEY UPDATE a = VALUES(a); SELECT * FROM t"
    )
    assert mariadb.run(statements, database) == [("1", "7", "2")]


@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
def test_some_engines_have_no_transactions(mariadb: MySQLServer, database: str, engine: str) -> None:
    statements = f"CREATE TABLE t (a INT) ENGINE={engine}; BEGIN; INSERT INTO t VALUES (1); ROLLBACK; SELECT a FROM t"
    assert mariadb.run(statements, database) == [("1",)]


@pytest.mark.faults
def test_what_was_committed_outlives_the_server() -> None:
    with own_server() as own:
        database = own.client.new_database()
        own.client.run("CREATE TABLE t (a INT); INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2)", database)
        own.kill()
        own.start()
        assert own.client.run("SELECT a FROM t", database) == [("1",)]
